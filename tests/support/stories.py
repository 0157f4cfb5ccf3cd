"""An Iceberg engine and DuckDB take turns on one table, and are asked after each turn whether they see the same rows.

DuckDB is asked in the session that was attached all along, which writes as well, and in a fresh one. At the end of a
story the engine is asked for every snapshot, and DuckDB for the DuckLake snapshot that its summary names.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import pyarrow as pa
from pyiceberg.table import Table
from pyspark.sql import DataFrame

from mergus.ducklake.session import identifier
from tests.support import spark as sparks
from tests.support.lakes import TestLake
from tests.support.readers import Answer, Served, answer, difference

AT = "at_snapshot"

FLUSH = "CALL ducklake_flush_inlined_data('lake', schema_name => '{s}', table_name => 't')"
MERGE = "CALL ducklake_merge_adjacent_files('lake', 't', schema => '{s}')"
REWRITE = "CALL ducklake_rewrite_data_files('lake', 't', schema => '{s}', delete_threshold => 0)"


@dataclass
class Turns:
    """A table of a schema of its own. In queries `{t}` is the table, `{s}` the schema and `{c}` Spark's catalog."""

    served: Served
    schema: str
    db: duckdb.DuckDBPyConnection
    table: str = "t"

    @property
    def lake(self) -> TestLake:
        return self.served.lake

    @property
    def version(self) -> int:
        return self.served.format_version

    def other(self, table: str) -> "Turns":
        """The same story, about another table."""
        return replace(self, table=table)

    # DuckDB

    @property
    def name(self) -> str:
        return f"lake.{identifier(self.schema)}.{identifier(self.table)}"

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """What DuckDB says that was attached all along."""
        return self.db.execute(query.replace("{t}", self.name).replace("{s}", self.schema)).fetchall()

    def run_duckdb(self, *queries: str) -> None:
        for query in queries:
            self.ask(query)

    # Spark

    @property
    def in_spark(self) -> str:
        return f"{self.served.warm.spark}.`{self.schema}`.`{self.table}`"

    def frame(self, query: str) -> DataFrame:
        replaced = query.replace("{t}", self.in_spark).replace("{c}", self.served.warm.spark)
        return sparks.session().sql(replaced.replace("{s}", self.schema))

    def ask_spark(self, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.frame(query).collect()]

    def spark_rows(self) -> Answer:
        """With the row ids, where the format has them."""
        ids = ", _row_id AS rowid" if self.version >= 3 else ""
        return answer(self.frame(f"SELECT *{ids} FROM {{t}}").toArrow())

    def spark(self, *queries: str) -> Answer:
        """Spark's turns."""
        for query in queries:
            self.ask_spark(query)
        return self.agree(self.spark_rows())

    def duck(self, *queries: str) -> Answer:
        """DuckDB's turns, which Spark must see."""
        self.run_duckdb(*queries)
        return self.agree(self.spark_rows())

    # both

    def pyiceberg(self) -> Table:
        return self.served.warm.table(self.schema, self.table)

    def agree(self, theirs: Answer) -> Answer:
        """Do both sessions see what the engine sees?"""
        for who, session in (("attached all along", self.db), ("fresh", self.served.session())):
            # one transaction, which reads DuckLake's tables once
            session.begin()
            fault = difference(theirs, self._scanned(session, theirs, ""))
            assert fault is None, f"DuckDB, {who}: {fault}"
            total = theirs.rows.total()
            counted = session.execute(f"SELECT count(*), count(DISTINCT rowid) FROM {self.name}").fetchall()
            assert counted == [(total, total)], f"DuckDB, {who}: {counted} of {total}"
            for column, least, most in _probes(theirs):
                for probe in (least, most):
                    found = session.execute(f"SELECT count(*) FROM {self.name} WHERE {identifier(column)} = {probe}")
                    assert found.fetchall() == [(theirs.values(column).count(probe),)], f"DuckDB, {who}: {probe}"
            session.execute("SELECT snapshot_id, changes FROM lake.snapshots()").fetchall()
            session.commit()
        return theirs

    def agree_at_every_snapshot(self, *, at_least: int) -> None:
        """Spark through the one server, DuckDB's iceberg extension through the other, which has made nothing of it."""
        listed = self.ask_spark("SELECT snapshot_id, summary['ducklake.snapshot-id'] FROM {t}.snapshots")
        assert len(listed) >= at_least
        self.agree_at({int(ours): found for _, ours, found in self._in_spark_at(listed)})
        cold = self.served.cold
        self.agree_at({int(ours): cold.with_duckdb(self.schema, self.table, snapshot) for snapshot, ours in listed})

    def agree_with_pyiceberg_at_every_snapshot(self, table: Table, *, at_least: int) -> None:
        found: dict[int, Answer] = {}
        for snapshot in table.snapshots():
            assert snapshot.summary is not None
            ours = snapshot.summary["ducklake.snapshot-id"]
            assert ours is not None
            found[int(ours)] = answer(table.scan(snapshot_id=snapshot.snapshot_id).to_arrow())
        assert len(found) >= at_least
        self.agree_at(found)

    def agree_at(self, found: dict[int, Answer]) -> None:
        session = self.served.session()
        for at, theirs in found.items():
            fault = difference(self._scanned(session, theirs, f" AT (VERSION => {at})"), theirs)
            assert fault is None, f"at {at}: {fault}"

    def _scanned(self, session: duckdb.DuckDBPyConnection, like: Answer, at: str) -> Answer:
        """All rows with the columns of an engine, which may have them in another order."""
        columns = ", ".join(identifier(name) for name, _ in like.columns)
        return answer(session.execute(f"SELECT {columns} FROM {self.name}{at}").to_arrow_table())

    def _in_spark_at(self, listed: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str, Answer]]:
        """Snapshots of one schema in one query, or it takes too long."""
        alike: dict[str, list[tuple[int, str, DataFrame]]] = {}
        for snapshot_id, ours in listed:
            frame = self.frame(f"SELECT {snapshot_id} AS {AT}, * FROM {{t}} VERSION AS OF {snapshot_id}")
            alike.setdefault(frame.schema.json(), []).append((snapshot_id, ours, frame))
        for group in alike.values():
            together = group[0][2]
            for _, _, frame in group[1:]:
                together = together.unionAll(frame)
            read: pa.Table = together.toArrow()
            ats = read[AT].to_pylist()
            for snapshot_id, ours, _ in group:
                rows = read.filter(pa.array([at == snapshot_id for at in ats], pa.bool_()))
                yield snapshot_id, ours, answer(rows.drop_columns([AT]))


def _probes(found: Answer) -> Iterator[tuple[str, int, int]]:
    """The bounds of integer columns."""
    for name, kind in found.columns:
        values = [v for v in found.values(name) if v is not None] if kind in {"int", "long"} else []
        if values:
            yield name, min(values), max(values)


@contextmanager
def turns(served: Served, schema: str) -> Iterator[Turns]:
    """A schema of its own, made by DuckDB."""
    db = served.lake.duckdb()
    try:
        db.execute(f"CREATE SCHEMA lake.{identifier(schema)}")
        yield Turns(served, schema, db)
    finally:
        db.close()


def of_id(found: Answer) -> dict[int, int]:
    """The row id of each `id`."""
    return dict(found.values("id", "rowid"))
