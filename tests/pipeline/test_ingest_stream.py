"""Runs `streams.py` in a process that has a Spark of its own.

Spark calls the function of a stream in a Python process. If several processes of the suite share one Spark, it calls
any of them, and only one knows the function.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.support import spark

STREAMS = Path(__file__).with_name("streams.py")


def test_streams_ingest_every_file_once(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", spark.VARIABLE))}
    command = [sys.executable, "-m", "pytest", "-q", f"--basetemp={tmp_path / 'streams'}", str(STREAMS)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
