"""Does every engine read what DuckDB reads? Stories of SQL, told to a lake and read back at every snapshot.

A story is a schema of its own with a DuckDB session in it. After each of its steps a *warm* server loads the tables, as
it would for clients that come all the time; a *cold* one loads them only at the end, with every chain of theirs
forgotten, and must make the whole history from what DuckLake's rows say by then. `Story.agree` asks PyIceberg, Spark
and DuckDB's iceberg extension, through both servers, for every snapshot and for the table as it is, and holds each
answer against a full scan by the ducklake extension: the same columns of the same types, the same rows, each as often.

All engines answer in Arrow, and values are compared as integers, texts and bytes: no calendar, time zone or precision
of Python's is in between.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.manifest import ManifestEntry
from pyiceberg.table import Table

from mergus.ducklake.session import identifier, literal, s3_secret, with_extensions
from tests.support import servers
from tests.support import spark as sparks
from tests.support.formats import LONG
from tests.support.lakes import TestLake, one_thread
from tests.support.servers import Server

# Spark takes a tenth of a second for each: of a longer history it reads so many snapshots. Others read all of them.
SPARK_SNAPSHOTS = 6
ALL = frozenset({"pyiceberg", "spark", "duckdb"})

CREATE = "CREATE TABLE t(i INTEGER, s VARCHAR)"
BIG = "INSERT INTO t SELECT range, 'x' FROM range(40)"
FLUSH = "CALL ducklake_flush_inlined_data('lake', schema_name => '{schema}', table_name => 't')"
MERGE = "CALL ducklake_merge_adjacent_files('lake', 't', schema => '{schema}')"
REWRITE = "CALL ducklake_rewrite_data_files('lake', 't', schema => '{schema}', delete_threshold => 0)"
CLEANUP = "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)"

_CHANGE = re.compile(r'([a-z_]+):("(?:[^"]|"")*"(?:\."(?:[^"]|"")*")?|\d+)')
_CHANGES_ROWS_OR_FILES = {
    *("inserted_into_table", "deleted_from_table", "inlined_insert", "inlined_delete", "inline_flush"),
    *("merge_adjacent", "rewrite_delete", "compacted_table"),
}

Rows = Counter[tuple[Any, ...]]
Step = str | Callable[[duckdb.DuckDBPyConnection], object]


@dataclass(frozen=True)
class Answer:
    """What an engine says of a table: names and kinds of columns, and the rows."""

    columns: tuple[tuple[str, str], ...]
    rows: Rows

    def values(self, *names: str) -> list[Any]:
        """Sorted, of these columns (or of all): single values if it is one column."""
        every = [name for name, _ in self.columns]
        picked = [every.index(name) for name in names or every]
        found = [tuple(row[i] for i in picked) for row in self.rows.elements()]
        return sorted((row[0] if len(picked) == 1 else row for row in found), key=repr)


def answer(table: pa.Table) -> Answer:
    columns = tuple((f.name, kind(f.type)) for f in table.schema)
    values = [[value(scalar) for scalar in column] for column in table.columns]
    return Answer(columns, Counter(zip(*values, strict=True)) if values else Counter())


def kind(t: pa.DataType) -> str:
    """What a type is to both sides: Iceberg has no small integers, and engines give uuids and JSON as text."""
    if isinstance(t, pa.BaseExtensionType):
        return "text" if t.extension_name in {"arrow.uuid", "arrow.json"} else kind(t.storage_type)
    if pa.types.is_integer(t):
        return "long" if t.bit_width == 64 else "int"
    if pa.types.is_decimal(t):
        return f"decimal({t.precision}, {t.scale})"
    if pa.types.is_timestamp(t):
        return ("timestamp_ns" if t.unit == "ns" else "timestamp") + ("" if t.tz is None else "tz")
    if pa.types.is_string(t) or pa.types.is_large_string(t):
        return "text"
    if pa.types.is_binary(t) or pa.types.is_large_binary(t):
        return "binary"
    if pa.types.is_list(t) or pa.types.is_large_list(t):
        return f"list<{kind(t.value_type)}>"
    if pa.types.is_map(t):
        return f"map<{kind(t.key_type)}, {kind(t.item_type)}>"
    if pa.types.is_struct(t):
        return "struct<" + ", ".join(f"{f.name}: {kind(f.type)}" for f in t) + ">"
    return str(t)


def value(scalar: Any) -> Any:
    """Hashable, and equal only to the very same value: a minus zero is not a zero, true is not one."""
    t = scalar.type
    if not scalar.is_valid:
        return None
    if isinstance(t, pa.BaseExtensionType):
        return str(scalar.as_py()) if t.extension_name == "arrow.uuid" else value(scalar.value)
    if pa.types.is_timestamp(t):
        return scalar.value * {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[t.unit]
    if pa.types.is_date(t) or pa.types.is_time(t):
        return scalar.value
    if pa.types.is_floating(t) or pa.types.is_boolean(t):
        return repr(scalar.as_py())
    if pa.types.is_map(t):
        entries = [(value(entry[0]), value(entry[1])) for entry in scalar.values]
        return tuple(sorted(entries, key=repr))
    if pa.types.is_list(t) or pa.types.is_large_list(t):
        return tuple(value(element) for element in scalar.values)
    if pa.types.is_struct(t):
        return tuple(value(scalar[i]) for i in range(t.num_fields))
    found = scalar.as_py()
    assert isinstance(found, int | str | bytes | Decimal), t
    return found


@cache
def _duckdb_client() -> duckdb.DuckDBPyConnection:
    """DuckDB with the iceberg extension; one for the whole run, with a catalog for each server."""
    return one_thread(with_extensions("httpfs", "avro", "iceberg"))


@dataclass
class Clients:
    """The three readers, on one server."""

    lake: TestLake
    server: Server
    pyiceberg: Catalog
    duckdb: str

    @cached_property
    def spark(self) -> str:
        """The name of Spark's catalog; modules that read without Spark do not wait for it."""
        return sparks.catalog(self.lake.settings, self.server.uri)

    @classmethod
    def of(cls, lake: TestLake, server: Server) -> "Clients":
        settings = lake.settings
        key, secret = settings.s3_access_key_id, settings.s3_secret_access_key
        s3 = {"s3.endpoint": settings.s3_endpoint, "s3.access-key-id": key, "s3.region": settings.s3_region}
        s3["s3.secret-access-key"] = secret.get_secret_value() if secret else None
        given = {name: text for name, text in s3.items() if text is not None}
        catalog = load_catalog("lake", type="rest", uri=server.uri, warehouse=settings.prefix, **given)
        alias, client = f"ice_{uuid4().hex[:8]}", _duckdb_client()
        client.execute(s3_secret(settings))
        options = f"TYPE iceberg, ENDPOINT {literal(server.uri)}, AUTHORIZATION_TYPE 'none'"
        client.execute(f"ATTACH {literal(settings.prefix)} AS {alias} ({options})")
        return cls(lake, server, catalog, alias)

    def with_pyiceberg(self, schema: str, table: str, at: int | None = None) -> Answer:
        return answer(self.table(schema, table).scan(snapshot_id=at).to_arrow())

    def table(self, schema: str, table: str) -> Table:
        return self.pyiceberg.load_table((schema, table))

    def with_duckdb(self, schema: str, table: str, at: int | None = None) -> Answer:
        query = _scan(f"{self.duckdb}.{identifier(schema)}.{identifier(table)}", at)
        return answer(_duckdb_client().execute(query).to_arrow_table())

    def with_spark(self, schema: str, table: str, at: int | None = None) -> Answer:
        version = "" if at is None else f" VERSION AS OF {at}"
        return answer(self.ask_spark(f"SELECT * FROM {self.spark}.`{schema}`.`{table}`{version}"))

    def live_entries(self, schema: str, table: str, at: int | None = None) -> list[ManifestEntry]:
        """Of data and delete files, as PyIceberg reads the manifests."""
        found = self.table(schema, table)
        snapshot = found.current_snapshot() if at is None else found.snapshot_by_id(at)
        assert snapshot is not None
        return [e for m in snapshot.manifests(found.io) for e in m.fetch_manifest_entry(found.io, discard_deleted=True)]

    def ask_spark(self, query: str) -> pa.Table:
        return sparks.session().sql(query).toArrow()

    def ask_duckdb(self, query: str) -> pa.Table:
        return _duckdb_client().execute(query).to_arrow_table()


@dataclass
class Served:
    """A lake behind two servers."""

    lake: TestLake
    format_version: int
    warm: Clients
    cold: Clients
    # whether every reader reads every snapshot through both servers
    full: bool
    _db: duckdb.DuckDBPyConnection | None = None

    def session(self, inlining: int | None = None) -> duckdb.DuckDBPyConnection:
        """Attached anew, in an instance that has its extensions loaded already."""
        options = "CREATE_IF_NOT_EXISTS false"
        if inlining is not None:
            options += f", DATA_INLINING_ROW_LIMIT {inlining}"
        try:
            # an instance may have been lost over an internal error
            if self._db is not None:
                self._db.execute("USE memory")
        except duckdb.Error:
            self._db = None
        if self._db is None:
            self._db = self.lake.duckdb()
            self._db.execute("USE memory")
        self._db.execute("DETACH lake")
        self._db.execute(f"ATTACH {_source(self.lake)} AS lake ({options})")
        return self._db

    def story(self, schema: str, *, inlining: int | None = None, tables: Sequence[str] = ("t",)) -> "Story":
        """DuckDB inlines ten rows unless told otherwise."""
        db = self.session(inlining)
        db.execute(f"CREATE SCHEMA lake.{identifier(schema)}")
        db.execute(f"USE lake.{identifier(schema)}")
        return Story(self, schema, db, tables)


def _scan(table: str, at: int | None) -> str:
    return f"SELECT * FROM {table}" + ("" if at is None else f" AT (VERSION => {at})")


def _source(lake: TestLake) -> str:
    return literal(f"ducklake:postgres:{lake.of_writers.dsn}")


@contextmanager
def served(
    lake: TestLake, folder: Path, format_version: int, listener: str = servers.LISTENER, *, full: bool = LONG
) -> Iterator[Served]:
    """A lake behind two servers. Nothing of a long history is left for later: a load waits until it is there."""
    options = {"format_version": format_version, "history_patience": 60}
    with ExitStack() as stack:
        # the cold server hears of nothing before it is asked
        running = [
            stack.enter_context(servers.server(lake.settings, folder, wait=False, listener=who, **options))
            for who in (listener, "off")
        ]
        for server in running:
            server.wait_ready()
        warm, cold = (Clients.of(lake, server) for server in running)
        yield Served(lake, format_version, warm, cold, full)
        for clients in (warm, cold):
            _duckdb_client().execute(f"DETACH {clients.duckdb}")


@dataclass
class Agreed:
    """What all engines have said."""

    metadata: dict[str, Any]
    now: Answer
    at: dict[int, Answer]

    @property
    def counts(self) -> list[int]:
        """Rows at each snapshot, oldest first."""
        return [found.rows.total() for _, found in sorted(self.at.items())]

    @property
    def snapshots(self) -> list[dict[str, Any]]:
        return self.metadata["snapshots"]

    @property
    def operations(self) -> list[str]:
        return [s["summary"]["operation"] for s in self.snapshots]


@dataclass
class Story:
    served: Served
    schema: str
    db: duckdb.DuckDBPyConnection
    tables: Sequence[str]

    @property
    def lake(self) -> TestLake:
        return self.served.lake

    def run(self, *steps: Step) -> "Story":
        """Each step, and the warm server's view of every table after it."""
        for step in steps:
            if isinstance(step, str):
                self.db.execute(step.replace("{schema}", self.schema))
            else:
                step(self.db)
            for table in self.tables:
                self.load(table)
        return self

    def reattach(self, inlining: int | None = None) -> None:
        """What is stored as an option counts from here on."""
        self.db = self.served.session(inlining)
        self.db.execute(f"USE lake.{identifier(self.schema)}")

    def load(self, table: str = "t", server: Server | None = None) -> dict[str, Any]:
        chosen = server or self.served.warm.server
        got = chosen.http.get(f"{chosen.path(self.schema)}/tables/{table}")
        assert got.status_code == 200, f"{got.text}\n{chosen.log.read_text()[-4000:]}"
        return got.json()["metadata"]

    def head(self) -> int:
        ((newest,),) = self.lake.sql("SELECT max(snapshot_id) FROM ducklake_snapshot")
        return newest

    def table_id(self, table: str = "t") -> int:
        query = """SELECT table_id FROM ducklake_table JOIN ducklake_schema s USING (schema_id)
                   WHERE schema_name = %s AND table_name = %s AND ducklake_table.end_snapshot IS NULL"""
        ((found,),) = self.lake.sql(query, self.schema, table)
        return found

    def oracle(self, table: str = "t", at: int | None = None) -> Answer:
        """DuckDB's own full scan."""
        return self.oracles(table, [at])[at]

    def oracles(self, table: str, ats: Sequence[int | None]) -> dict[int | None, Answer]:
        with self.fresh() as lake:
            return {
                at: answer(self.db.execute(_scan(f"{lake}.{identifier(table)}", at)).to_arrow_table()) for at in ats
            }

    def old_or_new(self, names: Sequence[str], at: int) -> Answer:
        """Of a table that was renamed, under the name that it had."""
        for name in names[:-1]:
            try:
                return self.oracle(name, at)
            except duckdb.CatalogException:
                pass
        return self.oracle(names[-1], at)

    def ask(self, query: str) -> Answer:
        """`{lake}` is the story's schema."""
        with self.fresh() as lake:
            return answer(self.db.execute(query.replace("{lake}", lake)).to_arrow_table())

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """The story's schema in a catalog that has seen nothing yet."""
        alias = f"o_{uuid4().hex[:8]}"
        self.db.execute(f"ATTACH {_source(self.lake)} AS {alias} (CREATE_IF_NOT_EXISTS false)")
        try:
            yield f"{alias}.{identifier(self.schema)}"
        finally:
            self.db.execute(f"DETACH {alias}")

    def changed_by(self, table: str = "t") -> tuple[list[int], set[int]]:
        """The live snapshots that changed the table by their own words, and those that follow a gap."""
        own: list[int] = []
        after_gap: set[int] = set()
        previous = -1
        subject = str(self.table_id(table))
        for snapshot_id, _, _, _, changes in self.lake.snapshots():
            words = {word for word, about in _CHANGE.findall(changes or "") if about == subject}
            if words & _CHANGES_ROWS_OR_FILES:
                own.append(snapshot_id)
            # one that adds a column with a default is listed as well
            if snapshot_id != previous + 1 or "altered_table" in words:
                after_gap.add(snapshot_id)
            previous = snapshot_id
        return own, after_gap

    def forget(self, table: str = "t") -> None:
        """Nothing is left of what servers have made of the table but objects."""
        for name in ("chain", "metadata_file"):
            self.lake.sql(f"DELETE FROM {name} WHERE table_id = %s", self.table_id(table))

    def agree(
        self,
        table: str = "t",
        *,
        readers: frozenset[str] = ALL,
        oracle: Callable[[int], Answer] | None = None,
        without: Sequence[int] = (),
    ) -> Agreed:
        """Every reader, through both servers, at every snapshot and now.

        `oracle` stands in for DuckDB's own history where that is wrong; `without` are snapshots that may not be shown.
        """
        warm = self.load(table)
        self.forget(table)
        cold = self.load(table, self.served.cold.server)
        # by DuckLake's ids: snapshots of Iceberg's clients have ids of their own
        shown = {int(s["summary"]["ducklake.snapshot-id"]): s["snapshot-id"] for s in warm["snapshots"]}
        listed = list(shown)
        own, after_gap = self.changed_by(table)
        assert set(own) - set(without) <= set(listed), f"changed at {own}, listed {listed}"
        assert set(listed) <= {*own, *after_gap} - set(without), f"changed at {own}, gaps {after_gap}, listed {listed}"
        assert [s["snapshot-id"] for s in cold["snapshots"]] == list(shown.values())
        for metadata in (warm, cold):
            check_metadata(metadata, self.served.format_version)
        if oracle is None:
            wanted = self.oracles(table, [*listed, None])
        else:
            wanted = {**{at: oracle(at) for at in listed}, None: oracle(listed[-1])}
        faults = list(self._faults(table, readers, wanted, shown))
        assert not faults, "\n".join([*faults, f"snapshots of the lake: {self.lake.snapshots()[-40:]}"])
        return Agreed(warm, wanted[None], {at: found for at, found in wanted.items() if at is not None})

    def _faults(
        self, table: str, readers: frozenset[str], wanted: dict[int | None, Answer], shown: dict[int, int]
    ) -> Iterator[str]:
        called: dict[int | None, int | None] = {**shown, None: None}
        for_spark = spread([at for at in wanted if at is not None], SPARK_SNAPSHOTS)
        tempers = {"warm": self.served.warm, "cold": self.served.cold}
        asked: list[tuple[str, str, int | None, Callable[[], Answer]]] = []
        for name, temper, at in questions(readers, list(wanted), [*for_spark, None], full=self.served.full):
            read = getattr(tempers[temper], f"with_{name}")
            asked.append((temper, name, at, _bound(read, self.schema, table, called[at])))
        in_turn = [q for q in asked if q[1] != "spark"]
        with ThreadPoolExecutor(2) as pool:
            from_spark = [(q, pool.submit(q[3])) for q in asked if q[1] == "spark"]
            answers = [(q, _outcome(q[3])) for q in in_turn]
            answers += [(q, _outcome(future.result)) for q, future in from_spark]
        for (temper, name, at, _), got in answers:
            fault = got if isinstance(got, str) else difference(wanted[at], got)
            if fault:
                yield f"{temper} {name} at {at}: {fault}"


def questions(
    readers: frozenset[str], snapshots: Sequence[int | None], for_spark: Sequence[int | None], *, full: bool
) -> Iterator[tuple[str, str, int | None]]:
    """Which reader reads which snapshot through which server.

    PyIceberg and DuckDB each read each snapshot once, through the two servers in turn, and through different servers:
    so every pair of reader and server, of reader and snapshot, and of server and snapshot is there. `full` is the
    whole product, but for Spark.
    """
    asked = [name for name in ("pyiceberg", "duckdb") if name in readers]
    servers_of = ("warm", "cold")
    for turn, at in enumerate(snapshots):
        for offset, name in enumerate(asked):
            for temper in servers_of if full else (servers_of[(turn + offset) % 2],):
                yield name, temper, at
    for turn, at in enumerate(for_spark if "spark" in readers else ()):
        yield "spark", servers_of[turn % 2], at


def _bound(call: Callable[..., Answer], *args: Any) -> Callable[[], Answer]:
    return lambda: call(*args)


def _outcome(call: Callable[[], Answer]) -> Answer | str:
    try:
        return call()
    except Exception as e:
        return f"{type(e).__name__}: {str(e)[:1500]}"


def spread(ids: Sequence[int], most: int) -> list[int]:
    """The first, the last and some between."""
    if len(ids) <= most:
        return list(ids)
    return sorted({ids[round(i * (len(ids) - 1) / (most - 1))] for i in range(most)})


def difference(wanted: Answer, got: Answer) -> str | None:
    if wanted.columns != got.columns:
        return f"columns {got.columns}, not {wanted.columns}"
    if wanted.rows == got.rows:
        return None
    missing, extra = wanted.rows - got.rows, got.rows - wanted.rows
    return (
        f"{got.rows.total()} rows, not {wanted.rows.total()}; missing {missing.total()}: "
        f"{list(missing.items())[:5]}; too many {extra.total()}: {list(extra.items())[:5]}"
    )


def check_metadata(metadata: dict[str, Any], format_version: int) -> None:
    """What holds for every table."""
    assert metadata["format-version"] >= format_version
    ids = [s["snapshot-id"] for s in metadata["snapshots"]]
    assert len(ids) == len(set(ids))
    numbers = [s["sequence-number"] for s in metadata["snapshots"]]
    assert numbers == sorted(set(numbers))
    schemas = {s["schema-id"] for s in metadata["schemas"]}
    assert metadata["current-schema-id"] in schemas
    for before, snapshot in zip([None, *ids], metadata["snapshots"], strict=False):
        assert snapshot.get("parent-snapshot-id") == before
        # one that a client of Iceberg's made has an id of its own
        assert snapshot["snapshot-id"] == snapshot["sequence-number"] or snapshot["snapshot-id"] >= 2**31
        assert snapshot["schema-id"] in schemas
        assert snapshot["summary"]["ducklake.snapshot-id"] == str(snapshot["sequence-number"])
    if ids:
        assert metadata["current-snapshot-id"] == ids[-1] == metadata["refs"]["main"]["snapshot-id"]
        assert metadata["last-sequence-number"] == numbers[-1]
        assert [entry["snapshot-id"] for entry in metadata["snapshot-log"]] == ids
        assert metadata["snapshot-log"][-1]["timestamp-ms"] <= metadata["last-updated-ms"] + 60_000
    else:
        assert "current-snapshot-id" not in metadata
