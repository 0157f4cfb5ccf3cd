"""Whether DuckLake's one line of history can go from one state of a table to the next."""

import pytest
from pyroaring import BitMap64

from mergus.catalog.register_history import State, check_line
from mergus.errors import Unsupported


def state(**deleted: list[int]) -> State:
    return {path: BitMap64(positions) for path, positions in deleted.items()}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (state(), state(a=[], b=[1])),
        (state(a=[]), state(a=[1, 2])),
        (state(a=[1]), state(a=[1, 2], b=[])),
        (state(a=[1], b=[]), state(a=[1])),
        (state(a=[1]), state()),
    ],
)
def test_ducklake_can_hold_a_history_in_which_files_are_added_removed_or_lose_rows(before: State, after: State) -> None:
    check_line(before, after, after.keys())


@pytest.mark.parametrize(
    ("before", "after", "ever"),
    [
        (state(a=[1]), state(a=[]), {"a"}),
        (state(a=[1]), state(a=[2]), {"a"}),
        (state(a=[], b=[]), state(b=[]), {"a", "b"}),
    ],
    ids=["a row comes back", "one for another", "a file comes again"],
)
def test_a_history_in_which_a_file_or_a_deleted_row_returns_is_refused(
    before: State, after: State, ever: set[str]
) -> None:
    with pytest.raises(Unsupported, match="come"):
        check_line(before, after, ever)
