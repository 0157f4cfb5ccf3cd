"""The rows of a table that is registered: a snapshot of the lake for each of its history, in one commit, and one for
columns that come in between.

A file gets its row ids once, when it first comes. In version 3 rows keep theirs; elsewhere they get new ones, after the
highest that any file brings along.

All that is ever deleted from a file is one delete file of DuckLake's, with the snapshot of the lake that each row goes
with. It is what many commits would have left behind, each folding what was there into its own, and it is written once.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from pyroaring import BitMap64

from mergus.catalog.commit_data import REPLACE, DataStep
from mergus.catalog.commit_files import PlannedFile, with_row_ids
from mergus.catalog.commit_plan import ColumnStep, Step
from mergus.catalog.delete_files import NONE_BEFORE, Prepared
from mergus.catalog.register_files import Adoption, Looked
from mergus.catalog.register_history import History, Moment, known_as
from mergus.ducklake.column_changes import ColumnChanges
from mergus.ducklake.told import Committed
from mergus.iceberg.metadata_parse import GivenTable
from mergus.materialise.at_once import each
from mergus.materialise.deletes import DatedPositions

# In the summary of each snapshot: when its writers made it.
MADE_AT: Final = "mergus.registered-timestamp-ms"

PUTS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class _Folded:
    """All that is deleted from a file, to be written with the last step that deletes any."""

    path: str
    moment: int
    before: DatedPositions
    new: BitMap64


def split_columns(table: GivenTable, history: History, created: ColumnChanges) -> dict[int, ColumnChanges]:
    """Those that the table is `created` with, by the moment that they come with; those of 0 are there from the first
    on, and those after the last come when all is done."""
    widths = [moment.width for moment in history.moments]
    fields, found = table.schema.fields, dict[int, ColumnChanges]()
    for index, (begin, end) in enumerate(pairwise([0, *widths, len(fields)])):
        ids = {f.id for field in fields[begin:end] for f in field.walk()}
        if ids:
            found[index] = replace(
                created,
                inserted=tuple(row for row in created.inserted if row.id in ids),
                comments={i: text for i, text in created.comments.items() if i in ids},
            )
    return found


async def plan_steps(
    adoption: Adoption,
    history: History,
    columns: Mapping[int, ColumnChanges],
    told: Mapping[str, str],
    told_first: Mapping[str, str],
    next_snapshot: int,
) -> list[Step]:
    """`columns` are as they are split. `told` goes to the summary of each snapshot, `told_first` to that of the oldest.
    `next_snapshot` is the lake's for the first, if nobody else commits meanwhile."""
    moments = history.moments
    # of the lake, each after those of the columns that came before it
    at = [next_snapshot + i + sum(0 < come <= i for come in columns) for i in range(len(moments))]
    added = await _with_row_ids(adoption, [history.files[path] for moment in moments for path in moment.came])
    paths = {path: file.file.path for path, file in added.items()}
    folded = _folded(moments, paths, at)

    async def one(item: _Folded) -> Prepared:
        return await adoption.drawer.prepare(item.path, item.before, item.new, at[item.moment], first=next_snapshot)

    prepared: defaultdict[int, dict[str, Prepared]] = defaultdict(dict)
    for item, made in zip(folded, await each(one, folded, PUTS_AT_ONCE), strict=True):
        prepared[item.moment][item.path] = made
    steps: list[Step] = []
    for index, moment in enumerate(moments):
        if index and index in columns:
            steps.append(ColumnStep(columns[index]))
        step = DataStep(
            told=Committed(known_as(moment.snapshot), _summary(moment, told, {} if index else told_first)),
            added=[added[path] for path in moment.came],
            ended_paths=[paths[path] for path in moment.went],
            deletes_on_new=prepared[index],
            is_rewrite=_is_rewrite(moment),
            deletes_are_elsewhere=bool(moment.deleted),
        )
        steps.append(step)
    return [*steps, ColumnStep(columns[len(moments)])] if len(moments) in columns else steps


def _summary(moment: Moment, *told: Mapping[str, str]) -> dict[str, str]:
    summary = {**moment.snapshot.summary, MADE_AT: str(moment.snapshot.timestamp_ms)}
    for more in told:
        summary |= more
    return summary


def _is_rewrite(moment: Moment) -> bool:
    """The same rows in other files: their number is all that can be asked."""
    return moment.snapshot.summary["operation"] == REPLACE and moment.rows == moment.rows_before


def _folded(moments: Sequence[Moment], paths: Mapping[str, str], at: Sequence[int]) -> list[_Folded]:
    by_path: defaultdict[str, list[tuple[int, BitMap64]]] = defaultdict(list)
    for index, moment in enumerate(moments):
        for path, positions in moment.deleted.items():
            by_path[paths[path]].append((index, positions))
    found: list[_Folded] = []
    for path, parts in by_path.items():
        *before, (last, new) = parts
        dated = [(position, at[index]) for index, positions in before for position in positions]
        earlier = DatedPositions(*zip(*dated, strict=True)) if dated else NONE_BEFORE
        found.append(_Folded(path, last, earlier, new))
    return found


async def _with_row_ids(adoption: Adoption, looked: Sequence[Looked]) -> dict[str, PlannedFile]:
    """Those of a file's own, those counted from its first, or the next ones that are free; by the paths that the
    table's writers know."""
    highest = max((one.highest_row_id for one in looked), default=-1)
    free = adoption.table.next_row_id if adoption.table.format_version >= 3 else highest + 1
    found: dict[str, PlannedFile] = {}
    for one in looked:
        file, first = one.planned.file, one.first_row_id
        if first is None and (one.lacks_row_ids or not file.has_row_ids):
            first, free = free, free + file.record_count
        if one.lacks_row_ids and first is not None:
            found[one.path] = await with_row_ids(adoption.drawer, one.place, first, one.planned)
        elif file.has_row_ids:
            found[one.path] = one.planned
        else:
            found[one.path] = replace(one.planned, file=replace(file, has_row_ids=True, row_id_start=first))
    if looked:
        # the first one takes them all, since no other knows where they begin
        first_file = found[looked[0].path]
        found[looked[0].path] = replace(first_file, file=replace(first_file.file, takes=free))
    return found
