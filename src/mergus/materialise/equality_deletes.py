"""Equality deletes become positions: DuckLake has no other deletes (H36).

An equality delete file lists values of some columns, and every row that has them is deleted, if its file is older: of a
lower sequence number, and in the same partition, unless the deletes are unpartitioned and so are about all. Here the
files that may have such rows are read, in those columns alone, and those of which bounds say that they have none are
not read at all.

Values are compared as Iceberg's Java library does it: NULL equals NULL, NaN equals NaN, and 0.0 is not -0.0. Columns
are known by field id; both sides are cast to the type that the table has now, so that an int of an old file meets a
long. A file that lacks the column has its initial default in every row, or NULL.

What must hold: every row that the deletes are about is found, or the commit is refused. Nothing is skipped that cannot
be compared.
"""

import asyncio
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.compute as pc  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
from pyroaring import BitMap64

from mergus.errors import BadRequest, Unsupported
from mergus.iceberg.manifest import DataFile, PartitionValue
from mergus.iceberg.name_mapping import MappedField
from mergus.iceberg.schema import Field
from mergus.materialise.at_once import each
from mergus.materialise.equality_types import arrow_type, bound_key, comparable, default_of, sort_keys
from mergus.storage.location import Location
from mergus.storage.objects import Objects

# pyarrow has no types; what leaves this module is typed again.
Untyped: TypeAlias = Any
_arrow: Untyped = pa
_compute: Untyped = pc
_parquet: Untyped = pq

READS_AT_ONCE: Final = 4
BATCH_ROWS: Final = 65_536
# of all equality deletes of a commit, and bytes of a file of them: they are held in memory
MOST_KEYS: Final = 10_000_000
MOST_PER_FILE: Final = 1024 * 1024 * 1024

_FIELD_ID: Final = b"PARQUET:field_id"
# a spec and a tuple of it
_Place: TypeAlias = tuple[int, tuple[PartitionValue, ...]]


@dataclass(frozen=True, slots=True)
class EqualityDelete:
    """`location` is a place that may be read; `fields` are those of the table's schema, top level, by id. `partition`
    is empty if the spec has no fields, or none but void ones: the deletes are about all files then."""

    path: str
    location: Location
    record_count: int
    equality_ids: tuple[int, ...]
    spec_id: int
    partition: tuple[PartitionValue, ...]
    sequence_number: int
    fields: Mapping[int, Field]

    @classmethod
    def of(
        cls, file: DataFile, location: Location, spec_id: int, sequence_number: int, fields: Mapping[int, Field]
    ) -> "EqualityDelete":
        """As a manifest lists it."""
        return cls(
            path=file.file_path,
            location=location,
            record_count=file.record_count,
            equality_ids=tuple(file.equality_ids or ()),
            spec_id=spec_id,
            partition=file.partition,
            sequence_number=sequence_number,
            fields=fields,
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A data file from before. `mapping` is how its columns are named, for one without field ids."""

    path: str
    spec_id: int
    partition: tuple[PartitionValue, ...]
    sequence_number: int
    mapping: Sequence[MappedField] | None = None
    lower_bounds: Mapping[int, bytes] | None = None
    upper_bounds: Mapping[int, bytes] | None = None

    @classmethod
    def of(
        cls, file: DataFile, spec_id: int, sequence_number: int, mapping: Sequence[MappedField] | None = None
    ) -> "Candidate":
        """As a manifest lists it."""
        return cls(
            path=file.file_path,
            spec_id=spec_id,
            partition=file.partition,
            sequence_number=sequence_number,
            mapping=mapping,
            lower_bounds=file.lower_bounds,
            upper_bounds=file.upper_bounds,
        )


async def resolve(
    objects: Objects, deletes: Sequence[EqualityDelete], candidates: Sequence[Candidate]
) -> dict[str, BitMap64]:
    """Positions by the path of the data file, deleted before or not; of files that have any."""
    found = await _resolve(objects, deletes, candidates, apart=False)
    return {path: BitMap64.union(*by_delete.values()) for path, by_delete in found.items()}


async def resolve_apart(
    objects: Objects, deletes: Sequence[EqualityDelete], candidates: Sequence[Candidate]
) -> dict[str, dict[str, BitMap64]]:
    """The same, told apart by the paths of the delete files."""
    return await _resolve(objects, deletes, candidates, apart=True)


async def _resolve(
    objects: Objects, deletes: Sequence[EqualityDelete], candidates: Sequence[Candidate], *, apart: bool
) -> dict[str, dict[str, BitMap64]]:
    if (total := sum(x.record_count for x in deletes)) > MOST_KEYS:
        raise Unsupported(f"The commit has {total} equality deletes, and {MOST_KEYS} can be resolved at once")
    scoped: defaultdict[_Place | None, list[_KeySet]] = defaultdict(list)
    for keys in await _key_sets(objects, deletes, apart=apart):
        scoped[keys.scope.place].append(keys)
    work: list[tuple[Candidate, list[_KeySet]]] = []
    for file in candidates:
        about = (*scoped.get(None, ()), *scoped.get((file.spec_id, _partition_key(file.partition)), ()))
        if found := [keys for keys in about if keys.may_be_in(file)]:
            work.append((file, found))

    async def one(item: tuple[Candidate, list[_KeySet]]) -> dict[str, BitMap64]:
        return await asyncio.to_thread(_matching, objects, *item)

    positions = await each(one, work, READS_AT_ONCE)
    return {file.path: rows for (file, _), rows in zip(work, positions, strict=True) if rows}


@dataclass(frozen=True, slots=True)
class _Scope:
    """What deletes must have in common to be looked up together. A place of None is everywhere; a path is that of the
    one file that they are in, if it matters."""

    place: _Place | None
    sequence_number: int
    ids: tuple[int, ...]
    path: str = ""


class _KeySet:
    """The values of some columns, in a form to look rows up in.

    Columns are gone through one after the other: a row's place among the values of the first, then the place of that
    pair, and so on. Each step is a lookup in a set that is no larger than the number of keys.
    """

    def __init__(self, scope: _Scope, fields: Sequence[Field], keys: Sequence[Untyped]) -> None:
        self.scope = scope
        self.fields = fields
        self._steps: list[tuple[Untyped, Untyped]] = []
        codes: Untyped = None
        for column in keys:
            values = column.unique()
            places = _compute.index_in(column, value_set=values)
            pairs = _paired(codes, places, values)
            distinct = pairs.unique()
            codes = _compute.index_in(pairs, value_set=distinct)
            self._steps.append((values, distinct))
        self._sorted = [sort_keys(f, v) for f, (v, _) in zip(fields, self._steps, strict=True)]

    def may_be_in(self, file: Candidate) -> bool:
        """Of a file in the right place."""
        if file.sequence_number >= self.scope.sequence_number:
            return False
        return all(_overlaps(keys, f, file) for keys, f in zip(self._sorted, self.fields, strict=True))

    def matches(self, columns: Mapping[int, Untyped]) -> Untyped:
        """For each row, whether it has the values of a key."""
        codes: Untyped = None
        for field, (values, distinct) in zip(self.fields, self._steps, strict=True):
            places = _compute.index_in(columns[field.id], value_set=values)
            codes = _compute.index_in(_paired(codes, places, values), value_set=distinct, skip_nulls=True)
        return _compute.is_valid(codes)


def _paired(codes: Untyped, places: Untyped, values: Untyped) -> Untyped:
    """A number for a pair; none if one of them is none."""
    places = places.cast(_arrow.int64())
    return places if codes is None else _compute.add(_compute.multiply(codes.cast(_arrow.int64()), len(values)), places)


def _overlaps(keys: Sequence[Untyped] | None, field: Field, file: Candidate) -> bool:
    """Whether bounds leave room for one of the keys; they do where it is not known."""
    lower, upper = (file.lower_bounds or {}).get(field.id), (file.upper_bounds or {}).get(field.id)
    if keys is None or lower is None or upper is None:
        return True
    low, high = bound_key(field, lower), bound_key(field, upper)
    if low is None or high is None:
        return True
    at = bisect_left(keys, low)
    return at < len(keys) and keys[at] <= high


def _partition_key(partition: tuple[PartitionValue, ...]) -> tuple[PartitionValue, ...]:
    # NaN is a value like any other here, and does not equal itself
    return tuple("NaN" if isinstance(x, float) and math.isnan(x) else x for x in partition)


async def _key_sets(objects: Objects, deletes: Sequence[EqualityDelete], *, apart: bool) -> list[_KeySet]:
    async def one(delete: EqualityDelete) -> dict[int, Untyped]:
        return await asyncio.to_thread(_read_keys, objects, delete)

    scopes: defaultdict[_Scope, list[dict[int, Untyped]]] = defaultdict(list)
    fields: dict[_Scope, list[Field]] = {}
    for delete, keys in zip(deletes, await each(one, deletes, READS_AT_ONCE), strict=True):
        ids = tuple(sorted(set(delete.equality_ids)))
        place = (delete.spec_id, _partition_key(delete.partition)) if delete.partition else None
        scope = _Scope(place, delete.sequence_number, ids, delete.path if apart else "")
        scopes[scope].append(keys)
        fields[scope] = [delete.fields[i] for i in ids]
    found: list[_KeySet] = []
    for scope, parts in scopes.items():
        columns = [_arrow.concat_arrays([part[i] for part in parts]) for i in scope.ids]
        found.append(await asyncio.to_thread(_KeySet, scope, fields[scope], columns))
    return found


def _read_keys(objects: Objects, delete: EqualityDelete) -> dict[int, Untyped]:
    name = f"Equality delete file {delete.path}"
    if not delete.equality_ids:
        raise BadRequest(f"{name} names no columns")
    fields: list[Field] = []
    for field_id in sorted(set(delete.equality_ids)):
        field = delete.fields.get(field_id)
        if field is None or arrow_type(field) is None:
            raise Unsupported(f"{name} is about column {field_id}, which rows cannot be told apart by")
        fields.append(field)
    parts: list[dict[int, Untyped]] = []
    try:
        opened = _parquet.ParquetFile(objects.open(delete.location))
        if opened.metadata.num_rows != delete.record_count:
            reason = f"has {opened.metadata.num_rows} rows, and its entry says {delete.record_count}"
            raise BadRequest(f"{name} {reason}")
        groups = [opened.metadata.row_group(i) for i in range(opened.num_row_groups)]
        if sum(group.total_byte_size for group in groups) > MOST_PER_FILE:
            raise BadRequest(f"{name} has more than {MOST_PER_FILE} bytes when it is unpacked")
        names = _names_by_id(opened.schema_arrow, None)
        if missing := [f.name for f in fields if f.id not in names]:
            raise BadRequest(f"{name} has no column {', '.join(missing)}")
        parts += (columns for columns, _ in _columns(opened, fields, names))
    except FileNotFoundError:
        raise BadRequest(f"{name} is missing") from None
    except (OSError, ValueError, _arrow.ArrowException) as e:
        raise BadRequest(f"{name} cannot be read: {e}") from None
    blank = {f.id: comparable(f, _arrow.array([], arrow_type(f))) for f in fields}
    return {i: _arrow.concat_arrays([empty, *(part[i] for part in parts)]) for i, empty in blank.items()}


def _matching(objects: Objects, file: Candidate, sets: Sequence[_KeySet]) -> dict[str, BitMap64]:
    fields = list({field.id: field for keys in sets for field in keys.fields}.values())
    found: defaultdict[str, BitMap64] = defaultdict(BitMap64)
    at = 0
    try:
        opened = _parquet.ParquetFile(objects.open(Location.parse(file.path)))
        names = _names_by_id(opened.schema_arrow, file.mapping)
        for columns, count in _columns(opened, fields, names):
            for keys in sets:
                rows: list[int] = _compute.indices_nonzero(keys.matches(columns)).to_pylist()
                if rows:
                    found[keys.scope.path].update(at + row for row in rows)
            at += count
    except (OSError, ValueError, _arrow.ArrowException) as e:
        raise Unsupported(f"Equality deletes cannot be resolved: data file {file.path} cannot be read: {e}") from None
    return found


def _names_by_id(schema: Untyped, mapping: Sequence[MappedField] | None) -> dict[int, str]:
    """Columns of the top level. DuckLake goes by a mapping even if the file has ids."""
    names: list[str] = schema.names
    if len(set(names)) < len(names):
        raise ValueError("two columns have the same name")
    if mapping is not None:
        return {field.id: name for field in mapping for name in field.names if name in names}
    tags: list[tuple[str, dict[bytes, bytes]]] = [(f.name, f.metadata or {}) for f in schema]
    found = {int(tag[_FIELD_ID]): name for name, tag in tags if _FIELD_ID in tag}
    if not found:
        raise ValueError("it has no field ids, and nothing says which column is which")
    return found


def _columns(
    opened: Untyped, fields: Sequence[Field], names: Mapping[int, str]
) -> Iterator[tuple[dict[int, Untyped], int]]:
    """The fields in a form to be compared, by id, and how many rows there are, in parts."""
    wanted = [names[f.id] for f in fields if f.id in names]
    if not wanted:
        for at in range(0, opened.metadata.num_rows, BATCH_ROWS):
            count = min(BATCH_ROWS, opened.metadata.num_rows - at)
            yield {f.id: comparable(f, _arrow.repeat(default_of(f), count)) for f in fields}, count
        return
    for batch in opened.iter_batches(batch_size=BATCH_ROWS, columns=wanted, use_threads=False):
        count: int = batch.num_rows
        columns = {
            f.id: comparable(f, batch.column(names[f.id]) if f.id in names else _arrow.repeat(default_of(f), count))
            for f in fields
        }
        yield columns, count
