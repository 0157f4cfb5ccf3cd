"""What traces cost:  ./scripts/bench bench.tracing

The same requests to servers that differ in nothing but MERGUS_TRACING and the sampler, by turns. What counts is the
processor time of the server for a request, with its thread that sends: it depends little on what else a machine does.
The collector is a process of its own that throws away what it receives.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from uuid import uuid4

import psutil
from tests.support import lakes, servers
from tests.support.collector import environment
from tests.support.servers import Server

from bench import load
from mergus.embedded.state import free_port
from mergus.process import end_with_parent

ROUNDS = 7
SECONDS = 1.5
PATH = "/v1/lake/namespaces/main/tables/orders"
COLLECTOR = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *args):
        pass
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
KINDS = {
    "off": ({}, "off"),
    "all sampled": ({}, "otlp"),
    "1 % sampled": ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"}, "otlp"),
}


def main() -> None:
    port = free_port()
    taken = subprocess.Popen([sys.executable, "-c", COLLECTOR, str(port)], preexec_fn=end_with_parent)
    with tempfile.TemporaryDirectory() as name, lakes.lake() as lake, ExitStack() as stack:
        with lake.duckdb() as db:
            db.execute("CREATE TABLE orders AS SELECT range AS id FROM range(1000)")
        running: dict[str, Server] = {}
        for kind, (variables, tracing) in KINDS.items():
            with environment({"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", **variables}):
                server = servers.server(lake.settings, Path(name), tracing=tracing, listener="off")
                running[kind] = stack.enter_context(server)
            running[kind].http.get(PATH)
        cases: dict[str, Callable[[Server], int]] = {
            "LoadTable, ready, c = 1": lambda s: requests(s, PATH, 1),
            "LoadTable, ready, c = 8": lambda s: requests(s, PATH, 8),
            "list namespaces, c = 1": lambda s: requests(s, "/v1/lake/namespaces", 1),
            "create a namespace, c = 1": creations,
        }
        print(f"{'µs of the server a request':<30}" + "".join(f"{kind:>18}" for kind in KINDS))
        for what, work in cases.items():
            found: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for _ in range(ROUNDS):
                for kind, server in running.items():
                    found[kind].append(cost(server, work))
            middle = {kind: median(costs) for kind, costs in found.items()}
            print(f"{what:<30}" + "".join(f"{1e6 * middle[k]:>10.0f} ({middle[k] / middle['off']:.2f})" for k in KINDS))
    taken.terminate()
    taken.wait()


def cost(server: Server, work: Callable[[Server], int]) -> float:
    """Seconds of the server's processor time for each of the requests that the work makes."""
    process = psutil.Process(server.process.pid)
    before = process.cpu_times()
    made = work(server)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / made


def requests(server: Server, path: str, connections: int) -> int:
    done = load.run(int(server.uri.rpartition(":")[2]), [load.get(path)], connections, SECONDS)
    assert set(done.statuses) == {200}, done.statuses
    return done.requests


def creations(server: Server) -> int:
    made = 0
    began = time.monotonic()
    while time.monotonic() < began + SECONDS:
        assert server.create(uuid4().hex).status_code == 200
        made += 1
    return made


if __name__ == "__main__":
    main()
