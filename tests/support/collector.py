"""A collector of traces: OTLP over HTTP, as the exporters of OpenTelemetry send it, on a port of its own."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from gzip import decompress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

KINDS = {
    ProtoSpan.SPAN_KIND_SERVER: "server",
    ProtoSpan.SPAN_KIND_CLIENT: "client",
    ProtoSpan.SPAN_KIND_CONSUMER: "consumer",
    ProtoSpan.SPAN_KIND_INTERNAL: "internal",
}


@dataclass(frozen=True)
class Span:
    name: str
    kind: str
    trace_id: str
    id: str
    parent_id: str
    start: int
    end: int
    failed: bool
    attributes: Mapping[str, Any]
    # (trace, span)
    links: tuple[tuple[str, str], ...]
    resource: Mapping[str, Any]
    # of an error, or an event: there must be none
    said: str

    def __getitem__(self, key: str) -> Any:
        return self.attributes.get(key)


@dataclass
class Collector:
    endpoint: str
    bodies: list[bytes] = field(default_factory=list[bytes])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    @property
    def spans(self) -> list[Span]:
        return [span for body in list(self.bodies) for span in _spans(body)]

    def trace(self, trace_id: str) -> list[Span]:
        return sorted((s for s in self.spans if s.trace_id == trace_id), key=lambda s: s.start)

    def whole_trace(self, trace_id: str, root: str, seconds: float = 15) -> list[Span]:
        """As soon as every span has its parent among them, or `root` for one: those that end late are sent late."""
        deadline = time.monotonic() + seconds
        while True:
            spans = self.trace(trace_id)
            known = {root, *(span.id for span in spans)}
            if not (lost := [span for span in spans if span.parent_id not in known]):
                return spans
            assert time.monotonic() < deadline, lost
            time.sleep(0.02)

    def wait_for(self, wanted: Callable[[Span], bool], seconds: float = 15, count: int = 1) -> list[Span]:
        """Spans that are sent, or have been."""
        deadline = time.monotonic() + seconds
        while len(found := [span for span in self.spans if wanted(span)]) < count:
            assert time.monotonic() < deadline, "\n".join(f"{s.trace_id} {s.name} {s.attributes}" for s in self.spans)
            time.sleep(0.02)
        return found


def _spans(body: bytes) -> Iterator[Span]:
    for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = {a.key: _value(a.value) for a in of_resource.resource.attributes}
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield Span(
                    name=span.name,
                    kind=KINDS[span.kind],
                    trace_id=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    start=span.start_time_unix_nano,
                    end=span.end_time_unix_nano,
                    failed=span.status.code == Status.STATUS_CODE_ERROR,
                    attributes={a.key: _value(a.value) for a in span.attributes},
                    links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                    resource=resource,
                    said=span.status.message + "".join(map(str, span.events)),
                )


def _value(value: AnyValue) -> Any:
    which = value.WhichOneof("value")
    if which == "array_value":
        return [_value(v) for v in value.array_value.values]
    return getattr(value, which) if which else None


@contextmanager
def collector(**variables: str) -> Iterator[Collector]:
    """Processes that are started meanwhile send their traces there, soon, if they are told to trace."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert (self.path, self.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
            made.headers.append(dict(self.headers))
            made.bodies.append(decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made = Collector(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        given = {"OTEL_EXPORTER_OTLP_ENDPOINT": made.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100", **variables}
        with environment(given):
            yield made
        server.shutdown()


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Of processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
