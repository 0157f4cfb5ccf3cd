"""Compaction: DuckLake's own functions, table by table, and then a cleanup.

Each step is a transaction of its own. Whoever writes the table meanwhile comes first: a step that conflicts is not
made, and tried again later. What a job has done to a table it has noted, so whoever goes on with it does the rest.

A table with more to rewrite than the server should (MERGUS_COMPACT_HANDOVER_BYTES) is flushed here, and named in the
answer for `mergus pipeline compact`, which does the rest on Spark.

A rewrite is committed only while no row of the table is deleted in Postgres alone: the next flush would write such a
delete to a file that the rewrite has ended, and DuckLake then reads older snapshots wrong. One that comes in between
makes the commit fail (0017_lost_deletes.sql).
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mergus.annex import jobs, policies
from mergus.annex.policies import Properties
from mergus.ducklake import targets
from mergus.ducklake.targets import Target
from mergus.ducklake.upkeep import CallFailed, Compacted, GaveWay
from mergus.faults import point
from mergus.iceberg.namespace import Namespace
from mergus.maintenance.needs import hand_over, measure, needs, prospect
from mergus.maintenance.policy import ICEBERGS, MAX_FILES, PREFIX, Policy, policy_of
from mergus.maintenance.work import PutOff, Work

# Of one transaction, so that one that conflicts has not done much in vain.
FILES_AT_ONCE: Final = 10
# How often a job that gave way tries again, and after how many seconds: it waits longer each time.
TRIES: Final = 5
WAIT: Final = 5.0

Result = dict[str, Any]


async def compact(work: Work) -> None:
    wanted = await targets.read(work.conn, work.job.schema_id, work.job.table_id)
    properties = await policies.read(work.conn, PREFIX, ICEBERGS)
    done = await jobs.tables(work.conn, work.job.id)
    left = [target for target in wanted if not _is_done(done.get(target.table_id))]
    gave_way = False
    for number, target in enumerate(left):
        await work.say(tables=len(wanted), tables_done=len(wanted) - len(left) + number, at=_name(target))
        if work.has_had_its_time:
            raise PutOff(0)
        result = await _table(work, target, properties)
        gave_way |= "gave-way" in result
        await jobs.note_table(work.conn, work.job.id, target.table_id, result)
        point("job.noted")
        _count(work, result)
    tries = work.progress.get("tries", 1)
    if gave_way and tries < TRIES:
        work.progress["tries"] = tries + 1
        raise PutOff(WAIT * tries)
    if "steps" not in work.job.options:
        work.add(cleaned_files=await clean_up(work))
    await work.say(tables=len(wanted), tables_done=len(wanted), at=None)


async def clean_up(work: Work) -> int:
    """Files that no snapshot has needed for as long as readers are given."""
    before = datetime.now(UTC) - timedelta(seconds=work.settings.grace_seconds)
    return await work.upkeep.clean_up(before, dry_run=work.is_dry)


async def _table(work: Work, target: Target, properties: Properties) -> Result:
    try:
        policy = _policy(work, target, properties)
    except ValueError as e:
        return {"failed": {"policy": str(e)}}
    if not policy.enabled:
        return {"left-alone": f"{PREFIX}enabled is false"}
    if not await targets.hold(work.conn, target.table_id):
        return {"gave-way": ["another job looks after it"]}
    try:
        async with asyncio.timeout(work.settings.maintenance_seconds):
            return await _steps(work, target, policy)
    except TimeoutError:
        return {"failed": {"time": f"it took longer than {work.settings.maintenance_seconds} s"}}
    finally:
        await targets.let_go(work.conn, target.table_id)


async def _steps(work: Work, target: Target, policy: Policy) -> Result:
    table = await measure(work.pool, work.settings, target.table_id, policy)
    if table is None:
        return {"left-alone": "it has been dropped"}
    result: Result = {}
    steps = policy.steps
    if (handed := hand_over(policy, table, work.settings.compact_handover_bytes)) is not None:
        result["handed-over"] = handed
        steps = tuple(step for step in steps if step == "flush")
    if work.is_dry:
        return result | prospect(steps, table)
    for step in steps:
        if not needs(step, table, is_changed=bool(result)):
            continue
        try:
            result |= await _STEPS[step](work, target, policy)
        except GaveWay:
            result.setdefault("gave-way", []).append(step)
        except CallFailed as e:
            result.setdefault("failed", {})[step] = str(e)
        point("job.step")
    return result


async def _flush(work: Work, target: Target, _: Policy) -> Result:
    rows = await work.upkeep.flush(target.schema, target.table)
    return {"flushed-rows": rows} if rows else {}


async def _rewrite(work: Work, target: Target, policy: Policy) -> Result:
    async with work.upkeep.rewrite(target.schema, target.table, policy.delete_ratio) as done:
        schema = work.settings.metadata_schema
        if done.files and await targets.has_inlined_deletes(work.conn, schema, target.table_id):
            raise GaveWay
    return {"rewritten-files": done.files, "rewritten-into": done.into} if done.files else {}


async def _merge(work: Work, target: Target, policy: Policy) -> Result:
    most = int(work.job.options.get("max-files", MAX_FILES))
    total = Compacted()
    while total.files < most:
        done = await work.upkeep.merge(
            target.schema, target.table, most=FILES_AT_ONCE, max_file_size=policy.target_size
        )
        total += done
        if not done.files:
            break
    return {"merged-files": total.files, "merged-into": total.into} if total.files else {}


_STEPS: Final = {"flush": _flush, "rewrite": _rewrite, "merge": _merge}


def _policy(work: Work, target: Target, properties: Properties) -> Policy:
    lineage = Namespace.of_schema(target.schema).lineage
    above = (properties.by_schema.get(level.schema_name, {}) for level in lineage)
    return policy_of(work.job.options, *above, properties.by_table.get(target.table_id, {}))


def _count(work: Work, result: Result) -> None:
    work.add(
        flushed_rows=result.get("flushed-rows", 0),
        rewritten_files=result.get("rewritten-files", 0),
        merged_files=result.get("merged-files", 0),
        made_files=result.get("merged-into", 0) + result.get("rewritten-into", 0),
        failed_tables=int("failed" in result),
        handed_over_tables=int("handed-over" in result),
    )


def _is_done(result: Result | None) -> bool:
    return result is not None and "gave-way" not in result


def _name(target: Target) -> str:
    return f"{target.schema}.{target.table}"
