"""Logs: one JSON object a line, with the request id and the trace of whatever was under way.

Free text never carries a secret: everything that goes through here is passed by `hide_password` first.
"""

import json
import logging
import re
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from mergus import tracing
from mergus.config import Settings, hide_password

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

log = logging.getLogger("mergus")

# Of what a client wrote, or of what quotes it.
_MOST_CHARACTERS: Final = 500
# What needs no quotes in a line of text.
_PLAIN: Final = re.compile(r"[^\s\"]+")


def foreign_text(text: str) -> str:
    """For a field of a line: what somebody else wrote, on one line, not long, and without a password."""
    shown = hide_password(text[: 4 * _MOST_CHARACTERS])
    cut = shown[:_MOST_CHARACTERS] + ("…" if len(shown) > _MOST_CHARACTERS else "")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": hide_password(record.getMessage()),
        }
        if (rid := request_id.get()) is not None:
            line["request_id"] = rid
        if (trace := tracing.trace_id()) is not None:
            line["trace_id"] = trace
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = hide_password(self.formatException(record.exc_info))
        return orjson.dumps(line, default=str).decode()


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {k}={_quoted(v)}" for k, v in getattr(record, "fields", {}).items())
        rid = f" request_id={r}" if (r := request_id.get()) else ""
        trace = f" trace_id={t}" if (t := tracing.trace_id()) else ""
        text = f"{record.levelname:<7} {record.name}: {record.getMessage()}{fields}{rid}{trace}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return hide_password(text)


def _quoted(value: object) -> object:
    """A text with spaces in it cannot be taken for another field."""
    if not isinstance(value, str) or _PLAIN.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def configure(settings: Settings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    # uvicorn brings handlers of its own: everything goes through ours instead, and the access log is the
    # one that the request boundary writes
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = name != "uvicorn.access"
    # at DEBUG it writes requests and answers out, with session tokens and the keys that STS gives
    logging.getLogger("botocore").setLevel(max(logging.INFO, logging.getLogger().level))
    logging.getLogger("psycopg.pool").setLevel("ERROR" if settings.log_level != "DEBUG" else "DEBUG")
