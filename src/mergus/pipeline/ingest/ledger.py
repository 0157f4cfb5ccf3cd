"""Which files are in a table, and which are on their way: an Iceberg table beside it, to which rows are only added.

A batch is planned (a row for each of its files, with how it is read) before any of it is written, and closed (a row for
each again, with what became of it) when all of it is. Plans are numbered, and a number is taken once: of two runs that
plan at the same time one is refused, reads again, and finds the other's files taken. So a file is in one batch, and a
batch is what it was planned to be, whoever finishes it.

The table's own property says which ledger it has: without it nobody can know what is in, and the job refuses to guess.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from mergus.errors import SetupError
from mergus.pipeline.canonical import SPARK
from mergus.pipeline.ingest import once, reading, target
from mergus.pipeline.ingest.decision import Part
from mergus.pipeline.ingest.hadoop import SourceFile
from mergus.pipeline.job import Place, Table, table
from mergus.pipeline.session import query, rows

PROPERTY: Final = "ingest.ledger"
PLANNED: Final = "planned"
IN: Final = "in"
QUARANTINED: Final = "quarantined"
CHANGED: Final = "changed"
GONE: Final = "gone"

COLUMNS: Final = StructType(
    [
        StructField("table_uuid", StringType()),
        StructField("plan", LongType()),
        StructField("batch", StringType()),
        StructField("path", StringType()),
        StructField("size", LongType()),
        StructField("modified", TimestampType()),
        StructField("state", StringType()),
        StructField("rows", LongType()),
        StructField("bad_records", LongType()),
        StructField("reason", StringType()),
        StructField("reading", StringType()),
        StructField("noted_at", TimestampType()),
    ]
)
PATHS: Final = StructType([StructField("path", StringType())])
# instants are numbers here: Python's would pass through a time zone
HERE: Final = StructType(
    [StructField(f.name, LongType() if f.dataType == TimestampType() else f.dataType) for f in COLUMNS.fields]
)
INSTANTS: Final = {"modified": "timestamp_millis(modified)", "noted_at": "current_timestamp()"}


@dataclass(frozen=True)
class Outcome:
    """What became of a file. Nobody knows how many `rows` it gave if the run that wrote them died before it said so."""

    file: SourceFile
    state: str
    rows: int | None = None
    bad: int | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Batch:
    id: str
    plan: int
    parts: tuple[Part, ...]

    @property
    def key(self) -> str:
        return f"ingest:{self.id}"


@dataclass
class Known:
    """`last` is the newest plan's number; `states` are of the files that were asked about, by identity."""

    last: int = 0
    states: dict[tuple[str, int, int], str] = field(default_factory=dict[tuple[str, int, int], str])


@dataclass(frozen=True)
class Ledger:
    place: Place
    table: Table
    uuid: str

    def known(self, files: Iterable[SourceFile]) -> Known:
        last = self._rows(f"SELECT coalesce(max(plan), 0) FROM {self._name} WHERE {self._mine}")
        asked = target.local(self.place.spark, [{"path": file.uri} for file in files], PATHS)
        found = query(
            self.place.spark,
            f"SELECT path, size, unix_millis(modified) AS modified, plan, state FROM {self._name} WHERE {self._mine}",
        ).join(asked, "path", "left_semi")
        known = Known(int(last[0][0]))
        # in each plan, what became of a file comes after that it was planned
        for row in sorted(found.collect(), key=lambda row: (row["plan"], row["state"] != PLANNED)):
            known.states[row["path"], row["size"], row["modified"]] = row["state"]
        return known

    def plan(self, last: int, parts: Sequence[Part]) -> Batch | None:
        """The batch, if this is the plan after that one; None if another run has made it first."""
        batch = Batch(batch_id(self.uuid, last + 1, [part.file for part in parts]), last + 1, tuple(parts))
        planned = [
            {
                **_file(part.file),
                "state": PLANNED,
                "reason": part.reason,
                "reading": part.reading and part.reading.json(),
            }
            for part in parts
        ]
        return batch if self._append(batch, planned, f"ingest:{self.uuid}:plan:{batch.plan}") else None

    def close(self, batch: Batch, outcomes: Iterable[Outcome]) -> None:
        closed = [
            {**_file(one.file), "state": one.state, "rows": one.rows, "bad_records": one.bad, "reason": one.reason}
            for one in outcomes
        ]
        self._append(batch, closed, f"ingest:{batch.id}:closed")

    def open_batches(self) -> list[Batch]:
        """Planned and not closed: of a run that died, or that is at it."""
        found: dict[tuple[int, str], list[Part]] = {}
        kept = (
            f"SELECT plan, batch, path, size, unix_millis(modified), reading, reason FROM {self._name} p "
            f"WHERE {self._mine} AND state = '{PLANNED}' AND NOT EXISTS "
            f"(SELECT 1 FROM {self._name} c WHERE c.{self._mine} AND c.batch = p.batch AND c.state <> '{PLANNED}')"
        )
        for plan, batch, path, size, modified, how, reason in self._rows(kept):
            read = None if how is None else reading.parse(how)
            file = SourceFile(modified, path, size, read.base if read else None)
            found.setdefault((plan, batch), []).append(Part(file, read, reason))
        ordered = sorted(found.items(), key=lambda one: one[0])
        return [Batch(id, plan, tuple(sorted(parts, key=lambda p: p.file))) for (plan, id), parts in ordered]

    @property
    def _name(self) -> str:
        return self.place.sql_name(self.table)

    @property
    def _mine(self) -> str:
        return f"table_uuid = {SPARK.literal(self.uuid)}"

    def _rows(self, text: str) -> list[tuple[Any, ...]]:
        return rows(self.place.spark, text)

    def _append(self, batch: Batch, given: Iterable[dict[str, Any]], key: str) -> bool:
        common = {"table_uuid": self.uuid, "plan": batch.plan, "batch": batch.id}
        frame = target.local(self.place.spark, [{**common, **row} for row in given], HERE)
        exprs = [f"{INSTANTS.get(name, SPARK.identifier(name))} AS {SPARK.identifier(name)}" for name in COLUMNS.names]
        return once.append(self.place, frame.selectExpr(*exprs), self.table, key, batch=batch.id)


def batch_id(uuid: str, plan: int, files: Iterable[SourceFile]) -> str:
    """Of a plan of a table. A file that was gone may come back, and is in a batch of another name then."""
    identities = sorted(file.identity for file in files)
    said = "\n".join([uuid, str(plan), *(f"{uri}\t{size}\t{modified}" for uri, size, modified in identities)])
    return sha256(said.encode()).hexdigest()[:32]


def name_of(place: Place, into: Table) -> Table:
    """The ledger that a table names, or the one that it will have."""
    loaded = place.load(into) or {"metadata": {}}
    said = loaded["metadata"].get("properties", {}).get(PROPERTY)
    return table(said) if said else into.beside(f"{into.name}_files")


def found(place: Place, into: Table) -> Ledger | None:
    """The ledger of a table, if it has one."""
    metadata = place.metadata(into)
    if PROPERTY not in metadata.get("properties", {}):
        return None
    named = name_of(place, into)
    if place.load(named) is None:
        raise SetupError(
            f"{named} is gone, and with it what is known of the files in {into}: bring it back (undrop), or unset "
            f"{into}'s property {PROPERTY}, and all files are taken for new ones"
        )
    return Ledger(place, named, metadata["table-uuid"])


def of(place: Place, into: Table) -> Ledger:
    """The ledger of a table, made if it has none."""
    if (has := found(place, into)) is not None:
        return has
    named = name_of(place, into)
    target.ensure(place, named, COLUMNS)
    change = f"{SPARK.literal(PROPERTY)} = {SPARK.literal(str(named))}"
    query(place.spark, f"ALTER TABLE {place.sql_name(into)} SET TBLPROPERTIES ({change})")
    return Ledger(place, named, place.metadata(into)["table-uuid"])


def _file(file: SourceFile) -> dict[str, Any]:
    return {"path": file.uri, "size": file.size, "modified": file.modified}
