"""What only data files themselves can tell: how their columns are stored, and how many NaNs are in them.

Facts about a file never change, so a file is read once: in its footer (a HEAD and a ranged GET or two), or, where there
may be NaNs, in those columns alone. Every other process then knows from `file_fact`; if that cannot be written, nothing
is lost but time. No footer is read for an ordinary file of DuckLake's own: `suspects.py` says whose are, and DuckLake
knows of most columns that they have no NaN.

What must hold: no object is read inside a transaction. `Unread` names the files that have to be looked at first; who
catches it looks (`Footers.read`) and asks again. Of a file that could not be opened nothing is remembered.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import orjson
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.compute as pc  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

from mergus.annex import file_facts
from mergus.annex.file_facts import COLUMNS, NANS, Part
from mergus.ducklake.connect import Conn, Pool, connection
from mergus.ducklake.files import DataFile as LakeFile
from mergus.errors import BadRequest, ServiceUnavailable
from mergus.iceberg.name_mapping import ELEMENT, KEY, VALUE, MappedField
from mergus.logs import log
from mergus.materialise.at_once import each
from mergus.storage.location import Location
from mergus.storage.objects import Objects

# pyarrow has no types; what leaves this module is typed again.
Untyped: TypeAlias = Any
_arrow: Untyped = pa
_compute: Untyped = pc
_parquet: Untyped = pq
T = TypeVar("T")

# By the id of a mapping: which of the table's columns each of a file's is.
Mapped: TypeAlias = Mapping[int, Sequence[MappedField]]

READS_AT_ONCE: Final = 8
# so many files are read before what was found is written down
BATCH: Final = 256
KEPT_FOOTERS: Final = 100_000

_FIELD_ID: Final = b"PARQUET:field_id"
_UNITS: Final = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
_PHYSICAL: Final = {"BYTE_ARRAY": "binary", "FIXED_LEN_BYTE_ARRAY": "fixed"}
_FLOATS: Final = frozenset({"float", "double"})
# between a list or map and its parts is a group of some name
_REPEATED: Final = r"\.[^.]+\.[^.]+"


class Unread(Exception):
    """Files that have to be looked at first."""

    def __init__(self, unread: Sequence[LakeFile]) -> None:
        super().__init__(f"{len(unread)} files have not been looked at")
        self.files = unread


class Footers:
    """Looks into files, and remembers what was there: in this process, and in the annex for the others."""

    def __init__(self, pool: Pool, objects: Objects) -> None:
        self._pool = pool
        self._objects = objects
        self._kept: dict[int, tuple[str, tuple[Part, ...]]] = {}

    async def of(self, conn: Conn, suspects: Sequence[LakeFile]) -> dict[int, tuple[Part, ...]]:
        """The columns of each. Raises Unread."""
        asked = {f.id: f.path for f in suspects if not self._has(f)}
        if asked:
            for file_id, text in (await file_facts.read(conn, COLUMNS, asked)).items():
                self._keep(file_id, asked[file_id], file_facts.parse_columns(text))
        if unread := [f for f in suspects if not self._has(f)]:
            raise Unread(unread)
        found = {f.id: self._kept[f.id][1] for f in suspects}
        # not earlier: what was just read may be known here alone
        for oldest in list(self._kept)[: max(0, len(self._kept) - KEPT_FOOTERS)]:
            del self._kept[oldest]
        return found

    async def read(self, suspects: Sequence[LakeFile]) -> dict[int, str]:
        """Looks at them. Those that could not be opened, with the reason."""
        unopened: dict[int, str] = {}
        for batch in _batches(suspects):
            found = await _all([partial(_read_columns, self._objects, Location.parse(file.path)) for file in batch])
            facts: dict[int, str] = {}
            for file, columns in zip(batch, found, strict=True):
                if isinstance(columns, str):
                    unopened[file.id] = columns
                else:
                    facts[file.id] = file_facts.columns_text(columns)
                    self._keep(file.id, file.path, file_facts.parse_columns(facts[file.id]))
            await self._write(COLUMNS, batch, facts)
        return unopened

    async def nan_counts(
        self, wanted: Sequence[tuple[LakeFile, frozenset[int]]], mapped: Mapped
    ) -> dict[int, dict[int, int]]:
        """Of these columns of each file; of one that cannot be read there is none."""
        if not wanted:
            return {}
        async with connection(self._pool) as conn:
            known = await file_facts.read(conn, NANS, {file.id: file.path for file, _ in wanted})
        counts = {i: file_facts.parse_nans(text) for i, text in known.items()}
        for batch in _batches([(f, ids) for f, ids in wanted if ids - counts.get(f.id, {}).keys()]):
            found = await _all([partial(_count_nans, self._objects, f, ids, mapped) for f, ids in batch])
            for (file, _), new in zip(batch, found, strict=True):
                counts[file.id] = counts.get(file.id, {}) | new
            facts = {f.id: file_facts.nans_text(counts[f.id]) for (f, _), new in zip(batch, found, strict=True) if new}
            await self._write(NANS, [f for f, _ in batch], facts)
        return counts

    async def _write(self, kind: str, about: Sequence[LakeFile], facts: Mapping[int, str]) -> None:
        try:
            async with connection(self._pool) as conn:
                await file_facts.write(conn, kind, {f.id: f.path for f in about}, facts)
        except ServiceUnavailable as e:
            log.warning("what was found in %s files is not remembered: %s", len(facts), e)

    def _has(self, file: LakeFile) -> bool:
        return file.id in self._kept and self._kept[file.id][0] == file.path

    def _keep(self, file_id: int, path: str, columns: tuple[Part, ...]) -> None:
        self._kept.pop(file_id, None)
        self._kept[file_id] = path, columns


async def columns(objects: Objects, places: Mapping[str, Location]) -> list[Sequence[Part]]:
    """Of files that nobody knows yet, by their paths. Raises BadRequest."""

    def one(path: str) -> Sequence[Part]:
        found = _read_columns(objects, places[path])
        if isinstance(found, str):
            raise BadRequest(f"Data file {path} cannot be looked at: {found}")
        return found

    return await _all([partial(one, path) for path in places])


def _batches(every: Sequence[T]) -> Iterator[Sequence[T]]:
    return (every[i : i + BATCH] for i in range(0, len(every), BATCH))


async def _all(work: Sequence[Callable[[], T]]) -> list[T]:
    return await each(asyncio.to_thread, work, READS_AT_ONCE)


def _read_columns(objects: Objects, place: Location) -> tuple[Part, ...] | str:
    """Or why not, where trying again would not help."""
    try:
        return columns_of(_open(objects, place))
    except FileNotFoundError:
        return "it is missing"
    except ServiceUnavailable as e:
        if not _is_refused(e):
            raise
        return "this server may not read it"
    except (OSError, ValueError, _arrow.ArrowException):
        return "it is in no place, or of no form, that can be read"


def _count_nans(objects: Objects, file: LakeFile, wanted: frozenset[int], mapped: Mapped) -> dict[int, int]:
    """In the whole file, deleted rows and all, as Iceberg counts."""
    try:
        opened = _open(objects, Location.parse(file.path))
        own = None if file.mapping_id is None else mapped[file.mapping_id]
        paths = {i: path for i, path in _floats(columns_of(opened), own, ()) if i in wanted}
        counts = dict.fromkeys(paths, 0)
        for group in range(opened.num_row_groups if paths else 0):
            # a name with a dot may stand for two columns here, of which one is a struct's
            table = opened.read_row_group(group, columns=[".".join(path) for path in paths.values()])
            for column_id, path in paths.items():
                counts[column_id] += _nans(table, path)
    except (OSError, ValueError, KeyError, ServiceUnavailable, _arrow.ArrowException) as e:
        if isinstance(e, ServiceUnavailable) and not _is_refused(e):
            raise
        log.warning("NaNs in %s cannot be counted: %s", file.path, e)
        return {}
    return counts


def _is_refused(error: ServiceUnavailable) -> bool:
    """Whether the store said no, and would say it again."""
    return isinstance(error.__cause__, PermissionDeniedError | UnauthenticatedError)


def _open(objects: Objects, place: Location) -> Untyped:
    return _parquet.ParquetFile(objects.open(place))


def _floats(
    parts: Sequence[Part], own: Sequence[MappedField] | None, above: tuple[str, ...]
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Those outside of lists and maps, by the ids of the table's columns."""
    named = {name: field for field in own or () for name in field.names}
    for part in parts:
        field = named.get(part.name)
        column_id = part.id if own is None else field.id if field else None
        if column_id is not None and part.kind in _FLOATS:
            yield column_id, (*above, part.name)
        if part.kind == "struct" and (own is None or field):
            yield from _floats(part.parts, None if own is None else field.fields if field else (), (*above, part.name))


def _nans(table: Untyped, path: tuple[str, ...]) -> int:
    column = table.column(path[0])
    for name in path[1:]:
        column = _compute.struct_field(column, [column.type.get_field_index(name)])
    found: int | None = _compute.sum(_compute.is_nan(column)).as_py()
    return found or 0


def columns_of(opened: Untyped) -> tuple[Part, ...]:
    """Raises ValueError for a file that Arrow has another idea of."""
    leaves = iter(range(len(opened.schema)))
    found = tuple(_part(opened, field, field.name, re.escape(field.name), leaves) for field in opened.schema_arrow)
    if next(leaves, None) is not None:
        raise ValueError("columns without a place in the schema")
    return found


def _part(opened: Untyped, field: Untyped, name: str, path: str, leaves: Iterator[int]) -> Part:
    kind: Untyped = field.type
    while isinstance(kind, _arrow.BaseExtensionType):
        kind = kind.storage_type
    tags: dict[bytes, bytes] = field.metadata or {}
    field_id = int(tags[_FIELD_ID]) if _FIELD_ID in tags else None
    nulls = bool(field.nullable)
    types = _arrow.types
    if types.is_struct(kind):
        parts = [_part(opened, child, child.name, rf"{path}\.{re.escape(child.name)}", leaves) for child in kind]
        return Part(name, field_id, "struct", nulls, tuple(parts))
    if types.is_map(kind):
        key = _part(opened, kind.key_field, KEY, path + _REPEATED, leaves)
        value = _part(opened, kind.item_field, VALUE, path + _REPEATED, leaves)
        return Part(name, field_id, "map", nulls, (key, value))
    if any(is_list(kind) for is_list in (types.is_list, types.is_large_list, types.is_fixed_size_list)):
        element = _part(opened, kind.value_field, ELEMENT, path + _REPEATED, leaves)
        return Part(name, field_id, "list", nulls, (element,))
    index = next(leaves, None)
    if index is None:
        raise ValueError("a column without values")
    leaf = opened.schema.column(index)
    # an old form of lists has no group between
    stored = _stored(leaf) if re.fullmatch(path, leaf.path) else "of an old form"
    return Part(name, field_id, stored, nulls and _may_be_null(opened, leaf, index))


def _stored(leaf: Untyped) -> str:
    """As `Part.kind` has it."""
    physical: str = _PHYSICAL.get(leaf.physical_type) or leaf.physical_type.lower()
    if physical == "fixed":
        physical = f"fixed({leaf.length})"
    match orjson.loads(leaf.logical_type.to_json()):
        case {"Type": "None"}:
            return physical
        case {"Type": "Int", "bitWidth": width, "isSigned": signed}:
            return f"{physical}/{'' if signed else 'u'}int{width}"
        case {"Type": "Decimal", "precision": precision, "scale": scale}:
            return f"{physical}/decimal({precision}, {scale})"
        case {"Type": "Timestamp", "is_from_converted_type": True}:
            # whether it is in UTC old files do not say, and readers do not agree
            return f"{physical}/old timestamp"
        case {"Type": "Time" | "Timestamp" as what, "isAdjustedToUTC": in_utc, "timeUnit": unit}:
            return f"{physical}/{what.lower()}{'tz' if in_utc else ''}_{_UNITS.get(unit, unit)}"
        case other:
            return f"{physical}/{other['Type'].lower()}"


def _may_be_null(opened: Untyped, leaf: Untyped, index: int) -> bool:
    if leaf.max_definition_level == 0:
        return False
    groups = (opened.metadata.row_group(i).column(index).statistics for i in range(opened.num_row_groups))
    return any(s is None or not s.has_null_count or s.null_count > 0 for s in groups)
