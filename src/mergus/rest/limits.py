"""How deep the JSON of a request may be nested.

Python's parser gives up somewhere below a thousand levels, as the stack has room; what answers and keeps JSON (orjson)
at 254. So a body between the two could be read and never be said again. It is measured before it is parsed.
"""

import re
from array import array
from itertools import accumulate
from typing import Final

MAX_DEPTH: Final = 254

_BLOCK: Final = 64 * 1024
# One that is not closed goes up to the end.
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_OTHERS: Final = bytes(set(range(256)) - set(b"[]{}"))
# as signed bytes: one level up or down
_STEPS: Final = bytes.maketrans(b"[{]}", bytes([1, 1, 255, 255]))


class Nesting:
    """Of a body that comes in parts. Most have fewer brackets than there may be levels, and are not looked at twice."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._opened = 0

    def is_too_deep(self, part: bytes, *, is_last: bool) -> bool:
        self._parts.append(part)
        self._opened += part.count(b"[") + part.count(b"{")
        return is_last and self._opened > MAX_DEPTH and depth(b"".join(self._parts), MAX_DEPTH) > MAX_DEPTH


def depth(text: bytes, enough: int) -> int:
    """How deep brackets are nested outside of strings; at least `enough` + 1 where they are deeper than that."""
    brackets = _STRING.sub(b"", text).translate(None, _OTHERS)
    level = deepest = 0
    for start in range(0, len(brackets), _BLOCK):
        levels = array("b", brackets[start : start + _BLOCK].translate(_STEPS))
        *_, level = walked = list(accumulate(levels, initial=level))
        deepest = max(deepest, *walked)
        if deepest > enough:
            break
    return deepest
