"""The inputs of a step as views of the session, each of the snapshot that was planned.

Where only changes are looked at, a view of a step that appends has the rows that came; one of a step that merges has
all rows of those keys of which a row came or went.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mergus.errors import SetupError
from mergus.pipeline.canonical import SPARK
from mergus.pipeline.job import Place, table
from mergus.pipeline.session import query
from mergus.pipeline.transform.changes import Changes, between
from mergus.pipeline.transform.plan import Planned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AFFECTED = "_mergus_affected"


@dataclass
class Inputs:
    frames: "dict[str, DataFrame]" = field(default_factory=lambda: {})
    # how many rows came and went, of inputs whose changes were looked at
    changed: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    # of a merge of changes: how many keys, in the view AFFECTED
    affected: int | None = None


def opened(place: Place, planned: Planned, stack: ExitStack) -> Inputs:
    """Views and frames are gone when the stack is."""
    step, found = planned.step, Inputs()
    tracked: list[str] = []
    if planned.action == "changes":
        tracked = [name for name in step.changes if planned.spans[name].kind != "nothing"]
    changes = {name: _changes(place, planned, name, stack) for name in tracked}
    for name, one in changes.items():
        found.changed[name] = {
            "inserted": one.inserted.count(),
            "deleted": 0 if one.deleted is None else one.deleted.count(),
        }
    if planned.action == "changes" and step.mode == "merge":
        keys = _affected(planned, changes)
        show(place, AFFECTED, keys, stack)
        found.affected = keys.count()
    for name in step.inputs:
        found.frames[name] = _frame(place, planned, name, changes.get(name))
        show(place, name, found.frames[name], stack)
    return found


def show(place: Place, name: str, frame: "DataFrame", stack: ExitStack) -> None:
    frame.createOrReplaceTempView(SPARK.identifier(name))
    stack.callback(place.spark.catalog.dropTempView, name)


def kept(frame: "DataFrame", stack: ExitStack) -> "DataFrame":
    """Made once, however often it is asked."""
    from pyspark import StorageLevel

    found = frame.persist(StorageLevel.MEMORY_AND_DISK)
    stack.callback(found.unpersist)
    return found


def at(place: Place, planned: Planned, name: str) -> str:
    """An input at its snapshot, for FROM."""
    of, snapshot = place.sql_name(table(planned.step.inputs[name].table)), planned.reads[name].snapshot
    # one without a snapshot has no rows; it may get some while the step runs
    return f"(SELECT * FROM {of} LIMIT 0)" if snapshot is None else f"(SELECT * FROM {of} VERSION AS OF {snapshot})"


def _changes(place: Place, planned: Planned, name: str, stack: ExitStack) -> Changes:
    span = planned.spans[name]
    if span.start is None or span.end is None:
        return Changes(query(place.spark, f"SELECT * FROM {at(place, planned, name)} i"), None)
    found = stack.enter_context(between(place, table(planned.step.inputs[name].table), span.start, span.end))
    if found.deleted is None:
        return found
    return Changes(kept(found.inserted, stack), kept(found.deleted, stack))


def _affected(planned: Planned, changes: dict[str, Changes]) -> "DataFrame":
    parts: list[DataFrame] = []
    for name, one in changes.items():
        columns = _key_columns(planned, name, one.inserted.columns)
        for frame in (one.inserted, one.deleted):
            if frame is not None:
                parts.append(frame.select(*[frame[SPARK.identifier(c)].alias(k) for k, c in columns.items()]))
    both = parts[0]
    for part in parts[1:]:
        both = both.union(part)
    return both.distinct()


def _frame(place: Place, planned: Planned, name: str, changes: Changes | None) -> "DataFrame":
    step = planned.step
    whole = query(place.spark, f"SELECT * FROM {at(place, planned, name)} i")
    if planned.action != "changes" or name not in step.changes:
        return whole
    if step.mode == "append":
        return whole.limit(0) if changes is None else changes.inserted
    columns = _key_columns(planned, name, whole.columns)
    same = " AND ".join(f"i.{SPARK.identifier(c)} <=> a.{SPARK.identifier(k)}" for k, c in columns.items())
    return query(place.spark, f"SELECT i.* FROM {at(place, planned, name)} i LEFT SEMI JOIN {AFFECTED} a ON {same}")


def _key_columns(planned: Planned, name: str, columns: Sequence[str]) -> dict[str, str]:
    """Of each key of the output, the column that it is in an input."""
    step = planned.step
    found = {key: step.inputs[name].keys.get(key, key) for key in step.keys}
    by_lower = {column.lower(): column for column in columns}
    if missing := [column for column in found.values() if column.lower() not in by_lower]:
        raise SetupError(
            f"step {step.name}: input {name} has no column {', '.join(missing)}, of which a key of the output is made; "
            f"it has {', '.join(columns)}. `keys` of the input says which column a key is there; an input that has "
            "none is read whole, or is a `lookup`"
        )
    return {key: by_lower[column.lower()] for key, column in found.items()}
