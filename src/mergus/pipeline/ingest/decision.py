"""How the files of a batch are read, and what the table becomes by them: decided before anything is written.

Files that are alike (format, folder, header of a CSV) are looked at together, and apart only where that fails. Their
order is that of the files, so that of two that contradict each other it is the first that the table follows.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from mergus.pipeline.ingest import reading
from mergus.pipeline.ingest.evolution import Change, Fit, fit, shape
from mergus.pipeline.ingest.hadoop import AT_ONCE, SourceFile, drain, first_line
from mergus.pipeline.ingest.reading import Files, LeftOut, NotFit, Reading
from mergus.pipeline.session import message, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Manner:
    """What the user says of reading: the format (None: by each file's name), options, and whether columns may come."""

    format: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    evolve: bool = True

    def format_of(self, file: SourceFile) -> str | None:
        return self.format or reading.format_of(file.uri)


@dataclass(frozen=True)
class Part:
    """A file, and how it is read; None if it is left out, for a reason, or if there is nothing in it."""

    file: SourceFile
    reading: Reading | None
    reason: str | None = None


@dataclass
class Decision:
    schema: StructType
    changes: list[Change] = field(default_factory=list[Change])
    parts: list[Part] = field(default_factory=list[Part])


@dataclass(frozen=True)
class _Alike:
    """Files that one reader takes, if nothing is wrong with them."""

    kind: str
    base: str | None
    header: str | None

    def look(self, spark: "SparkSession", table: StructType, files: Files, manner: Manner) -> tuple[Fit, Reading]:
        options = reading.options_of(spark, self.kind, dict(manner.options))
        incoming = reading.inferred(spark, self.kind, dict(options), self.base, files)
        found = fit(table, incoming)
        # a record of text that does not fit is found when it is read; a column of Parquet has its type for all records
        against = [*found.refused, *(found.clashes if self.kind == "parquet" else [])]
        if not manner.evolve:
            against += [f"the table would have to {change}" for change in found.changes]
        if against:
            raise NotFit("; ".join(against))
        return found, Reading(self.kind, options, self.base, incoming)


def decide(spark: "SparkSession", table: StructType, files: Files, manner: Manner) -> Decision:
    found = Decision(table)
    groups: dict[_Alike, list[SourceFile]] = {}
    for file, alike in _kinds(spark, files, manner):
        if isinstance(alike, _Alike):
            groups.setdefault(alike, []).append(file)
        else:
            found.parts.append(Part(file, None, alike and alike.reason))
    for alike, members in groups.items():
        looked = reading.in_halves(spark, members, lambda some, a=alike: a.look(spark, found.schema, some, manner))
        for some, made in looked:
            if isinstance(made, LeftOut):
                found.parts += [Part(file, None, made.reason) for file in some]
                continue
            fitted, how = made
            found.schema = fitted.schema
            found.changes += fitted.changes
            found.parts += [Part(file, how) for file in some]
    found.parts = sorted((_settled(part, found.schema) for part in found.parts), key=lambda part: part.file)
    return found


def _kinds(spark: "SparkSession", files: Files, manner: Manner) -> Iterator[tuple[SourceFile, _Alike | LeftOut | None]]:
    """Of each file, which it is like; None if it is empty."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from zip(files, pool.map(partial(_kind, spark, manner), files), strict=True)


def _kind(spark: "SparkSession", manner: Manner, file: SourceFile) -> _Alike | LeftOut | None:
    kind = manner.format_of(file)
    if kind is None:
        return LeftOut("has a name of no format that is known")
    if kind == "parquet":
        return _Alike(kind, file.base, None)
    if file.size == 0:
        return None
    options = {name.lower(): value for name, value in manner.options}
    if kind == "json" or options.get("header", "true").lower() != "true":
        return _Alike(kind, file.base, None)
    # Spark takes the header of one CSV for that of all
    try:
        header = first_line(
            spark, file, options.get("encoding", options.get("charset", "utf-8")), options.get("comment")
        )
    except spark_errors() as e:
        drain(spark, file)
        return LeftOut(f"cannot be read: {message(e)}")
    if header is None:
        return None
    separator = options.get("sep", options.get("delimiter", ","))
    if "\ufffd" in header or not "".join(header.replace(separator, "").split()).isprintable():
        return LeftOut("cannot be read: its first line is not text")
    return _Alike(kind, file.base, header)


def _settled(part: Part, table: StructType) -> Part:
    """With the types that the table has when the whole batch has been looked at."""
    if part.reading is None:
        return part
    how = part.reading
    return Part(part.file, Reading(how.format, how.options, how.base, shape(how.schema, table)))
