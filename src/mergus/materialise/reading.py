"""Everything about a table but its files, in one state of the lake."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import orjson
from psycopg import sql

from mergus.annex import iceberg_tables
from mergus.annex import tables as annex
from mergus.annex.iceberg_tables import IcebergTable
from mergus.ducklake import columns, files, inlined, mappings, partitions, places, snapshots, sorts, tables
from mergus.ducklake.changes import MERGES
from mergus.ducklake.columns import Columns, Timeline, Unrepresentable
from mergus.ducklake.connect import Conn
from mergus.ducklake.partitions import Given, Partitions
from mergus.ducklake.snapshots import Head, Snapshot, Subject
from mergus.ducklake.sorts import Sorts
from mergus.ducklake.told import Committed, Restored
from mergus.errors import NoSuchTable, Unsupported
from mergus.iceberg.arrangement import arranged
from mergus.iceberg.name_mapping import PROPERTY, name_mapping_json
from mergus.iceberg.schema import Schema, schema_json
from mergus.iceberg.schema_parse import parse_schema
from mergus.materialise import suspects
from mergus.materialise.chain import View
from mergus.materialise.footers import Footers
from mergus.materialise.layout import Layout
from mergus.materialise.manifests import Merging
from mergus.materialise.suspects import Examined
from mergus.storage.location import Location

FORMAT_VERSION: Final = "mergus.format-version"
# `hide` shows a table without the columns that Iceberg cannot hold, and names them in the other property.
UNSUPPORTED_COLUMNS: Final = "mergus.unsupported-columns"
HIDDEN_COLUMNS: Final = "mergus.hidden-columns"
REFUSE, HIDE = "refuse", "hide"
_NOT_SERVED: Final = frozenset({FORMAT_VERSION, UNSUPPORTED_COLUMNS})
VECTORISED: Final = "read.parquet.vectorization.enabled"


@dataclass(frozen=True, slots=True)
class Shown:
    """A snapshot of the table with the schema that it had, the one before it in the lake, and the one that it was built
    on. One that is not `listed` only put main back to another."""

    snapshot: Snapshot
    previous: Snapshot | None
    parent: Snapshot | None
    listed: bool
    schema: Schema
    # by which the schema is known again
    schema_text: str


@dataclass(frozen=True, slots=True)
class Known:
    """What an earlier reading found, for the next to begin with."""

    head: Head
    snapshots: Sequence[Snapshot]


@dataclass(frozen=True, slots=True)
class TableReading:
    head: Head
    view: View
    known: Known
    shown: list[Shown]
    # the newest first: from which snapshot of the lake on main was which
    mains: Sequence[tuple[Snapshot, Shown | None]]
    # what else Iceberg's clients have written about the table
    kept: IcebergTable
    # every schema that can be shown, in the order in which they came; the last one is that of now
    schemas: Sequence[Schema]
    # what the table looked like from when on, and why some of its snapshots cannot be shown
    timeline: Timeline
    examined: Examined
    # the snapshots at which it came to look different, or to be stored differently
    turns: Sequence[int]
    partitions: Partitions
    sorts: Sorts
    properties: dict[str, str]
    # from which snapshot on, and up to which, a merge took files away
    merges: Sequence[tuple[int, int]]
    next_row_id: int
    updated_ms: int

    @property
    def schema(self) -> Schema:
        return self.schemas[-1]

    @property
    def main(self) -> Shown | None:
        return self.mains[-1][1] if self.mains else None


@dataclass(frozen=True, slots=True)
class Place:
    """Where the lake is, and how its tables are shown if nothing else is said."""

    metadata_schema: str
    data_path: Location
    root: Location
    format_version: int


async def read(
    conn: Conn,
    place: Place,
    table_id: int,
    known: Known | None,
    footers: Footers,
    unopened: Mapping[int, str],
    upto: int | None = None,
) -> TableReading:
    """Call inside a REPEATABLE READ transaction. `known` is of a head that is one of the lake's snapshots still;
    `unopened` are data files that could not be opened just now. With `upto` the table is read as if that snapshot were
    the newest, and it may have been dropped since.

    Raises NoSuchTable, Unsupported with the reason, or Unread with data files that have to be looked at first.
    """
    head = await snapshots.head(conn)
    table = await tables.read(conn, table_id) if upto is None else await tables.read_last(conn, table_id)
    if table is None:
        raise NoSuchTable("Table does not exist any more")
    upto = head.snapshot_id if upto is None else upto
    properties = await annex.read_properties(conn, table_id)
    kept = await iceberg_tables.read(conn, table_id)
    found = await columns.read(conn, table_id)
    if properties.get(UNSUPPORTED_COLUMNS) == HIDE:
        found = replace(found, hides=True)
    parts = await partitions.read(conn, table_id)
    sorting = await sorts.read(conn, table_id)
    rows_tables = await inlined.tables(conn, place.metadata_schema, table_id)
    deletes = await files.inlined_delete_table(conn, place.metadata_schema, table_id)
    rows_names = [sql.Identifier(place.metadata_schema, t.name) for t in rows_tables]
    schemas = [turn for turn in _arranged(found.timeline(), kept) if turn[0] <= upto]
    added = await mappings.read(conn, table_id)
    # snapshots from before a column in a path was dropped or changed are not shown: this one is, in their place
    in_path = {column_id for ids in added.in_path.values() for column_id in ids}
    reshaped = sorted({*found.reshaped(schemas), *found.turns_of(in_path)})
    subject = Subject(table.id, table.begin, rows_names, deletes, reshaped, table.was_there)
    listed = await _listed(conn, subject, head, known)
    try:
        names = added.name_mapping(found)
        now = schema_at(schemas, upto)
        examined = await suspects.examine(conn, footers, unopened, table, found, added, names, schemas, now)
        if (misfit := examined.misfit_at(upto)) is not None:
            raise misfit
        # what has been rewritten since matters to all of them
        shown, mains = _shown([s for s in listed if s.id <= upto], schemas, examined, kept)
    except Unrepresentable as e:
        name = f"{table.schema_name}.{table.name}"
        raise Unsupported(f"Table {name} cannot be shown as Iceberg: {e}{how_to_hide(e)}") from e
    representable = [s for _, s in schemas if isinstance(s, Schema)]
    version = _format_version(place, properties, representable)
    specs = parts.specs(now, found, upto, Given(kept.specs, kept.partitionings))
    placed = places.places(specs, now, found, upto, added.in_path)
    served = {k: v for k, v in properties.items() if k not in _NOT_SERVED}
    if hidden := found.hidden_at(upto):
        served[HIDDEN_COLUMNS] = orjson.dumps({c.name: c.type for c in hidden}).decode()
    if names:
        every = suspects.with_path_names(names, added, examined.ignored, now)
        served[PROPERTY] = name_mapping_json(suspects.with_ignored(every, examined.ignored))
    if _reads_slowly(now, found, examined):
        served[VECTORISED] = "false"
    if table.comment:
        served["comment"] = table.comment
    view = View(
        metadata_schema=place.metadata_schema,
        table=table,
        format_version=version,
        layout=Layout.of(place.root, table.uuid),
        columns=found,
        schema=now,
        places=placed,
        merging=Merging.of(properties),
        inlined=rows_tables,
        as_of=head.snapshot_id,
        horizon=await files.horizon(conn, table_id),
        mapped=examined.mapped,
        iceberg_ids={s.id: s.iceberg_id for s in listed if s.iceberg_id != s.id},
    )
    turns = _turns(table.begin, found, parts, sorting)
    return TableReading(
        head=head,
        view=view,
        known=Known(head, listed),
        shown=shown,
        mains=mains,
        kept=kept,
        schemas=schemas_upto(schemas, now),
        timeline=schemas,
        examined=examined,
        turns=turns,
        partitions=parts,
        sorts=sorting,
        properties=served,
        merges=await _merges(conn, table_id, listed),
        next_row_id=await tables.next_row_id(conn, table_id),
        updated_ms=await snapshots.latest_ms(conn, changed_at(turns, listed, upto)),
    )


def how_to_hide(why: Unrepresentable) -> str:
    """What the user can do about a column that Iceberg cannot hold."""
    if not why.can_hide:
        return ""
    return (
        f". Change the type of the column, or show the table without such columns: mergus properties NAMESPACE TABLE "
        f"--set {UNSUPPORTED_COLUMNS}={HIDE}"
    )


async def _listed(conn: Conn, subject: Subject, head: Head, known: Known | None) -> list[Snapshot]:
    """All snapshots of the table; of those that an earlier reading found, nothing is asked again."""
    before: Sequence[Snapshot] = ()
    if known is not None and known.head.epoch == head.epoch:
        before = known.snapshots
    after = known.head.snapshot_id if known is not None and before else -1
    return [*before, *await snapshots.of_table(conn, subject, after, is_first=not before)]


def _arranged(turns: Timeline, kept: IcebergTable) -> Timeline:
    """With the fields in the order that clients gave them."""
    points = sorted({since for since, _ in turns} | {since for since, _ in kept.arrangements})
    found: Timeline = []
    for point in points:
        schema = next((s for since, s in reversed(turns) if since <= point), None)
        like = next((s for since, s in reversed(kept.arrangements) if since <= point), None)
        if schema is not None:
            found.append((point, schema if like is None or not isinstance(schema, Schema) else arranged(schema, like)))
    return found


def schema_at(turns: Timeline, snapshot_id: int) -> Schema:
    """Raises Unrepresentable."""
    schema = next((s for since, s in reversed(turns) if since <= snapshot_id), Schema(()))
    if not isinstance(schema, Schema):
        raise schema
    return schema


def _shown(
    listed: Sequence[Snapshot],
    schemas: Sequence[tuple[int, Schema | Unrepresentable]],
    examined: Examined,
    kept: IcebergTable,
) -> tuple[list[Shown], list[tuple[Snapshot, Shown | None]]]:
    """Those whose rows can be shown: one with a column that Iceberg has no type for, or with a file that its readers
    would read wrong, is left out, until it expires. And what main was, from each of them on.

    Raises Unrepresentable if that is the last one: what came with it is there still, and nothing else would show it.
    """
    shown: list[Shown] = []
    mains: list[tuple[Snapshot, Shown | None]] = []
    by_id: dict[int, Shown] = {}
    main: Shown | None = None
    turns = [since for since, _ in schemas]
    texts: dict[int, str] = {}
    why: Unrepresentable | None = None
    for snapshot in listed:
        index = bisect_right(turns, snapshot.id) - 1
        schema = schemas[index][1] if index >= 0 else Unrepresentable("the table", "it has no columns")
        why = schema if isinstance(schema, Unrepresentable) else examined.misfit_at(snapshot.id)
        if not isinstance(schema, Schema) or why is not None or snapshot.id in kept.removed_snapshots:
            continue
        if index not in texts:
            texts[index] = schema_text(schema)
        told, previous = snapshot.told, shown[-1].snapshot if shown else None
        back = isinstance(told, Restored) and (told.main is None or told.main in by_id)
        is_root = isinstance(told, Committed) and told.is_root
        parent = main.snapshot if main and not is_root else None
        one = by_id[snapshot.id] = Shown(snapshot, previous, parent, not back, schema, texts[index])
        main = by_id.get(told.main or -1) if back and isinstance(told, Restored) else one
        shown.append(one)
        mains.append((snapshot, main))
    if why is not None:
        what = f"snapshot {listed[-1].id}, which changed its rows last"
        raise Unrepresentable(what, str(why), can_hide=why.can_hide)
    return shown, mains


def _reads_slowly(schema: Schema, found: Columns, examined: Examined) -> bool:
    """Whether Spark's vectorised reader (Iceberg 1.11) fails on the table's files: it takes no annotated int for a
    long, and no decimal of a column that has an initial default."""
    defaulted = [f for f in schema.walk() if f.initial_default is not None]
    decimals = any(isinstance(f.type, str) and f.type.startswith("decimal") for f in defaulted)
    return decimals or examined.slowly or found.widens_integers()


def _format_version(place: Place, properties: dict[str, str], schemas: Sequence[Schema]) -> int:
    asked = properties.get(FORMAT_VERSION, "")
    wanted = int(asked) if asked in {"2", "3"} else place.format_version
    return max([wanted, *(s.format_version for s in schemas)])


def schema_text(schema: Schema) -> str:
    """By which a schema is known again, whatever its number."""
    json = schema_json(schema, 0)
    if not schema.identifier_ids:
        return orjson.dumps(json["fields"]).decode()
    return orjson.dumps({"fields": json["fields"], "identifier-field-ids": json["identifier-field-ids"]}).decode()


def schema_of_text(text: str) -> Schema:
    """The inverse."""
    loaded = orjson.loads(text)
    return parse_schema({"type": "struct", **(loaded if isinstance(loaded, dict) else {"fields": loaded})})


async def _merges(conn: Conn, table_id: int, listed: Sequence[Snapshot]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    first_id = 0
    for snapshot in listed:
        # of an expired snapshot nobody knows what it did
        if snapshot.after_gap:
            found.append((0, snapshot.id))
        elif snapshot.words & MERGES:
            begin = await files.oldest_begin(conn, table_id, first_id, snapshot.next_file_id)
            found.append((0 if begin is None else begin, snapshot.id))
        first_id = snapshot.next_file_id
    return found


def _turns(begin: int, found: Columns, parts: Partitions, sorting: Sorts) -> list[int]:
    spans = [c.span for c in (*found.columns, *found.comments)]
    spans += [p.span for p in parts.partitionings] + [s.span for s in sorting.sorts]
    return sorted({begin, *(turn for span in spans for turn in (span.begin, span.end) if turn is not None)})


def changed_at(turns: Sequence[int], listed: Sequence[Snapshot], upto: int) -> list[int]:
    """The snapshots up to one that made the table what it was then; the last of them is among these."""
    return [turn for turn in turns if turn <= upto] + [s.id for s in listed if s.id <= upto][-1:]


def schemas_upto(turns: Timeline, last: Schema) -> list[Schema]:
    """All that can be shown, in the order in which they came, and then the last."""
    return [*(s for s in dict.fromkeys(s for _, s in turns if isinstance(s, Schema)) if s != last), last]
