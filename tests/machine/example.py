"""One example: a program run on two tables of its own, and what is asked about them.

Loads come when the program says, through two servers, so that chains are made of every state and from every other; at
the end one more is made by nobody who knows anything, from rows alone.

What is right is asked twice. `AT (VERSION => n)` is what DuckDB says now. What it said when n was the newest snapshot
was noted then, as DuckDB has bugs that rewrite history (N§10): where the two differ, one of them must be what is shown.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import duckdb
import orjson
import psycopg
from pyiceberg.io import FileIO

from mergus.catalog.lake import open_lake
from mergus.materialise.metadata import describe, render
from tests.machine.iceberg_view import IcebergView, Rows
from tests.machine.invariants import check
from tests.machine.model import DEFAULTS, VALUES, WIDER, Column, Model
from tests.machine.programs import Program
from tests.support.lakes import TestLake
from tests.support.servers import Server

LIVE: Final = """
    SELECT s.snapshot_id, c.changes_made FROM ducklake_snapshot s
    LEFT JOIN ducklake_snapshot_changes c ON c.snapshot_id = s.snapshot_id ORDER BY 1
"""
HEAD: Final = "SELECT max(snapshot_id) FROM ducklake_snapshot"
FIND: Final = """
    SELECT t.table_id, t.begin_snapshot FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id
    WHERE t.end_snapshot IS NULL AND s.end_snapshot IS NULL AND s.schema_name = %s AND t.table_name = %s
"""
FORGET: Final = "DELETE FROM mergus.chain WHERE table_id = %s"
SET_PROPERTY: Final = "INSERT INTO mergus.table_property VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
RAISE_EPOCH: Final = "UPDATE mergus.catalog SET epoch = epoch + 1"

# What DuckDB refuses to do: nothing has happened then.
REFUSALS: Final = (
    # the table is partitioned or sorted by it
    "Cannot drop column",
    # it has NULLs, or nobody knows
    "Cannot SET NOT NULL",
    # rewriting, while inlined rows of an older version lack a column (N§10)
    "Failed to read inlined-data aggregates",
    # flushing rows that lack a column by which the table is sorted since
    "Attempting to fetch from an unsuccessful query result",
    # flushing or rewriting a sorted table, or filtering files by a column, after it was retyped; DuckDB breaks down
    "inequal types",
    "used on vector of different type",
)


@dataclass(slots=True)
class World:
    """What all examples share: a lake, and servers that know it."""

    lake: TestLake
    servers: Sequence[Server]
    format_version: int
    io: FileIO
    db: duckdb.DuckDBPyConnection
    postgres: psycopg.Connection
    examples: int = 0


@dataclass(slots=True)
class Example:
    world: World
    schema: str = ""
    # statements and requests, for whoever has to understand what happened
    log: list[str] = field(default_factory=list[str])
    tables: list[Model] = field(default_factory=list[Model])
    # the snapshot before those of this example
    before: int = 0
    names: int = 0
    # what DuckDB answered since the last statement
    told: dict[tuple[int, int | None], Rows] = field(default_factory=dict[tuple[int, int | None], Rows])

    def run(self, program: Program, at_the_end: Callable[["Example"], None] | None = None) -> None:
        """Raises what does not hold."""
        self.world.examples += 1
        self.schema = f"e{self.world.examples}"
        self.before = self._head()
        self._run(f"CREATE SCHEMA {self.schema}")
        try:
            columns = [Column("k", "INTEGER"), Column("s", "VARCHAR"), Column("d", "DATE"), Column("f", "FLOAT")]
            self.tables = [self._create("a", columns), self._create("b", columns[:3])]
            for step in program:
                getattr(self, step.name)(self.tables[step.table], *step.numbers)
            for number, t in enumerate(self.tables):
                self._check(t, self._load(t, number))
                self._check(t, self._cold(t))
            if at_the_end is not None:
                at_the_end(self)
        finally:
            self._clear()

    # what is done to the lake: the table, and three numbers

    def insert_few(self, t: Model, start: int, count: int, nulls: int) -> None:
        """Which DuckDB keeps in Postgres, if it may."""
        self._change([t], f"INSERT INTO {t.full_name} {t.select(start % 60, 1 + count % 4, nulls % 2 == 1)}")

    def insert_many(self, t: Model, start: int, count: int, nulls: int) -> None:
        self._change([t], f"INSERT INTO {t.full_name} {t.select(start % 60, 12 + count % 28, nulls % 2 == 1)}")

    def trickle(self, t: Model, start: int, *_: int) -> None:
        """As many as files of inlined rows are merged of."""
        for number in range(8):
            self._change([t], f"INSERT INTO {t.full_name} {t.select(start % 60 + number, 1, False)}")

    def delete(self, t: Model, which: int, number: int, _: int) -> None:
        self._change([t], _delete(t, which, number))

    def update(self, t: Model, which: int, number: int, start: int) -> None:
        column = t.columns[start % len(t.columns)]
        value = VALUES[column.type].replace("x", f"({start % 60} + coalesce(k, 0))")
        self._change([t], f"UPDATE {t.full_name} SET {column.name} = {value} WHERE {_where(which, number)}")

    def transaction(self, t: Model, which: int, number: int, start: int) -> None:
        """Inserts and deletes, of one table or of both, as one snapshot."""
        other = self.tables[which % 2]
        parts = [
            f"INSERT INTO {t.full_name} {t.select(start % 60, 1 + start % 30, start % 2 == 1)}",
            _delete(t, which, number),
            f"INSERT INTO {other.full_name} {other.select(number % 60, 1 + number % 30, False)}",
            _delete(other, number, start),
        ]
        self._change([t, other], "BEGIN", *parts[: 2 + start % 3], "COMMIT")

    def add_column(self, t: Model, which: int, default: int, _: int) -> None:
        kind = sorted(VALUES)[which % len(VALUES)]
        name = self._fresh("c")
        given = f" DEFAULT {DEFAULTS[kind]}" if default % 2 and kind in DEFAULTS else ""
        if self._change([t], f"ALTER TABLE {t.full_name} ADD COLUMN {name} {kind}{given}"):
            t.columns.append(Column(name, kind))
            if given:
                t.reshaped.add(self._head())

    def alter_column(self, t: Model, which: int, how: int, _: int) -> None:
        column = t.columns[which % len(t.columns)]
        alter = f"ALTER TABLE {t.full_name}"
        match how % 5:
            case 0 if column.name != "k":
                name = self._fresh("r")
                if self._change([t], f"{alter} RENAME COLUMN {column.name} TO {name}"):
                    column.name = name
            case 1 if column.name != "k":
                if self._change([t], f"{alter} DROP COLUMN {column.name}"):
                    t.columns.remove(column)
            case 2 if column.type in WIDER:
                if self._change([t], f"{alter} ALTER {column.name} TYPE {WIDER[column.type]}"):
                    column.type = WIDER[column.type]
            case 3:
                if self._change([t], f"{alter} ALTER {column.name} {'SET' if column.nullable else 'DROP'} NOT NULL"):
                    column.nullable = not column.nullable
            case _:
                self._change([t], f"COMMENT ON COLUMN {t.full_name}.{column.name} IS 'commented'")

    def partition(self, t: Model, which: int, *_: int) -> None:
        keys = t.partition_keys()
        chosen = keys[which % len(keys)]
        how = f"SET PARTITIONED BY ({chosen})" if chosen else "RESET PARTITIONED BY"
        self._change([t], f"ALTER TABLE {t.full_name} {how}")

    def sort(self, t: Model, which: int, *_: int) -> None:
        keys = f"SET SORTED BY ({t.columns[-1].name} DESC, k ASC)"
        self._change([t], f"ALTER TABLE {t.full_name} {keys if which % 2 else 'RESET SORTED BY'}")

    def rename(self, t: Model, *_: int) -> None:
        before, t.name = t.full_name, self._fresh("t")
        self._change([t], f"ALTER TABLE {before} RENAME TO {t.name}")
        t.names[self._head()] = t.name

    def comment(self, t: Model, *_: int) -> None:
        self._change([t], f"COMMENT ON TABLE {t.full_name} IS 'commented'")

    def limit(self, t: Model, *_: int) -> None:
        t.limit = 10 - t.limit
        scope = f"schema => '{t.schema}', table_name => '{t.name}'"
        self._change([], f"CALL lake.set_option('data_inlining_row_limit', {t.limit}, {scope})")

    def recreate(self, t: Model, *_: int) -> None:
        """The same directory, another table (H22)."""
        self._run(f"DROP TABLE {t.full_name}")
        columns = [Column("k", "INTEGER"), Column("s", "VARCHAR"), Column("d", "DATE")]
        self.tables[self.tables.index(t)] = self._create(t.name, columns)

    def merge(self, t: Model, *_: int) -> None:
        self._change([t], f"CALL ducklake_merge_adjacent_files('lake', '{t.name}', schema => '{t.schema}')")

    def flush(self, t: Model, *_: int) -> None:
        scope = f"schema_name => '{t.schema}', table_name => '{t.name}'"
        self._change([t], f"CALL ducklake_flush_inlined_data('lake', {scope})")

    def rewrite(self, t: Model, *_: int) -> None:
        scope = f"'{t.name}', schema => '{t.schema}', delete_threshold => 0"
        self._change([t], f"CALL ducklake_rewrite_data_files('lake', {scope})")

    def expire(self, _: Model, back: int, older: int, __: int) -> None:
        """Of the snapshots of this example, one of the last, or now and then all before it."""
        live = [i for i in self._live() if i > self.before][:-1]
        if live:
            index = max(0, len(live) - 1 - back % 4)
            chosen = live[: index + 1] if older % 4 == 0 else [live[index]]
            self._change([], f"CALL ducklake_expire_snapshots('lake', versions => {chosen})")

    def clean_up(self, *_: object) -> None:
        self._change([], "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")

    # what is asked of servers

    def load(self, t: Model, server: int, *_: int) -> None:
        """Chains are made of the state of now; nobody looks at them yet."""
        self._load(t, server % 2)

    def look(self, t: Model, server: int, *_: int) -> None:
        self._check(t, self._load(t, server % 2))

    def forget(self, t: Model, *_: int) -> None:
        """Chains are a cache that may be lost at any time; the servers know what they know all the same."""
        self.world.postgres.execute(FORGET, (t.id,))

    def upgrade(self, t: Model, *_: int) -> None:
        self._set_property(t, "mergus.format-version", "3")

    def pack(self, t: Model, *_: int) -> None:
        """Manifests are merged as soon as there are two."""
        self._set_property(t, "commit.manifest.min-count-to-merge", "2")

    # how

    def _create(self, name: str, columns: Sequence[Column]) -> Model:
        columns = [Column(c.name, c.type) for c in columns]
        self._run(f"CREATE TABLE {self.schema}.{name} ({', '.join(f'{c.name} {c.type}' for c in columns)})")
        ((table_id, begin),) = self.world.postgres.execute(FIND, (self.schema, name)).fetchall()
        return Model(self.schema, name, table_id, begin, columns, {begin: name})

    def _set_property(self, t: Model, key: str, value: str) -> None:
        self.log.append(f"{t.full_name}: {key} = {value}")
        self.world.postgres.execute(SET_PROPERTY, (t.id, key, value))
        self.world.postgres.execute(RAISE_EPOCH)

    def _fresh(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def _change(self, touched: Sequence[Model], *statements: str) -> bool:
        """Whether DuckDB did it."""
        if not self._run(*statements):
            return False
        head = self._head()
        for t in touched:
            t.noted[head] = self.duckdb_rows(t)
        return True

    def _run(self, *statements: str) -> bool:
        self.told = {}
        try:
            for statement in statements:
                self.log.append(f"{statement};")
                self.world.db.execute(statement)
        except duckdb.Error as e:
            if not any(reason in str(e) for reason in REFUSALS):
                raise
            self.log.append(f"-- refused: {str(e).splitlines()[0]}")
            if isinstance(e, duckdb.InternalException):
                self._open_again()
            elif statements[0] == "BEGIN":
                self.world.db.execute("ROLLBACK")
            return False
        return True

    def _clear(self) -> None:
        try:
            self.world.db.execute(f"DROP SCHEMA {self.schema} CASCADE")
        except duckdb.Error:
            # it has broken down, or is amid a transaction
            self._open_again()

    def _open_again(self) -> None:
        self.world.db.close()
        self.world.db = self.world.lake.duckdb()

    def _head(self) -> int:
        ((head,),) = self.world.postgres.execute(HEAD).fetchall()
        return head

    def _live(self) -> dict[int, str]:
        return {i: changes or "" for i, changes in self.world.postgres.execute(LIVE).fetchall()}

    def duckdb_rows(self, t: Model, at: int | None = None) -> Rows:
        if (table := (t.id, at)) in self.told:
            return self.told[table]
        # all of them, unfiltered: DuckDB prunes historical scans by statistics of now (N§7)
        source = t.full_name if at is None else f"{t.name_at(at)} AT (VERSION => {at})"
        found = self.world.db.execute(f"SELECT * FROM {source}")
        rows = Rows.of([name for name, *_ in found.description or ()], found.fetchall())
        return self.told.setdefault(table, rows)

    def _load(self, t: Model, server: int) -> IcebergView:
        running = self.world.servers[server]
        self.log.append(f"-- GET {t.full_name} from server {server}")
        answer = running.http.get(f"{running.path(t.schema)}/tables/{t.name}")
        assert answer.status_code == 200, f"{answer.text}\n{running.log.read_text()[-4000:]}"
        return IcebergView.of(answer.json()["metadata"], self.world.io)

    def _cold(self, t: Model) -> IcebergView:
        """From rows alone: nobody remembers a chain."""
        self.log.append(f"-- {t.full_name} made anew")
        self.world.postgres.execute(FORGET, (t.id,))
        changes = {"history_patience": 600, "format_version": self.world.format_version}

        async def make() -> bytes:
            async with open_lake(self.world.lake.settings.model_copy(update=changes)) as lake:
                return render(describe(await (await lake.tables()).materialiser.table(t.id, 600)))

        return IcebergView.of(orjson.loads(asyncio.run(make())), self.world.io)

    def _check(self, t: Model, view: IcebergView) -> None:
        check(t, view, self._live(), self.duckdb_rows)


def _where(which: int, number: int) -> str:
    """k is never dropped; rowid is what maintenance must keep."""
    kinds = (
        f"k = {number % 60}",
        f"k < {number % 60}",
        f"k % 5 = {number % 5}",
        "k IS NULL",
        f"rowid % 3 = {number % 3}",
    )
    return kinds[which % len(kinds)]


def _delete(t: Model, which: int, number: int) -> str:
    return f"DELETE FROM {t.full_name} WHERE {_where(which, number)}" if which % 11 else f"TRUNCATE {t.full_name}"
