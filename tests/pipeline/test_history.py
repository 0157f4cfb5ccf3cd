"""What a table's snapshots say about what has happened since one of them."""

from typing import Any

import pytest

from mergus.pipeline.transform.history import Span, span
from mergus.pipeline.transform.state import Read

UUID = "9a8e"


def metadata(*snapshots: tuple[int, int | None, str]) -> dict[str, Any]:
    """Of (id, parent, operation); the last one is current."""
    listed = [
        {
            "snapshot-id": one,
            **({} if parent is None else {"parent-snapshot-id": parent}),
            "summary": {"operation": operation},
        }
        for one, parent, operation in snapshots
    ]
    return {"table-uuid": UUID, "snapshots": listed, "current-snapshot-id": snapshots[-1][0] if snapshots else -1}


def since(found: dict[str, Any], start: int | None) -> Span:
    return span(found, Read(UUID, start))


GROWN = metadata((1, None, "append"), (2, 1, "append"), (3, 2, "append"), (4, 3, "replace"))


@pytest.mark.parametrize(
    ("start", "found"),
    [
        (None, Span("first", None, 4)),
        (4, Span("nothing", 4, 4)),
        (3, Span("nothing", 3, 4)),
        (1, Span("appends", 1, 4)),
        (77, Span("lost", 77, 4)),
    ],
)
def test_the_history_since_a_snapshot_of_an_append_only_table_is_appends_or_nothing(
    start: int | None, found: Span
) -> None:
    assert since(GROWN, start) == found


def test_a_table_that_was_never_read_is_read_for_the_first_time() -> None:
    assert span(GROWN, None) == Span("first", None, 4)


def test_the_history_is_lost_if_the_table_was_replaced_by_another_of_the_same_name() -> None:
    assert span(GROWN, Read("another", 3)) == Span("lost", 3, 4)


def test_an_empty_table_has_no_changes_to_read() -> None:
    assert since(metadata(), None) == Span("nothing", None, None)
    assert since({"table-uuid": UUID, "current-snapshot-id": None}, None) == Span("nothing", None, None)
    assert since(metadata(), 3) == Span("lost", 3, None)


@pytest.mark.parametrize("operation", ["overwrite", "delete"])
def test_a_history_with_overwrites_or_deletes_is_mixed(operation: str) -> None:
    found = metadata((1, None, "append"), (2, 1, operation), (3, 2, "append"))
    assert since(found, 1) == Span("mixed", 1, 3)
    assert since(found, 2) == Span("appends", 2, 3)


def test_the_history_is_lost_after_a_rollback_behind_the_snapshot_read() -> None:
    assert since(metadata((1, None, "append"), (2, 1, "append"), (3, 1, "append")), 2) == Span("lost", 2, 3)


def test_the_history_is_lost_if_a_snapshot_in_between_expired() -> None:
    assert since(metadata((2, 1, "append"), (4, 3, "append")), 2) == Span("lost", 2, 4)
