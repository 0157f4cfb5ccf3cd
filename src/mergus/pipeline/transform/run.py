"""A step, from its inputs to its output: plan → views → rows → expectations → quarantine → one snapshot."""

import hashlib
import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from mergus.errors import SetupError
from mergus.pipeline.canonical import SPARK
from mergus.pipeline.job import Place, Run, table
from mergus.pipeline.session import message, query, rows, spark_errors
from mergus.pipeline.transform import state, write
from mergus.pipeline.transform.expectations import REASONS, Verdict, is_quarantined, judged
from mergus.pipeline.transform.function import function_of
from mergus.pipeline.transform.inputs import AFFECTED, Inputs, kept, opened, show
from mergus.pipeline.transform.plan import Planned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RESULT: Final = "_mergus_result"
JUDGED: Final = "_mergus_judged"
GOOD: Final = "_mergus_good"
BAD: Final = "_mergus_bad"


@dataclass
class Done:
    planned: Planned
    snapshot: int | None = None
    changed: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    affected_keys: int | None = None
    # as the output's snapshot says it
    rows: dict[str, int] = field(default_factory=dict[str, int])
    quarantined: int = 0
    warnings: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def is_found(self) -> bool:
        return bool(self.quarantined or self.warnings)

    def json(self) -> dict[str, Any]:
        told = self.planned.json()
        for name, counts in self.changed.items():
            told["inputs"][name] |= counts
        optional = {"affected-keys": self.affected_keys, "snapshot-id": self.snapshot}
        told |= {key: value for key, value in optional.items() if value is not None}
        return {**told, "rows": self.rows, "quarantined": self.quarantined, "warnings": self.warnings}


def run_step(place: Place, planned: Planned, run: Run) -> Done:
    done = Done(planned)
    if planned.action == "nothing":
        return done
    if planned.action == "note":
        with ExitStack() as stack:
            show(place, GOOD, query(place.spark, f"SELECT * FROM {place.sql_name(planned.output)} LIMIT 0"), stack)
            _commit(place, planned, run, done, "append")
        return done
    with ExitStack() as stack:
        with run.part("changes"):
            inputs = opened(place, planned, stack)
        done.changed, done.affected_keys = inputs.changed, inputs.affected
        _refuse_deletes(planned, inputs)
        result = _result(place, planned, inputs)
        how = _how(place, planned, result)
        if how in {"create", "overwrite"} and planned.action == "changes":
            # the rows at hand are of some keys only
            raise AskWhole(planned)
        show(place, RESULT, result, stack)
        with run.part("expectations"):
            _judge(place, planned, run, done, stack, is_merge=how == "merge")
        with run.part("write"):
            _commit(place, planned, run, done, how)
    return done


class AskWhole(Exception):
    """The output has other columns than the rows that should go into it."""

    def __init__(self, planned: Planned) -> None:
        super().__init__()
        self.planned = planned


def _refuse_deletes(planned: Planned, inputs: Inputs) -> None:
    step = planned.step
    for name, counts in inputs.changed.items():
        if step.mode == "append" and counts["deleted"] and step.inputs[name].deletes == "refuse":
            raise SetupError(
                f"step {step.name} appends, and {counts['deleted']} rows of {step.inputs[name].table} have gone or "
                'changed since its last run: mode merge can follow, `deletes = "ignore"` lets them stand, and '
                "--rebuild makes the output anew"
            )


def _result(place: Place, planned: Planned, inputs: Inputs) -> "DataFrame":
    step = planned.step
    try:
        made_by_sql = None if step.sql is None else query(place.spark, step.sql)
        found = made_by_sql or function_of(step)(place.spark, inputs.frames)
    except spark_errors() as e:
        raise SetupError(f"step {step.name}: {message(e)}") from None
    if missing := [key for key in step.keys if key not in found.columns]:
        raise SetupError(f"step {step.name}: its rows have no column {', '.join(missing)}, which is a key")
    if len(set(found.columns)) != len(found.columns):
        raise SetupError(f"step {step.name}: its rows have two columns of one name: {', '.join(found.columns)}")
    return found


def _how(place: Place, planned: Planned, result: "DataFrame") -> str:
    """ "create" (or replace) the table, "overwrite" its rows, "append" to them or "merge" with them."""
    if planned.metadata is None:
        return "create"
    has = _columns(query(place.spark, f"SELECT * FROM {place.sql_name(planned.output)} LIMIT 0"))
    gets = _columns(result)
    if planned.step.mode == "append" and planned.action != "whole":
        clash = {name: (has[name], kind) for name, kind in gets.items() if name in has and has[name] != kind}
        if clash:
            told = ", ".join(f"{name} is {old}, and would be {new}" for name, (old, new) in clash.items())
            raise SetupError(f"step {planned.step.name}: {planned.output} has other columns: {told}")
        if new := {name: kind for name, kind in gets.items() if name not in has}:
            write.add_columns(place, planned.output, new)
        return "append"
    # its partitions and properties may be others, too
    is_defined_so = planned.ran is not None and planned.ran.definition == planned.definition
    if list(has.items()) != list(gets.items()) or (planned.action == "whole" and not is_defined_so):
        return "create"
    return "overwrite" if planned.action == "whole" else "merge"


def _columns(frame: "DataFrame") -> dict[str, str]:
    return dict(frame.dtypes)


def _judge(place: Place, planned: Planned, run: Run, done: Done, stack: ExitStack, *, is_merge: bool) -> None:
    """Leaves the view GOOD, of the rows to be written."""
    step = planned.step
    if not (step.expect or step.keys):
        show(place, GOOD, query(place.spark, f"SELECT * FROM {RESULT}"), stack)
        return
    show(place, JUDGED, kept(query(place.spark, judged(RESULT, step.expect)), stack), stack)
    verdict = Verdict(step.expect, _counts(place))
    if failing := verdict.failing("fail"):
        told = ", ".join(f"{count} rows fail {title}" for title, count in failing.items())
        raise SetupError(f"step {step.name}: {told}; nothing was written")
    done.warnings = verdict.failing("warn")
    for title, count in done.warnings.items():
        run.say(f"{step.name}: {count} rows fail {title}")
    bad = is_quarantined(verdict)
    columns = f"* EXCEPT ({SPARK.identifier(REASONS)})"
    show(place, GOOD, query(place.spark, f"SELECT {columns} FROM {JUDGED} WHERE NOT {bad}"), stack)
    _check_keys(place, planned, is_merge=is_merge)
    if step.quarantines:
        show(place, BAD, query(place.spark, f"SELECT * FROM {JUDGED} WHERE {bad}"), stack)
        ((done.quarantined,),) = rows(place.spark, f"SELECT count(*) FROM {BAD}")
        if done.quarantined and not planned.is_quarantined:
            _quarantine(place, planned, run, done)


def _counts(place: Place) -> dict[str, int]:
    reasons = SPARK.identifier(REASONS)
    found = rows(place.spark, f"SELECT r, count(*) FROM (SELECT explode({reasons}) r FROM {JUDGED}) GROUP BY r")
    return {title: int(count) for title, count in found}


def _check_keys(place: Place, planned: Planned, *, is_merge: bool) -> None:
    step = planned.step
    if not step.keys:
        return
    keys = ", ".join(map(SPARK.identifier, step.keys))
    twice = rows(place.spark, f"SELECT {keys} FROM {GOOD} GROUP BY {keys} HAVING count(*) > 1 LIMIT 1")
    if twice:
        raise SetupError(f"step {step.name}: there are several rows of one key, {_told(step.keys, twice[0])}")
    if is_merge:
        same = " AND ".join(f"r.{SPARK.identifier(key)} <=> a.{SPARK.identifier(key)}" for key in step.keys)
        outside = rows(place.spark, f"SELECT {keys} FROM {GOOD} r LEFT ANTI JOIN {AFFECTED} a ON {same} LIMIT 1")
        if outside:
            raise SetupError(
                f"step {step.name}: its SQL gives a row for {_told(step.keys, outside[0])}, of which no input with "
                "`changes` has a row: the keys of the output are not those of its inputs"
            )


def _told(names: Sequence[str], values: Sequence[object]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))


def _quarantine(place: Place, planned: Planned, run: Run, done: Done) -> None:
    """Before the output: rows that are in neither are lost. plan.py sees to it that a run which ended between the two
    is gone on with."""
    target = table(planned.step.quarantine_table)
    run.say(f"{planned.step.name}: {done.quarantined} rows go to {target}")
    told = f"SELECT *, {SPARK.literal(run.id)} AS _run, current_timestamp() AS _at FROM {BAD}"
    summary = _summary(planned, run, done)
    ends = hashlib.sha256(summary[state.INPUTS].encode()).hexdigest()[:16]
    key = f"{state.once(planned.name, planned.ran)} quarantine {planned.definition} {ends}"
    if place.load(target) is None:
        write.make_namespace(place, target)
        write.commit(place, f"CREATE TABLE {place.sql_name(target)} USING iceberg AS {told}", summary, key)
        return
    has = _columns(query(place.spark, f"SELECT * FROM {place.sql_name(target)} LIMIT 0"))
    gets = _columns(query(place.spark, told))
    if new := {name: kind for name, kind in gets.items() if name not in has}:
        write.add_columns(place, target, new)
    columns = ", ".join(map(SPARK.identifier, gets))
    write.commit(place, f"INSERT INTO {place.sql_name(target)} ({columns}) {told}", summary, key)


def _summary(planned: Planned, run: Run, done: Done) -> dict[str, str]:
    counts = {"quarantined": done.quarantined, **{f"warned: {k}": v for k, v in done.warnings.items()}}
    return state.properties(planned.name, planned.definition, run.id, planned.ran, planned.reads, counts)


def _commit(place: Place, planned: Planned, run: Run, done: Done, how: str) -> None:
    columns = query(place.spark, f"SELECT * FROM {GOOD} LIMIT 0").columns
    match how:
        case "create":
            write.make_namespace(place, planned.output)
            statement = write.create(place, planned, GOOD)
        case "overwrite":
            statement = write.overwrite(place, planned, GOOD)
        case "append":
            statement = write.append(place, planned.output, GOOD, columns)
        case _:
            statement = write.merge(place, planned, GOOD, AFFECTED, columns)
    for refused in itertools.count():
        try:
            key = state.once(planned.name, planned.ran, refused)
            write.commit(place, statement, _summary(planned, run, done), key)
            break
        except write.AlreadyWritten as e:
            # by a run that the output stands on no more, or which it has forgotten: not by one since this one began
            if e.snapshot in {one["snapshot-id"] for one in state.lineage(place.metadata(planned.output))}:
                raise
    written = state.last(place.metadata(planned.output), planned.name)
    if written is None or written.run != run.id:
        raise SetupError(f"step {planned.step.name}: its snapshot is not in {planned.output}; was it taken back?")
    done.snapshot = written.snapshot
    done.rows = _rows_of(place.metadata(planned.output), written.snapshot)


def _rows_of(metadata: dict[str, Any], snapshot: int) -> dict[str, int]:
    summary = next(one["summary"] for one in metadata["snapshots"] if one["snapshot-id"] == snapshot)
    told = {"added": "added-records", "deleted": "deleted-records"}
    total = int(summary.get("total-records", 0)) - int(summary.get("total-position-deletes", 0))
    return {**{name: int(summary[key]) for name, key in told.items() if key in summary}, "total": total}
