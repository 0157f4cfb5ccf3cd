"""LoadTable without a framework, for the answers that are ready.

Engines load a table for every query, and most loads find it unchanged: such a request is answered by the bytes of the
last, after the freshness check and the gate. Whatever is not that plain goes the way of every other operation: another
path or query, a table that is not in the cache, an error.
"""

import re
from functools import lru_cache
from typing import Final

from starlette.types import Scope, Send

from mergus.access.context import RequestContext
from mergus.access.privileges import LOAD
from mergus.catalog.delegation import HEADER, parse_header
from mergus.catalog.lake import Lake
from mergus.catalog.load_table import load_cached
from mergus.catalog.table_cache import Body, Snapshots
from mergus.errors import ApiError
from mergus.iceberg.namespace import Namespace
from mergus.rest.answer_headers import security
from mergus.rest.request import decode_segment

OPERATION: Final = "loadTable"
# What a representation depends on: its form, who may have which keys, and whose clock it goes by.
VARY: Final = b"Accept-Encoding, Authorization, User-Agent, X-Iceberg-Access-Delegation"
# Every answer is about this moment and this client: who keeps it asks before using it again.
CACHE_CONTROL: Final = b"private, no-cache"

_DELEGATION: Final = HEADER.encode()
_QUERIES: Final[dict[bytes, Snapshots]] = {b"": "all", b"snapshots=all": "all", b"snapshots=refs": "refs"}
_KEPT_PATHS: Final = 10_000
_REFUSED: Final = re.compile(r"q=0(\.0*)?")


async def answer_with(body: Body, headers: dict[bytes, bytes]) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Status, headers and content for a request with these headers: in the form that it takes, or nothing if it has
    that already."""
    form = await body.packed() if _takes_gzip(headers.get(b"accept-encoding", b"")) else body.plain
    etag = form.etag.encode()
    # one address has several representations: who goes by its own clock gets other times
    sent = [(b"etag", etag), (b"vary", VARY), (b"cache-control", CACHE_CONTROL)]
    asked = headers.get(b"if-none-match")
    if asked is not None and any(tag.strip().removeprefix(b"W/") == etag for tag in asked.split(b",")):
        return 304, sent, b""
    if form.is_packed:
        sent.append((b"content-encoding", b"gzip"))
    sent += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(form.data))]
    return 200, sent, form.data


@lru_cache(1000)
def _takes_gzip(accepted: bytes) -> bool:
    for part in accepted.decode("latin-1").lower().split(","):
        coding, _, weight = part.partition(";")
        if coding.strip() == "gzip":
            return not _REFUSED.fullmatch(weight.replace(" ", ""))
    return False


class ReadyTables:
    def __init__(self) -> None:
        self._paths: dict[bytes, tuple[str, Namespace, str] | None] = {}

    async def answer(self, lake: Lake, scope: Scope, headers: dict[bytes, bytes], request_id: str, send: Send) -> int:
        """The status that was sent; 0 if nothing was."""
        snapshots = _QUERIES.get(scope["query_string"])
        target = self._target(scope["raw_path"]) if snapshots is not None else None
        if snapshots is None or target is None or target[0] != lake.settings.prefix:
            return 0
        agent, asked = headers.get(b"user-agent"), headers.get(_DELEGATION)
        try:
            principal = await lake.authenticator.principal(headers.get(b"authorization"))
            context = RequestContext(
                OPERATION,
                request_id,
                principal,
                agent.decode("latin-1") if agent else None,
                needs=LOAD,
                delegation=parse_header(asked.decode("latin-1")) if asked else frozenset(),
            )
            scope.setdefault("state", {})["context"] = context
            body = await load_cached(lake, context, target[1], target[2], snapshots)
        except Exception:
            # whatever it is happens again there, where it is answered
            return 0
        if body is None or not context.authorised:
            return 0
        status, sent, data = await answer_with(body, headers)
        sent += [(b"x-request-id", request_id.encode()), *security(scope.get("scheme", "http"))]
        await send({"type": "http.response.start", "status": status, "headers": sent})
        await send({"type": "http.response.body", "body": data})
        return status

    def _target(self, path: bytes) -> tuple[str, Namespace, str] | None:
        """Prefix, namespace and table of a path like /v1/{prefix}/namespaces/{namespace}/tables/{table}."""
        if path not in self._paths:
            if len(self._paths) >= _KEPT_PATHS:
                self._paths.clear()
            self._paths[path] = _parse(path)
        return self._paths[path]


def _parse(path: bytes) -> tuple[str, Namespace, str] | None:
    parts = path.decode("latin-1").split("/")
    if len(parts) != 7 or parts[:2] != ["", "v1"] or parts[3] != "namespaces" or parts[5] != "tables":
        return None
    try:
        prefix, namespace, table = (decode_segment(parts[i]) for i in (2, 4, 6))
        return prefix, Namespace.of_path(namespace), table
    except ApiError:
        return None
