"""Columns whose values are in the paths of files: those that DuckDB added with `hive_partitioning`.

DuckDB takes the value out of the path whenever it reads, and casts it to the type that the column has then. When it
adds the file, it writes the value down as the column's statistics, as it prints a value of the type of that time: so
nobody else has to parse a path. To Iceberg the column is an identity partition, the value of which readers take for a
column that a file lacks.

An Iceberg client may add such files, too: then the value of the file's partition must be what DuckDB takes out of the
path (`find_in_path`), and only texts are trusted that leave no doubt.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from mergus.ducklake.columns import Column
from mergus.ducklake.files import ColumnStats, DataFile
from mergus.ducklake.mappings import COPY_ROWS
from mergus.ducklake.partition_keys import identity_text
from mergus.ducklake.types import iceberg_primitive
from mergus.iceberg.manifest import PartitionValue
from mergus.iceberg.partition_spec import PartitionField, identity_value
from mergus.iceberg.schema import Schema
from mergus.iceberg.schema_parse import folded

# DuckDB cuts longer texts.
_MOST_BYTES: Final = 256
# Not those whose text may stand for several values, nor uuids, which DuckDB's Iceberg reader scrambles.
_WITHOUT: Final = frozenset({"float32", "float64", "uuid", "blob", "time", "timestamp_ns", "variant", "geometry"})
# A path has one meaning to all of them.
_INTEGERS: Final = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16"})
_DECIMAL: Final = re.compile(r"(?<=^decimal\()[0-9]+")
_DIGITS: Final = re.compile(r"-?[0-9]{1,19}")
# By these DuckDB tells directories apart, or ends what may be a value.
_NOT_IN_PATHS: Final = re.compile(r"[\\?\n]")
_BROKEN_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
# NULL to some, and a text to others.
_NO_VALUES: Final = frozenset({"", "NULL", "__HIVE_DEFAULT_PARTITION__"})


@dataclass(frozen=True, slots=True)
class InPath:
    """The field of a partition spec that stands for such a column, and the column's type of now."""

    field: PartitionField
    type: str

    def value(self, file: DataFile) -> PartitionValue:
        """Of a file of which `why_not` says nothing."""
        found = _value(file.stats.get(self.field.source_id), self.type, file.record_count)
        return None if found is None else found[0]


def why_not(
    file: DataFile, ids: Sequence[int], rows: Sequence[Column], schema: Schema, at: int, now: Schema
) -> str | None:
    """Why a file cannot be shown at a snapshot with this schema, if it cannot: `ids` are the columns in its path,
    `rows` all that the table ever had, and `now` is the schema that partition specs are about."""
    shown = {field.id: field for field in schema.fields}
    left = {field.id: field.type for field in now.fields}
    for column_id in ids:
        field = shown.get(column_id)
        if field is None:
            continue
        what = f"column {field.name} has its value in the path of the file, "
        if left.get(column_id) != field.type:
            return f"{what}and was dropped or got another type since"
        then = next((c.type for c in rows if c.id == column_id and c.span.at(file.begin_snapshot)), None)
        kinds = {then, *(c.type for c in rows if c.id == column_id and c.span.at(at))}
        if not _read_alike(kinds):
            return f"{what}which DuckDB reads as another type than when the file was added. {COPY_ROWS}"
        found = None if then is None else _value(file.stats.get(column_id), then, file.record_count)
        if found is None:
            return f"{what}which cannot be a partition value of Iceberg's. {COPY_ROWS}"
        if found[0] is None and (field.required or field.initial_default is not None):
            return f"{what}which is NULL there: the column is NOT NULL or has a default. {COPY_ROWS}"
    return None


def _read_alike(kinds: Collection[str | None]) -> bool:
    """Whether DuckDB takes a text of a path for the same value, whichever of these types the column has."""
    if len(kinds) < 2 or _INTEGERS.issuperset(kinds):
        return True
    # of decimals, the scale alone decides
    return len({None if k is None else _DECIMAL.sub("", k) for k in kinds}) == 1


@dataclass(frozen=True, slots=True)
class FoundInPath:
    """The name that a column has in the path of a file, and its statistics there."""

    name: str
    stats: ColumnStats


def find_in_path(
    path: str, names: Collection[str], ducklake_type: str, value: PartitionValue, records: int
) -> FoundInPath | None:
    """A column of one of these names, if it is certain that DuckDB takes this value for it out of the path: there is
    one directory of such a name, whatever the case of its letters, and it says the value as DuckDB prints it. NULL is
    not looked for: DuckDB reads it for a column that a file lacks, anyway."""
    directories = [part.partition("=") for part in path.split("/")[:-1]]
    wanted = {folded(name) for name in names}
    found = [(name, text) for name, equals, text in directories if equals and folded(unquote(name)) in wanted]
    if len(found) != 1 or found[0][0] not in names or _NOT_IN_PATHS.search(path):
        return None
    name, escaped = found[0]
    text = _unescaped(escaped)
    known = identity_text(ducklake_type, value)
    if "%" in name or text is None or known is None or text.upper() in _NO_VALUES:
        return None
    # months are often written with two digits
    is_number = ducklake_type in _INTEGERS and _DIGITS.fullmatch(text) is not None
    if text != known and not (is_number and int(text) == value):
        return None
    stats = ColumnStats(0, records, 0, known, known, None)
    return FoundInPath(name, stats) if _value(stats, ducklake_type, records) == (value,) else None


def _unescaped(text: str) -> str | None:
    """As DuckDB and Spark read it; None where they may differ."""
    if "=" in text or _BROKEN_ESCAPE.search(text):
        return None
    try:
        found = unquote(text, errors="strict")
    except UnicodeDecodeError:
        return None
    return None if "\0" in found else found


def _value(stats: ColumnStats | None, ducklake_type: str, records: int) -> tuple[PartitionValue] | None:
    """A tuple of one, as NULL is a value too; None where it is not certain."""
    if stats is None or ducklake_type in _WITHOUT or iceberg_primitive(ducklake_type) is None:
        return None
    if stats.null_count == records and records:
        return (None,)
    text = stats.min_text
    if stats.null_count != 0 or text is None or text != stats.max_text or len(text.encode()) >= _MOST_BYTES:
        return None
    found = identity_value(ducklake_type, text, retyped=False)
    return None if found is None else (found,)
