"""An object store whose every request is seen: a server that is sent through here looks at no object in secret."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from tests.support.listeners import proxy

_REQUEST = re.compile(rb"(GET|HEAD|PUT|POST|DELETE) (/\S*) HTTP/1\.1\r\n")


class Requests:
    """What was asked of the store, in order: method and path, as the store would read it."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def note(self, data: bytes) -> None:
        found = [(method.decode(), unquote(path.decode())) for method, path in _REQUEST.findall(data)]
        with self._lock:
            self._seen += found

    def since(self, mark: int) -> list[tuple[str, str]]:
        with self._lock:
            return self._seen[mark:]

    def __len__(self) -> int:
        with self._lock:
            return len(self._seen)


@contextmanager
def watched(url: str) -> Iterator[tuple[Requests, str]]:
    """A store by the URL that leads to it from now on. Clients send the head of a request in one piece."""
    seen = Requests()
    with proxy(url, seen.note) as (_, through):
        yield seen, through
