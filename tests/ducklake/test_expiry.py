"""Which snapshots expire with those that one table does not list any more: nothing of other tables is lost."""

from hypothesis import given
from hypothesis import strategies as st

from mergus.ducklake.expiry import choose_removable

OURS, OTHER = 1, 2
WORDS = {
    "ours": "inserted_into_table:1",
    "ours by two words": "inlined_insert:1,inlined_delete:1",
    "merged": "merge_adjacent:1",
    "other": "deleted_from_table:2",
    "both": "inserted_into_table:1,inserted_into_table:2",
    "altered": "altered_table:1",
    "made": 'created_table:"main"."t"',
    "dropped": "dropped_table:3",
    "view": 'created_view:"main"."inserted_into_table:1"',
}
ALONE = {"ours", "ours by two words", "merged"}

histories = st.lists(st.sampled_from(sorted(WORDS)), min_size=1, max_size=25)


@given(histories, st.data())
def test_expiring_snapshots_of_one_table_keeps_every_state_of_other_tables(
    history: list[str], data: st.DataObject
) -> None:
    everything = dict(enumerate(history, 1))
    head = len(history)
    gone = data.draw(st.sets(st.sampled_from(sorted(everything)))) - {head}
    removed = data.draw(st.sets(st.sampled_from(sorted(everything))))
    lake = [(i, WORDS[kind]) for i, kind in everything.items() if i not in gone]
    found = choose_removable(lake, OURS, removed)
    stay = {i for i, _ in lake} - set(found)

    def others(at: int) -> int:
        """The snapshot that made all other tables what they were at this one."""
        return max((i for i, kind in everything.items() if i <= at and kind not in ALONE), default=0)

    assert found == sorted(set(found))
    assert set(found) <= removed - gone - {head}
    assert {everything[i] for i in found} <= ALONE
    ours = [i for i, words in lake if ":1" in words.replace('"inserted_into_table:1"', "")]
    assert not ours or ours[-1] not in found
    assert {others(i) for i, _ in lake} == {others(i) for i in stay}


def test_all_snapshots_that_changed_only_this_table_are_removable() -> None:
    lake = [(4, WORDS["other"]), (5, WORDS["ours"]), (6, WORDS["merged"]), (7, WORDS["other"]), (8, WORDS["ours"])]
    assert choose_removable([*lake, (9, WORDS["ours"])], OURS, {4, 5, 6, 7, 8, 9}) == [5, 6, 8]


def test_the_last_snapshot_that_shows_a_state_of_another_table_is_not_removable() -> None:
    """4, in which another table changed, has expired with the lake's."""
    lake = [(5, WORDS["ours"]), (6, WORDS["ours"]), (7, WORDS["other"]), (8, WORDS["ours"])]
    assert choose_removable(lake, OURS, {5, 6}) == [5]


def test_a_snapshot_is_removable_if_the_next_one_shows_the_same_state_of_other_tables() -> None:
    lake = [(5, WORDS["ours"]), (6, WORDS["ours"]), (7, WORDS["ours"])]
    assert choose_removable(lake, OURS, {5, 6}) == [5, 6]
