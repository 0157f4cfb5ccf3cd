"""Histograms of equal depth, from a sample of a column's values. Pure.

Bounds are values that the column has. A bucket holds what is greater than its lower bound, up to and with its upper
one; the first holds its lower bound as well. Where one value fills more than a bucket there are fewer of them.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeVar


class Ordered(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...  # noqa: ANN401


T = TypeVar("T", bound=Ordered)


@dataclass(frozen=True)
class Histogram:
    """`uppers` of the buckets; below the first is the column's minimum. `is_exact`: the counts are no estimates."""

    uppers: tuple[Any, ...]
    counts: tuple[int, ...]
    is_exact: bool


def equi_depth(sample: Sequence[T], highest: T, total: int, buckets: int) -> Histogram | None:
    """Of `total` values, of which the sample is a part, or all of them; None without a sample."""
    if not sample:
        return None
    ordered: list[Any] = sorted(sample)
    seen = len(ordered)
    # of each upper bound, how many of the sample are not greater
    ranks: dict[Any, int] = {}
    for number in range(1, buckets):
        value = ordered[-(-number * seen // buckets) - 1]
        rank = bisect_right(ordered, value)
        if rank < seen:
            ranks[value] = rank
    ranks[highest] = seen
    ends = [0, *(rank * total // seen for rank in ranks.values())]
    return Histogram(tuple(ranks), tuple(after - before for before, after in pairwise(ends)), seen == total)
