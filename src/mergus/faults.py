"""Points at which a test lets the process die.

    MERGUS_TEST_FAULT=commit.locked      SIGKILL when the point is reached
    MERGUS_TEST_FAULT=commit.step:2      when it is reached for the second time

Without the variable a point does nothing. Those of a commit, in order:

    commit.planned      everything is read and checked, nothing is locked
    commit.locked       the lock is held, and the plan still right
    commit.defined      schemas, specs, sort orders and properties are written
    commit.step         after each of the client's snapshots is written
    commit.written      all is written, but for the key and the row of the last snapshot
    commit.sealed       the key is written, too, if there is one
    commit.committed    right after COMMIT
    commit.answered     the answer is made, not kept and not sent
    commit.kept         and kept for the key

Operations other than commits of tables pass those from `commit.written` on. Those of jobs:

    job.begun           it is held, and nothing is done
    job.step            after each step of a compaction, and each lot of snapshots that expired
    job.noted           what was done to a table is noted
    job.ending          all is done, and nobody has been told

Those of a sweep of objects:

    sweep.doomed        what is to go is known to all, nothing is deleted
    sweep.held          nobody can write a chain of the table, right before some objects are deleted
    sweep.deleted       and right after
"""

import os
import signal
from typing import Final

VARIABLE: Final = "MERGUS_TEST_FAULT"

_name = ""
_left = 1


def arm(fault: str) -> None:
    """What the variable says, for a process that has it later than this module."""
    global _name, _left  # noqa: PLW0603
    _name, _, times = fault.partition(":")
    _left = int(times or 1)


def point(name: str) -> None:
    global _left  # noqa: PLW0603
    if name != _name:
        return
    _left -= 1
    if _left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)


arm(os.environ.get(VARIABLE, ""))
