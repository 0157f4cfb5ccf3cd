"""Ingest, as tests call it, and both engines asked about what came of it."""

from pathlib import Path
from typing import Any

import duckdb

from mergus.pipeline.ingest.job import Report, Wanted, ingest, listing
from mergus.pipeline.job import Place, Run, table
from mergus.pipeline.verify import chosen, verify
from tests.support.lakes import TestLake


def wanted(into: str, **given: Any) -> Wanted:
    name = table(into)
    return Wanted(name, name.beside(f"{name.name}_quarantine"), **given)


def ingested(place: Place, into: str, *sources: Path, run: Run | None = None, **given: Any) -> tuple[Run, Report]:
    run = run or Run("ingest", lambda _: None)
    report = Report()
    asked_for = wanted(into, **given)
    ingest(place, asked_for, listing(place, map(str, sources), asked_for.manner, run), run, report)
    return run, report


def asked(db: duckdb.DuckDBPyConnection, query: str) -> list[tuple[Any, ...]]:
    return db.execute(query).fetchall()


def agree(lake: TestLake, place: Place, namespace: str, newest: int | None = 1) -> None:
    """All tables of a namespace, the ledger and the quarantine among them, at their newest snapshots (None: at all)."""
    run = Run("verify", lambda _: None)
    report = verify(place, lake.of_writers, list(chosen(place.client, [namespace])), run, newest=newest)
    assert report.checked
    assert [one.json() for one in report.checked if one.state != "equal"] == []
