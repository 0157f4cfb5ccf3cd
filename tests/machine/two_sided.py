"""Programs in which both sides write: DuckDB as in `example`, and Iceberg's clients, in turns, to the same tables.

What an Iceberg commit means is known before it is made: DuckDB tells what the rows would be, or PyIceberg reads the
snapshot that the client has written, from the client's own manifests. Afterwards every view must be that: DuckDB in the
session that has worked with the table all along, DuckDB in a fresh one, and the table as Iceberg shows it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import duckdb
import pyarrow as pa
from pydantic import TypeAdapter
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
)

from mergus.ducklake.session import literal
from tests.machine.example import Example
from tests.machine.iceberg_view import IcebergView, Rows
from tests.machine.invariants import CHANGES_ROWS, check_rows
from tests.machine.model import WIDER, Column, Model
from tests.machine.programs import WEIGHTS as OF_DUCKDB
from tests.machine.raw_deletes import Deleting
from tests.support.writers import Raw

OF_ICEBERG: Final = {
    "ice_append": 8,
    "ice_overwrite": 3,
    "ice_delete": 5,
    "ice_upsert": 3,
    "ice_transaction": 3,
    "ice_positions": 8,
    "ice_values": 5,
    "ice_add_column": 2,
    "ice_alter_column": 3,
    "ice_tag": 2,
    "ice_rollback": 3,
    "ice_property": 1,
    "ice_stale": 4,
    "ice_two_tables": 2,
}
WEIGHTS: Final = OF_DUCKDB | OF_ICEBERG

TYPES: Final[dict[str, PrimitiveType]] = {
    "INTEGER": IntegerType(),
    "BIGINT": LongType(),
    "FLOAT": FloatType(),
    "DOUBLE": DoubleType(),
    "DECIMAL(9,2)": DecimalType(9, 2),
    "VARCHAR": StringType(),
    "BOOLEAN": BooleanType(),
    "DATE": DateType(),
    "TIMESTAMP": TimestampType(),
}

# Each finds what must not be. %(table)s is the table that was written to.
NEVER: Final = {
    "a data file with two live delete files": """
        SELECT data_file_id FROM ducklake_delete_file WHERE table_id = %(table)s AND end_snapshot IS NULL
        GROUP BY 1 HAVING count(*) > 1""",
    "a live file of a table that is gone": """
        SELECT f.data_file_id FROM ducklake_data_file f WHERE f.end_snapshot IS NULL AND NOT EXISTS
        (SELECT FROM ducklake_table t WHERE t.table_id = f.table_id AND t.end_snapshot IS NULL)""",
    "two live files of one path": """
        SELECT path FROM ducklake_data_file WHERE table_id = %(table)s AND end_snapshot IS NULL
        GROUP BY 1 HAVING count(*) > 1""",
    "a file id that will be given again": """
        SELECT i FROM (SELECT data_file_id i FROM ducklake_data_file UNION ALL
                       SELECT delete_file_id FROM ducklake_delete_file UNION ALL
                       SELECT mapping_id FROM ducklake_column_mapping) x
        WHERE i >= (SELECT next_file_id FROM ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1)""",
    "a catalog id that will be given again": """
        SELECT i FROM (SELECT table_id i FROM ducklake_table UNION ALL SELECT schema_id FROM ducklake_schema UNION ALL
                       SELECT partition_id FROM ducklake_partition_info UNION ALL
                       SELECT sort_id FROM ducklake_sort_info) x
        WHERE i >= (SELECT next_catalog_id FROM ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1)""",
    "row ids that will be given again": """
        SELECT f.data_file_id FROM ducklake_data_file f JOIN ducklake_table_stats s USING (table_id)
        WHERE f.table_id = %(table)s AND f.partial_max IS NULL AND f.row_id_start + f.record_count > s.next_row_id""",
    "files without statistics of the table": """
        SELECT 1 FROM ducklake_data_file f WHERE f.table_id = %(table)s
        AND NOT EXISTS (SELECT FROM ducklake_table_stats s WHERE s.table_id = f.table_id)""",
    "two statistics of one column": """
        SELECT column_id FROM ducklake_table_column_stats WHERE table_id = %(table)s GROUP BY 1 HAVING count(*) > 1""",
    "two live columns of one id or name": """
        SELECT max(column_id) FROM ducklake_column WHERE table_id = %(table)s AND end_snapshot IS NULL
        GROUP BY parent_column, lower(column_name) HAVING count(*) > 1
        UNION ALL SELECT column_id FROM ducklake_column WHERE table_id = %(table)s AND end_snapshot IS NULL
        GROUP BY 1 HAVING count(*) > 1""",
    "more than one live partitioning": """
        SELECT 1 FROM ducklake_partition_info WHERE table_id = %(table)s AND end_snapshot IS NULL
        HAVING count(*) > 1""",
    "more than one live sort order": """
        SELECT 1 FROM ducklake_sort_info WHERE table_id = %(table)s AND end_snapshot IS NULL HAVING count(*) > 1""",
    "partition values that are not those of the file's partitioning": """
        SELECT f.data_file_id FROM ducklake_data_file f WHERE f.table_id = %(table)s AND
        (SELECT count(*) FROM ducklake_partition_column c WHERE c.partition_id = f.partition_id) <>
        (SELECT count(*) FROM ducklake_file_partition_value v WHERE v.data_file_id = f.data_file_id)
        AND f.partition_id IS NOT NULL""",
    "more rows deleted from a file than it has": """
        SELECT d.delete_file_id FROM ducklake_delete_file d JOIN ducklake_data_file f USING (data_file_id)
        WHERE d.table_id = %(table)s AND d.delete_count > f.record_count""",
    "a span that ends before it begins": """
        SELECT data_file_id FROM ducklake_data_file WHERE end_snapshot <= begin_snapshot
        UNION ALL SELECT data_file_id FROM ducklake_data_file
        WHERE begin_snapshot > (SELECT max(snapshot_id) FROM ducklake_snapshot)""",
    "a snapshot without changes": """
        SELECT s.snapshot_id FROM ducklake_snapshot s LEFT JOIN ducklake_snapshot_changes c
        ON c.snapshot_id = s.snapshot_id WHERE c.snapshot_id IS NULL""",
    "a snapshot older than the one before it": """
        SELECT snapshot_id FROM (SELECT snapshot_id, snapshot_time, lag(snapshot_time) OVER (ORDER BY snapshot_id) b
                                 FROM ducklake_snapshot) x WHERE snapshot_time < b""",
    "counters that went back": """
        SELECT snapshot_id FROM (
            SELECT snapshot_id, schema_version - lag(schema_version) OVER w v,
                   next_catalog_id - lag(next_catalog_id) OVER w c, next_file_id - lag(next_file_id) OVER w f
            FROM ducklake_snapshot WINDOW w AS (ORDER BY snapshot_id)) x WHERE least(v, c, f) < 0""",
}
COUNT: Final = "SELECT count(*) FROM ducklake_snapshot"

# Where PyIceberg cannot write: the table's partitioning asks for more than it has here.
SKIPPED: Final = "-- not for PyIceberg"


@dataclass(slots=True)
class TwoSided(Example):
    catalogs: Sequence[Catalog] = ()
    # ids of tables of which DuckDB's own filters may be wrong, with DuckDB alone: after a retype (H48), and by a column
    # with buckets, in files from before the partitioning
    misled: set[int] = field(default_factory=set[int])
    conflicts: int = 0

    def _create(self, name: str, columns: Sequence[Column]) -> Model:
        """Every other one by Iceberg."""
        if name != "b" or not self.catalogs:
            return Example._create(self, name, columns)
        fields = [NestedField(i, c.name, TYPES[c.type], required=False) for i, c in enumerate(columns, 1)]
        properties = {"format-version": str(self.world.format_version)}
        self.log.append(f"-- PyIceberg: create {self.schema}.{name}")
        self.told = {}
        self.catalogs[0].create_table((self.schema, name), Schema(*fields), properties=properties)
        query = "SELECT table_id, begin_snapshot FROM ducklake_table WHERE table_name = %s AND end_snapshot IS NULL"
        query += " AND schema_id = (SELECT max(schema_id) FROM ducklake_schema WHERE schema_name = %s)"
        ((table_id, begin),) = self.world.postgres.execute(query.encode(), (name, self.schema)).fetchall()
        return Model(self.schema, name, table_id, begin, [Column(c.name, c.type) for c in columns], {begin: name})

    def alter_column(self, t: Model, which: int, how: int, _: int) -> None:
        before = [(c.name, c.type) for c in t.columns]
        Example.alter_column(self, t, which, how, _)
        if [c.type for c in t.columns if c.name == "k"] != [kind for name, kind in before if name == "k"]:
            self.misled.add(t.id)

    def partition(self, t: Model, which: int, *_: int) -> None:
        Example.partition(self, t, which, *_)
        if "bucket(" in self.log[-1]:
            self.misled.add(t.id)

    # what Iceberg's clients do: the table, and three numbers

    def ice_append(self, t: Model, start: int, count: int, nulls: int) -> None:
        """Any number of rows, be it none."""
        table = self._open(t, nulls)
        new = self._new(t, table, start, count % 30, nulls % 2 == 1)
        if new is not None:
            said = f"append {new.num_rows} from {start % 60}"
            if _is_v3(table):
                self._send(t, table, said, self._raw(t, "append", new), self._now(t, new))
            else:
                self._commit(t, said, lambda: table.append(new), self._now(t, new))

    def ice_overwrite(self, t: Model, start: int, count: int, which: int) -> None:
        table = self._open(t, which)
        new = self._new(t, table, start, 1 + count % 20, False)
        if new is None:
            return
        if _is_v3(table):
            if len(table.specs()) == 1:
                body = self._raw(t, "overwrite", new, keep=False)
                self._send(t, table, "overwrite all", body, self._now(t, new, keep="false"))
        elif which % 3 == 0:
            self._commit(t, "overwrite all", lambda: table.overwrite(new), self._now(t, new, keep="false"))
        else:
            where = _filter(which, count)
            expected = self._now(t, new, keep=f"NOT coalesce({where}, false)")
            self._commit(t, f"overwrite where {where}", lambda: table.overwrite(new, where), expected)

    def ice_delete(self, t: Model, which: int, number: int, server: int) -> None:
        """Copies what stays."""
        table = self._open(t, server)
        if self._is_for_pyiceberg(table) and not _is_v3(table):
            where = _filter(which, number)
            expected = self._now(t, keep=f"NOT coalesce({where}, false)")
            self._commit(t, f"delete where {where}", lambda: table.delete(where), expected)

    def ice_upsert(self, t: Model, start: int, count: int, server: int) -> None:
        table = self._open(t, server)
        new = self._new(t, table, start, 1 + count % 20, False)
        # it takes only what has a key
        ((doubled,),) = self._ask(f"SELECT count(k) - count(DISTINCT k) FROM {t.full_name}")
        plain = all(isinstance(f.field_type, PrimitiveType) for f in table.schema().fields)
        if new is None or doubled or not plain or _is_v3(table):
            return
        keys = f"{start % 60} AND {start % 60 + count % 20}"
        expected = self._now(t, new, keep=f"NOT coalesce(k BETWEEN {keys}, false)")
        self._commit(t, f"upsert {keys}", lambda: table.upsert(new, ["k"]), expected)

    def ice_transaction(self, t: Model, start: int, count: int, which: int) -> None:
        """Several snapshots in one commit."""
        table = self._open(t, which)
        new = self._new(t, table, start, 1 + count % 20, False)
        if new is None or _is_v3(table):
            return
        where = _filter(which, count)

        def work() -> None:
            with table.transaction() as tx:
                tx.append(new)
                tx.delete(where)
                tx.set_properties({"turn": str(count)})

        rows = self._rows_with(t, new)
        kept = [row for row in rows[1] if not _holds(which, count, row[rows[0].index("k")])]
        self._commit(t, f"append from {start % 60} and delete where {where}", work, Rows.of(rows[0], kept))

    def ice_positions(self, t: Model, every: int, offset: int, server: int) -> None:
        """Position deletes or deletion vectors: of each file, or of every second, some rows; now and then all."""
        table = self._open(t, server)
        deleting = Deleting(table)
        step = (1, 2, 3, 7, 10)[every % 5]
        chosen = deleting.data_files()[offset % 2 :: 1 + every % 2]
        positions = {f.file.file_path: range(offset % step, f.file.record_count, step) for f in chosen}
        positions = {path: found for path, found in positions.items() if found}
        if positions:
            self._send(t, table, f"delete positions {list(positions.values())}", deleting.by_positions(positions))

    def ice_values(self, t: Model, first: int, count: int, server: int) -> None:
        """Equality deletes."""
        table = self._open(t, server)
        if table.metadata.current_snapshot_id is None or not any(not s.fields for s in table.specs().values()):
            return
        values: list[int | None] = list(range(first % 60, first % 60 + 1 + count % 8))
        if count % 4 == 0:
            values.append(None)
        text = f"k IN ({', '.join(str(v) for v in values if v is not None)})"
        kept = f"NOT coalesce({text}, {'true' if count % 4 == 0 else 'false'})"
        body = Deleting(table).by_values("k", values)
        self._send(t, table, f"equality delete {values}", body, self._now(t, keep=kept))

    def ice_add_column(self, t: Model, which: int, server: int, _: int) -> None:
        table = self._open(t, server)
        kind = sorted(TYPES)[which % len(TYPES)]
        name = self._fresh("i")

        def work() -> None:
            with table.update_schema() as update:
                update.add_column(name, TYPES[kind])

        if self._commit(t, f"add column {name} {kind}", work, self._now(t, extra=f"NULL::{kind} AS {name}")):
            t.columns.append(Column(name, kind))

    def ice_alter_column(self, t: Model, which: int, how: int, server: int) -> None:
        column = t.columns[which % len(t.columns)]
        table = self._open(t, server)
        used = {f.source_id for f in table.spec().fields} | {f.source_id for f in table.sort_order().fields}
        with_new_name = self._fresh("j")
        match how % 4:
            case 0 if column.name != "k":
                expected = self._now(t, columns={column.name: f"{column.name} AS {with_new_name}"})
                if self._alter(
                    t, table, f"rename {column.name} to {with_new_name}", expected, _rename(column.name, with_new_name)
                ):
                    column.name = with_new_name
            case 1 if column.name != "k" and table.schema().find_field(column.name).field_id not in used:
                expected = self._now(t, columns={column.name: ""})
                if self._alter(t, table, f"drop {column.name}", expected, lambda u: u.delete_column(column.name)):
                    t.columns.remove(column)
            case 2 if column.type in WIDER and WIDER[column.type] in TYPES and column.type != "SMALLINT":
                wider = WIDER[column.type]
                expected = self._now(t, columns={column.name: f"{column.name}::{wider} AS {column.name}"})
                said = f"widen {column.name}"
                if self._alter(t, table, said, expected, lambda u: u.update_column(column.name, TYPES[wider])):
                    column.type = wider
            case 3 if not column.nullable:
                said = f"make {column.name} optional"
                if self._alter(t, table, said, self._now(t), lambda u: u.make_column_optional(column.name)):
                    column.nullable = True
            case _:
                said = f"comment on {column.name}"
                self._alter(t, table, said, self._now(t), lambda u: u.update_column(column.name, doc=f"said {how}"))

    def ice_tag(self, t: Model, which: int, number: int, server: int) -> None:
        table = self._open(t, server)
        listed = [s.snapshot_id for s in table.metadata.snapshots]
        if not listed:
            return
        name = f"tag{number % 3}"

        def work() -> None:
            with table.manage_snapshots() as manage:
                if number % 2 and name in table.metadata.refs:
                    manage.remove_tag(name)
                else:
                    manage.create_tag(listed[which % len(listed)], name)

        self._commit(t, f"tag {name}", work, self._now(t))

    def ice_rollback(self, t: Model, back: int, server: int, _: int) -> None:
        table = self._open(t, server)
        line = [s.snapshot_id for s in _ancestors(table)]
        if len(line) < 2:
            return
        to = line[min(len(line) - 1, 1 + back % 3)]
        # columns are as they are now: Iceberg's rollback is about rows alone
        expected = _current_rows(table, to)

        def work() -> None:
            with table.manage_snapshots() as manage:
                manage.rollback_to_snapshot(to)

        if self._commit(t, f"roll back to {to}", work, expected):
            t.restored.add(self._head())

    def ice_property(self, t: Model, which: int, number: int, server: int) -> None:
        table = self._open(t, server)

        def work() -> None:
            with table.transaction() as tx:
                if which % 3 == 0 and "turn" in table.properties:
                    tx.remove_properties("turn")
                else:
                    tx.set_properties({"turn": str(number), "comment": f"said {number}"})

        self._commit(t, "properties", work, self._now(t))

    def ice_stale(self, t: Model, start: int, count: int, what: int) -> None:
        """The table changes between load and commit: either both are there, or the client is told."""
        table = self._open(t, what)
        new = self._new(t, table, start, 1 + count % 20, False)
        if new is None:
            return
        raw = Deleting(table)
        positions = {f.file.file_path: [0] for f in raw.data_files()}
        appended = self._raw(t, "append", new) if _is_v3(table) else None
        columns = list(t.columns)
        names = ("insert_few", "insert_many", "delete", "update", "flush", "merge", "rewrite", "add_column")
        getattr(self, names[what % len(names)])(t, start, count, what)
        if what % 3 or not positions:
            if [c.name for c in columns] == [c.name for c in t.columns]:
                said = f"append {new.num_rows} from {start % 60} to what was loaded before"
                if appended is None:
                    self._commit(t, said, lambda: table.append(new), self._now(t, new))
                else:
                    self._send_stale(t, said, appended, self._now(t, new))
        else:
            # rows may be elsewhere by now, but as many as before: the first of each file, if it was there still
            self._send_stale(t, "delete positions of what was loaded before", raw.by_positions(positions), None)

    def ice_two_tables(self, t: Model, offset: int, server: int, _: int) -> None:
        """Rows of both tables, all or nothing."""
        changes: list[dict[str, Any]] = []
        expected: list[Rows] = []
        for one in self.tables:
            table = self._open(one, server)
            deleting = Deleting(table)
            found = [(f.file.file_path, f.file.record_count) for f in deleting.data_files()]
            positions = {path: [offset % count] for path, count in found if count}
            if not positions:
                return
            body = deleting.by_positions(positions)
            expected.append(_as_written(table, body))
            changes.append({"identifier": {"namespace": [one.schema], "name": one.name}, **body})
        self.log.append(f"-- REST: one position of each file of both tables, {offset}")
        running = self.world.servers[server % 2]
        self.told = {}
        head = self._head()
        answer = running.http.post("/v1/lake/transactions/commit", json={"table-changes": changes})
        assert answer.status_code == 204, f"{answer.status_code} {answer.text}\n{running.log.read_text()[-3000:]}"
        assert self._head() == head + 1
        for one, rows in zip(self.tables, expected, strict=True):
            self._settled(one, rows)

    # how

    def _open(self, t: Model, server: int) -> Table:
        return self.catalogs[server % len(self.catalogs)].load_table((t.schema, t.name))

    def _is_for_pyiceberg(self, table: Table) -> bool:
        plain = all(isinstance(f.transform, IdentityTransform) for f in table.spec().fields)
        if not plain or (_is_v3(table) and table.spec().fields):
            self.log.append(SKIPPED)
            return False
        return True

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        return self.world.db.execute(query).fetchall()

    def _new(self, t: Model, table: Table, start: int, count: int, nulls: bool) -> pa.Table | None:
        if not self._is_for_pyiceberg(table):
            return None
        names = [c.name for c in t.columns]
        found = self.world.db.execute(t.select(start % 60, count, nulls)).to_arrow_table().rename_columns(names)
        return found.cast(table.schema().as_arrow().empty_table().select(names).schema)

    def _now(
        self,
        t: Model,
        new: pa.Table | None = None,
        keep: str = "true",
        columns: Mapping[str, str] | None = None,
        extra: str = "",
    ) -> Rows:
        """What the rows will be: those of now that are kept, and the new ones."""
        chosen = [(columns or {}).get(c.name, c.name) for c in t.columns]
        listed = ", ".join([c for c in [*chosen, extra] if c])
        found = self.world.db.execute(f"SELECT {listed} FROM {t.full_name} WHERE {keep}")
        names = [name for name, *_ in found.description or ()]
        rows = found.fetchall()
        return Rows.of(names, [*rows, *(() if new is None else _tuples(new))])

    def _rows_with(self, t: Model, new: pa.Table) -> tuple[list[str], list[tuple[Any, ...]]]:
        found = self.world.db.execute(f"SELECT * FROM {t.full_name}")
        names = [name for name, *_ in found.description or ()]
        return names, [*found.fetchall(), *_tuples(new)]

    def _alter(self, t: Model, table: Table, said: str, expected: Rows, change: Callable[[Any], Any]) -> bool:
        def work() -> None:
            with table.update_schema() as update:
                change(update)

        return self._commit(t, said, work, expected)

    def _commit(self, t: Model, said: str, work: Callable[[], object], expected: Rows) -> bool:
        """Whether it was done. A client that is told to try again leaves nothing behind."""
        self.log.append(f"-- PyIceberg: {said} ({t.full_name})")
        before = self._now(t)
        self.told = {}
        try:
            work()
        except CommitFailedException as e:
            self.conflicts += 1
            self.log.append(f"-- conflict: {str(e).splitlines()[0]}")
            self._settled(t, before)
            return False
        self._settled(t, expected)
        return True

    def _post(self, t: Model, body: dict[str, Any]) -> int:
        self.told = {}
        running = self.world.servers[0]
        answer = running.http.post(f"{running.path(t.schema)}/tables/{t.name}", json=body)
        assert answer.status_code in (200, 409), f"{answer.text}\n{running.log.read_text()[-3000:]}"
        return answer.status_code

    def _send(self, t: Model, table: Table, said: str, body: dict[str, Any], expected: Rows | None = None) -> None:
        self.log.append(f"-- REST: {said} ({t.full_name})")
        expected = _as_written(table, body) if expected is None else expected
        assert self._post(t, body) == 200, "nobody else was there"
        self._settled(t, expected)

    def _send_stale(self, t: Model, said: str, body: dict[str, Any], expected: Rows | None) -> None:
        """Done, or told to try again with nothing left behind. Done without an expectation: if main had not moved."""
        self.log.append(f"-- REST: {said} ({t.full_name})")
        before = self._now(t)
        if self._post(t, body) == 409:
            self.conflicts += 1
            self._settled(t, before)
        else:
            self._settled(t, expected or _read(self.world.db, t.full_name))

    def _raw(self, t: Model, operation: str, new: pa.Table, *, keep: bool = True) -> dict[str, Any]:
        """PyIceberg cannot write data to a table of version 3."""
        raw = Raw(self.world.lake, self.world.servers[0], t.name, t.schema)
        add = [raw.data_file(new)] if new.num_rows else []
        snapshot = raw.snapshot(operation, add=add, remove=[] if keep else raw.paths())
        return {"requirements": raw.requirements(), "updates": raw.to_main(snapshot)}

    def _settled(self, t: Model, expected: Rows) -> None:
        """After an Iceberg commit: every view has the rows, and the lake is sound."""
        self._noted(t)
        found = self.duckdb_rows(t)
        assert found == expected, f"DuckDB after an Iceberg commit to {t.full_name}: {found.difference(expected)}"
        with self._fresh_catalog() as fresh:
            of_fresh = _read(self.world.db, f"{fresh}.{t.full_name}")
            assert of_fresh == expected, f"a fresh DuckDB on {t.full_name}: {of_fresh.difference(expected)}"
            for catalog in ("lake", fresh):
                self._sound(t, catalog)
        self._never(t)

    @contextmanager
    def _fresh_catalog(self) -> Iterator[str]:
        """The lake as one sees it who has not seen anything yet."""
        source = literal(f"ducklake:postgres:{self.world.lake.of_writers.dsn}")
        self.world.db.execute(f"ATTACH {source} AS fresh (CREATE_IF_NOT_EXISTS false)")
        try:
            yield "fresh"
        finally:
            self.world.db.execute("DETACH fresh")

    def _noted(self, t: Model) -> None:
        self.told = {}
        t.noted[self._head()] = self.duckdb_rows(t)

    def _sound(self, t: Model, catalog: str) -> None:
        name = f"{catalog}.{t.full_name}"
        ((by_metadata,),) = self._ask(f"SELECT count(*) FROM {name}")
        scan = f"SELECT count(k + 0) + sum((k IS NULL)::INT), count(DISTINCT rowid), max(rowid) FROM {name}"
        ((by_scan, row_ids, last),) = self._ask(scan)
        assert by_metadata == (by_scan or 0) == row_ids, f"{name}: {by_metadata}, {by_scan}, {row_ids} row ids"
        stats = "SELECT next_row_id FROM ducklake_table_stats WHERE table_id = %s"
        for (next_row_id,) in self.world.postgres.execute(stats.encode(), (t.id,)).fetchall():
            assert last is None or last < next_row_id, f"row id {last} of {name} will be given again"
        if t.id not in self.misled:
            rows = [k for (k,) in self._ask(f"SELECT k FROM {name}") if k is not None]
            for k in sorted(set(rows))[:: max(1, len(set(rows)) // 3)]:
                wanted = f"SELECT k FROM {name} WHERE k = {k}"
                found = len(self._ask(wanted))
                assert found == rows.count(k), f"{wanted}: {found} rows, not {rows.count(k)}"
        self._ask(f"SELECT snapshot_id, changes FROM {catalog}.snapshots()")

    def _never(self, t: Model) -> None:
        for what, query in NEVER.items():
            found = self.world.postgres.execute(query.encode(), {"table": t.id}).fetchmany(5)
            assert not found, f"{what}: {found} ({t.full_name})"

    def _check(self, t: Model, view: IcebergView) -> None:
        check(t, view, self._live(), self.duckdb_rows)


def check(
    t: Model, view: IcebergView, live: Mapping[int, str], duckdb_rows: Callable[[Model, int | None], Rows]
) -> None:
    """Every listed snapshot shows what DuckDB shows at the snapshot of the lake that it stands for."""
    metadata = view.table.metadata
    listed = {s.snapshot_id: s for s in view.snapshots}
    assert len(listed) == len(view.snapshots)
    versions: dict[int, int] = {}
    known_to_exist: set[str] = set()
    for i, snapshot in listed.items():
        summary = snapshot.summary
        assert summary is not None
        at = int(summary["ducklake.snapshot-id"] or "")
        versions[i] = at
        assert at in live, f"{t.full_name} lists {i} for {at}, which is not there"
        view.check_files(snapshot, known_to_exist)
        key = view.key(snapshot)
        if key not in t.read:
            t.read[key] = view.rows(i)
        check_rows(t, at, t.read[key], duckdb_rows(t, at))
        total = int(summary["total-records"] or 0) - int(summary["total-position-deletes"] or 0)
        assert total == len(t.read[key]), f"snapshot {i} says {total} rows and has {len(t.read[key])}: {summary}"
        assert snapshot.parent_snapshot_id is None or snapshot.parent_snapshot_id in listed
    assert len(set(versions.values())) == len(versions), f"two snapshots of {t.full_name} stand for one: {versions}"
    numbers = [s.sequence_number or 0 for s in view.snapshots]
    assert numbers == sorted(set(numbers)), f"sequence numbers of {t.full_name}: {numbers}"
    assert metadata.current_snapshot_id is None or metadata.current_snapshot_id in listed
    for name, ref in metadata.refs.items():
        assert ref.snapshot_id in listed, f"{name} of {t.full_name} is {ref.snapshot_id}, which is not listed"
    if metadata.current_snapshot_id is not None:
        assert metadata.snapshot_log[-1].snapshot_id == metadata.current_snapshot_id
    changed = {i for i, words in live.items() if re.search(rf"{CHANGES_ROWS}:{t.id}(,|$)", words)}
    missing = changed - set(versions.values()) - t.restored
    assert not missing, f"{t.full_name} does not list {sorted(missing)}"
    now, wanted = view.rows(), duckdb_rows(t, None)
    assert now == wanted, f"{t.full_name} now: {now.difference(wanted)}"


def _is_v3(table: Table) -> bool:
    return table.metadata.format_version >= 3


def _rename(old: str, new: str) -> Callable[[Any], Any]:
    return lambda update: update.rename_column(old, new)


def _filter(which: int, number: int) -> str:
    """PyIceberg and DuckDB read it alike."""
    k = number % 60
    return (f"k = {k}", f"k < {k}", f"k >= {k} AND k < {k + 10}", "k IS NULL")[which % 4]


def _holds(which: int, number: int, value: int | None) -> bool:
    k = number % 60
    if value is None:
        return which % 4 == 3
    return (value == k, value < k, k <= value < k + 10, False)[which % 4]


def _ancestors(table: Table) -> list[Any]:
    found: list[Any] = []
    snapshot = table.current_snapshot()
    while snapshot is not None:
        found.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return found


def _tuples(found: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


def _read(db: duckdb.DuckDBPyConnection, name: str) -> Rows:
    found = db.execute(f"SELECT * FROM {name}")
    return Rows.of([name for name, *_ in found.description or ()], found.fetchall())


def _current_rows(table: Table, snapshot_id: int) -> Rows:
    """Of an older snapshot, with the columns of now."""
    ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
    return _as_written(table, {"updates": [ref], "requirements": []})


def _as_written(table: Table, body: dict[str, Any]) -> Rows:
    """The table as a client sees it that has made its commit, before anybody else has looked at it."""
    updates = tuple(TypeAdapter(list[TableUpdate]).validate_python(body["updates"]))
    TypeAdapter(list[TableRequirement]).validate_python(body["requirements"])
    after = update_table_metadata(table.metadata, updates)
    found = Table(table.name(), after, "", table.io, table.catalog).scan().to_arrow()
    return Rows.of(found.column_names, _tuples(found))
