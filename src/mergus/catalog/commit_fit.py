"""Whether the files that a commit brings are read right under the schema that it leaves.

Files that are there already are looked after by the rules of schema evolution (`iceberg.schema_change`), which hold a
schema against those that the table had. They do not see the files of the commit itself: those may have been written
under a schema that the same commit replaces, or be listed again by a rollback from a time when a column was something
else. So each of them is held against the schema that the commit leaves, whatever the mixture and order of its updates.

Mostly the schema that a snapshot says it was written with is enough to know, and nothing is read. Where a column of it
may be read as something else, and where every later load of the table would look into the file, the footer of the file
decides (a HEAD and a ranged GET or two), by the very rules that loads judge by (`materialise.suspects`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mergus.catalog.commit_data import DataStep
from mergus.catalog.restore import RestoreStep
from mergus.ducklake.columns import Columns, Retype
from mergus.ducklake.data_changes import NewFile
from mergus.errors import BadRequest, Unsupported
from mergus.iceberg.metadata import TableMetadata
from mergus.iceberg.schema import Schema
from mergus.iceberg.schema_change import doubtful_fields
from mergus.iceberg.table_update import TableUpdate
from mergus.iceberg.updates import AddedSnapshot
from mergus.materialise import footers
from mergus.materialise.reading import TableReading, schema_at
from mergus.materialise.suspects import judge_columns
from mergus.storage.location import Location
from mergus.storage.objects import Objects


@dataclass(frozen=True, slots=True)
class BroughtFile:
    """`keeps_ids` says that the rows have their ids with them, and so may come from older files; `is_mapped` that the
    file has no field ids."""

    path: str
    keeps_ids: bool
    is_mapped: bool = False


@dataclass(frozen=True, slots=True)
class Brought:
    """Files that are listed from a snapshot of the commit on, and the schema that it was written with."""

    written: Schema
    files: Sequence[BroughtFile]


def find_brought(
    steps: Iterable[object],
    update: TableUpdate,
    left: Schema,
    shown: TableMetadata | None,
    reading: TableReading | None,
) -> list[Brought]:
    """Of the steps of a plan, those that list files. A snapshot that was written with the schema `left` has this very
    object."""
    added = {s.snapshot_id: s for s in update.main if isinstance(s, AddedSnapshot)}
    found: list[Brought] = []
    for step in steps:
        if isinstance(step, DataStep) and step.added:
            snapshot = added[step.told.snapshot_id]
            is_current = update.schema is None and shown is not None and snapshot.schema_id == shown.current_schema_id
            written = left if is_current or snapshot.schema_id is None else update.schema_of(snapshot, shown)
            # a file without field ids was held against the schema when it was planned
            files = [p.file for p in step.added if not p.mapping]
            found.append(Brought(written, [BroughtFile(f.path, _keeps_ids(f)) for f in files]))
        elif isinstance(step, RestoreStep) and step.again and reading is not None:
            again = [BroughtFile(f.path, f.row_id_start is None, f.mapping_id is not None) for f, _ in step.again]
            found.append(Brought(schema_at(reading.timeline, step.to), again))
    return found


def _keeps_ids(file: NewFile) -> bool:
    return file.has_row_ids and file.row_id_start is None


async def check_fit(objects: Objects, left: Schema, columns: Columns, at: int, brought: Sequence[Brought]) -> None:
    """`columns` are those after the commit, which changes them at the snapshot `at`. Raises BadRequest or
    Unsupported, naming the first file that does not fit."""
    suspects: list[tuple[BroughtFile, frozenset[int]]] = []
    retypes = columns.retypes() if brought else []
    retyped = {keeps: _retyped(retypes, at, keeps_ids=keeps) for keeps in (False, True)}
    for one in brought:
        doubtful = frozenset[int]() if one.written is left else doubtful_fields(one.written, left)
        judged = ((file, doubtful | retyped[file.keeps_ids]) for file in one.files)
        suspects += [(file, ids) for file, ids in judged if ids]
    if mapped := [file for file, _ in suspects if file.is_mapped]:
        raise Unsupported(
            f"Data file {mapped[0].path}, which the commit lists again, has no field ids, and was written when the "
            "columns of the table were others. Copy its rows into the table instead (INSERT INTO ... SELECT)"
        )
    places = {file.path: Location.parse(file.path) for file, _ in suspects}
    for (file, ids), parts in zip(suspects, await footers.columns(objects, places), strict=True):
        if (misfit := judge_columns(parts, left, ids).misfit) is not None:
            raise BadRequest(
                f"The commit leaves a schema under which data file {file.path}, which it lists, cannot be read: "
                f"{misfit}. Change the columns first, and write the rows after that"
            )


def _retyped(retypes: Sequence[Retype], at: int, *, keeps_ids: bool) -> frozenset[int]:
    """The columns for which every later load looks into a file that comes with the commit."""
    return frozenset(r.column_id for r in retypes if r.affects(at, at, rewritten=keeps_ids))
