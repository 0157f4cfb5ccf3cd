"""Which snapshots list a data file that Iceberg's readers would not read as DuckDB does.

DuckDB reads a file that was added by the names of its columns, and casts what it finds to the table's types; it casts
files from before a change of type, too. Iceberg's readers go by the field ids of the file if it has any, by the table's
name mapping if it has none, and know a few promotions of types and no casts. So the footers of such files, the
*suspects*, decide whether a snapshot that lists them can be shown. A table without any costs nothing; one that has some
costs a query for them whenever it is read.

A suspect that nobody has looked at is never shown, and one that cannot be opened is not either.

Columns of a file that are not the table's (`ignore_extra_columns`) are nothing to any reader, if the name mapping says
so: PyIceberg insists that it names every column of a file without ids. So it gives them ids that no column ever has.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from mergus.annex.file_facts import Part
from mergus.ducklake import files, path_values
from mergus.ducklake.columns import Columns, Unrepresentable
from mergus.ducklake.connect import Conn
from mergus.ducklake.files import DataFile as LakeFile
from mergus.ducklake.mappings import COPY_ROWS, Mappings
from mergus.ducklake.tables import Table
from mergus.iceberg.name_mapping import MappedField, names_by_parent
from mergus.iceberg.schema import Field, List, Map, Schema, Struct
from mergus.iceberg.schema_parse import folded
from mergus.materialise import entries
from mergus.materialise.footers import Footers, Mapped

# Ids from here on are Iceberg's own, for columns such as `_row_id`.
RESERVED_IDS: Final = 2147483447

# Ids of columns that are not the table's: DuckLake counts those of a table from 1.
IGNORED_IDS: Final = 2_000_000_000

# By the field that they are directly in and their name: columns of files that are not the table's, as they are stored.
Ignored: TypeAlias = Mapping[tuple[int | None, str], tuple[Part, ...]]

# DuckDB annotates every integer; Spark's vectorised reader takes none of these for a long.
_ANNOTATED: Final = frozenset({"int32/int8", "int32/int16", "int32/int32"})
# What every reader takes for a type. Not here on purpose: unsigned integers (Spark fails, on small ones if it does not
# read vectorised, and reads large ones as negative), timestamps in milliseconds (Spark loses rows when it filters),
# nanoseconds and INT96 under timestamp, binary without annotation under string.
_READ_AS: Final[Mapping[str, frozenset[str]]] = {
    "boolean": frozenset({"boolean"}),
    "int": frozenset({"int32"}) | _ANNOTATED,
    "long": frozenset({"int64", "int64/int64", "int32"}) | _ANNOTATED,
    "float": frozenset({"float"}),
    "double": frozenset({"double", "float"}),
    "date": frozenset({"int32/date"}),
    "time": frozenset({"int64/time_us"}),
    "timestamp": frozenset({"int64/timestamp_us"}),
    "timestamptz": frozenset({"int64/timestamptz_us"}),
    "timestamp_ns": frozenset({"int64/timestamp_ns"}),
    "string": frozenset({"binary/string", "binary/json"}),
    "binary": frozenset({"binary"}),
    "uuid": frozenset({"fixed(16)/uuid"}),
}
_DECIMAL: Final = re.compile(r"decimal\((\d+), (\d+)\)")
_STORED_DECIMAL: Final = re.compile(r"(?:int32|int64|fixed\(\d+\))/decimal\((\d+), (\d+)\)")
_ALWAYS: Final = 2**63
# as DuckLake names what it writes
_OWN_NAME: Final = re.compile(r"(?:^|/)ducklake-[^/]+\.parquet$")
_NO_FIELD_IDS: Final = (
    "it has no field ids, and DuckLake has no mapping of its columns: DuckDB takes them by their position, which "
    "Iceberg's readers do not. Write its rows anew in DuckDB, with CALL ducklake_merge_adjacent_files or CREATE TABLE "
    "... AS FROM ..."
)
# A file that DuckLake rewrites keeps the types of the old one.
_ANEW: Final = "Delete its rows in DuckDB and insert them again, in one transaction"
_STORED: Final = frozenset[str]().union(*_READ_AS.values())


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of a file under a schema: why it cannot be shown, if it cannot; `slowly` if Spark must not read vectorised;
    `ignored` are its columns that are not the table's."""

    misfit: str | None = None
    slowly: bool = False
    ignored: Ignored = field(default_factory=dict[tuple[int | None, str], tuple[Part, ...]])


@dataclass(frozen=True, slots=True)
class Examined:
    """The spans of snapshots that cannot be shown, each without its end; the mappings of files that were added, and
    the columns of theirs that are not the table's."""

    misfits: Mapping[tuple[int, int], Unrepresentable]
    slowly: bool
    mapped: Mapped
    ignored: Ignored = field(default_factory=dict[tuple[int | None, str], tuple[Part, ...]])

    def misfit_at(self, snapshot_id: int) -> Unrepresentable | None:
        return next((why for (first, end), why in self.misfits.items() if first <= snapshot_id < end), None)


async def examine(
    conn: Conn,
    footers: Footers,
    unopened: Mapping[int, str],
    table: Table,
    columns: Columns,
    mappings: Mappings,
    names: Sequence[MappedField],
    schemas: Sequence[tuple[int, Schema | Unrepresentable]],
    now: Schema,
) -> Examined:
    """`unopened` are files that could not be opened just now; `names` is the name mapping of all files, and `now` the
    schema that partition specs are about. Raises Unread."""
    retypes = columns.retypes()
    mapped = {m.id: Mappings((m,)).name_mapping(columns) for m in mappings.mappings}
    if not retypes and not mapped:
        return Examined({}, slowly=False, mapped={})
    turns = [r.snapshot_id for r in retypes]
    suspects = await files.suspects(conn, table.id, table.paths, (min(turns), max(turns)) if turns else None)
    unopened = {**unopened, **{f.id: why for f in suspects if (why := entries.unplaced(f.path)) is not None}}
    looked_at = await footers.of(conn, [f for f in suspects if f.id not in unopened])
    in_path = mappings.in_path
    if in_path:
        await files.read_stats(conn, table.id, [f for f in suspects if f.mapping_id in in_path])
    ids = frozenset(c.id for c in columns.columns)
    ignored: dict[tuple[int | None, str], tuple[Part, ...]] = {}
    misfits: dict[tuple[int, int], Unrepresentable] = {}
    verdicts: dict[tuple[int, int | None, frozenset[int], int], Verdict] = {}
    slowly = False
    for file in suspects:
        for first, end, index in _spans(file, schemas):
            schema = schemas[index][1]
            rewritten = file.row_id_start is None
            retyped = frozenset(
                r.column_id for r in retypes if r.affects(first, file.begin_snapshot, rewritten=rewritten)
            )
            if not isinstance(schema, Schema) or (file.mapping_id is None and not retyped):
                continue
            if file.id in unopened:
                verdict = Verdict(unopened[file.id])
            else:
                # most files are stored alike, of which there is one description, and judged together
                key = id(looked_at[file.id]), file.mapping_id, retyped, index
                if key not in verdicts:
                    own = None if file.mapping_id is None else mapped[file.mapping_id]
                    there = in_path.get(file.mapping_id, ()) if file.mapping_id is not None else ()
                    found = judge(looked_at[file.id], schema, own, retyped, ids, there)
                    why = why_not_ignored(found.ignored, names)
                    verdicts[key] = replace(found, misfit=why if found.misfit is None else f"{found.misfit}. {_ANEW}")
                    for name, parts in found.ignored.items():
                        ignored[name] = tuple(dict.fromkeys((*ignored.get(name, ()), *parts)))
                verdict = verdicts[key]
            if verdict.misfit is None and file.mapping_id is not None and file.mapping_id in in_path:
                why = path_values.why_not(file, in_path[file.mapping_id], columns.columns, schema, first, now)
                verdict = replace(verdict, misfit=why)
            slowly = slowly or verdict.slowly
            if verdict.misfit is not None:
                misfits.setdefault((first, end), Unrepresentable(f"file {file.path}", verdict.misfit))
    return Examined(misfits, slowly, mapped, ignored)


async def check_field_ids(conn: Conn, footers: Footers, unopened: Mapping[int, str], added: Sequence[LakeFile]) -> None:
    """Of files that are to be listed, those that neither DuckLake nor a client of ours wrote, and that have no mapping:
    lakes of earlier versions have some without field ids. DuckDB then goes by the position of columns in the table of
    the moment, which no name mapping says. Raises Unread, or Unrepresentable for such a file. Files that DuckLake or a
    client wrote cost nothing."""
    foreign = [f for f in added if f.mapping_id is None and f.placed is None and not _OWN_NAME.search(f.path)]
    if not foreign:
        return
    unopened = {**unopened, **{f.id: why for f in foreign if (why := entries.unplaced(f.path)) is not None}}
    looked_at = await footers.of(conn, [f for f in foreign if f.id not in unopened])
    for file in foreign:
        why = unopened.get(file.id)
        if why is None and all(part.id is None for part in looked_at[file.id]):
            why = _NO_FIELD_IDS
        if why is not None:
            raise Unrepresentable(f"file {file.path}", why)


def _spans(file: LakeFile, schemas: Sequence[tuple[int, Schema | Unrepresentable]]) -> Iterator[tuple[int, int, int]]:
    """When the file was there under each of the schemas."""
    ends = [*(since for since, _ in schemas[1:]), _ALWAYS]
    for index, ((since, _), until) in enumerate(zip(schemas, ends, strict=True)):
        first = max(since, file.begin_snapshot)
        end = until if file.end_snapshot is None else min(until, file.end_snapshot)
        if first < end:
            yield first, end, index


class _Misfit(Exception):
    def __init__(self, path: Sequence[str], reason: str) -> None:
        super().__init__(f"column {'.'.join(path)} {reason}")


def judge(
    parts: Sequence[Part],
    schema: Schema,
    own: Sequence[MappedField] | None,
    retyped: frozenset[int],
    ids: frozenset[int],
    in_path: Sequence[int] = (),
) -> Verdict:
    """Of a file that was added with the mapping `own`, or else of DuckLake's own file in which the columns `retyped`
    may have another type. `ids` are those of all columns that the table ever had, `in_path` of those whose values are
    in the file's path."""
    fields = {field.id: field for field in schema.walk()}
    ignored: dict[tuple[int | None, str], tuple[Part, ...]] = {}
    try:
        if own is None:
            found = [((p.name,), p, p.id) for part in parts for p in part.walk() if p.id in retyped]
        else:
            with_ids = any(p.id is not None for part in parts for p in part.walk())
            found = list(_mapped(parts, own, ids if with_ids else None, (), None, ignored))
            if with_ids and in_path:
                return Verdict("it has field ids, and values in its path")
            _check_required(schema.fields, {column_id: part for _, part, column_id in found}, in_path)
        slowly = [_reads_slowly(path, part, fields[i]) for path, part, i in found if i in fields]
    except _Misfit as e:
        return Verdict(str(e))
    return Verdict(slowly=any(slowly), ignored=ignored)


def why_not_ignored(ignored: Ignored, names: Sequence[MappedField]) -> str | None:
    """Why columns that are not the table's cannot be in a file beside others, if they cannot: by the one name mapping
    of the table they would be its column that has this name in another file."""
    known = {(parent, folded(name)): mapped.id for (parent, name), mapped in names_by_parent(names)}
    for parent, name in ignored:
        if (parent, folded(name)) in known:
            return f"column {name} is not the table's, and is in another file that was added. {COPY_ROWS}"
    return None


def with_ignored(names: Sequence[MappedField], ignored: Ignored) -> tuple[MappedField, ...]:
    """A name mapping that takes columns which are not the table's for others, of ids that no column has."""
    next_id = IGNORED_IDS

    def unknown(name: str, parts: Sequence[Part]) -> MappedField:
        nonlocal next_id
        next_id += 1
        own_id = next_id
        below: dict[str, list[Part]] = {}
        for inner in (inner for part in parts for inner in part.parts):
            below.setdefault(inner.name, []).append(inner)
        return MappedField(own_id, (name,), tuple(unknown(name, inner) for name, inner in sorted(below.items())))

    def level(fields: Sequence[MappedField], parent: int | None) -> tuple[MappedField, ...]:
        known = [replace(field, fields=level(field.fields, field.id)) for field in fields]
        more = sorted((name, parts) for (above, name), parts in ignored.items() if above == parent)
        return (*known, *(unknown(name, parts) for name, parts in more))

    return level(names, None) if ignored else tuple(names)


def with_path_names(
    names: Sequence[MappedField], mappings: Mappings, ignored: Ignored, now: Schema
) -> tuple[MappedField, ...]:
    """A name mapping that also has the columns in paths, by their names there: files may be added that have them. Not
    one whose name is something else in a file, or now."""
    taken = {folded(name) for field in names for name in field.names}
    taken |= {folded(name) for parent, name in ignored if parent is None}
    owners = {folded(field.name): field.id for field in now.fields}
    found = {field.id: field for field in names}
    for source in (source for mapping in mappings.mappings for source in mapping.sources if source.is_partition):
        name = folded(source.name)
        if name not in taken and owners.get(name, source.target) == source.target:
            found.setdefault(source.target, MappedField(source.target, (source.name,)))
    return tuple(found.values())


def judge_columns(parts: Sequence[Part], schema: Schema, ids: frozenset[int]) -> Verdict:
    """Of a file with field ids of its own: whether it has these columns of the schema as the schema says, or may lack
    them."""
    fields = {field.id: field for field in schema.walk() if field.id in ids}
    found = [((p.name,), p, p.id) for part in parts for p in part.walk() if p.id in fields]
    try:
        _check_required([f for f in schema.fields if f.id in ids], {i: part for _, part, i in found})
        slowly = [_reads_slowly(path, part, fields[i]) for path, part, i in found]
    except _Misfit as e:
        return Verdict(str(e))
    return Verdict(slowly=any(slowly))


def _mapped(
    parts: Sequence[Part],
    own: Sequence[MappedField],
    ids: frozenset[int] | None,
    above: tuple[str, ...],
    parent: int | None,
    ignored: dict[tuple[int | None, str], tuple[Part, ...]],
) -> Iterator[tuple[tuple[str, ...], Part, int]]:
    """Every part of the table's, with its id; `ids` is None if the file has none of its own. What it has beside goes
    into `ignored` then."""
    named = {name: field for field in own for name in field.names}
    seen: set[str] = set()
    for part in parts:
        path = (*above, part.name)
        if part.name in seen:
            raise _Misfit(path, "is there twice")
        seen.add(part.name)
        field = named.get(part.name)
        if field is None:
            if ids is None:
                _check_ignored(path, part)
                ignored[parent, part.name] = (part,)
                continue
            if any(p.id is None or p.id in ids or p.id >= RESERVED_IDS for p in part.walk()):
                raise _Misfit(path, "is not the table's, and its field id does not tell")
            continue
        if ids is not None and part.id != field.id:
            raise _Misfit(path, f"has field id {part.id} there, and {field.id} in the table")
        yield path, part, field.id
        yield from _mapped(part.parts, field.fields, ids, path, field.id, ignored)


def _check_ignored(path: tuple[str, ...], part: Part) -> None:
    """PyIceberg takes the whole file for unreadable if it has a type of which it knows nothing."""
    for leaf in part.walk():
        if not leaf.parts and leaf.kind not in _STORED and not _STORED_DECIMAL.fullmatch(leaf.kind):
            raise _Misfit(path, f"is not the table's, and is stored as {leaf.kind}, which not every reader knows")


def _check_required(columns: Sequence[Field], found: Mapping[int, Part], in_path: Collection[int] = ()) -> None:
    """DuckLake takes files with NULLs under NOT NULL; a reader that was told there are none may do anything."""
    for column in columns:
        if not column.required or column.id in in_path:
            continue
        if column.id not in found:
            if column.initial_default is None:
                raise _Misfit((column.name,), "is NOT NULL, and the file does not have it")
        elif found[column.id].nulls:
            raise _Misfit((column.name,), "is NOT NULL, and the file may have NULLs")


def _reads_slowly(path: Sequence[str], part: Part, field: Field) -> bool:
    """Raises _Misfit if there is a reader that does not read it right at all."""
    match field.type:
        case Struct():
            fits = part.kind == "struct"
        case List():
            fits = part.kind == "list"
        case Map():
            fits = part.kind == "map"
        case str(name):
            fits = _reads_as(part.kind, name)
    if not fits:
        raise _Misfit(path, f"is stored as {part.kind}, which not every Iceberg reader reads as {_text(field)}")
    return field.type == "long" and part.kind in _ANNOTATED


def _reads_as(stored: str, primitive: str) -> bool:
    wanted = _DECIMAL.fullmatch(primitive)
    if wanted is None:
        return stored in _READ_AS.get(primitive, ())
    found = _STORED_DECIMAL.fullmatch(stored)
    return found is not None and found[2] == wanted[2] and int(found[1]) <= int(wanted[1])


def _text(field: Field) -> str:
    return field.type if isinstance(field.type, str) else type(field.type).__name__.lower()
