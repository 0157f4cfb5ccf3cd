"""A memory of a bounded size: a dict in which what was put last comes last."""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def keep_newest(kept: dict[K, V], key: K, value: V, limit: int) -> None:
    """Puts it last, and takes the first away if there are more than so many."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > limit:
        del kept[next(iter(kept))]
