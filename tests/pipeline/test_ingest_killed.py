"""A stream in a process of its own, killed with kill -9: what takes it up goes on where it was, until asked to end."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

from mergus.cli import main
from tests.pipeline.ingesting import asked


@pytest.mark.usefixtures("as_user")
def test_a_killed_ingest_stream_resumes_where_it_stopped(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for i in range(4):
        (source / f"{i:02}.csv").write_text(f"i\n{i}\n")
    command = ["pipeline", "ingest", str(source), "--into", "killed.t", "--batch-files", "1"]
    command += ["--stream", "--every", "0.5", "--checkpoint", str(tmp_path / "checkpoint")]

    def count() -> int:
        there = asked(db, "SELECT count(*) FROM duckdb_tables() WHERE schema_name = 'killed' AND table_name = 't'")
        return asked(db, "SELECT count(*) FROM killed.t")[0][0] if there == [(1,)] else 0

    log = (tmp_path / "log").open("w")
    local = ["--master", "local[1]", "--conf", "spark.driver.bindAddress=127.0.0.1"]
    local += ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false"]
    first = subprocess.Popen(
        [sys.executable, "-m", "mergus", *command, *local], stderr=log, stdout=log, process_group=0
    )
    pause = threading.Event()
    try:
        while count() < 1:
            assert first.poll() is None, (tmp_path / "log").read_text()[-6000:]
            pause.wait(0.2)
    finally:
        # with the JVM that it has
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    assert count() < 4

    over = threading.Event()

    def end() -> None:
        """As an operator would, when all is in; or never, if the command ends by itself."""
        with db.cursor() as mine:
            while not over.wait(0.2):
                if mine.execute("SELECT count(*) FROM lake.killed.t").fetchone() == (4,):
                    os.kill(os.getpid(), signal.SIGTERM)
                    return

    waiting = threading.Thread(target=end)
    waiting.start()
    done = CliRunner().invoke(main, command)
    over.set()
    waiting.join()
    assert done.exit_code == 0, done.output
    assert '"state": "done"' in done.stdout
    assert asked(db, "SELECT i FROM killed.t ORDER BY i") == [(i,) for i in range(4)]
