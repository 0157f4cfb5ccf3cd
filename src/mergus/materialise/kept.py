"""What objects hold, by their paths: as much of it as fits, for the next time. Objects of one name never change."""

from collections import OrderedDict
from collections.abc import Sized
from typing import Generic, TypeVar

T = TypeVar("T", bound=Sized)


class Kept(Generic[T]):
    """Up to `most` parts in all, but always the last; what was not asked for longest goes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_path: OrderedDict[str, T] = OrderedDict()
        self._size = 0

    def get(self, path: str) -> T | None:
        if path in self._by_path:
            self._by_path.move_to_end(path)
        return self._by_path.get(path)

    def keep(self, path: str, content: T) -> T:
        if path in self._by_path:
            self._size -= len(self._by_path.pop(path))
        self._by_path[path] = content
        self._size += len(content)
        while self._size > self._most and len(self._by_path) > 1:
            self._size -= len(self._by_path.popitem(last=False)[1])
        return content
