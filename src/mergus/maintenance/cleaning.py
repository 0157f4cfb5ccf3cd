"""Jobs that remove objects: garbage of our own, which is known (sweep.py), and orphans, which are looked for: ours
below our root (orphans.py), and DuckLake's in its data path, by its own function."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from mergus.maintenance.orphans import OrphanOptions, orphans
from mergus.maintenance.removal import Swept
from mergus.maintenance.sweep import SweepOptions, sweep
from mergus.maintenance.work import PutOff, Work

# An object that nothing names may be a client's whose job still runs.
ORPHAN_SECONDS: Final = 3 * 86_400


async def sweep_garbage(work: Work) -> None:
    seconds = work.job.options.get("grace-seconds", work.settings.grace_seconds)
    options = SweepOptions(timedelta(seconds=seconds), dry_run=work.is_dry)
    await _until_done(work, lambda: sweep(work.pool, work.objects, work.place, options, _told(work)))


async def remove_orphans(work: Work) -> None:
    age = timedelta(seconds=work.job.options.get("older-than-seconds", ORPHAN_SECONDS))
    options = OrphanOptions(age, dry_run=work.is_dry)
    await _until_done(work, lambda: orphans(work.pool, work.objects, work.place, options, _told(work)))
    before = datetime.now(UTC) - age
    work.add(data_files=await work.upkeep.remove_orphans(before, dry_run=work.is_dry))
    await work.say()


async def _until_done(work: Work, call: Callable[[], Awaitable[Swept]]) -> None:
    while True:
        done = await call()
        work.add(objects=done.objects, bytes=done.bytes)
        for kind, number in done.kinds.items():
            work.add(**{f"{kind}_objects": number})
        if done.skipped:
            work.progress["skipped"] = done.skipped
        if done.paths:
            work.progress["paths"] = done.paths
        await work.say()
        # a dry run deletes nothing, so it would find the same again
        if not done.more or work.is_dry:
            work.progress["more"] = done.more
            return
        if work.has_had_its_time:
            raise PutOff(0)


def _told(work: Work) -> Callable[[str, int], Awaitable[None]]:
    async def progress(what: str, so_far: int) -> None:
        await work.say(at=f"{what} {so_far}")

    return progress
