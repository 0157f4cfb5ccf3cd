"""JSON of a client, taken at its word and not further: a number is no text, and null is nothing.

Everything here raises ValueError, with the name of the thing and of its part that is wrong. Text with a NUL or half of
a surrogate pair is refused, for Postgres takes neither. Parts that nobody asks for are nobody's business.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast
from uuid import UUID

# What orjson makes of a client's JSON.
Untyped: TypeAlias = Any

MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1

_SHOWN: Final = 60


class JsonObject:
    """One object and what it is called in messages. A part that is null is as if it were not there."""

    __slots__ = ("_parts", "_what")

    def __init__(self, json: Untyped, what: str) -> None:
        self._parts = cast(Mapping[str, Any], _of_type(json, dict, what, "a JSON object"))
        self._what = what

    def named(self, what: str) -> "JsonObject":
        return JsonObject(self._parts, what)

    def has(self, name: str) -> bool:
        return self._parts.get(name) is not None

    def value(self, name: str) -> Untyped:
        if not self.has(name):
            raise ValueError(f"{self._what} has no {name}")
        return self._parts[name]

    def part(self, name: str) -> "JsonObject":
        return JsonObject(self.value(name), f"{self._what}: {name}")

    def parts(self, name: str) -> "list[JsonObject]":
        return [JsonObject(one, f"{self._what}: {name}") for one in self._list(name)]

    def text(self, name: str) -> str:
        return self._text(self.value(name), name)

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(self._text(one, name) for one in self._list(name))

    def text_map(self, name: str) -> dict[str, str]:
        parts = self.part(name)._parts
        return {self._text(key, name): self._text(value, f"{name}.{key}") for key, value in parts.items()}

    def uuid(self, name: str) -> str:
        """In small letters, as Postgres and Iceberg write it."""
        text = self.text(name).lower()
        try:
            right = str(UUID(text)) == text
        except ValueError:
            right = False
        if not right:
            raise ValueError(f"{self._what}: {name} is not a UUID: {shown(text)}")
        return text

    def int32(self, name: str, least: int = 0) -> int:
        return self._whole(self.value(name), name, least, MAX_INT32)

    def int64(self, name: str, least: int = 0) -> int:
        return self._whole(self.value(name), name, least, MAX_INT64)

    def maybe_int32(self, name: str, least: int = 0) -> int | None:
        return self.int32(name, least) if self.has(name) else None

    def maybe_int64(self, name: str, least: int = 0) -> int | None:
        return self.int64(name, least) if self.has(name) else None

    def int32s(self, name: str) -> tuple[int, ...]:
        return tuple(self._whole(one, name, 0, MAX_INT32) for one in self._list(name))

    def int64s(self, name: str) -> tuple[int, ...]:
        return tuple(self._whole(one, name, 0, MAX_INT64) for one in self._list(name))

    def _list(self, name: str) -> list[Any]:
        return _of_type(self.value(name), list, f"{self._what}: {name}", "a list")

    def _text(self, value: Untyped, name: str) -> str:
        text: str = _of_type(value, str, f"{self._what}: {name}", "text")
        if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
            raise ValueError(f"{self._what}: {name} must not hold a NUL character or half of a surrogate pair")
        return text

    def _whole(self, value: Untyped, name: str, least: int, most: int) -> int:
        what = f"{self._what}: {name}"
        # to Python, true is a whole number
        found: int = _of_type(None if isinstance(value, bool) else value, int, what, "a whole number")
        if not least <= found <= most:
            raise ValueError(f"{what} must be from {least} to {most}, not {found}")
        return found


def shown(text: str) -> str:
    """For an error, however long it is."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _of_type(json: Untyped, kind: type, what: str, called: str) -> Untyped:
    if isinstance(json, kind):
        return json
    raise ValueError(f"{what} must be {called}")
