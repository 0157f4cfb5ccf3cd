"""The job: what a user wants, the batches that come of it, and what is told about them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql.types import StructType

from mergus.errors import SetupError
from mergus.pipeline.ingest import hadoop, ledger, target
from mergus.pipeline.ingest.batch import finish
from mergus.pipeline.ingest.decision import Decision, Manner, decide
from mergus.pipeline.ingest.evolution import LINEAGE, Change
from mergus.pipeline.ingest.hadoop import SourceFile
from mergus.pipeline.ingest.ledger import Known, Ledger, Outcome
from mergus.pipeline.job import Place, Run, Table

BATCH_FILES: Final = 1000
BATCH_BYTES: Final = 4 << 30
# how often a table may change under our hands while we look at files
TRIES: Final = 5
MOST_SHOWN: Final = 50


@dataclass(frozen=True)
class Wanted:
    into: Table
    quarantine: Table
    manner: Manner = field(default_factory=Manner)
    partition_by: tuple[str, ...] = ()
    batch_files: int = BATCH_FILES
    batch_bytes: int = BATCH_BYTES
    # files that were left out as a whole are new ones
    again: bool = False


@dataclass
class Report:
    """`quarantined` are files as a whole; `changed` are those that are in, and have become others since."""

    batches: list[str] = field(default_factory=list[str])
    evolved: list[str] = field(default_factory=list[str])
    quarantined: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    changed: list[str] = field(default_factory=list[str])

    def json(self) -> dict[str, Any]:
        return {
            "batches": self.batches,
            "evolved": self.evolved,
            "quarantined": [{"file": file, "reason": reason} for file, reason in self.quarantined[:MOST_SHOWN]],
            "changed": self.changed[:MOST_SHOWN],
        }


def listing(place: Place, sources: Iterable[str], manner: Manner, run: Run) -> list[SourceFile]:
    """What is there to be read, each once, oldest first."""
    found: dict[str, SourceFile] = {}
    with run.part("list"):
        for source in sources:
            files = hadoop.listing(place.spark, source)
            known = [file for file in files if manner.format_of(file) is not None]
            run.counts["other_files"] += len(files) - len(known)
            if files and not known:
                raise SetupError(f"what is at {source} has names of no format that is known: give --format")
            for file in known:
                found.setdefault(file.uri, file)
    return sorted(found.values())


def ingest(place: Place, wanted: Wanted, files: Sequence[SourceFile], run: Run, report: Report) -> None:
    """Whatever was begun before, then what is new."""
    if place.load(wanted.into) is not None:
        book = ledger.of(place, wanted.into)
        for batch in book.open_batches():
            run.say(f"batch {batch.id[:8]}: begun before, {len(batch.parts)} files")
            _note(finish(place, wanted.into, wanted.quarantine, book, batch, run, is_old=True), run, report)
            report.batches.append(batch.id)
    known, fresh = _fresh(place, wanted, files, run, report)
    while fresh:
        some = next(cut(fresh, wanted.batch_files, wanted.batch_bytes))
        with run.part("decide"):
            book, decision = _decided(place, wanted, some, run)
        with run.part("note"):
            batch = book.plan(known.last, decision.parts)
        if batch is None:
            run.say("another run has planned its files: looking again")
            known, fresh = _fresh(place, wanted, fresh, run, report)
            continue
        run.say(f"batch {batch.id[:8]}: planned {len(some)} files")
        _note(finish(place, wanted.into, wanted.quarantine, book, batch, run), run, report)
        report.batches.append(batch.id)
        report.evolved += map(str, decision.changes)
        known.last, fresh = batch.plan, fresh[len(some) :]


def preview(place: Place, wanted: Wanted, files: Sequence[SourceFile], run: Run) -> dict[str, Any]:
    """What `ingest` would do; nothing is written."""
    report = Report()
    _, fresh = _fresh(place, wanted, files, run, report)
    schema = _schema(place, wanted.into)
    batches: list[dict[str, Any]] = []
    for some in cut(fresh, wanted.batch_files, wanted.batch_bytes):
        decision = decide(place.spark, schema or StructType([]), some, wanted.manner)
        schema = decision.schema
        left_out = [{"file": part.file.uri, "reason": part.reason} for part in decision.parts if part.reason]
        said = {"files": len(some), "bytes": sum(file.size for file in some), "changes": [*map(str, decision.changes)]}
        batches.append({**said, "quarantined": left_out})
        run.counts["quarantined_files"] += len(left_out)
    return {"plan": batches, "changed": report.changed[:MOST_SHOWN]}


def is_found(run: Run) -> bool:
    """Whether somebody should look."""
    return any(run.counts[name] for name in ("bad_records", "quarantined_files", "changed_files"))


def cut(files: Sequence[SourceFile], most_files: int, most_bytes: int) -> Iterator[list[SourceFile]]:
    """Batches of at most so many files and bytes, and of one file at least."""
    batch: list[SourceFile] = []
    size = 0
    for file in files:
        if batch and (len(batch) == most_files or size + file.size > most_bytes):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield batch


def sort_out(
    files: Sequence[SourceFile], known: Known, *, again: bool
) -> tuple[list[SourceFile], list[SourceFile], int]:
    """New ones; those that are not what they were; and how many are known. One that was gone may come back."""
    new = {ledger.GONE, *([ledger.QUARANTINED] if again else [])}
    states = {identity: state for identity, state in known.states.items() if state not in new}
    names = {uri for uri, _, _ in states}
    fresh = [file for file in files if file.uri not in names]
    changed = [file for file in files if file.uri in names and file.identity not in states]
    return fresh, changed, sum(file.identity in states for file in files)


def _fresh(
    place: Place, wanted: Wanted, files: Sequence[SourceFile], run: Run, report: Report
) -> tuple[Known, list[SourceFile]]:
    with run.part("list"):
        known = Known()
        if files and place.load(wanted.into) is not None and (book := ledger.found(place, wanted.into)):
            known = book.known(files)
    fresh, changed, old = sort_out(files, known, again=wanted.again)
    for file in changed:
        run.say(f"{file.uri} is in, and has changed since: it is left alone (give a new file a new name)")
        report.changed.append(file.uri)
    run.counts["changed_files"] += len(changed)
    run.counts["known_files"] += old
    run.say(f"{len(fresh)} new files, {old} known")
    return known, fresh


def _schema(place: Place, table: Table) -> StructType | None:
    return None if place.load(table) is None else target.schema(place, table)


def _decided(place: Place, wanted: Wanted, files: Sequence[SourceFile], run: Run) -> tuple[Ledger, Decision]:
    """How files are read, and the table as it has become by that."""
    into, evolve = wanted.into, wanted.manner.evolve
    for _ in range(TRIES):
        table = _schema(place, into)
        if table is None and not evolve:
            raise SetupError(f"there is no table {into}, and --no-evolve makes none")
        decision = decide(place.spark, table or StructType([]), files, wanted.manner)
        schema = target.with_lineage(decision.schema) if evolve else decision.schema
        changes = decision.changes
        if table is None:
            # first: a table that names a ledger has one
            named = ledger.name_of(place, into)
            target.ensure(place, named, ledger.COLUMNS)
            target.create(place, into, schema, wanted.partition_by, {ledger.PROPERTY: str(named)})
            changes = []
        elif evolve:
            known = {name.lower() for name in table.names}
            changes = [*changes, *(Change((f.name,), f.dataType) for f in LINEAGE.fields if f.name not in known)]
        if target.became(place, into, changes, schema):
            for change in changes:
                run.say(f"{into}: {change}")
            run.counts["columns_added"] += sum(one.before is None for one in decision.changes)
            run.counts["columns_widened"] += sum(one.before is not None for one in decision.changes)
            return ledger.of(place, into), decision
    raise SetupError(f"{into} changes faster than files can be looked at: run this again when others are done")


def _note(outcomes: Iterable[Outcome], run: Run, report: Report) -> None:
    for one in outcomes:
        run.counts["files"] += one.state == ledger.IN
        run.counts["quarantined_files"] += one.state != ledger.IN
        run.counts["rows"] += one.rows or 0
        run.counts["bad_records"] += one.bad or 0
        if one.reason is not None:
            report.quarantined.append((one.file.uri, one.reason))
    run.counts["batches"] += 1
