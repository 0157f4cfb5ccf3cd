"""Traces, for MERGUS_TRACING=otlp: what all others see of them.

Off, which is the default, nothing of OpenTelemetry's SDK is imported, and whatever is called here answers at once with
nothing. What must hold:

- Nobody waits for a collector, whether it takes spans or not; a process that ends gives it a moment.
- A span says what was done and how it ended, never with which values: no parameters, no texts of errors, no headers
  but those that are named where it is made.
- What happens on behalf of nobody, as beats and probes do, makes no trace: only `request` and `work` begin one, and
  `child` is a part of what is under way or nothing.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from mergus.config import Settings
from mergus.errors import SetupError
from mergus.extras import install_command

if TYPE_CHECKING:
    from mergus.otel import Otel

Value = str | bool | int | Sequence[str] | Sequence[int]
Attributes = Mapping[str, Value]
# A trace and what is under way in it, as W3C's headers `traceparent` and `tracestate`.
Carrier = Mapping[str, str]


class Span(Protocol):
    """Something that is under way; it ends with its block, and badly if that raises."""

    def set(self, key: str, value: Value) -> None: ...

    def rename(self, name: str) -> None: ...

    def fail(self, kind: str) -> None:
        """It ended badly; `kind` is a word for how, with nothing in it of what was asked or answered."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None: ...


class _Nothing:
    __slots__ = ()

    def set(self, key: str, value: Value) -> None:
        pass

    def rename(self, name: str) -> None:
        pass

    def fail(self, kind: str) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        pass


NOTHING: Final[Span] = _Nothing()

_otel: "Otel | None" = None


def check(settings: Settings) -> None:
    """Raises SetupError if traces are wanted and cannot be had."""
    if settings.tracing == "off":
        return
    try:
        from mergus import otel
    except ImportError as e:
        raise SetupError(
            f"MERGUS_TRACING is {settings.tracing}, and {e.name} is not installed; unset it, or install its packages "
            f"with: {install_command('otel')}"
        ) from None
    otel.check()


def setup(settings: Settings) -> None:
    """Once in each process, after it was forked from another."""
    global _otel  # noqa: PLW0603
    check(settings)
    if settings.tracing != "off" and _otel is None:
        from mergus.otel import Otel

        _otel = Otel()


@asynccontextmanager
async def sent() -> AsyncGenerator[None]:
    """What is traced meanwhile is sent before the end, if anybody takes it."""
    global _otel
    try:
        yield
    finally:
        if _otel is not None:
            closing, _otel = _otel, None
            await asyncio.to_thread(closing.close)


def is_on() -> bool:
    return _otel is not None


def records() -> bool:
    """Whether anything is under way that is traced, and sampled."""
    return _otel is not None and _otel.records()


def child(name: str, attributes: Attributes, *, is_call: bool = True) -> Span:
    """A part of what is under way. `is_call`: somebody else is asked for it."""
    return NOTHING if _otel is None or not _otel.records() else _otel.child(name, attributes, is_call=is_call)


def current() -> Span:
    """What is under way, to say more about it; not to be entered."""
    return NOTHING if _otel is None else _otel.current()


def request(name: str, carrier: Carrier, attributes: Attributes) -> Span:
    """A client's request, in the client's trace if it has one."""
    return NOTHING if _otel is None else _otel.request(name, carrier, attributes)


def work(name: str, causes: Sequence[tuple[int, Carrier]], attributes: Attributes) -> AbstractContextManager[Span]:
    """What follows from snapshots, newest first, each with the trace of who made it: a part of the first trace that
    there is, or a trace of its own. Nothing, if it follows from none."""
    return NOTHING if _otel is None or not causes else _otel.work(name, causes, attributes)


def carrier() -> dict[str, str]:
    """For who goes on with what is under way; empty if that is in no trace. One that is not sampled is told, too, so
    that nobody samples a part of it."""
    return {} if _otel is None else _otel.carrier()


def trace_id() -> str | None:
    """Of what is under way."""
    return None if _otel is None else _otel.trace_id()
