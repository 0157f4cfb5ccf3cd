"""Rows of `ducklake_column_mapping` and `ducklake_name_mapping`: files that came without field ids.

`ducklake_add_data_files` takes any Parquet file and writes down which of its columns, by name, is which of the table's
(equal mappings are one). Iceberg has one mapping for all such files, so they must agree, and each file is read by the
names of the others too: what its own mapping leaves out (`ignore_extra_columns`) must not have a name that another's
has. Only the footers of files tell.

A column may be in the paths of files instead (`hive_partitioning`), of which DuckDB takes the value whenever it reads.
Such a column is in no name mapping: `places` lists the file under a partition spec that has the value.

There is more that only the footer can tell, and who serves such a file has to look there. DuckDB goes by the mapping
even if the file does have field ids, which Iceberg readers would follow. And the file's types may be other than the
table's: UINT_32 under int64, a decimal of smaller scale, timestamps in milliseconds, nanoseconds or INT96.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from mergus.ducklake.columns import Column, Columns, Unrepresentable
from mergus.ducklake.commit import Commit
from mergus.ducklake.connect import Conn
from mergus.iceberg.name_mapping import ELEMENT, KEY, VALUE, Ambiguous, MappedField, merged

# Only of files that are there: a mapping outlives the last of its files.
READ: Final = """
    SELECT f.mapping_id, f.first, f.last, m.type,
           n.column_id, n.parent_column, n.source_name, n.target_field_id, n.is_partition
    FROM (SELECT mapping_id, min(begin_snapshot) AS first, max(begin_snapshot) AS last FROM ducklake_data_file
          WHERE table_id = %(table_id)s AND mapping_id IS NOT NULL GROUP BY mapping_id) AS f
    LEFT JOIN ducklake_column_mapping m ON m.mapping_id = f.mapping_id AND m.table_id = %(table_id)s
    LEFT JOIN ducklake_name_mapping n ON n.mapping_id = f.mapping_id
    ORDER BY f.mapping_id, n.column_id
"""

# In the order in which they came, each with its sources in theirs.
READ_ALL: Final = """
    SELECT m.mapping_id, n.column_id, n.parent_column, n.source_name, n.target_field_id, n.is_partition
    FROM ducklake_column_mapping m JOIN ducklake_name_mapping n ON n.mapping_id = m.mapping_id
    WHERE m.table_id = %(table_id)s AND m.type = %(type)s ORDER BY m.mapping_id, n.column_id
"""
INSERT: Final = """
    INSERT INTO ducklake_column_mapping (mapping_id, table_id, type) VALUES (%(id)s, %(table_id)s, %(type)s)
"""
INSERT_SOURCE: Final = """
    INSERT INTO ducklake_name_mapping (mapping_id, column_id, source_name, target_field_id, parent_column, is_partition)
    VALUES (%(id)s, %(ordinal)s, %(name)s, %(target)s, %(parent)s, %(is_partition)s)
"""

BY_NAME: Final = "map_by_name"
COPY_ROWS: Final = "Copy the rows of one of them instead (INSERT INTO ... SELECT)"
# the id of one that is not written yet
NEW: Final = -1
# what DuckLake calls the elements of every list
LIST_ELEMENT: Final = "list"
_KEY_AND_VALUE: Final = {KEY, VALUE}
# columns by id, and what they are called in the path of a file
NamesInPath: TypeAlias = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Source:
    """A column of a file; `ordinal` and `parent` number the sources of one mapping, `target` is the table's column."""

    ordinal: int
    parent: int | None
    name: str
    target: int
    is_partition: bool


@dataclass(frozen=True, slots=True)
class FileMapping:
    """`first` and `last` are the snapshots that the oldest and newest of its files came with."""

    id: int
    first: int
    last: int
    type: str | None
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Mappings:
    """Those that files of a table have, now or at a snapshot that is still there."""

    mappings: Sequence[FileMapping] = ()

    def name_mapping(self, columns: Columns) -> tuple[MappedField, ...]:
        """The one mapping of the table, empty if none of its files has one.

        Raises Unrepresentable where one mapping cannot say what they say.
        """
        kinds = {c.id: c.type for c in columns.columns}
        trees = [_tree(m, kinds) for m in self.mappings]
        try:
            return merged(trees)
        except Ambiguous as e:
            raise Unrepresentable("files added with their own column names", f"{e}. {COPY_ROWS}") from None

    @property
    def in_path(self) -> dict[int, tuple[int, ...]]:
        """By mapping, the columns whose values are in the paths of its files."""
        found = {m.id: tuple(sorted(s.target for s in m.sources if s.is_partition)) for m in self.mappings}
        return {mapping_id: ids for mapping_id, ids in found.items() if ids}

    def with_file(
        self, fields: Sequence[MappedField], columns: Columns, snapshot_id: int, in_path: NamesInPath = ()
    ) -> "Mappings":
        """As they will be with a file that comes with that snapshot, the newest; the columns are as they will be then,
        too. The fields and `in_path` are as in `add_mapping`."""
        sources = tuple(_sources(fields, {c.id: c.type for c in columns.columns}, in_path))
        like = next((m for m in self.mappings if (m.type, m.sources) == (BY_NAME, sources)), None)
        first = snapshot_id if like is None else like.first
        one = FileMapping(NEW if like is None else like.id, first, snapshot_id, BY_NAME, sources)
        return Mappings([*(m for m in self.mappings if m is not like), one])


def _tree(mapping: FileMapping, kinds: Mapping[int, str]) -> tuple[MappedField, ...]:
    if mapping.type != BY_NAME:
        raise Unrepresentable(f"mapping {mapping.id} of column names", f"its type is {mapping.type}, not {BY_NAME}")

    def level(parent: Source | None) -> tuple[MappedField, ...]:
        kind = None if parent is None else kinds.get(parent.target)
        ordinal = None if parent is None else parent.ordinal
        own = (s for s in mapping.sources if s.parent == ordinal and not s.is_partition)
        found = tuple(node(source, kind) for source in own)
        names = {name for field in found for name in field.names}
        if (kind == "list" and len(found) != 1) or (kind == "map" and names != _KEY_AND_VALUE):
            raise Unrepresentable(f"mapping {mapping.id} of column names", f"it leaves out a part of a {kind}")
        return found

    def node(source: Source, kind_above: str | None) -> MappedField:
        # DuckLake writes the same name for every list's elements, and Iceberg another
        name = {"list": ELEMENT, "map": source.name.lower()}.get(kind_above or "", source.name)
        return MappedField(source.target, (name,), level(source))

    return level(None)


async def read(conn: Conn, table_id: int) -> Mappings:
    rows = await (await conn.execute(READ, {"table_id": table_id})).fetchall()
    heads = {mapping_id: (first, last, kind) for mapping_id, first, last, kind, *_ in rows}
    sources = [(mapping_id, Source(*source)) for mapping_id, _, _, _, *source in rows if source[0] is not None]
    return Mappings(
        [FileMapping(i, *head, tuple(s for owner, s in sources if owner == i)) for i, head in heads.items()]
    )


async def add_mapping(
    tx: Commit, table_id: int, fields: Sequence[MappedField], columns: Sequence[Column], in_path: NamesInPath = ()
) -> int:
    """The id of the mapping that says this of a file, one of the table's own if there is an equal one.

    `fields` are the columns that the file has, each with the one name that it has there: DuckDB looks for no other, and
    takes a column for NULL whose name it does not find. `columns` are all that the table ever had: one that was dropped
    stays so. `in_path` are columns that the file does not have, and whose values DuckDB takes out of its path. Raises
    ValueError if a field has several names or was never a column of the table.
    """
    sources = _sources(fields, {c.id: c.type for c in columns}, in_path)
    rows = await (await tx.conn.execute(READ_ALL, {"table_id": table_id, "type": BY_NAME})).fetchall()
    known: defaultdict[int, list[Source]] = defaultdict(list)
    for mapping_id, *source in rows:
        known[mapping_id].append(Source(*source))
    for mapping_id, found in known.items():
        if found == sources:
            return mapping_id
    (mapping_id,) = tx.next_file_ids(1)
    await tx.conn.execute(INSERT, {"id": mapping_id, "table_id": table_id, "type": BY_NAME})
    named = [
        {"ordinal": s.ordinal, "parent": s.parent, "name": s.name, "target": s.target, "is_partition": s.is_partition}
        for s in sources
    ]
    async with tx.conn.cursor() as cursor:
        await cursor.executemany(INSERT_SOURCE, [{"id": mapping_id, **row} for row in named])
    return mapping_id


def _sources(fields: Sequence[MappedField], kinds: Mapping[int, str], in_path: NamesInPath) -> list[Source]:
    """Numbered from 0, each before what is below it, as DuckLake does."""
    found: list[Source] = []

    def add(field: MappedField, parent: Source | None) -> None:
        if field.id not in kinds or len(field.names) != 1:
            raise ValueError(f"Field {field.id} of a file must be a column of the table and have one name")
        is_element = parent is not None and kinds[parent.target] == "list"
        name = LIST_ELEMENT if is_element else field.names[0]
        source = Source(len(found), None if parent is None else parent.ordinal, name, field.id, is_partition=False)
        found.append(source)
        for child in field.fields:
            add(child, source)

    for field in fields:
        add(field, None)
    found += [Source(len(found) + n, None, name, i, is_partition=True) for n, (i, name) in enumerate(in_path)]
    return found
