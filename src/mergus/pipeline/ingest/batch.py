"""A batch, finished: its bad records, then its data, then the note that it is done.

What it does is a function of what was planned, and each of its commits happens once. So it does not matter how often it
is begun, or by how many. The data come last of what needs the files: when they are in, the files may go.
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructType

from mergus.pipeline.canonical import SPARK
from mergus.pipeline.ingest import hadoop, ledger, once, quarantine, reading, target
from mergus.pipeline.ingest.evolution import INGESTED_AT, LINEAGE, OURS, SOURCE_FILE, filled
from mergus.pipeline.ingest.ledger import Batch, Ledger, Outcome
from mergus.pipeline.ingest.reading import CORRUPT, Files, LeftOut, Reading
from mergus.pipeline.job import Place, Run, Table
from mergus.pipeline.session import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILE: Final = f"{OURS}file"
REASON: Final = f"{OURS}reason"
RECORD: Final = f"{OURS}record"


@dataclass
class _Found:
    """Frames of which a record may be bad are kept by Spark until all is written: a record is parsed once. Others, of
    Parquet into a table without required columns, are read when they are written."""

    frames: list[tuple[Reading, "DataFrame"]] = field(default_factory=list[tuple[Reading, "DataFrame"]])
    outcomes: list[Outcome] = field(default_factory=list[Outcome])

    @property
    def left_out(self) -> list[Outcome]:
        return [one for one in self.outcomes if one.reason is not None]

    @property
    def bad(self) -> int:
        return sum(one.bad or 0 for one in self.outcomes)

    @property
    def rows(self) -> int:
        return sum(one.rows or 0 for one in self.outcomes)


def finish(
    place: Place, into: Table, to: Table, book: Ledger, batch: Batch, run: Run, *, is_old: bool = False
) -> list[Outcome]:
    """`to` is for what is bad. An old batch was planned by a run that has not closed it."""
    short = batch.id[:8]
    if is_old and once.is_in(place, into, batch.key):
        outcomes = _as_it_was(place, to, batch)
    else:
        outcomes = _at_once(place, into, to, batch, run, is_old=is_old)
        if outcomes is None:
            outcomes = _write(place, into, to, batch, run, is_old=is_old, at_once=False)
    with run.part("note"):
        book.close(batch, outcomes)
    run.say(f"batch {short}: done")
    return outcomes


def _at_once(place: Place, into: Table, to: Table, batch: Batch, run: Run, *, is_old: bool) -> list[Outcome] | None:
    """Parquet in one pass. None if something is bad: a file that is so inside shows it when it is read, and which one
    that is has to be known before anything is written, to the quarantine least of all."""
    if not any(part.reading is not None and not part.reading.is_text for part in batch.parts):
        return None
    try:
        return _write(place, into, to, batch, run, is_old=is_old, at_once=True)
    except (_Bad, *spark_errors()):
        return None


class _Bad(Exception):
    """What was to be read in one pass is not all good."""


def _write(
    place: Place, into: Table, to: Table, batch: Batch, run: Run, *, is_old: bool, at_once: bool
) -> list[Outcome]:
    short = batch.id[:8]
    with _read(place, into, batch, run, is_old=is_old, at_once=at_once) as found:
        if at_once and (found.bad or found.left_out):
            raise _Bad
        if found.bad or found.left_out:
            with run.part("quarantine"):
                bad = [frame.where(f"{REASON} IS NOT NULL") for _, frame in found.frames]
                kept = [frame.selectExpr(f"{FILE} file", f"{REASON} reason", f"{RECORD} record") for frame in bad]
                quarantine.add(place, to, batch, kept, found.left_out)
            run.say(f"batch {short}: quarantined {found.bad} records, {len(found.left_out)} files")
        with run.part("append"):
            good = _data(place, into, found.frames)
            ours = once.append(place, good, into, batch.key, batch=batch.id, files=len(batch.parts))
        run.say(f"batch {short}: {f'appended {found.rows} rows' if ours else 'another run has appended it'}")
        return found.outcomes


@contextmanager
def _read(place: Place, into: Table, batch: Batch, run: Run, *, is_old: bool, at_once: bool) -> Generator[_Found]:
    found = _Found()
    groups: dict[Reading, list[hadoop.SourceFile]] = {}
    for part in batch.parts:
        now = hadoop.look(place.spark, part.file) if is_old else part.file
        if part.reason is not None:
            found.outcomes.append(Outcome(part.file, ledger.QUARANTINED, 0, 0, part.reason))
        elif now is None:
            found.outcomes.append(Outcome(part.file, ledger.GONE, 0, 0, "was gone before it was read"))
        elif now.identity != part.file.identity:
            found.outcomes.append(Outcome(part.file, ledger.CHANGED, 0, 0, "was changed before it was read"))
        elif part.reading is None:
            found.outcomes.append(Outcome(part.file, ledger.IN, 0, 0))
        else:
            groups.setdefault(part.reading, []).append(part.file)
    required = [f.name for f in target.schema(place, into).fields if not f.nullable]
    try:
        with run.part("read"):
            for how, files in groups.items():
                _group(place, how, files, required, found, at_once=at_once)
        yield found
    finally:
        for _, frame in found.frames:
            frame.unpersist()


def _group(place: Place, how: Reading, files: Files, required: Sequence[str], found: _Found, *, at_once: bool) -> None:
    def count(some: Files) -> tuple["DataFrame", dict[str, tuple[int, int]]]:
        frame = _judged(reading.frame(place.spark, how, some), how, required)
        if at_once and not how.is_text and not required:
            return frame, {uri: (rows, 0) for uri, rows in hadoop.parquet_rows(place.spark, some).items()}
        frame = frame.persist()
        try:
            counted = frame.groupBy(FILE).agg({"*": "count", REASON: "count"}).collect()
        except BaseException:
            frame.unpersist()
            raise
        return frame, {hadoop.uri_of(row[FILE]): (row["count(1)"], row[f"count({REASON})"]) for row in counted}

    for some, made in reading.in_halves(place.spark, files, count):
        if isinstance(made, LeftOut):
            found.outcomes += [Outcome(file, ledger.QUARANTINED, 0, 0, made.reason) for file in some]
            continue
        frame, counts = made
        found.frames.append((how, frame))
        for file in some:
            all_of_it, bad = counts.get(file.uri, (0, 0))
            found.outcomes.append(Outcome(file, ledger.IN, all_of_it - bad, bad))


def _judged(frame: "DataFrame", how: Reading, required: Sequence[str]) -> "DataFrame":
    """With each record's file, and with a reason and a text if it is bad."""
    names = {f.name.lower(): f.name for f in how.schema.fields}
    cases: list[str] = []
    if how.is_text:
        wanted = SPARK.literal(
            f"is no record of ({', '.join(f'{f.name} {f.dataType.simpleString()}' for f in how.schema)})"
        )
        cases.append(f"WHEN {CORRUPT} IS NOT NULL THEN {wanted}")
    for name in required:
        mine = names.get(name.lower())
        given = "NULL" if mine is None else SPARK.identifier(mine)
        cases.append(f"WHEN {given} IS NULL THEN {SPARK.literal(f'has no value of {name}, which must have one')}")
    reason = f"CASE {' '.join(cases)} END" if cases else "CAST(NULL AS STRING)"
    record = f"to_json(struct({', '.join(map(SPARK.identifier, how.schema.names))}))" if how.schema.fields else "'{}'"
    text = f"coalesce({CORRUPT}, {record})" if how.is_text else record
    judged = frame.selectExpr("*", f"_metadata.file_path AS {FILE}", f"{reason} AS {REASON}")
    return judged.selectExpr("*", f"IF({REASON} IS NULL, NULL, {text}) AS {RECORD}")


def _data(place: Place, into: Table, frames: Iterable[tuple[Reading, "DataFrame"]]) -> "DataFrame":
    """What is good of all, as rows of the table; none if there is nothing."""
    table = target.schema(place, into)
    now = f"TIMESTAMP {SPARK.literal(datetime.now(UTC).isoformat())}"
    given = [frame.where(f"{REASON} IS NULL").selectExpr(*_columns(table, how.schema, now)) for how, frame in frames]
    nothing = target.local(place.spark, [], table)
    return reduce(lambda a, b: a.union(b), given) if given else nothing


def _columns(table: StructType, have: StructType, now: str) -> list[str]:
    ours = {SOURCE_FILE: FILE, INGESTED_AT: now}
    known = {f.name.lower(): f for f in have.fields}
    found: list[str] = []
    for one in table.fields:
        mine = known.get(one.name.lower())
        if one.name in LINEAGE.names:
            value = ours[one.name]
        else:
            value = filled(SPARK.identifier(mine.name) if mine else "", mine and mine.dataType, one.dataType)
        found.append(f"{value} AS {SPARK.identifier(one.name)}")
    return found


def _as_it_was(place: Place, to: Table, batch: Batch) -> list[Outcome]:
    """Of a batch whose data are in, what is known of it still."""
    bad = quarantine.of(place, to, batch)
    outcomes: list[Outcome] = []
    for part in batch.parts:
        count, reason = bad.get(part.file.uri, (0, None))
        state = ledger.IN if reason is None else ledger.QUARANTINED
        outcomes.append(Outcome(part.file, state, 0 if reason else None, count, reason))
    return outcomes
