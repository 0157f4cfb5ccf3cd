"""Traces that are off, cannot be had, or that nobody takes; and what is refused of variables."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus import otel, tracing
from mergus.config import Settings
from mergus.ducklake import told
from mergus.ducklake.snapshots import Made
from mergus.errors import SetupError
from mergus.materialise.causes import MOST_CAUSES, Causes
from mergus.serve import environment as variables_of
from tests.support import servers
from tests.support.collector import environment
from tests.support.lakes import TestLake


@contextmanager
def black_hole() -> Iterator[str]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["nobody there", "silent"])
def test_an_unreachable_collector_loses_traces_only(kind: str, lake: TestLake, tmp_path: Path) -> None:
    with black_hole() as silent:
        endpoint = silent if kind == "silent" else "http://127.0.0.1:1"
        told = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        bounded = {"OTEL_BSP_MAX_QUEUE_SIZE": "200", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "100"}
        with environment({**told, **bounded}), servers.server(lake.settings, tmp_path, tracing="otlp") as server:
            process = psutil.Process(server.process.pid)

            def ask(times: int) -> float:
                began = time.monotonic()
                for _ in range(times):
                    # four spans each
                    assert server.http.get("/v1/lake/namespaces").status_code == 200
                return (time.monotonic() - began) / times

            ask(200)
            before = process.memory_info().rss
            each = ask(500)
            grown = process.memory_info().rss - before
            server.process.terminate()
            began = time.monotonic()
            assert server.process.wait(20) in (0, -signal.SIGTERM)
            ended = time.monotonic() - began
    said = server.log.read_text()
    # of two thousand spans, each more than a kilobyte
    assert grown < 2**20
    assert "Queue full, dropping Span" in said
    assert each < 0.05
    assert ended < otel.SHUTDOWN_SECONDS + 3
    assert "Application shutdown complete" in said
    assert "Traceback" not in said


def run(code: str, settings: Settings, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **variables_of(settings), **variables}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False, timeout=60
    )


WITHOUT_THE_EXTRA = """
import sys
sys.modules["opentelemetry.sdk"] = None
sys.modules["opentelemetry.exporter"] = None
sys.argv = ["mergus", *{command!r}]
from mergus.cli import main
main()
"""


@pytest.mark.parametrize(
    "command", [["serve", "--no-init"], ["serve", "--no-init", "--workers", "2"], ["listen", "--no-init"]]
)
def test_tracing_without_its_packages_is_refused_at_the_start(command: list[str], lake: TestLake) -> None:
    settings = lake.settings.model_copy(update={"tracing": "otlp", "port": 0})
    done = run(WITHOUT_THE_EXTRA.format(command=command), settings)
    assert done.returncode == 1, done.stderr
    assert re.fullmatch(
        r"error: MERGUS_TRACING is otlp, and opentelemetry\.(sdk|exporter)[a-z._]* is not installed; "
        r"unset it, or install its packages with: \S+ -m pip install( opentelemetry-[a-z-]+==[\d.]+){2}\n",
        done.stderr,
    ), done.stderr


def test_the_opentelemetry_sdk_is_not_imported_if_tracing_is_off(lake: TestLake) -> None:
    """FastAPI imports OpenTelemetry's interface in any case, and would bring its own telemetry if it were let."""
    code = """
import asyncio, sys
import mergus.cli, mergus.materialise.listener, mergus.storage.objects, mergus.tracing
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
import mergus.listen, mergus.serve
from mergus.app import create_app
app = create_app()
async def served():
    heard = asyncio.Queue()
    for kind in ("startup", "shutdown"):
        heard.put_nowait({"type": f"lifespan.{kind}"})
    async def send(message):
        print(message["type"])
    await app({"type": "lifespan", "state": {}}, heard.get, send)
asyncio.run(served())
known = {".".join(name.split(".")[:2]) for name in sys.modules if name.startswith(("opentelemetry.", "mergus.otel"))}
print(sorted(known & {"opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto", "mergus.otel"}))
"""
    variables = {"FASTAPI_OTEL_AUTO_CONFIGURE": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    done = run(code, lake.settings, **variables)
    assert done.stdout.splitlines() == ["[]", "lifespan.startup.complete", "lifespan.shutdown.complete", "[]"], (
        done.stderr
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "Bearer recognisable", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", 'a=b,c="recognisable"', "OTEL_EXPORTER_OTLP_TRACES_HEADERS"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "1", "max_export_batch_size"),
    ],
)
def test_invalid_otel_variables_are_named_without_their_values(name: str, value: str, message: str) -> None:
    with environment({name: value}), pytest.raises(SetupError, match=message) as raised:
        otel.Otel().close()
    assert "recognisable" not in str(raised.value)


@pytest.mark.parametrize("value", ["", "a=b", "authorization=Bearer%20x, b = c=d", "api-key=a/b+c=,", "a=Bearer x"])
def test_otlp_headers_that_the_exporter_accepts_are_accepted(value: str, caplog: pytest.LogCaptureFixture) -> None:
    with environment({"OTEL_EXPORTER_OTLP_HEADERS": value}):
        otel.Otel().close()
    assert caplog.records == []


@given(st.text(st.sampled_from('ab=, ;"/x-Z9é\\')))
def test_otlp_headers_that_the_exporter_would_log_are_refused(value: str) -> None:
    from opentelemetry.util import re as exporters

    with environment({"OTEL_EXPORTER_OTLP_HEADERS": value}), pytest.MonkeyPatch.context() as patch:
        logged: list[tuple[str, ...]] = []
        patch.setattr(exporters._logger, "warning", lambda *said: logged.append(said))
        exporters.parse_env_headers(value, liberal=True)
        # of a blank it logs the blank
        logged = [said for said in logged if str(said[-1]).strip()]
        try:
            otel.check()
        except SetupError:
            return
        assert logged == []


@given(st.one_of(st.text(), st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps)))
def test_commit_extra_info_without_a_traceparent_joins_no_trace(text: str) -> None:
    assert told.trace(text) == {}
    assert told.trace(json.dumps({"traceparent": [text], "x": {"traceparent": text}})) == {}
    assert told.trace(json.dumps({"traceparent": text, "tracestate": 1})) == {"traceparent": text}
    assert told.trace('{"traceparent": ' + text[:1]) == {}


def made(snapshot_id: int, *tables: int) -> Made:
    return Made(snapshot_id, frozenset(tables), {})


def test_trace_causes_are_kept_until_their_table_is_materialised_and_not_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began: list[list[int]] = []

    def work(_: str, causes: list[tuple[int, object]], __: object) -> tracing.Span:
        began.append([snapshot_id for snapshot_id, _ in causes])
        return tracing.NOTHING

    monkeypatch.setattr(tracing, "work", work)
    causes = Causes()
    causes.note([made(2, 7, 8), made(1, 7)], {7})
    causes.working(7)
    # while it is worked on
    causes.note([made(4, 9), made(3, 7)], {7})
    # which failed
    causes.working(7)
    causes.done(7)
    causes.working(7)
    causes.working(8)
    causes.working(9)
    assert began == [[2, 1], [3, 2, 1], [], [], []]
    for number in range(10, 10 + 2 * MOST_CAUSES):
        causes.note([made(number, 7)], {7})
    causes.working(7)
    assert began[-1] == list(range(9 + 2 * MOST_CAUSES, 9 + MOST_CAUSES, -1))


def test_every_tracing_call_is_a_no_op_if_tracing_is_off() -> None:
    async def story() -> None:
        async with tracing.sent():
            assert not tracing.is_on()
            assert not tracing.records()
            assert tracing.carrier() == {}
            assert tracing.trace_id() is None
            spans = (
                tracing.child("a", {}),
                tracing.current(),
                tracing.request("b", {}, {}),
                tracing.work("c", [(1, {})], {}),
            )
            assert all(span is tracing.NOTHING for span in spans)
            with pytest.raises(ZeroDivisionError), tracing.NOTHING as span:
                span.set("a", 1)
                span.rename("b")
                span.fail("c")
                raise ZeroDivisionError

    asyncio.run(story())
