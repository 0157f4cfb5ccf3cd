"""Under which partition spec a file is listed, and with which tuple.

Mostly that of its partitioning (`partitions`). Beside that, a file may lack a column that was added later with a
default, and then all its rows have that value (H14). Readers know it from the schema's `initial-default`; but Iceberg
1.11 for Spark takes a column that is missing in a file for all NULL as soon as a query filters by it, and loses the
rows (apache/iceberg#16690). So such a file is listed under a spec of its own that says the same: it is partitioned by
the identity of the column, and the default is its value. That is as true as it gets, and every reader skips files by
it.

The number of such a spec is that of the partitioning plus a set of columns as bits above it, so it is the same for
everybody and for ever. Not for uuids, which DuckDB's reader scrambles, nor for parts of structs.

A file that has values in its path (`path_values`) is listed under a spec that has those columns by identity: that of
its partitioning if it does, or one of its own, numbered by what it consists of. No such spec is ever the table's
default: writers do not use it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

import orjson

from mergus.ducklake.columns import Columns
from mergus.ducklake.files import DataFile
from mergus.ducklake.partitions import Specs
from mergus.ducklake.path_values import InPath
from mergus.iceberg.manifest import PartitionValue
from mergus.iceberg.partition_spec import UNPARTITIONED, PartitionField, PartitionSpec, identity_value
from mergus.iceberg.schema import Schema

# Ids of partitionings lie below, the bits of columns above; a spec id has 31 bits.
_BASE_BITS: Final = 20
_MOST_COLUMNS: Final = 11
# Ids of partitionings' fields are counted from 1000, one for each key that a table ever had.
_FIRST_FIELD_ID: Final = 100_000
_WITHOUT: Final = frozenset({"uuid", "blob", "time"})
# Ids of specs for columns in paths: above those of partitionings and of specs that are numbered elsewhere.
_IN_PATHS: Final = 3 * 2**18
_MOST_IN_PATHS: Final = 2**18

_IN_PATH: Final = "in-path"
# By the spec that a file would be listed under without them, and the columns in its path.
PathSpecs = Mapping[tuple[int, tuple[int, ...]], PartitionSpec]


@dataclass(frozen=True, slots=True)
class Default:
    """A column that files may lack, and what their rows have then."""

    bit: int
    field: PartitionField
    value: PartitionValue


@dataclass(frozen=True, slots=True)
class Places:
    specs: Specs
    defaults: tuple[Default, ...]
    # partitionings that no file is listed under
    hidden: frozenset[int] = frozenset()
    # by mapping
    in_path: Mapping[int, tuple[InPath, ...]] = field(default_factory=dict[int, tuple[InPath, ...]])
    path_specs: PathSpecs = field(default_factory=dict[tuple[int, tuple[int, ...]], PartitionSpec])

    def within(self, schema: Schema) -> "Places":
        """For a snapshot with this schema: DuckDB's Iceberg reader does not survive a spec about a column that the
        snapshot's schema lacks. (A file of rows from before a column may have been written when it was there.)"""
        ids = {field.id for field in schema.walk()}
        shown = tuple(d for d in self.defaults if d.field.source_id in ids)
        hidden = {s.spec_id for s in self.specs.all() if any(f.source_id not in ids for f in s.fields)}
        # before one of the columns came, no file had them in its path
        in_path = {i: parts for i, parts in self.in_path.items() if all(p.field.source_id in ids for p in parts)}
        return Places(self.specs, shown, frozenset(hidden), in_path, _path_specs(self.specs, in_path.values()))

    def place(self, file: DataFile) -> tuple[PartitionSpec, tuple[PartitionValue, ...]]:
        """The spec to list a file under, and its tuple: right for every row, whether deleted or not. DuckLake has
        statistics of every column that a file has."""
        spec, partition = self.specs.place(file)
        if spec.spec_id in self.hidden:
            spec, partition = self.specs.unpartitioned, ()
        in_path = self.in_path.get(file.mapping_id, ()) if file.mapping_id is not None else ()
        if more := _uncovered(spec, in_path):
            spec = self.path_specs[spec.spec_id, tuple(p.field.source_id for p in more)]
            partition = (*partition, *(p.value(file) for p in more))
        there = {*file.stats, *(p.field.source_id for p in in_path)}
        lacking = [d for d in self.defaults if d.field.source_id not in there]
        if not lacking or spec.spec_id >= 1 << _BASE_BITS:
            return spec, partition
        return self._with(spec, lacking), (*partition, *(d.value for d in lacking))

    def spec(self, spec_id: int) -> PartitionSpec:
        known = {spec.spec_id: spec for spec in (*self.path_specs.values(), *self.specs.all())}
        if spec_id in known:
            return known[spec_id]
        base, bits = spec_id & ((1 << _BASE_BITS) - 1), spec_id >> _BASE_BITS
        lacking = [d for d in self.defaults if bits & d.bit]
        return self._with(known.get(base, self.specs.unpartitioned), lacking) if lacking else self.specs.unpartitioned

    def listed(self, used: Iterable[int]) -> list[PartitionSpec]:
        """All partitionings, and of the other specs those that are used. That of no partition is the first one that a
        table has, unless a client made the table with another."""
        needed = set(used)
        known = {spec.spec_id: spec for spec in self.specs.all()}
        unpartitioned = self.specs.unpartitioned
        if unpartitioned != UNPARTITIONED and unpartitioned.spec_id not in needed:
            del known[unpartitioned.spec_id]
        return [*known.values(), *(self.spec(i) for i in sorted(needed - known.keys()))]

    def _with(self, spec: PartitionSpec, lacking: list[Default]) -> PartitionSpec:
        bits = sum(d.bit for d in lacking)
        return PartitionSpec(spec.spec_id + (bits << _BASE_BITS), (*spec.fields, *(d.field for d in lacking)))

    @property
    def key(self) -> str:
        """What manifests rely on: which fields the tuples have. Names may change."""
        every = (*self.specs.all(), *self.path_specs.values())
        specs = {str(s.spec_id): [[f.source_id, f.field_id, f.transform] for f in s.fields] for s in every}
        defaults = [[d.bit, d.field.source_id] for d in self.defaults]
        found: dict[str, object] = {"specs": specs, "defaults": defaults, "hidden": sorted(self.hidden)}
        if self.in_path:
            found[_IN_PATH] = [[i, [p.field.source_id for p in parts]] for i, parts in sorted(self.in_path.items())]
        return orjson.dumps(found, option=orjson.OPT_SORT_KEYS).decode()


def still_readable(key: str, now: str) -> bool:
    """Whether manifests that were written for one key can be read under the specs of now."""
    old, new = orjson.loads(key), orjson.loads(now)
    kept = all(new["specs"].get(spec_id) == fields for spec_id, fields in old["specs"].items())
    return kept and all(default in new["defaults"] for default in old["defaults"])


def same_places(key: str, now: str) -> bool:
    """Whether a file would still be listed where it is."""
    old, new = orjson.loads(key), orjson.loads(now)
    paths = new.get(_IN_PATH, [])
    return (
        still_readable(key, now)
        and all(old[what] == new[what] for what in ("defaults", "hidden"))
        # a mapping that came since is one of files that came since
        and all(mapping in paths for mapping in old.get(_IN_PATH, []))
    )


def _uncovered(spec: PartitionSpec, in_path: Iterable[InPath]) -> list[InPath]:
    """Those columns that the spec does not tell the value of."""
    told = {f.source_id for f in spec.fields if f.transform == "identity"}
    return [p for p in in_path if p.field.source_id not in told]


def places(
    specs: Specs, schema: Schema, columns: Columns, at: int, in_path: Mapping[int, tuple[int, ...]] | None = None
) -> Places:
    """`in_path` are the columns, by mapping, whose values are in the paths of files."""
    fields = {field.id: field for field in schema.fields}
    partitioned = {f.source_id for s in specs.all() for f in s.fields if f.transform == "identity"}
    ever = sorted({c.id for c in columns.columns if c.initial_default is not None})
    found: list[Default] = []
    for bit, column_id in enumerate(ever[:_MOST_COLUMNS]):
        column = next((c for c in columns.columns if c.id == column_id and c.span.at(at)), None)
        field = fields.get(column_id)
        # one that files are partitioned by has a field already, and no file with that spec lacks it
        if column is None or field is None or field.initial_default is None or column_id in partitioned:
            continue
        text = column.initial_default
        value = None if text is None or column.type in _WITHOUT else identity_value(column.type, text, retyped=False)
        if value is not None:
            found.append(Default(1 << bit, _own_field(column_id, column.name), value))
    known = {f.source_id: f for s in reversed(specs.all()) for f in s.fields if f.transform == "identity"}
    types = {c.id: c.type for c in columns.columns if c.span.at(at) and c.id in fields}
    paths = {
        mapping_id: tuple(InPath(known.get(i) or _own_field(i, fields[i].name), types[i]) for i in ids if i in types)
        for mapping_id, ids in (in_path or {}).items()
    }
    shown = {i: parts for i, parts in paths.items() if parts}
    return Places(specs, tuple(found), in_path=shown, path_specs=_path_specs(specs, shown.values()))


def _path_specs(specs: Specs, in_path: Iterable[tuple[InPath, ...]]) -> PathSpecs:
    """All that files may need, whichever partitioning they are of."""
    found: dict[tuple[int, tuple[int, ...]], PartitionSpec] = {}
    taken: set[int] = set()
    for parts in sorted(set(in_path), key=lambda parts: [p.field.source_id for p in parts]):
        for spec in specs.all():
            more = _uncovered(spec, parts)
            key = spec.spec_id, tuple(p.field.source_id for p in more)
            if more and key not in found:
                number = crc32(orjson.dumps(key)) % _MOST_IN_PATHS
                while number in taken:
                    number = (number + 1) % _MOST_IN_PATHS
                taken.add(number)
                found[key] = PartitionSpec(_IN_PATHS + number, (*spec.fields, *(p.field for p in more)))
    return found


def _own_field(column_id: int, name: str) -> PartitionField:
    return PartitionField(column_id, _FIRST_FIELD_ID + column_id, name, "identity")
