"""A table that both sides write: what one did is asked of the other, in every way that has ever gone wrong."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from uuid import uuid4

import duckdb
import httpx
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from mergus.ducklake.session import identifier, literal
from tests.support import loads
from tests.support.lakes import Row, TestLake
from tests.support.servers import Server
from tests.support.writers import Raw, rows

# values of a table that are asked for one by one
FILTERS = 4


@dataclass
class Sharing:
    """A lake and a server, and a DuckDB instance for sessions that have seen nothing yet."""

    lake: TestLake
    server: Server
    format_version: int

    @cached_property
    def catalog(self) -> Catalog:
        return loads.catalog(self.lake.settings, self.server)

    @cached_property
    def instance(self) -> duckdb.DuckDBPyConnection:
        made = self.lake.duckdb()
        made.execute("USE memory")
        made.execute("DETACH lake")
        return made

    @contextmanager
    def fresh(self) -> Iterator[tuple[duckdb.DuckDBPyConnection, str]]:
        """A session in which nothing is cached, and the name that the lake has there."""
        session, alias = self.instance.cursor(), f"l_{uuid4().hex[:8]}"
        source = literal(f"ducklake:postgres:{self.lake.of_writers.dsn}")
        session.execute(f"ATTACH {source} AS {alias} (CREATE_IF_NOT_EXISTS false)")
        try:
            yield session, alias
        finally:
            with suppress(duckdb.Error):
                session.execute(f"DETACH {alias}")
            session.close()

    @contextmanager
    def open(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A session of its own, with the lake in use as `lake`."""
        made = self.lake.duckdb()
        try:
            yield made
        finally:
            made.close()

    @contextmanager
    def table(self, *setup: str, columns: str = "i INTEGER, s VARCHAR") -> Iterator["Shared"]:
        """A table `t` in a schema of its own, made by DuckDB, and read by the session that goes on with it.

        At the end PyIceberg has to read at every snapshot what DuckDB reads.
        """
        schema = f"s_{uuid4().hex[:8]}"
        with self.open() as db:
            db.execute(f"CREATE SCHEMA {schema}")
            db.execute(f"USE lake.{schema}")
            db.execute(f"CREATE TABLE t({columns})")
            for statement in setup:
                db.execute(statement)
            made = Shared(self, schema, db)
            # so that what the session knows of the table is cached
            db.execute("SELECT * FROM t WHERE i >= 0").fetchall()
            db.execute("SELECT count(*) FROM t").fetchall()
            yield made
            made.agrees()


@dataclass
class Shared:
    sharing: Sharing
    schema: str
    db: duckdb.DuckDBPyConnection
    name: str = "t"
    _turn: int = 0

    def ask(self, query: str) -> list[Row]:
        """In the session that has read the table before."""
        return self.db.execute(query).fetchall()

    def tell(self, *statements: str) -> None:
        for statement in statements:
            self.db.execute(statement.replace("{schema}", self.schema))

    def asked_afresh(self, query: str) -> list[Row]:
        """In a session that has seen nothing yet; `{t}` is the table."""
        with self.sharing.fresh() as (session, alias):
            return session.execute(query.replace("{t}", f"{alias}.{self.schema}.{identifier(self.name)}")).fetchall()

    def iceberg(self) -> Table:
        """As it is now, in PyIceberg."""
        return self.sharing.catalog.load_table((self.schema, self.name))

    def stale(self) -> Table:
        """The same, but its commits are not tried again if the table has changed by then."""
        found = self.iceberg()
        found.metadata.properties["commit.retry.num-retries"] = "0"
        return found

    def append(self, *numbers: int) -> None:
        """By PyIceberg where it can: it writes no table of version 3."""
        if self.sharing.format_version < 3:
            self.iceberg().append(rows(*numbers))
        else:
            raw = self.raw()
            done(raw.commit("append", add=[raw.data_file(rows(*numbers))]))

    def overwrite(self, *numbers: int) -> None:
        """All rows by these."""
        if self.sharing.format_version < 3:
            self.iceberg().overwrite(rows(*numbers))
        else:
            raw = self.raw()
            done(raw.commit("overwrite", remove=raw.paths(), add=[raw.data_file(rows(*numbers))]))

    def delete(self, *numbers: int) -> None:
        """By position, or by a deletion vector."""
        raw = self.raw()
        done(raw.commit("delete", deletes=raw.deletes(raw.places(lambda row: row["i"] in numbers))))

    def raw(self) -> Raw:
        return Raw(self.sharing.lake, self.sharing.server, self.name, self.schema)

    def table_id(self) -> int:
        query = """SELECT table_id FROM ducklake_table JOIN ducklake_schema s USING (schema_id)
                   WHERE schema_name = %s AND table_name = %s AND ducklake_table.end_snapshot IS NULL"""
        ((found,),) = self.sharing.lake.sql(query, self.schema, self.name)
        return found

    def head(self) -> int:
        ((found,),) = self.sharing.lake.sql("SELECT max(snapshot_id) FROM ducklake_snapshot")
        return found

    def shows(self, wanted: Iterable[int], *, gone: Sequence[int] = ()) -> None:
        """All sides have just these values of `i`, and none of those that are gone, however they are asked for.

        Asked are a DuckDB session that has read the table before, a fresh one, and PyIceberg. One session asks for
        equal values where the other asks for a range, and they change over each time.
        """
        numbers = sorted(wanted)
        self._turn += 1
        with self.sharing.fresh() as (session, alias):
            _holds("fresh", session, f"{alias}.{self.schema}.{self.name}", numbers, gone, self._turn)
            # of the lake, however it was written
            assert session.execute(f"SELECT snapshot_id, changes FROM {alias}.snapshots()").fetchall()
        _holds("open", self.db, f"lake.{self.schema}.{self.name}", numbers, gone, self._turn + 1)
        assert self.db.execute("SELECT snapshot_id, changes FROM lake.snapshots()").fetchall()
        table = self.iceberg()
        assert sorted(table.scan().to_arrow()["i"].to_pylist()) == numbers
        for value in _some(numbers):
            assert table.scan(f"i = {value}").to_arrow().num_rows == numbers.count(value), value
        for value in gone:
            assert table.scan(f"i = {value}").to_arrow().num_rows == 0, value

    def agrees(self) -> list[int]:
        """PyIceberg reads at every snapshot what a fresh DuckDB session reads; their ids in the lake."""
        with self.sharing.fresh() as (session, alias):
            session.execute(f"USE {alias}")
            try:
                return loads.assert_readable(self.sharing.lake, self.sharing.server, session, self.name, self.schema)
            finally:
                session.execute("USE memory")

    def history(self, first: int) -> list[int]:
        """Rows at each snapshot of the lake from this one on, by a full scan and by what the catalog says."""
        found: list[int] = []
        for at in range(first, self.head() + 1):
            ((counted, scanned),) = self.asked_afresh(
                f"SELECT count(*), (SELECT coalesce(sum(1 + 0 * i), 0) FROM {{t}} AT (VERSION => {at})) "
                f"FROM {{t}} AT (VERSION => {at})"
            )
            assert counted == scanned, f"at {at}"
            found.append(counted)
        return found

    def row_ids(self) -> dict[int, int]:
        """By `i`, as DuckDB has them."""
        return dict(self.asked_afresh("SELECT i, rowid FROM {t}"))


def _holds(
    who: str, session: duckdb.DuckDBPyConnection, table: str, numbers: Sequence[int], gone: Sequence[int], turn: int
) -> None:
    def ask(query: str) -> list[Row]:
        return session.execute(query).fetchall()

    # one transaction, which reads DuckLake's tables once
    session.begin()
    assert [i for (i,) in ask(f"SELECT i FROM {table} ORDER BY i")] == numbers, who
    # not as one query: a count alone is answered from what the catalog says
    assert ask(f"SELECT count(*) FROM {table}") == [(len(numbers),)], who
    assert ask(f"SELECT coalesce(sum(1 + 0 * i), 0) FROM {table}") == [(len(numbers),)], who
    assert ask(f"SELECT count(DISTINCT rowid) FROM {table}") == [(len(numbers),)], who
    for at, value in enumerate(_some(numbers)):
        if (at + turn) % 2 == 0:
            assert ask(f"SELECT i FROM {table} WHERE i = {value}") == [(value,)] * numbers.count(value), (
                f"{who}: {value}"
            )
        else:
            wanted = sum(i >= value for i in numbers)
            assert ask(f"SELECT count(*) FROM {table} WHERE i >= {value}") == [(wanted,)], f"{who}: {value}"
    for value in gone:
        assert ask(f"SELECT i FROM {table} WHERE i = {value}") == [], f"{who}: {value}"
    session.commit()


def _some(numbers: Sequence[int]) -> list[int]:
    """The ends, and some between."""
    known = sorted(set(numbers))
    if len(known) <= FILTERS:
        return known
    return sorted({known[round(n * (len(known) - 1) / (FILTERS - 1))] for n in range(FILTERS)})


def done(answer: httpx.Response) -> None:
    assert answer.status_code == 200, answer.text
