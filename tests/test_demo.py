"""The demo, as somebody who has just cloned the project sees it; and its report."""

import os
import subprocess
from pathlib import Path

import psutil

from mergus.demo.report import Commit, Told, commits_of, html, text

ROOT = Path(__file__).parents[1]
COMMITS = [
    Commit("bronze.<o>", "DuckDB", 1_000_000, "append", 100),
    Commit("silver.o", "Spark", 1_005_000, "append", 90),
    Commit("bronze.<o>", "DuckDB", 1_010_000, "delete", 50),
]
TOLD = Told("A <title>", True, COMMITS, [("Chad", 3)], ["country", "orders"], {"verify": "all the same"})


def test_the_demo_succeeds_and_leaves_nothing_behind(tmp_path: Path) -> None:
    # somebody has a lake of their own, which must not be touched
    env = {**os.environ, "MERGUS_POSTGRES_DSN": "postgresql://nobody@nowhere/theirs", "MERGUS_URI": "http://nowhere"}
    page = tmp_path / "page.html"
    command = [str(ROOT / "scripts/demo"), "--orders", "2000", "--runs", "1", "--page", str(page)]
    command += ["--conf", "spark.driver.memory=1g", "--conf", "spark.ui.enabled=false"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert "are the same, row for row, to Spark and DuckDB" in done.stdout
    assert "gold: is what DuckDB's own SQL gives of bronze" in done.stdout
    assert "NoSuchTable" not in done.stderr
    assert page.read_text().count("<circle") > 20
    ours = [p for p in psutil.process_iter(["cwd", "cmdline"]) if "mergus-demo-" in " ".join(p.info["cmdline"] or [])]
    assert ours == []


def test_the_demo_report_is_rendered_as_text() -> None:
    told = text(TOLD).splitlines()
    assert told[0] == "A <title>"
    (bronze,) = [line for line in told if line.startswith("bronze.<o>")]
    assert bronze.split()[1:4] == ["50", "2", "0"]
    (duckdb,) = [line for line in told if line.startswith("DuckDB  ")]
    (spark,) = [line for line in told if line.startswith("Spark  ")]
    assert [duckdb.count("|"), spark.count("|")] == [2, 1]
    assert duckdb.index("|") < spark.index("|") < duckdb.rindex("|")
    assert told[-1] == "verify: all the same"


def test_the_demo_report_is_rendered_as_escaped_html() -> None:
    page = html(TOLD)
    assert (page.count("<circle"), page.count("<polyline")) == (3, 2)
    assert "A &lt;title&gt;" in page
    assert "<o>" not in page


def test_the_demo_attributes_commits_to_duckdb_or_spark() -> None:
    summary = {"operation": "append", "total-records": "9", "total-position-deletes": "2"}
    listed = [
        {"snapshot-id": 7, "timestamp-ms": 1, "summary": summary},
        {"snapshot-id": 2**40, "timestamp-ms": 2, "summary": {"operation": "delete"}},
    ]
    assert list(commits_of("t", {"snapshots": listed})) == [
        Commit("t", "DuckDB", 1, "append", 7),
        Commit("t", "Spark", 2, "delete", 0),
    ]
    assert list(commits_of("t", {})) == []
