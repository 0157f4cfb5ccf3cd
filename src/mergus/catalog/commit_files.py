"""A data file that a client adds, as DuckLake will have it: from its manifest entry, without opening it.

Some things only the file tells, and then its footer is read (a HEAD and a ranged GET or two): whether it brings row ids
of its own, which only a writer does that takes rows out of other files (H37, H44), and which column is which in a file
without field ids, for which the table has a name mapping (H38). What is then not as every reader would have it is
refused here: once it is a file of the table, the table cannot be shown.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import uuid4

from mergus.annex.file_facts import Part
from mergus.catalog.delete_files import Drawer
from mergus.ducklake import partition_keys, path_values, stats
from mergus.ducklake.data_changes import NewFile
from mergus.ducklake.mappings import NamesInPath
from mergus.ducklake.partitions import Key
from mergus.ducklake.path_values import FoundInPath
from mergus.errors import BadRequest, Unsupported
from mergus.iceberg.name_mapping import MappedField
from mergus.iceberg.partition_spec import PartitionSpec, tuple_json
from mergus.iceberg.schema import Schema
from mergus.iceberg.schema_parse import folded
from mergus.materialise import footers
from mergus.materialise.incoming import Added
from mergus.materialise.row_ids import write_filled
from mergus.materialise.side_file import ROW_ID
from mergus.materialise.suspects import Ignored, judge
from mergus.storage.location import Location
from mergus.storage.objects import Objects

COPY: Final = "Copy its rows into the table instead (INSERT INTO ... SELECT)"


@dataclass(frozen=True, slots=True)
class FileTerms:
    """What new files of a table are held against: the table as it is after the commit.

    `specs` are by the ids that clients know them by, `partition_types` those of the values of their fields. `leaves`
    are DuckLake's types of leaf columns outside of lists and maps, `columns` those of top-level columns. `keys` are
    what DuckLake partitions by for those specs that it has a live partitioning for. `parents` are of all columns that
    the table ever had, what each is within.
    """

    schema: Schema
    parents: Mapping[int, int | None]

    specs: Mapping[int, PartitionSpec]
    partition_types: Mapping[int, str]
    leaves: Mapping[int, str]
    columns: Mapping[int, str]
    keys: Mapping[int, Sequence[Key]]
    # whether DuckDB would lose rows of a file that has no values for them
    needs_texts: bool = False
    name_mapping: tuple[MappedField, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """`partition` are the values of the spec's fields by their ids, as JSON. `mapping` says which columns of the file
    are which of the table's, if its own field ids do not. `sort_order_id` is the client's number, as `spec_id` is."""

    file: NewFile
    spec_id: int
    partition: dict[str, Any]
    mapping: tuple[MappedField, ...] = ()
    sort_order_id: int = 0
    # columns that it does not have, and whose values DuckDB takes out of its path
    names_in_path: NamesInPath = ()
    # its columns that are not the table's
    ignored: Ignored = field(default_factory=dict[tuple[int | None, str], tuple[Part, ...]])


def planned(terms: FileTerms, added: Added, columns: Sequence[Part] | None) -> PlannedFile:
    """`columns` are those of the file where it was looked at."""
    file, spec = added.file, terms.specs[added.spec_id]
    known = stats.column_stats(file, terms.leaves)
    keys = terms.keys.get(added.spec_id, ())
    texts = partition_keys.texts(spec, file.partition, keys, terms.columns) if keys else None
    if texts is None and terms.needs_texts:
        raise Unsupported(
            f"Data file {file.file_path} has no bucket that DuckLake knows: the table is partitioned by buckets, by "
            "which DuckDB would lose its rows. Write with the table's default partition spec"
        )
    mapping: tuple[MappedField, ...] = ()
    ignored: Ignored = {}
    in_path: dict[int, FoundInPath] = {}
    if columns is not None and all(part.id is None for part in columns):
        mapping, in_path, ignored = _mapping(terms, added, columns)
    elif columns is not None and _constants(terms, added, {part.id for top in columns for part in top.walk()}):
        raise Unsupported(
            f"Data file {file.file_path} has field ids, and values in its path, which DuckDB does not read then. {COPY}"
        )
    new = NewFile(
        path=file.file_path,
        record_count=file.record_count,
        size_bytes=file.file_size_in_bytes,
        stats={**known, **{i: found.stats for i, found in in_path.items()}},
        partition_values=texts or (),
        has_row_ids=_row_ids(columns) is not None,
    )
    names = tuple((i, found.name) for i, found in sorted(in_path.items()))
    return PlannedFile(new, added.spec_id, _partition(terms, added), mapping, file.sort_order_id or 0, names, ignored)


def _partition(terms: FileTerms, added: Added) -> dict[str, Any]:
    """Without the fields of columns that the table does not have after the commit: it is then listed as unpartitioned,
    as it would be if the columns had gone by a later commit."""
    fields = zip(terms.specs[added.spec_id].fields, added.file.partition, strict=True)
    known = [
        (f, terms.partition_types[f.field_id], value) for f, value in fields if f.field_id in terms.partition_types
    ]
    try:
        values = tuple_json([value for _, _, value in known], [kind for _, kind, _ in known])
    except (AttributeError, TypeError, ValueError) as e:
        raise BadRequest(f"Data file {added.file.file_path} has partition values of other types: {e}") from None
    return {str(f.field_id): value for (f, _, _), value in zip(known, values, strict=True)}


def _row_ids(columns: Sequence[Part] | None) -> Part | None:
    return next((part for part in columns or () if part.id == ROW_ID), None)


def lacks_row_ids(columns: Sequence[Part]) -> bool:
    """Whether the file has ids for some of its rows, and not for all."""
    found = _row_ids(columns)
    return found is not None and found.nulls


def _mapping(
    terms: FileTerms, added: Added, columns: Sequence[Part]
) -> tuple[tuple[MappedField, ...], dict[int, FoundInPath], Ignored]:
    """Of the table's name mapping, the columns that the file has; those in its path; and the columns that it has
    beside."""
    path = added.file.file_path
    if not terms.name_mapping:
        raise BadRequest(f"Data file {path} has no field ids, and the table has no schema.name-mapping.default")
    found = _named(terms, terms.name_mapping, None, columns)
    if not found:
        raise BadRequest(f"Data file {path} has no column that the table's name mapping knows")
    in_path = _constants(terms, added, {field.id for top in found for field in top.walk()})
    # as it will be when the table is shown
    verdict = judge(columns, terms.schema, found, frozenset(), frozenset(terms.parents), tuple(in_path))
    misfit = verdict.misfit or _unmapped(terms, verdict.ignored)
    if misfit is not None:
        raise BadRequest(f"Data file {path} has no field ids, and cannot be taken as it is: {misfit}. {COPY}")
    return found, in_path, verdict.ignored


def _unmapped(terms: FileTerms, ignored: Ignored) -> str | None:
    """A column that has the name of one of the table's is not ignored in silence."""
    names = {(terms.parents.get(f.id), folded(f.name)) for f in terms.schema.walk()}
    for parent, name in ignored:
        if (parent, folded(name)) in names:
            return f"the table's name mapping does not say that column {name} is the table's of that name"
    return None


def _named(
    terms: FileTerms, fields: Sequence[MappedField], parent: int | None, parts: Sequence[Part]
) -> tuple[MappedField, ...]:
    """An id that is no column's is nothing to any reader, and that of a column which was dropped says that the file's
    is none of now."""
    there = {part.name: part for part in parts}
    found: list[MappedField] = []
    for known in fields:
        name = next((name for name in known.names if name in there), None)
        if name is not None and known.id in terms.parents and terms.parents[known.id] == parent:
            found.append(MappedField(known.id, (name,), _named(terms, known.fields, known.id, there[name].parts)))
    return tuple(found)


def _constants(terms: FileTerms, added: Added, there: Collection[int | None]) -> dict[int, FoundInPath]:
    """A column that a file does not have is to Iceberg's readers what the file's partition says. To DuckDB it is NULL
    or the default of the column, unless a mapping says that it is in the path of the file: that of a hive directory,
    where it has to be the same. Raises Unsupported."""
    in_path: dict[int, FoundInPath] = {}
    file = added.file
    fields = {field.id: field for field in terms.schema.walk()}
    for by, value in zip(terms.specs[added.spec_id].fields, added.file.partition, strict=True):
        field = fields.get(by.source_id)
        if by.transform != "identity" or field is None or field.id in there:
            continue
        if value is None and field.initial_default is None:
            continue
        kind = terms.columns.get(field.id)
        if kind is not None and field.initial_default is None:
            names = {by.name, field.name}
            found = path_values.find_in_path(file.file_path, names, kind, value, file.record_count)
            if found is not None:
                in_path[field.id] = found
                continue
        raise Unsupported(
            f"Data file {file.file_path} has no column {field.name}: its value is that of the file's partition alone, "
            f"and DuckDB would not read the same out of its path. {COPY}"
        )
    return in_path


async def looked_at(objects: Objects, added: Sequence[Added], places: Mapping[str, Location]) -> list[Sequence[Part]]:
    """The columns of each file. Raises BadRequest for one that cannot be opened."""
    return await footers.columns(objects, {a.file.file_path: places[a.file.file_path] for a in added})


async def with_row_ids(drawer: Drawer, place: Location, first: int, planned_file: PlannedFile) -> PlannedFile:
    """A copy in which every row has an id: its own, or one that is counted from the first."""
    target = drawer.directory / f"row-ids-{uuid4()}.parquet"
    drawer.litter.append(target)
    size = await write_filled(drawer.objects, place, first, target)
    return replace(planned_file, file=replace(planned_file.file, path=str(target), size_bytes=size))
