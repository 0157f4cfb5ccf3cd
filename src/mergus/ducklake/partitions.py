"""Rows of `ducklake_partition_info` and `ducklake_partition_column`: the partition specs that a table ever had.

A partition id is the Iceberg spec id: it counts with the ids of tables, so it is never used again, and a file keeps the
one that it was written under. Spec 0 is that of files without partition, unless a client has numbered its own so. Rows
of a table stay as long as the table, through every expiry, so field ids are counted over all of them and stay what they
are.

Iceberg sees the part of a spec that it has the same transform for; leaving a key out is always true. The rest:
- Calendar parts are DuckDB's, 3 for every March, and not Iceberg's ordinals (H16). Only together with all coarser parts
  of the same column are they one ordinal, of the finest part.
- What is stored of a timestamptz was cut in the session's time zone (H17), so an ordinal is never taken from it but
  from the least and the greatest value of the column in the file.
- DuckDB hashes some types as Iceberg does, and others not (H18).
- Source columns that are gone, or have a type by now that Iceberg has no such transform for, would make Java refuse the
  whole table.
A file whose tuple is not certain is listed as unpartitioned, under spec 0.

Iceberg's clients write specs that DuckLake cannot express, or only in parts. Those are kept as they were written
(`Given`), with the tuple of each file that a client committed; a partitioning of DuckLake's that was made for such a
spec has as many of its keys as DuckLake knows, and a file that DuckDB writes under it is listed under the spec if they
are all of them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, takewhile
from typing import Final

from mergus.ducklake.columns import Columns, Span
from mergus.ducklake.connect import Conn
from mergus.ducklake.files import ColumnStats, DataFile
from mergus.ducklake.types import iceberg_primitive
from mergus.iceberg import bounds, values
from mergus.iceberg.manifest import PartitionValue
from mergus.iceberg.partition_spec import (
    FIRST_FIELD_ID,
    UNPARTITIONED,
    PartitionField,
    PartitionSpec,
    check_spec,
    identity_value,
    tuple_of_json,
)
from mergus.iceberg.schema import Schema
from mergus.iceberg.transforms import CALENDAR, can_transform, ordinal, result_type

# A table that was dropped and came back has a row for each time: to Iceberg it was never away.
READ: Final = """
    SELECT i.partition_id, i.begin_snapshot, i.end_snapshot, c.column_id, c.transform
    FROM (SELECT partition_id, table_id, min(begin_snapshot) AS begin_snapshot,
                 CASE WHEN bool_and(end_snapshot IS NOT NULL) THEN max(end_snapshot) END AS end_snapshot
          FROM ducklake_partition_info WHERE table_id = %(table_id)s GROUP BY partition_id, table_id) AS i
    LEFT JOIN ducklake_partition_column c ON c.partition_id = i.partition_id AND c.table_id = i.table_id
    ORDER BY i.partition_id, c.partition_key_index
"""

_BUCKET: Final = re.compile(r"bucket\(([1-9][0-9]{0,9})\)")

# Where clients have numbered a spec as one of ours would be: the unpartitioned one, and a partitioning's.
UNPARTITIONED_ELSEWHERE: Final = 2**19
_ELSEWHERE: Final = 2**18

_TEXTS: Final = frozenset({"varchar", "json"})
_FLOATS: Final = frozenset({"float32", "float64"})
# Types that DuckDB hashes as Iceberg does; those of one set alike, so that a column may have been several of them.
_HASHED_ALIKE: Final = (
    frozenset({"int8", "int16", "int32", "int64"}),
    _TEXTS,
    frozenset({"date"}),
    frozenset({"time"}),
    frozenset({"timestamp", "timestamp_us"}),
    frozenset({"timestamptz"}),
    frozenset({"blob"}),
)


@dataclass(frozen=True, slots=True)
class Key:
    column_id: int
    transform: str


@dataclass(frozen=True, slots=True)
class Partitioning:
    """As DuckLake has it. Without keys it is what RESET leaves."""

    id: int
    span: Span
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class GivenSpec:
    """A spec as a client wrote it, under its own number. Partitionings with an id below `since` are older."""

    spec: PartitionSpec
    since: int


@dataclass(frozen=True, slots=True)
class Given:
    """Specs that Iceberg's clients wrote, and which of them partitionings of DuckLake's were made for."""

    specs: Mapping[int, GivenSpec] = field(default_factory=dict[int, GivenSpec])
    partitionings: Mapping[int, int] = field(default_factory=dict[int, int])


@dataclass(frozen=True, slots=True)
class _Source:
    """A column of the table at some snapshot, and all types that it had until then."""

    id: int
    name: str
    type: str
    types: frozenset[str]

    def iceberg_transform(self, transform: str) -> str | None:
        """What the key is to Iceberg; calendar parts are taken for what they are together with the coarser ones."""
        bucket = _BUCKET.fullmatch(transform)
        name = f"bucket[{bucket[1]}]" if bucket else transform
        if not can_transform(name, iceberg_primitive(self.type)):
            return None
        if bucket:
            return name if any(self.types <= alike for alike in _HASHED_ALIKE) else None
        if transform == "identity":
            # the text of a blob is that of other blobs as well; and DuckDB's Iceberg reader scrambles a uuid
            return name if self.type not in {"blob", "uuid"} and self._texts_are_its_own else None
        return name

    @property
    def _texts_are_its_own(self) -> bool:
        """Whether older files have texts that the type by now would have, too: to a string every text is one."""
        return all(self.types <= kin for kin in (_TEXTS, _FLOATS) if self.type in kin)

    def read(self, text: str) -> PartitionValue:
        return identity_value(self.type, text, retyped=len(self.types) > 1)


@dataclass(frozen=True, slots=True)
class _Member:
    """A field of an Iceberg spec, and the key that its value is kept under."""

    field: PartitionField
    key: int
    source: _Source

    def value(self, file: DataFile) -> tuple[PartitionValue] | None:
        """For every row of the file: a tuple of one, as NULL is a value too; None where it is not certain."""
        if self.field.transform == "identity":
            return self._identity(file)
        # Nobody has looked whether the rows of a file that was added by name are what its path says.
        if file.mapping_id is not None:
            return None
        return self._ordinal(file) if self.field.transform in CALENDAR else self._bucket(file)

    def _identity(self, file: DataFile) -> tuple[PartitionValue] | None:
        text, stats = file.partition_values[self.key], file.stats.get(self.source.id)
        value = None if text is None else self.source.read(text)
        if text is not None and value is None:
            return None
        confirmed = None if stats is None else self._confirmed(value, stats, file.record_count)
        certain = file.mapping_id is None if confirmed is None else confirmed
        return (value,) if certain else None

    def _confirmed(self, value: PartitionValue, stats: ColumnStats, records: int) -> bool | None:
        """Whether the column's statistics say that this is the value of all rows; None if they do not tell."""
        if value is None:
            return None if stats.null_count is None else stats.null_count == records
        if stats.null_count:
            return False
        if stats.null_count is None or stats.min_text is None or stats.max_text is None:
            return None
        if isinstance(value, str) and len(stats.min_text) >= bounds.TRUNCATE_LENGTH:
            # long ones are cut, by DuckDB after 256 bytes and by Iceberg earlier
            low, high = stats.min_text, stats.max_text
            if low != value and value.startswith(low) and value <= high:
                return None
        return self.source.read(stats.min_text) == value == self.source.read(stats.max_text)

    def _ordinal(self, file: DataFile) -> tuple[PartitionValue] | None:
        stats = file.stats.get(self.source.id)
        if stats is None:
            return None
        if stats.value_count == 0 and stats.null_count == file.record_count:
            return (None,)
        if stats.null_count != 0 or stats.min_text is None or stats.max_text is None:
            return None
        low, high = self._ordinal_of(stats.min_text), self._ordinal_of(stats.max_text)
        return (low,) if low is not None and low == high else None

    def _ordinal_of(self, text: str) -> int | None:
        kind, whole = iceberg_primitive(self.source.type), values.counted(self.source.type)
        count = None if whole is None else whole.read(text)
        if kind is None or count is None:
            return None
        found = ordinal(self.field.transform, kind, count)
        return found if -(2**31) <= found < 2**31 else None

    def _bucket(self, file: DataFile) -> tuple[PartitionValue] | None:
        text = file.partition_values[self.key]
        if text is None:
            return (None,)
        count = int(self.field.transform.removeprefix("bucket[").removesuffix("]"))
        return (int(text),) if re.fullmatch("[0-9]{1,10}", text) and int(text) < count else None


@dataclass(frozen=True, slots=True)
class _Scheme:
    """A spec that is not empty, and where a file has the values of its fields."""

    spec: PartitionSpec
    members: tuple[_Member, ...]
    keys: int

    def partition_of(self, file: DataFile) -> tuple[PartitionValue, ...] | None:
        if len(file.partition_values) != self.keys:
            return None
        found: list[PartitionValue] = []
        for member in self.members:
            value = member.value(file)
            if value is None:
                return None
            found.extend(value)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Specs:
    """The specs of a table as Iceberg sees them, over one schema. Every file has its place in one of them."""

    # by the ids of partitionings
    schemes: dict[int, _Scheme]
    # of the fields of all specs that the table ever had, the last id
    last_field_id: int
    # those that clients wrote, and the partitionings that were made for them
    given: dict[int, PartitionSpec] = field(default_factory=dict[int, PartitionSpec])
    made_for: Mapping[int, int] = field(default_factory=dict[int, int])
    # of the fields of given specs and schemes
    types: dict[int, str] = field(default_factory=dict[int, str])
    unpartitioned: PartitionSpec = UNPARTITIONED

    def all(self) -> list[PartitionSpec]:
        """In the order of their ids."""
        found = {scheme.spec.spec_id: scheme.spec for scheme in self.schemes.values()} | self.given
        return [spec for _, spec in sorted({**found, self.unpartitioned.spec_id: self.unpartitioned}.items())]

    def spec(self, spec_id: int) -> PartitionSpec:
        return next((spec for spec in self.all() if spec.spec_id == spec_id), self.unpartitioned)

    def of_partitioning(self, partition_id: int | None) -> PartitionSpec:
        """What a partition id of DuckLake is to Iceberg."""
        if partition_id is not None and partition_id in self.made_for:
            return self.given.get(self.made_for[partition_id], self.unpartitioned)
        scheme = None if partition_id is None else self.schemes.get(partition_id)
        return self.unpartitioned if scheme is None else scheme.spec

    def place(self, file: DataFile) -> tuple[PartitionSpec, tuple[PartitionValue, ...]]:
        """The spec to list a file under, and its tuple: right for every row, whether deleted or not."""
        if file.placed is not None:
            spec_id, told = file.placed
            spec = self.spec(spec_id)
            if all(str(f.field_id) in told for f in spec.fields):
                ids = [f.field_id for f in spec.fields]
                return spec, tuple_of_json([told[str(i)] for i in ids], [self.types[i] for i in ids])
            return self.unpartitioned, ()
        scheme = None if file.partition_id is None else self.schemes.get(file.partition_id)
        found = None if scheme is None else scheme.partition_of(file)
        return (self.unpartitioned, ()) if scheme is None or found is None else (scheme.spec, found)


@dataclass(frozen=True, slots=True)
class Partitions:
    """All rows that a table ever had, in the order of their ids."""

    partitionings: Sequence[Partitioning]

    def current(self, at: int) -> int | None:
        """The partition id that new files get; None for a table that is not partitioned."""
        live = [p for p in self.partitionings if p.span.at(at)]
        return live[-1].id if live else None

    def specs(self, schema: Schema, columns: Columns, at: int, given: Given | None = None) -> Specs:
        """As a table with this schema may have them; `at` is the snapshot of the schema."""
        given = given or Given()
        ids, last_field_id = _field_ids(self.partitionings, given)
        keys = {key.column_id for p in self.partitionings for key in p.keys}
        sources = _sources(schema, columns, at, keys)
        fields = _fields(ids, sources, schema)
        kept = {i: shown for i, of in given.specs.items() if (shown := _shown(of.spec, schema)) is not None}
        schemes: dict[int, _Scheme] = {}
        for p in self.partitionings:
            if p.id in given.partitionings:
                scheme = _made_scheme(p, kept.get(given.partitionings[p.id]), sources)
                if scheme is not None:
                    schemes[p.id] = scheme
                continue
            chosen = _chosen(p.keys, fields)
            if chosen:
                spec_id = p.id if p.id not in given.specs else p.id + _ELSEWHERE
                spec = PartitionSpec(spec_id, tuple(fields[key] for key in chosen))
                members = tuple(_Member(fields[key], i, sources[key.column_id]) for key, i in chosen.items())
                schemes[p.id] = _Scheme(spec, members, len(p.keys))
        kinds = {f.id: f.type for f in schema.walk()}
        every = [*kept.values(), *(scheme.spec for scheme in schemes.values())]
        types = {f.field_id: result_type(f.transform, kinds.get(f.source_id)) for spec in every for f in spec.fields}
        none = UNPARTITIONED if UNPARTITIONED.spec_id not in given.specs else PartitionSpec(UNPARTITIONED_ELSEWHERE, ())
        return Specs(schemes, last_field_id, kept, given.partitionings, types, none)


async def read(conn: Conn, table_id: int) -> Partitions:
    rows = await (await conn.execute(READ, {"table_id": table_id})).fetchall()
    return Partitions(
        [
            Partitioning(i, Span(begin, end), tuple(Key(*row[3:]) for row in group if row[3] is not None))
            for (i, begin, end), group in groupby(rows, lambda row: row[:3])
        ]
    )


def _field_ids(partitionings: Sequence[Partitioning], given: Given) -> tuple[dict[Key, int], int]:
    """Of every key by itself, since which of them Iceberg can see depends on the schema, and ids must not; and the last
    of all. In the order in which specs came: those of clients have the ids that they were given."""
    ids: dict[Key, int] = {}
    last = FIRST_FIELD_ID - 1
    specs: list[tuple[int, Partitioning | PartitionSpec]] = [(of.since, of.spec) for of in given.specs.values()]
    specs += [(p.id, p) for p in partitionings if p.id not in given.partitionings]
    for _, spec in sorted(specs, key=lambda item: item[0]):
        if isinstance(spec, PartitionSpec):
            for f in spec.fields:
                ids.setdefault(Key(f.source_id, _key_transform(f.transform)), f.field_id)
                last = max(last, f.field_id)
            continue
        for key in spec.keys:
            if key not in ids:
                last += 1
                ids[key] = last
    return ids, last


def _key_transform(transform: str) -> str:
    """As DuckLake writes it, if it has it at all."""
    return transform.replace("[", "(").replace("]", ")")


def _shown(spec: PartitionSpec, schema: Schema) -> PartitionSpec | None:
    """A given spec over the schema of now: None if it cannot be about it. A column may have got the name of a field."""
    names = {f.id: f.name for f in schema.fields}
    taken = {name.lower() for field in schema.fields for name in field.full_names()}
    found: list[PartitionField] = []
    for f in spec.fields:
        name = f.name
        if f.transform == "identity" and name.lower() in taken:
            name = names.get(f.source_id, name)
        while f.transform != "identity" and name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        found.append(replace(f, name=name))
    shown = replace(spec, fields=tuple(found))
    try:
        check_spec(shown, schema)
    except ValueError:
        return None
    return shown


def _made_scheme(p: Partitioning, spec: PartitionSpec | None, sources: dict[int, _Source]) -> _Scheme | None:
    """How a file that DuckDB wrote under a partitioning that was made for a spec tells that spec's tuple."""
    members: list[_Member] = []
    for f in () if spec is None else spec.fields:
        key, source = Key(f.source_id, _key_transform(f.transform)), sources.get(f.source_id)
        coarser = CALENDAR[: CALENDAR.index(f.transform)] if f.transform in CALENDAR else ()
        whole = all(Key(f.source_id, part) in p.keys for part in coarser)
        if source is None or key not in p.keys or not whole or source.iceberg_transform(key.transform) != f.transform:
            return None
        members.append(_Member(f, p.keys.index(key), source))
    return None if spec is None or not members else _Scheme(spec, tuple(members), len(p.keys))


def _sources(schema: Schema, columns: Columns, at: int, ids: set[int]) -> dict[int, _Source]:
    """The columns of these ids that the schema has."""
    rows = [c for c in columns.columns if c.id in ids & {field.id for field in schema.fields} and c.span.begin <= at]
    types = {i: frozenset(c.type for c in rows if c.id == i) for i in ids}
    return {c.id: _Source(c.id, c.name, c.type, types[c.id]) for c in rows if c.span.at(at)}


def _fields(ids: dict[Key, int], sources: dict[int, _Source], schema: Schema) -> dict[Key, PartitionField]:
    """Of the keys that Iceberg can see. No two have the same name, and only an identity has that of a column, its own:
    Java refuses others.
    """
    taken = {name.lower() for field in schema.fields for name in field.full_names()}
    fields: dict[Key, PartitionField] = {}
    for key, field_id in ids.items():
        source = sources.get(key.column_id)
        transform = None if source is None else source.iceberg_transform(key.transform)
        if source is None or transform is None:
            continue
        name = source.name
        if transform != "identity":
            name += "_" + transform.replace("[", "_").removesuffix("]")
            while name.lower() in taken:
                name += "_"
            taken.add(name.lower())
        fields[key] = PartitionField(source.id, field_id, name, transform)
    return fields


def _chosen(keys: Sequence[Key], fields: dict[Key, PartitionField]) -> dict[Key, int]:
    """The keys of one spec that are fields, with their index: none twice, and of a column's calendar parts the finest
    of which all coarser ones are keys as well.
    """
    seen: dict[Key, int] = {}
    for index, key in enumerate(keys):
        if key in fields:
            seen.setdefault(key, index)
    return {key: i for key, i in seen.items() if key.transform not in CALENDAR or key == _finest(key.column_id, seen)}


def _finest(column_id: int, keys: dict[Key, int]) -> Key | None:
    parts = takewhile(keys.__contains__, (Key(column_id, part) for part in CALENDAR))
    return max(parts, key=lambda key: CALENDAR.index(key.transform), default=None)
