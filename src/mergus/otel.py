"""Traces by way of OpenTelemetry's SDK: the one module that knows it, imported by `tracing` when traces are turned on.

How many are sampled, where they go and in which batches is as the standard variables (`OTEL_*`) say. Spans wait in a
bounded queue, which a thread of the SDK empties; what it has no room for is dropped.
"""

import os
import re
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Token
from types import TracebackType
from typing import Final, Self

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mergus import __version__
from mergus.errors import SetupError

Value = str | bool | int | Sequence[str] | Sequence[int]
Attributes = Mapping[str, Value]
Carrier = Mapping[str, str]

SHUTDOWN_SECONDS: Final = 3.0
# Of those whose work was done together, so many get a span in their own trace.
MOST_OTHERS: Final = 100

_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HEADERS: Final = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
# What the exporter takes; of anything else it would log the text, which may be a token.
_HEADER: Final = re.compile(r"|[!#-'*+\-.0-9A-Z^-z|~]+[ \t]*=[ \t]*[ !#-+\--:<-\[\]-~]*")
_BETWEEN: Final = re.compile(r"[ \t]*,[ \t]*")

_W3C: Final = TraceContextTextMapPropagator()


def check() -> None:
    """Raises SetupError for variables that cannot be used, and does not quote them."""
    spoken = next(filter(None, map(os.environ.get, _PROTOCOLS)), "http/protobuf")
    if spoken != "http/protobuf":
        raise SetupError("traces are sent by http/protobuf: OTEL_EXPORTER_OTLP_PROTOCOL names another protocol")
    for name in _HEADERS:
        if not all(map(_HEADER.fullmatch, _BETWEEN.split(os.environ.get(name, "").strip()))):
            raise SetupError(f"{name} is not a list of key=value with commas between them")


class Live:
    """A span. It is never told the text of an error: that may quote what was asked."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._token: Token[Context] | None = None

    def set(self, key: str, value: Value) -> None:
        self._span.set_attribute(key, value)

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def fail(self, kind: str) -> None:
        self._span.set_attribute("error.type", kind)
        self._span.set_status(StatusCode.ERROR)

    def __enter__(self) -> Self:
        self._token = context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(e, Exception):
            self.fail(type(e).__name__)
        if self._token is not None:
            context.detach(self._token)
        self._span.end()


class Otel:
    """Not made the process's provider: libraries that would trace by themselves do not."""

    def __init__(self) -> None:
        check()
        try:
            self._exporter = OTLPSpanExporter()
            processor = BatchSpanProcessor(self._exporter)
            self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        except ValueError as e:
            raise SetupError(f"traces cannot be sent as the OTEL_* variables say: {e}") from None
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("mergus", __version__)

    def close(self) -> None:
        """Sends what is left, if somebody takes it soon. The SDK would wait for a collector that is away."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(SHUTDOWN_SECONDS)
        if closing.is_alive():
            self._exporter.shutdown()

    def records(self) -> bool:
        return trace.get_current_span().is_recording()

    def current(self) -> Live:
        return Live(trace.get_current_span())

    def child(self, name: str, attributes: Attributes, *, is_call: bool) -> Live:
        kind = SpanKind.CLIENT if is_call else SpanKind.INTERNAL
        return Live(self._tracer.start_span(name, kind=kind, attributes=attributes))

    def request(self, name: str, carrier: Carrier, attributes: Attributes) -> Live:
        return Live(
            self._tracer.start_span(name, context=_continued(carrier), kind=SpanKind.SERVER, attributes=attributes)
        )

    @contextmanager
    def work(self, name: str, causes: Sequence[tuple[int, Carrier]], attributes: Attributes) -> Generator[Live]:
        """Of the causes that are in a trace, the first one's is continued, if any is sampled the first of those; the
        traces of the others tell when the work was done, and by which span."""
        told: dict[tuple[int, int], tuple[Context, list[int]]] = {}
        for snapshot_id, carrier in causes:
            theirs = _continued(carrier)
            if (found := _of(theirs)).is_valid:
                told.setdefault((found.trace_id, found.span_id), (theirs, []))[1].append(snapshot_id)
        ranked = sorted(told.values(), key=lambda of: not _of(of[0]).trace_flags.sampled)
        (parent, _), *others = ranked[: MOST_OTHERS + 1] or [(Context(), [])]
        links = [Link(_of(theirs)) for theirs, _ in others]
        span = self._consume(name, parent, [snapshot_id for snapshot_id, _ in causes], attributes, links)
        to_it = [Link(span.get_span_context())]
        elsewhere = [self._consume(name, theirs, ids, attributes, to_it) for theirs, ids in others]
        try:
            with Live(span) as live:
                yield live
        finally:
            for other in elsewhere:
                other.end()

    def _consume(
        self, name: str, parent: Context, ids: Sequence[int], attributes: Attributes, links: Sequence[Link]
    ) -> trace.Span:
        about: dict[str, Value] = {"mergus.snapshot.id": max(ids), "mergus.snapshot.ids": sorted(ids), **attributes}
        return self._tracer.start_span(name, context=parent, kind=SpanKind.CONSUMER, attributes=about, links=links)

    def carrier(self) -> dict[str, str]:
        found: dict[str, str] = {}
        _W3C.inject(found)
        return found

    def trace_id(self) -> str | None:
        found = trace.get_current_span().get_span_context()
        return trace.format_trace_id(found.trace_id) if found.is_valid else None


def _resource() -> Resource:
    found = Resource.create({"service.version": __version__, "process.pid": os.getpid()})
    if str(found.attributes[SERVICE_NAME]).startswith("unknown_service"):
        return found.merge(Resource({SERVICE_NAME: "mergus"}))
    return found


def _continued(carrier: Carrier) -> Context:
    """With the span that the carrier names, if it is in W3C's shape."""
    return _W3C.extract(carrier, context=Context())


def _of(found: Context) -> trace.SpanContext:
    return trace.get_current_span(found).get_span_context()
