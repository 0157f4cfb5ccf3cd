"""Requests made up from Iceberg's OpenAPI document, right ones and wrong ones, against a server of its own.

    ./scripts/fuzz [--seconds N] [options of `schemathesis run`]

Nothing may be answered 5xx, with a status that the document does not list for the operation, or with content that is
not as the document has it. The same seed makes the same requests.
"""

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from tests.conformance import documents, seeds
from tests.support import lakes, servers
from tests.support.lakes import TestLake
from tests.support.servers import Server

SEED = 2026
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
PHASES = "examples,coverage,fuzzing"
SECONDS = 600


@dataclass(frozen=True, slots=True)
class Outcome:
    passed: bool
    said: str
    # how often each operation was answered with each status
    tally: dict[str, Counter[int]]


def run(lake: TestLake, server: Server, folder: Path, *options: str, seconds: int | None = None) -> Outcome:
    """On a lake that nobody else uses. One run for each document that has something of what the server announces. With
    `seconds` it goes on for so long; else it ends by itself, after the same requests each time."""
    config = server.http.get("/v1/config").json()
    prefix = config["overrides"]["prefix"]
    seeds.begin(lake, server.http, config["endpoints"], prefix)
    before = _tally(server)
    fitted = [d for d in documents.documents(config["endpoints"], prefix) if d["paths"]]
    count = sum(len(d["paths"]) for d in fitted)
    done: list[subprocess.CompletedProcess[str]] = []
    for number, document in enumerate(fitted):
        file = folder / f"document-{number}.yaml"
        file.write_text(yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False))
        share = [] if seconds is None else ["--max-time", str(max(5, seconds * len(document["paths"]) // count))]
        done.append(_schemathesis(server, file, *share, *options))
    failures = [line for line in server.log.read_text().splitlines() if '"level": "ERROR"' in line]
    said = "\n".join([*(process.stdout + process.stderr for process in done), *failures[:20]])
    tally = {name: found - before.get(name, Counter()) for name, found in _tally(server).items()}
    return Outcome(all(process.returncode == 0 for process in done), said, tally)


def _tally(server: Server) -> dict[str, Counter[int]]:
    tally: dict[str, Counter[int]] = {}
    pattern = r'mergus_requests_total\{operation="(\w+)",status="(\d+)"\} (\S+)'
    for operation, status, times in re.findall(pattern, server.http.get("/metrics").text):
        tally.setdefault(operation, Counter())[int(status)] = int(float(times))
    return tally


def _schemathesis(server: Server, file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    environment = {
        **os.environ,
        seeds.URI: server.uri,
        "SCHEMATHESIS_HOOKS": "tests.conformance.seeds",
        "PYTHONPATH": str(root),
    }
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", str(file), "--url", server.uri),
        *("--checks", CHECKS, "--phases", PHASES, "--mode", "all", "--seed", str(SEED)),
        *("--request-timeout", "30", "--no-color", "--warnings", "off"),
        # they are about how hard requests are to make up, which is the document's doing
        *("--suppress-health-check", "all"),
        *options,
    ]
    return subprocess.run(command, env=environment, cwd=file.parent, text=True, capture_output=True, check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=SECONDS)
    given, options = parser.parse_known_args()
    with (
        TemporaryDirectory(prefix="mergus-fuzz-") as folder,
        lakes.lake() as lake,
        servers.server(lake.settings, Path(folder)) as server,
    ):
        outcome = run(lake, server, Path(folder), *options, seconds=given.seconds)
    print(outcome.said)
    for operation, statuses in sorted(outcome.tally.items()):
        print(f"{operation:24}", ", ".join(f"{status}: {times}" for status, times in sorted(statuses.items())))
    return 0 if outcome.passed else 1


if __name__ == "__main__":
    sys.exit(main())
