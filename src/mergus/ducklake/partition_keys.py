"""Iceberg's partition specs as DuckLake's keys, as far as DuckLake has them, and a file's tuple as DuckLake's texts.

DuckLake partitions by identity, and by calendar parts of which each goes with all coarser ones: a day of Iceberg's is a
year, a month and a day. It has neither `truncate` nor `void`, and no key within a struct. A file whose values have no
certain text is to DuckLake a file without partition, which is true of any.

But not beside a bucket. DuckDB 1.5.5 skips files by the bucket of a key in force now, and takes a file that was written
under another partitioning for one without such rows: it loses them. So a bucket of Iceberg's never becomes a key, and
to a table that a DuckDB session has partitioned so, no file comes without its bucket (`needs_texts`).
"""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Final

from mergus.ducklake.partitions import Key
from mergus.iceberg import values
from mergus.iceberg.manifest import PartitionValue
from mergus.iceberg.partition_spec import PartitionSpec
from mergus.iceberg.transforms import CALENDAR

_EPOCH: Final = date(1970, 1, 1)
# DuckDB fails on blobs that are no text; uuids and floats have texts, but not all that DuckDB would write.
_WITHOUT_TEXT: Final = frozenset({"blob", "float32", "float64", "variant", "geometry"})
# What DuckDB stores for these was cut in the session's time zone.
_IN_A_ZONE: Final = "timestamptz"


def keys(spec: PartitionSpec, types: Mapping[int, str]) -> list[Key]:
    """`types` are DuckLake's, of the top-level columns."""
    found: list[Key] = []
    for field in spec.fields:
        kind = types.get(field.source_id)
        if kind is None or kind in {"struct", "list", "map"}:
            continue
        if field.transform in CALENDAR:
            parts = CALENDAR[: CALENDAR.index(field.transform) + 1]
            found += [Key(field.source_id, part) for part in parts]
        elif field.transform == "identity" and kind not in _WITHOUT_TEXT:
            found.append(Key(field.source_id, "identity"))
    return list(dict.fromkeys(found))


def needs_texts(keys: Sequence[Key]) -> bool:
    """Whether DuckDB would lose rows of a file that has no values for these keys."""
    return any(key.transform.startswith("bucket(") for key in keys)


def texts(
    spec: PartitionSpec, partition: Sequence[PartitionValue], wanted: Sequence[Key], types: Mapping[int, str]
) -> list[str | None] | None:
    """What DuckLake would have stored for these keys; None if that is not certain for one of them."""
    found: list[str | None] = []
    for key in wanted:
        text = _text(spec, partition, key, types.get(key.column_id, ""))
        if text is None:
            return None
        found.append(text[0])
    return found


def _text(spec: PartitionSpec, partition: Sequence[PartitionValue], key: Key, kind: str) -> tuple[str | None] | None:
    """A tuple of one, as NULL is a value too."""
    for field, value in zip(spec.fields, partition, strict=True):
        if field.source_id != key.column_id:
            continue
        is_part = field.transform in CALENDAR and key.transform in CALENDAR[: CALENDAR.index(field.transform) + 1]
        if not is_part and field.transform.replace("[", "(").replace("]", ")") != key.transform:
            continue
        if value is None:
            return (None,)
        if is_part:
            return None if kind == _IN_A_ZONE or not isinstance(value, int) else (_part(field.transform, value, key),)
        if key.transform != "identity":
            return (str(value),)
        text = identity_text(kind, value)
        return None if text is None else (text,)
    return None


def _part(transform: str, ordinal: int, key: Key) -> str | None:
    if transform == "year":
        return str(1970 + ordinal)
    if transform == "month":
        return str(1970 + ordinal // 12) if key.transform == "year" else str(ordinal % 12 + 1)
    days, hour = (ordinal, 0) if transform == "day" else divmod(ordinal, 24)
    day = date.fromordinal(_EPOCH.toordinal() + days)
    return str({"year": day.year, "month": day.month, "day": day.day, "hour": hour}[key.transform])


def identity_text(kind: str, value: PartitionValue) -> str | None:
    """As DuckDB prints a value of that type; None if that is not certain."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value if kind in {"varchar", "json"} and "\0" not in value else None
        case bytes():
            return values.write_uuid(value) if kind == "uuid" else None
        case int():
            counted = values.counted(kind.replace(" ", ""))
            return None if counted is None else counted.write(value)
        case _:
            return None
