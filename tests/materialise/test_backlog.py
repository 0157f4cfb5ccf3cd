"""The listener's backlog against a lake that a test can see through."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mergus.annex.listener import Failure
from mergus.ducklake.snapshots import Head
from mergus.errors import InternalServerError, ServiceUnavailable, Unsupported
from mergus.materialise.backlog import FIRST_RETRY, LAST_RETRY, LAST_RETRY_OTHERWISE, LONGEST_REST, Backlog

TIME = datetime(2026, 1, 1, tzinfo=UTC)
# long before a test begins: nothing rests any more
AT = -1.0


def head(snapshot_id: int, epoch: int = 0) -> Head:
    return Head(snapshot_id, TIME, epoch)


def test_changes_of_one_table_coalesce_and_the_watermark_follows_the_oldest_pending_change() -> None:
    backlog = Backlog(head(10), 0)
    backlog.changed([1], head(11), now=0)
    backlog.changed([1, 2], head(12), now=0)
    assert backlog.missing_from == 11
    assert backlog.take(0) == 1
    backlog.changed([1], head(13), now=0)
    assert [backlog.take(0), backlog.take(0)] == [2, None]
    assert not backlog.made(1, head(12), None, AT)
    # 2 changed between 11 and 12: nobody knows at which
    assert backlog.missing_from == 12
    assert not backlog.made(2, head(13), None, AT)
    assert backlog.missing_from == 13
    assert backlog.take(0) == 1
    assert not backlog.made(1, head(13), None, AT)
    assert backlog.missing_from == 14
    assert backlog.take(0) is None


def test_a_table_that_was_just_materialised_is_delayed_without_delaying_others() -> None:
    backlog = Backlog(head(0), 0)
    backlog.changed([1], head(1), now=0)
    assert backlog.take(0) == 1, "the first of a burst is at once"
    backlog.changed([1], head(2), now=0.01)
    backlog.made(1, head(1), None, now=0.04)
    backlog.changed([1], head(3), now=0.05)
    backlog.changed([2], head(4), now=0.06)
    assert (backlog.take(0.06), backlog.missing_from) == (2, 2)
    assert (backlog.take(0.07), backlog.next_at) == (None, 0.08)
    assert backlog.take(0.08) == 1, "as long as it was worked on"
    backlog.made(1, head(4), None, now=5)
    backlog.changed([1], head(5), now=5 + LONGEST_REST / 2)
    assert backlog.take(5 + LONGEST_REST / 2) is None
    assert backlog.take(5 + LONGEST_REST) == 1, "but not for long"


def test_requested_tables_are_materialised_first_and_possibly_changed_ones_last() -> None:
    backlog = Backlog(head(10), 0, is_wanted={3}.__contains__)
    backlog.sweep([5, 6], head(10, 1), holds=False)
    backlog.changed([2, 3], head(11, 1), now=0)
    taken = [backlog.take(0) for _ in range(4)]
    assert taken[:2] == [3, 2]
    assert set(taken[2:]) == {5, 6}


def test_materialising_older_snapshots_delays_neither_new_ones_nor_other_tables() -> None:
    backlog = Backlog(head(0), 0)
    backlog.changed([1], head(50), now=0)
    assert backlog.take(0) == 1
    assert backlog.made(1, head(50), 7, AT), "the older ones are to be made"
    assert backlog.missing_from == 7
    backlog.changed([1], head(51), now=0)
    assert backlog.take(0) == 1, "while its history is made"
    assert not backlog.made(1, head(51), 30, AT), "which is being made already"
    assert backlog.missing_from == 30
    backlog.history_made(1)
    assert backlog.take(0) == 1, "to be told with all that it lists"
    assert not backlog.made(1, head(51), None, AT)
    assert (backlog.missing_from, backlog.numbers["waiting"]) == (52, 0)


def test_a_failed_table_blocks_no_others_and_is_retried_with_increasing_delays() -> None:
    backlog = Backlog(head(0), 0)
    backlog.changed([1], head(1), now=0)
    now, waited = 0.0, list[float]()
    for attempt in range(1, 12):
        assert backlog.take(now) == 1
        failure = backlog.went_wrong(1, InternalServerError.type, "broken", now)
        assert failure == Failure(1, InternalServerError.type, "broken", attempt)
        assert backlog.missing_from == 2
        assert backlog.failed == {1: failure}
        before = now
        while backlog.take(now) is None:
            now += 0.25
            assert now < 1000
        backlog.made(1, head(0), 1, AT)
        backlog.history_made(1)
        waited.append(now - before)
    assert waited[:4] == [1, 2, 4, 8]
    assert waited[-1] == LAST_RETRY_OTHERWISE
    assert backlog.take(now) == 1
    backlog.made(1, head(1), None, AT)
    assert (backlog.failed, backlog.cured) == ({}, {1})


def test_a_new_change_retries_a_failed_table_at_once() -> None:
    for kind in (Unsupported.type, ServiceUnavailable.type):
        backlog = Backlog(head(0), 0)
        backlog.resume([Failure(1, kind, "broken", attempts=30)])
        assert backlog.take(0) == 1
        backlog.went_wrong(1, kind, "broken", 0)
        assert backlog.take(LAST_RETRY[kind] - 0.1) is None
        backlog.changed([1], head(1), now=1)
        assert backlog.missing_from == 2
        assert backlog.take(1 + FIRST_RETRY) == 1
        # and while it is tried
        backlog.changed([1], head(2), now=3)
        backlog.went_wrong(1, kind, "broken", 3)
        assert backlog.take(3 + FIRST_RETRY) == 1


def test_a_table_that_fails_again_before_its_recovery_is_recorded_stays_failed() -> None:
    backlog = Backlog(head(0), 0)
    backlog.resume([Failure(1, ServiceUnavailable.type, "down", attempts=1)])
    assert backlog.take(0) == 1
    backlog.made(1, head(0), None, AT)
    assert backlog.cured == {1}
    backlog.changed([1], head(1), now=0)
    assert backlog.take(0) == 1
    backlog.went_wrong(1, ServiceUnavailable.type, "down", 0)
    assert (list(backlog.failed), backlog.cured) == ([1], set())


def test_an_epoch_is_complete_after_every_table_was_checked() -> None:
    backlog = Backlog(head(5), 0)
    backlog.sweep([1, 2], head(5, epoch=3), holds=False)
    assert backlog.missing_from == 6, "no snapshot is missing"
    for table in (backlog.take(0), backlog.take(0)):
        assert backlog.epoch == 0
        assert table is not None
        backlog.made(table, head(5, 3), None, AT)
    assert backlog.epoch == 3
    backlog.sweep([], head(5, epoch=4), holds=False)
    assert backlog.epoch == 4


def test_after_a_restore_the_watermark_is_reset_until_every_table_was_checked() -> None:
    backlog = Backlog(head(50), 0)
    backlog.changed([1], head(51), now=0)
    assert backlog.take(0) == 1
    backlog.sweep([1, 2], head(20), holds=True)
    assert backlog.missing_from == 0
    backlog.made(1, head(51), None, AT)  # of the lake that is gone
    assert backlog.missing_from == 0
    for _ in range(2):
        table = backlog.take(0)
        assert table is not None
        backlog.made(table, head(20), None, AT)
    assert (backlog.missing_from, backlog.take(0)) == (21, None)


@dataclass
class Truth:
    """A table as it is: at which snapshots it changed, and which are on storage."""

    changes: set[int] = field(default_factory=set[int])
    stored: set[int] = field(default_factory=set[int])


class Listening(RuleBasedStateMachine):
    """Tables change and are worked on in any order, some of it fails; a leader may be replaced at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = {n: Truth() for n in range(4)}
        self.head = head(0)
        self.now = 0.0
        self.working: dict[int, Head] = {}
        self.histories: set[int] = set()
        self.stored_failures: dict[int, Failure] = {}
        self.stored_done = head(0)
        self.backlog = Backlog(self.head, 0)

    @rule(tables=st.sets(st.integers(0, 3)))
    def commit(self, tables: set[int]) -> None:
        self.head = head(self.head.snapshot_id + 1)
        for table in tables:
            self.tables[table].changes.add(self.head.snapshot_id)

    @rule()
    def look(self) -> None:
        seen = self.backlog.seen.snapshot_id
        named = [n for n, t in self.tables.items() if any(c > seen for c in t.changes)]
        if self.head.snapshot_id > seen:
            self.backlog.changed(named, self.head, self.now)

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def take(self) -> None:
        if (table := self.backlog.take(self.now)) is not None:
            assert table not in self.working, "once at a time"
            self.working[table] = self.head

    @precondition(lambda self: self.working)
    @rule(data=st.data(), all_of_it=st.booleans())
    def make(self, data: st.DataObject, all_of_it: bool) -> None:
        table = data.draw(st.sampled_from(sorted(self.working)))
        reached = self.working.pop(table)
        truth = self.tables[table]
        until = {c for c in truth.changes if c <= reached.snapshot_id}
        truth.stored |= until if all_of_it else {max(until, default=0)} & until
        missing = min(until - truth.stored, default=None)
        if self.backlog.made(table, reached, missing, self.now):
            assert table not in self.histories
            self.histories.add(table)

    @precondition(lambda self: self.histories)
    @rule(data=st.data())
    def make_history(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(sorted(self.histories)))
        self.histories.remove(table)
        self.tables[table].stored |= self.tables[table].changes
        self.backlog.history_made(table)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(sorted(self.working)))
        del self.working[table]
        self.backlog.went_wrong(table, ServiceUnavailable.type, "down", self.now)

    @precondition(lambda self: self.histories)
    @rule(data=st.data())
    def fail_in_history(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(sorted(self.histories)))
        self.histories.remove(table)
        self.backlog.went_wrong(table, ServiceUnavailable.type, "down", self.now, in_history=True)

    @rule()
    def report(self) -> None:
        self.stored_failures |= self.backlog.failed
        for table in self.backlog.cured:
            self.stored_failures.pop(table, None)
        self.backlog.failed, self.backlog.cured = {}, set()
        self.stored_done = head(self.backlog.missing_from - 1)

    @rule()
    def take_over(self) -> None:
        self.working, self.histories = {}, set()
        self.backlog = Backlog(self.stored_done, 0)
        self.backlog.resume(self.stored_failures.values())
        self.look()

    @invariant()
    def done_is_done(self) -> None:
        failed = self.stored_failures.keys()
        for n, table in self.tables.items():
            if n not in failed:
                assert all(c in table.stored for c in table.changes if c <= self.stored_done.snapshot_id)

    def teardown(self) -> None:
        """Whatever happened, in the end everything is on storage and nothing is left to do."""
        self.look()
        for _ in range(200):
            while (table := self.backlog.take(self.now)) is not None:
                self.working[table] = self.head
            for table, reached in list(self.working.items()):
                self.tables[table].stored |= {c for c in self.tables[table].changes if c <= reached.snapshot_id}
                del self.working[table]
                if self.backlog.made(table, reached, None, self.now):
                    self.histories.add(table)
            for table in list(self.histories):
                self.histories.remove(table)
                self.backlog.history_made(table)
            self.now += 1
        self.report()
        assert self.stored_done.snapshot_id == self.head.snapshot_id
        assert self.stored_failures == {}
        assert all(t.changes == t.stored for t in self.tables.values())
        assert set(self.backlog.numbers.values()) == {0}


TestListening = Listening.TestCase
TestListening.settings = settings(max_examples=300, stateful_step_count=40)
