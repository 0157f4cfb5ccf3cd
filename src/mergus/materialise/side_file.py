"""Inlined rows as a Parquet file: what DuckLake would have written, had it not put the rows into Postgres.

DuckDB itself makes the values out of what Postgres holds and writes them, so that a file has the very types that
DuckLake's files have, under the same field ids. A row takes two columns more along: its row id, and the snapshot that
put it there, which are Iceberg's `_row_id` and `_last_updated_sequence_number`.

Rows of older schema versions are given the columns of the snapshot, matched by id at every level: what was added since
has its initial default, what was dropped is gone, what was retyped is cast, as DuckDB does when it reads them.

Nested values are in Postgres as text, and they are what DuckDB reads from that text. Where it reads another value than
was written (it drops quotes and backslashes of strings in structs), so do we: both sides show the same, and a flush
makes it so for good. But the extension also writes texts that its own reader does not take and loses the whole session
over: a date and the like in a struct is stored as `CAST('…' AS VARCHAR)`. Those are read for what they are.

Equal rows give equal bytes, because objects are named by their content.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

import duckdb
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]

from mergus.ducklake.columns import Column, Columns
from mergus.ducklake.inlined import Batch, Unreadable, Value
from mergus.ducklake.session import identifier, literal
from mergus.iceberg.bounds import lower_bound, upper_bound

ROW_ID: Final = 2147483540
LAST_UPDATED: Final = 2147483539

DUCKDB_TYPES: Final = {
    **{"boolean": "BOOLEAN", "int8": "TINYINT", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT"},
    **{"uint8": "UTINYINT", "uint16": "USMALLINT", "uint32": "UINTEGER", "uint64": "UBIGINT", "int128": "HUGEINT"},
    **{"uint128": "UHUGEINT", "float32": "FLOAT", "float64": "DOUBLE", "date": "DATE", "time": "TIME"},
    **{"timetz": "TIMETZ", "timestamp": "TIMESTAMP", "timestamp_us": "TIMESTAMP", "timestamp_s": "TIMESTAMP_S"},
    **{"timestamp_ms": "TIMESTAMP_MS", "timestamp_ns": "TIMESTAMP_NS", "timestamptz": "TIMESTAMPTZ"},
    **{"interval": "INTERVAL", "varchar": "VARCHAR", "json": "JSON", "blob": "BLOB", "uuid": "UUID"},
}

# Stored as CAST('…' AS …) in a struct that is in no list or map: always, or (floats) when not finite or minus zero.
# So are blobs, but DuckDB takes the whole of that for the bytes.
WRAPPED_IN_STRUCTS: Final = frozenset(
    {"date", "time", "timetz", "timestamp", "timestamp_us", "timestamp_s", "timestamp_ms", "timestamp_ns"}
    | {"timestamptz", "interval", "uuid", "float32", "float64"}
)

# Rows with a value of such a type are never inlined in Postgres: of rows that are, it can only be NULL.
NEVER_INLINED: Final = frozenset({"variant", "geometry"})

_FLOATS: Final = frozenset({"float32", "float64"})

# A key of FIELD_IDS that is no name of a field.
FIELD_ID_KEY: Final = "__duckdb_field_id"

# pyarrow has no types; what leaves this module is typed again.
Untyped: TypeAlias = Any
_arrow: Untyped = pa
_parquet: Untyped = pq


@dataclass(frozen=True, slots=True)
class SideFile:
    """In the order of the file: by begin snapshot, then row id. Counts are by field id, of leaves outside of lists and
    maps; of NaNs, at the top level only, and so are bounds."""

    data: bytes
    row_ids: list[int]
    begin_snapshots: list[int]
    column_sizes: Mapping[int, int]
    value_counts: Mapping[int, int]
    null_value_counts: Mapping[int, int]
    nan_value_counts: Mapping[int, int]
    lower_bounds: Mapping[int, bytes]
    upper_bounds: Mapping[int, bytes]

    @property
    def record_count(self) -> int:
        return len(self.row_ids)


@dataclass(frozen=True, slots=True)
class _Node:
    """A column with everything below it, at some snapshot."""

    column: Column
    children: tuple["_Node", ...]

    @property
    def id(self) -> int:
        return self.column.id

    @property
    def kind(self) -> str:
        return self.column.type

    def leaves(self, repeated: bool = False) -> Iterator[tuple["_Node", bool]]:
        """As the columns of a Parquet file are ordered, and whether each is in a list or map."""
        if not self.children:
            yield self, repeated
        for child in self.children:
            yield from child.leaves(repeated or self.kind != "struct")

    def ids(self) -> tuple[Any, ...]:
        return (self.id, *(child.ids() for child in self.children))


def write(batches: Sequence[Batch], columns: Columns, at: int) -> SideFile:
    """The rows of all batches, of which there is at least one, with the columns of snapshot `at`.

    Raises Unreadable for a text that neither DuckDB takes nor we.
    """
    keys = sorted(key for b in batches for key in zip(b.begin_snapshots, b.row_ids, strict=True))
    if not keys:
        raise ValueError("A side file of no rows")
    targets = [node for node in map(_without_never_inlined, _top_level(columns, at)) if node is not None]
    row_id, last_updated = _free_names(targets)
    field_ids = [*(_field_id(t, t.column.name) for t in targets), f"{literal(row_id)}: {ROW_ID}"]
    field_ids.append(f"{literal(last_updated)}: {LAST_UPDATED}")
    with _SESSIONS.one() as (session, directory):
        selects: list[tuple[list[str], str]] = []
        for i, batch in enumerate(batches):
            session.register(f"batch_{i}", _table(batch))
            selects.append(_select(f"batch_{i}", batch, _top_level(columns, batch.since), targets))
        names = [identifier(name) for name in (*(t.column.name for t in targets), row_id, last_updated)]
        union = " UNION ALL ".join(f"SELECT {', '.join([*values, 'r', 'b'])} FROM {rows}" for values, rows in selects)
        ordered = f"SELECT * FROM ({union}) AS t({', '.join(names)}) ORDER BY {names[-1]}, {names[-2]}"
        try:
            session.execute(f"CREATE TEMP TABLE all_rows AS {ordered}")
        except duckdb.Error:
            _blame(session, selects, targets)
            raise
        file = directory / "rows.parquet"
        options = f"FORMAT parquet, COMPRESSION zstd, FIELD_IDS {{{', '.join(field_ids)}}}"
        if any(leaf.kind in _FLOATS for target in targets for leaf, _ in target.leaves()):
            # in a dictionary of DuckDB's both zeros are one, and rows that are inlined have either
            options += ", DICTIONARY_SIZE_LIMIT 0"
        session.execute(f"COPY all_rows TO {literal(str(file))} ({options})")
        data = file.read_bytes()
        nans, bounds = _nans(session, targets), _bounds(session, targets)
        session.execute("DROP TABLE all_rows")
        for i in range(len(batches)):
            session.unregister(f"batch_{i}")
        file.unlink()
    return SideFile(data, [r for _, r in keys], [b for b, _ in keys], *_counts(data, targets), nans, *bounds)


def read_keys(data: bytes) -> list[tuple[int, int]]:
    """Row id and begin snapshot of each row, in the order of the file."""
    file = _parquet.ParquetFile(_arrow.BufferReader(data))
    names: dict[int, str] = {int(field.metadata[b"PARQUET:field_id"]): field.name for field in file.schema_arrow}
    table = file.read(columns=[names[ROW_ID], names[LAST_UPDATED]])
    row_ids: list[int] = table.column(names[ROW_ID]).to_pylist()
    begins: list[int] = table.column(names[LAST_UPDATED]).to_pylist()
    return list(zip(row_ids, begins, strict=True))


class _Sessions:
    """DuckDB instances that nobody uses just now: to open one takes longer than to write most files.

    One that has seen an error is not used again, since DuckDB may lose it over a text. In one thread, for equal bytes.
    """

    def __init__(self) -> None:
        self._idle: list[tuple[duckdb.DuckDBPyConnection, TemporaryDirectory[str]]] = []

    @contextmanager
    def one(self) -> Generator[tuple[duckdb.DuckDBPyConnection, Path]]:
        """With a directory of its own. What is registered or made there has to be taken away again."""
        # threads come here: list operations are atomic
        try:
            session, directory = self._idle.pop()
        except IndexError:
            session, directory = self._open()
        try:
            yield session, Path(directory.name)
        except BaseException:
            session.close()
            directory.cleanup()
            raise
        self._idle.append((session, directory))

    def close(self) -> None:
        while self._idle:
            session, directory = self._idle.pop()
            session.close()
            directory.cleanup()

    def _open(self) -> tuple[duckdb.DuckDBPyConnection, TemporaryDirectory[str]]:
        directory = TemporaryDirectory(prefix="mergus-")
        session = duckdb.connect(
            config={
                "threads": "1",
                "temp_directory": directory.name,
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
            }
        )
        session.execute("SET TimeZone = 'UTC'")
        return session, directory


_SESSIONS: Final = _Sessions()


def close() -> None:
    """Leaves no directory behind: a process that ends by a signal does not do so by itself."""
    _SESSIONS.close()


def _top_level(columns: Columns, at: int) -> list[_Node]:
    children: dict[int | None, list[Column]] = {}
    for column in columns.columns:
        if column.span.at(at):
            children.setdefault(column.parent, []).append(column)

    def node(column: Column) -> _Node:
        return _Node(column, tuple(node(child) for child in children.get(column.id, ())))

    return [node(column) for column in children.get(None, ())]


def _without_never_inlined(node: _Node) -> _Node | None:
    """What a file lacks is NULL to its readers."""
    if node.kind in NEVER_INLINED:
        return None
    children = tuple(c for c in map(_without_never_inlined, node.children) if c is not None)
    if len(children) < len(node.children) and not (node.kind == "struct" and children):
        return None
    return _Node(node.column, children)


def _free_names(targets: Sequence[_Node]) -> tuple[str, str]:
    """Iceberg's for the two columns, unless a column of the table is called so; readers go by field ids."""
    taken = {t.column.name.lower() for t in targets}
    names = ["_row_id", "_last_updated_sequence_number"]
    while taken & set(names):
        names = [f"{name}_" for name in names]
    return names[0], names[1]


def _field_id(node: _Node, name: str) -> str:
    if name == FIELD_ID_KEY:
        raise Unreadable(name, "DuckDB cannot write a field of this name")
    if not node.children:
        return f"{literal(name)}: {node.id}"
    # DuckDB's names for what is in lists and maps are the ones that DuckLake gives these columns, too
    inner = ", ".join(_field_id(child, child.column.name) for child in node.children)
    return f"{literal(name)}: {{{FIELD_ID_KEY}: {node.id}, {inner}}}"


def _table(batch: Batch) -> Untyped:
    arrays = {f"c{i}": _array(c, v) for i, (c, v) in enumerate(zip(batch.columns, batch.values, strict=True))}
    keys = {"r": _arrow.array(batch.row_ids, _arrow.int64()), "b": _arrow.array(batch.begin_snapshots, _arrow.int64())}
    return _arrow.table({**arrays, **keys})


def _array(column: Column, values: list[Value]) -> Untyped:
    match column.type:
        case "varchar" | "json":
            return _arrow.array(values, _arrow.binary()).cast(_arrow.string())
        case "blob":
            return _arrow.array(values, _arrow.binary())
        case "boolean":
            return _arrow.array(values, _arrow.bool_())
        case "int8" | "int16" | "int32" | "int64" | "uint8" | "uint16" | "uint32":
            return _arrow.array(values, _arrow.int64())
        case "float32" | "float64":
            return _arrow.array(values, _arrow.float64())
        case _:
            return _arrow.array(values, _arrow.string())


def _select(name: str, batch: Batch, sources: Sequence[_Node], targets: Sequence[_Node]) -> tuple[list[str], str]:
    """An expression for each column, and what to select them from."""
    places = {column.id: f"c{i}" for i, column in enumerate(batch.columns)}
    shared = {source.id: source for source in sources if source.id in {t.id for t in targets}}
    stored = [f"CAST({places[i]} AS {_stored_type(s, s.kind == 'struct')}) AS {places[i]}" for i, s in shared.items()]
    values = [
        _value(places[t.id], shared[t.id], t, t.kind == "struct") if t.id in shared else _default(t) for t in targets
    ]
    return values, f"(SELECT {', '.join([*stored, 'r', 'b'])} FROM {name})"


def _default(target: _Node) -> str:
    text = target.column.initial_default
    return f"CAST({'NULL' if text is None else literal(text)} AS {_type(target)})"


def _value(x: str, source: _Node, target: _Node, in_struct: bool, depth: int = 0) -> str:
    """The value `x` of an older type as one of the newer type."""
    if _stored_type(source, in_struct) == _type(target) and source.ids() == target.ids():
        return x
    element = f"e{depth}"
    match source.kind, target.kind:
        case "struct", "struct":
            parts = ", ".join(_part(x, source, child, in_struct, depth) for child in target.children)
            return f"CASE WHEN {x} IS NULL THEN NULL ELSE struct_pack({parts}) END"
        case "list", "list":
            changed = _value(element, source.children[0], target.children[0], False, depth + 1)
            return f"list_transform({x}, lambda {element}: {changed})"
        case "map", "map":
            sides = zip(("key", "value"), source.children, target.children, strict=True)
            changed = ", ".join(
                f"{k} := {_value(f'struct_extract({element}, {literal(k)})', s, t, False, depth + 1)}"
                for k, s, t in sides
            )
            entries = f"list_transform(map_entries({x}), lambda {element}: struct_pack({changed}))"
            return f"CASE WHEN {x} IS NULL THEN NULL ELSE map_from_entries({entries}) END"
        case _:
            if _is_wrapped(source.kind, in_struct):
                pattern = r"^CAST\(''(.*)'' AS [A-Z ]+\)$"
                x = f"CASE WHEN starts_with({x}, 'CAST(') THEN regexp_extract({x}, '{pattern}', 1) ELSE {x} END"
            return f"CAST(CAST({x} AS {_type(source)}) AS {_type(target)})"


def _part(x: str, source: _Node, target: _Node, in_struct: bool, depth: int) -> str:
    old = next((child for child in source.children if child.id == target.id), None)
    name = identifier(target.column.name)
    if old is None:
        return f"{name} := {_default(target)}"
    return f"{name} := {_value(f'struct_extract({x}, {literal(old.column.name)})', old, target, in_struct, depth)}"


def _is_wrapped(kind: str, in_struct: bool) -> bool:
    return in_struct and kind in WRAPPED_IN_STRUCTS


def _stored_type(node: _Node, in_struct: bool) -> str:
    """What the text in Postgres can be cast to as it is."""
    return _type(node, stored=True, in_struct=in_struct)


def _type(node: _Node, *, stored: bool = False, in_struct: bool = False) -> str:
    match node.kind, node.children:
        case "struct", fields:
            inner = (f"{identifier(f.column.name)} {_type(f, stored=stored, in_struct=in_struct)}" for f in fields)
            return f"STRUCT({', '.join(inner)})"
        case "list", (element,):
            return f"{_type(element, stored=stored)}[]"
        case "map", (key, value):
            return f"MAP({_type(key, stored=stored)}, {_type(value, stored=stored)})"
        case kind, _:
            # DuckDB takes no text for a list of JSON
            if stored and (kind == "json" or _is_wrapped(kind, in_struct)):
                return "VARCHAR"
            return kind.upper() if kind.startswith("decimal(") else DUCKDB_TYPES[kind]


def _blame(
    session: duckdb.DuckDBPyConnection, selects: Sequence[tuple[list[str], str]], targets: Sequence[_Node]
) -> None:
    """Raises Unreadable for the column that cannot be read, without a word of what is in it."""
    for values, rows in selects:
        for target, value in zip(targets, values, strict=True):
            try:
                session.execute(f"SELECT max(hash({value})) FROM {rows}")
            except duckdb.Error:
                reason = "DuckLake has stored a text that DuckDB does not take for a value of the column"
                raise Unreadable(target.column.name, reason) from None


def _nans(session: duckdb.DuckDBPyConnection, targets: Sequence[_Node]) -> dict[int, int]:
    floats = [t for t in targets if t.kind in _FLOATS]
    if not floats:
        return {}
    counts = ", ".join(f"count(*) FILTER (isnan({identifier(t.column.name)}))" for t in floats)
    row = session.execute(f"SELECT {counts} FROM all_rows").fetchone()
    return {t.id: int(n) for t, n in zip(floats, row or (), strict=True)}


def _bounds(session: duckdb.DuckDBPyConnection, targets: Sequence[_Node]) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """From the texts that DuckLake's statistics would have."""
    bounded = [t for t in targets if not t.children]
    extremes = [
        f"CAST({which}({name}){' FILTER (NOT isnan(' + name + '))' if t.kind in _FLOATS else ''} AS VARCHAR)"
        for which in ("min", "max")
        for t in bounded
        for name in [identifier(t.column.name)]
    ]
    row = session.execute(f"SELECT {', '.join(extremes)} FROM all_rows").fetchone() if extremes else None
    texts: Sequence[str | None] = row or ()
    lowest, highest = texts[: len(bounded)], texts[len(bounded) :]
    lower = {t.id: lower_bound(t.kind, text, retyped=False) for t, text in zip(bounded, lowest, strict=True)}
    upper = {t.id: upper_bound(t.kind, text, retyped=False) for t, text in zip(bounded, highest, strict=True)}
    return {i: b for i, b in lower.items() if b is not None}, {i: b for i, b in upper.items() if b is not None}


def _counts(data: bytes, targets: Sequence[_Node]) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
    """Sizes, values and NULLs. Nothing of a column for which DuckDB does not say how many NULLs it has."""
    metadata = _parquet.read_metadata(_arrow.BufferReader(data))
    sizes: dict[int, int] = {}
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    for i, (leaf, repeated) in enumerate(leaf for target in targets for leaf in target.leaves()):
        chunks = [metadata.row_group(group).column(i) for group in range(metadata.num_row_groups)]
        sizes[leaf.id] = sum(chunk.total_compressed_size for chunk in chunks)
        if not repeated and all(chunk.statistics is not None and chunk.statistics.has_null_count for chunk in chunks):
            values[leaf.id] = sum(chunk.num_values for chunk in chunks)
            nulls[leaf.id] = sum(chunk.statistics.null_count for chunk in chunks)
    return sizes, values, nulls
