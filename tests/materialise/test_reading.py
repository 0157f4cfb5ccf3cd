"""What a table was at each of its snapshots: which can be shown, what main was, under which schema."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.annex.iceberg_tables import IcebergTable
from mergus.ducklake.columns import Column, Columns, Comment, Span, Timeline, Unrepresentable
from mergus.ducklake.partitions import Partitioning, Partitions
from mergus.ducklake.snapshots import Snapshot
from mergus.ducklake.sorts import Sort, Sorts
from mergus.ducklake.told import Committed, Restored, Told
from mergus.iceberg.schema import Field, Schema
from mergus.materialise import reading
from mergus.materialise.reading import (
    FORMAT_VERSION,
    HIDE,
    UNSUPPORTED_COLUMNS,
    Place,
    Shown,
    changed_at,
    how_to_hide,
    schema_at,
    schema_of_text,
    schema_text,
    schemas_upto,
)
from mergus.materialise.suspects import Examined
from mergus.storage.location import Location
from tests.iceberg.test_schema_parse import schemas

ONE = Schema((Field(1, "i", "int"),))
TWO = Schema((Field(1, "i", "int"), Field(2, "s", "string")))
NONE_OF_ICEBERGS = Unrepresentable("column x", "Iceberg has no such type", can_hide=True)
FINE = Examined({}, slowly=False, mapped={})
CLIENTS = 2**31


def snapshot(at: int, told: Told | None = None) -> Snapshot:
    words = frozenset({"inserted_into_table"})
    return Snapshot(at, datetime(2026, 1, 1, 0, 0, at, tzinfo=UTC), words, at + 1, None, None, None, told=told)


def shown_of(
    listed: Sequence[Snapshot],
    turns: Timeline | None = None,
    examined: Examined = FINE,
    kept: IcebergTable | None = None,
) -> tuple[list[Shown], list[tuple[Snapshot, Shown | None]]]:
    return reading._shown(listed, turns or [(0, ONE)], examined, kept or IcebergTable())


def ids(shown: Sequence[Shown]) -> list[int]:
    return [s.snapshot.id for s in shown]


def parents(shown: Sequence[Shown]) -> list[int | None]:
    return [None if s.parent is None else s.parent.id for s in shown]


def mains(found: Sequence[tuple[Snapshot, Shown | None]]) -> list[int | None]:
    return [None if main is None else main.snapshot.id for _, main in found]


def test_each_snapshot_is_built_on_the_one_before() -> None:
    shown, main = shown_of([snapshot(2), snapshot(3, Committed(CLIENTS, {})), snapshot(7)])
    assert (ids(shown), parents(shown), mains(main)) == ([2, 3, 7], [None, 2, 3], [2, 3, 7])
    assert all(s.listed for s in shown)


def test_a_rollback_is_no_snapshot_and_what_follows_is_built_on_where_it_went() -> None:
    listed = [snapshot(2), snapshot(3), snapshot(4, Restored(2)), snapshot(5)]
    shown, main = shown_of(listed)
    assert [s.listed for s in shown] == [True, True, False, True]
    assert mains(main) == [2, 3, 2, 5]
    assert shown[3].parent == listed[0]
    assert shown[3].previous == listed[2], "in the lake it follows on the rollback"


def test_after_a_rollback_to_nothing_a_history_begins_anew() -> None:
    shown, main = shown_of([snapshot(2), snapshot(3, Restored(None)), snapshot(4)])
    assert (mains(main), parents(shown)) == ([2, None, 4], [None, 2, None])
    assert [s.listed for s in shown] == [True, False, True]


def test_a_rollback_to_what_cannot_be_shown_any_more_is_a_snapshot_of_its_own() -> None:
    shown, main = shown_of([snapshot(3), snapshot(4, Restored(2))])
    assert ([s.listed for s in shown], mains(main), parents(shown)) == ([True, True], [3, 4], [None, 3])


def test_a_snapshot_that_replaced_the_table_has_no_parent() -> None:
    shown, main = shown_of([snapshot(2), snapshot(3, Committed(CLIENTS, {}, is_root=True)), snapshot(4)])
    assert (parents(shown), mains(main)) == ([None, None, 3], [2, 3, 4])
    assert shown[1].previous == shown[0].snapshot


def test_a_snapshot_that_a_client_removed_is_nobodys_parent() -> None:
    kept = IcebergTable(removed_snapshots=frozenset({3}))
    shown, _ = shown_of([snapshot(2), snapshot(3), snapshot(4)], kept=kept)
    assert (ids(shown), parents(shown)) == ([2, 4], [None, 2])


def test_snapshots_that_iceberg_cannot_hold_are_left_out_but_not_the_last() -> None:
    turns: Timeline = [(1, ONE), (3, NONE_OF_ICEBERGS), (5, TWO)]
    shown, _ = shown_of([snapshot(i) for i in range(1, 7)], turns)
    assert ids(shown) == [1, 2, 5, 6]
    assert [s.schema for s in shown] == [ONE, ONE, TWO, TWO]
    assert parents(shown) == [None, 1, 2, 5]
    with pytest.raises(Unrepresentable, match=r"snapshot 4, which changed its rows last.*no such type") as why:
        shown_of([snapshot(i) for i in range(1, 5)], turns)
    assert why.value.can_hide


def test_snapshots_with_files_that_readers_would_read_wrong_are_left_out_but_not_the_last() -> None:
    examined = Examined({(2, 4): Unrepresentable("file f", "it is broken")}, slowly=False, mapped={})
    shown, _ = shown_of([snapshot(i) for i in range(1, 6)], examined=examined)
    assert ids(shown) == [1, 4, 5]
    with pytest.raises(Unrepresentable, match="it is broken") as why:
        shown_of([snapshot(i) for i in range(1, 4)], examined=examined)
    assert not why.value.can_hide


def test_a_snapshot_from_before_the_first_columns_is_left_out() -> None:
    shown, _ = shown_of([snapshot(1), snapshot(2)], [(2, ONE)])
    assert ids(shown) == [2]


told = st.one_of(
    st.none(),
    st.builds(Committed, st.integers(CLIENTS, 2**62), st.just({}), st.booleans()),
    st.builds(Restored, st.one_of(st.none(), st.integers(1, 8))),
)


@given(st.lists(told, min_size=1, max_size=8), st.sets(st.integers(1, 7), max_size=3))
def test_main_is_always_a_listed_snapshot_or_none_and_the_parent_of_what_comes_next(
    history: list[Told | None], removed: set[int]
) -> None:
    listed = [snapshot(at, one) for at, one in enumerate(history, 1)]
    shown, found = shown_of(listed, kept=IcebergTable(removed_snapshots=frozenset(removed)))
    assert ids(shown) == [s.id for s in listed if s.id not in removed]
    assert [at for at, _ in found] == [s.snapshot for s in shown]
    main: Shown | None = None
    previous: Snapshot | None = None
    for one, (_, after) in zip(shown, found, strict=True):
        is_root = isinstance(one.snapshot.told, Committed) and one.snapshot.told.is_root
        assert one.parent == (None if main is None or is_root else main.snapshot)
        assert one.previous == previous
        # one that is listed is main; one that is not put main back
        assert after is one if one.listed else isinstance(one.snapshot.told, Restored)
        assert after is None or after in shown
        main, previous = after, one.snapshot


@given(schemas())
def test_a_schema_is_known_again_by_its_text_whatever_its_number(schema: Schema) -> None:
    assert schema_of_text(schema_text(schema)) == schema


def test_schemas_that_differ_in_what_identifies_rows_alone_are_two() -> None:
    plain = Schema((Field(1, "i", "int", required=True),))
    identified = Schema(plain.fields, (1,))
    assert schema_text(plain) != schema_text(identified)
    assert schema_of_text(schema_text(identified)) == identified


def test_the_schema_of_a_snapshot_is_the_last_that_began_by_then() -> None:
    turns: Timeline = [(2, ONE), (4, NONE_OF_ICEBERGS), (6, TWO)]
    assert [schema_at(turns, at) for at in (1, 2, 3, 6, 9)] == [Schema(()), ONE, ONE, TWO, TWO]
    for at in (4, 5):
        with pytest.raises(Unrepresentable):
            schema_at(turns, at)


def test_schemas_are_in_the_order_in_which_they_came_each_once_and_that_of_now_last() -> None:
    three = Schema((Field(3, "d", "date"),))
    turns: Timeline = [(1, ONE), (2, TWO), (3, NONE_OF_ICEBERGS), (4, ONE), (5, three)]
    assert schemas_upto(turns, three) == [ONE, TWO, three]
    assert schemas_upto(turns, ONE) == [TWO, three, ONE]
    assert schemas_upto([], Schema(())) == [Schema(())]


def test_what_made_a_table_what_it_was_is_its_turns_until_then_and_its_last_snapshot() -> None:
    listed = [snapshot(at) for at in (2, 5, 9)]
    assert changed_at([1, 4, 8], listed, 7) == [1, 4, 5]
    assert changed_at([1, 4, 8], listed, 9) == [1, 4, 8, 9]
    assert changed_at([1, 4, 8], listed, 1) == [1]


def test_a_table_turns_where_a_column_a_comment_a_partitioning_or_a_sort_begins_or_ends() -> None:
    columns = Columns(
        [Column(1, Span(3, None), "i", "int32", True, None), Column(2, Span(3, 8), "s", "varchar", True, None)],
        [Comment(1, Span(5, 6), "about i")],
    )
    parts = Partitions([Partitioning(4, Span(7, None), ())])
    assert reading._turns(2, columns, parts, Sorts([Sort(5, Span(10, 11), ())])) == [2, 3, 5, 6, 7, 8, 10, 11]
    assert reading._turns(2, Columns([]), Partitions([]), Sorts()) == [2]


def test_fields_are_in_the_order_that_a_client_gave_them_from_when_it_did() -> None:
    back = Schema(tuple(reversed(TWO.fields)))
    kept = IcebergTable(arrangements=[(4, back)])
    turns: Timeline = [(1, TWO), (6, ONE), (8, NONE_OF_ICEBERGS)]
    assert reading._arranged(turns, IcebergTable()) == turns
    assert reading._arranged(turns, kept) == [(1, TWO), (4, back), (6, ONE), (8, NONE_OF_ICEBERGS)]
    # one from before the table has columns says nothing
    assert reading._arranged([(5, TWO)], IcebergTable(arrangements=[(4, back)])) == [(5, back)]


def place(version: int) -> Place:
    return Place("public", Location.parse("s3://b/data/"), Location.parse(f"s3://b/{uuid4()}"), version)


@pytest.mark.parametrize(
    ("asked", "default", "needed", "version"),
    [
        (None, 2, ONE, 2),
        (None, 3, ONE, 3),
        ("3", 2, ONE, 3),
        ("2", 3, ONE, 2),
        ("2", 2, Schema((Field(1, "v", "variant"),)), 3),
        ("4", 2, ONE, 2),
        ("x", 3, ONE, 3),
    ],
)
def test_the_format_version_is_what_is_asked_for_but_no_less_than_a_schema_needs(
    asked: str | None, default: int, needed: Schema, version: int
) -> None:
    properties = {} if asked is None else {FORMAT_VERSION: asked}
    assert reading._format_version(place(default), properties, [ONE, needed]) == version


def test_the_user_is_told_how_to_hide_a_column_where_that_would_help() -> None:
    assert f"{UNSUPPORTED_COLUMNS}={HIDE}" in how_to_hide(NONE_OF_ICEBERGS)
    assert how_to_hide(Unrepresentable("the table", "it has no columns")) == ""


def test_spark_is_told_to_read_slowly_only_where_its_fast_reader_fails() -> None:
    plain = Columns([Column(1, Span(0, None), "i", "int32", True, None)])
    widened = Columns(
        [Column(1, Span(0, 3), "i", "int32", True, None), Column(1, Span(3, None), "i", "int64", True, None)]
    )
    decimal = Schema((Field(1, "d", "decimal(9, 2)"),))
    defaulted = Schema((Field(1, "d", "decimal(9, 2)", initial_default="1.00"),))
    number = Schema((Field(1, "i", "int", initial_default=1),))
    slowly = Examined({}, slowly=True, mapped={})
    cases = [
        (ONE, plain, FINE, False),
        (ONE, widened, FINE, True),
        (ONE, plain, slowly, True),
        (decimal, plain, FINE, False),
        (defaulted, plain, FINE, True),
        (number, plain, FINE, False),
    ]
    for schema, columns, examined, expected in cases:
        assert reading._reads_slowly(schema, columns, examined) is expected
