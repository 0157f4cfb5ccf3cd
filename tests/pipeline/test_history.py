"""What a table's snapshots say about what has happened since one of them."""

from typing import Any

import pytest

from mergus.pipeline.transform.history import Span, span


def metadata(*snapshots: tuple[int, int | None, str, int | None]) -> dict[str, Any]:
    """Of (id, parent, operation, rows in all); the last one is current."""
    listed = [
        {
            "snapshot-id": one,
            **({} if parent is None else {"parent-snapshot-id": parent}),
            "summary": {"operation": operation, **({} if rows is None else {"total-records": str(rows)})},
        }
        for one, parent, operation, rows in snapshots
    ]
    return {"snapshots": listed, "current-snapshot-id": snapshots[-1][0] if snapshots else -1}


GROWN = metadata((1, None, "append", 5), (2, 1, "append", 9), (3, 2, "replace", 9), (4, 3, "append", 10))


@pytest.mark.parametrize(
    ("start", "found"),
    [
        (None, Span("first", None, 4)),
        (4, Span("nothing", 4, 4)),
        (3, Span("appends", 3, 4, 1)),
        (1, Span("appends", 1, 4, 5)),
        (77, Span("lost", 77, 4)),
    ],
)
def test_of_a_table_that_grows(start: int | None, found: Span) -> None:
    assert span(GROWN, start) == found


def test_an_empty_table() -> None:
    assert span(metadata(), None) == Span("nothing", None, None)
    assert span({"current-snapshot-id": None}, None) == Span("nothing", None, None)
    assert span(metadata(), 3) == Span("lost", 3, None)


@pytest.mark.parametrize("operation", ["overwrite", "delete"])
def test_other_changes(operation: str) -> None:
    found = metadata((1, None, "append", 5), (2, 1, operation, 4), (3, 2, "append", 9))
    assert span(found, 1) == Span("mixed", 1, 3)
    assert span(found, 2) == Span("appends", 2, 3, 5)


def test_a_table_that_went_back_has_lost_what_was_read() -> None:
    found = metadata((1, None, "append", 5), (2, 1, "append", 9), (3, 1, "append", 6))
    assert span(found, 2) == Span("lost", 2, 3)


def test_what_is_gone_in_between_is_lost() -> None:
    found = metadata((2, 1, "append", 9), (4, 3, "append", 10))
    assert span(found, 2) == Span("lost", 2, 4)


def test_without_a_count_of_rows_states_are_compared() -> None:
    assert span(metadata((1, None, "append", None), (2, 1, "append", 9)), 1) == Span("mixed", 1, 2)
