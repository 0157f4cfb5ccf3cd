"""Structs in Thrift's compact protocol, which Parquet writes its footers in, without a schema of them.

A footer is read, a few of its fields are changed, and it is written again: every field that nobody here knows comes
through as it was. So values keep the type that they were written with, and fields keep their order.

What must hold: bytes that somebody else wrote raise ValueError, whatever is wrong with them, and never take more
memory or deeper calls than their own length and `MOST_NESTED` allow.
"""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = range(1, 14)

# Parquet's own structs are at most eight deep.
MOST_NESTED: Final = 32

_STOP: Final = 0
_FIXED: Final = {BYTE: 1, DOUBLE: 8, UUID: 16}
_INTEGERS: Final = frozenset({I16, I32, I64})
_BOOLEANS: Final = frozenset({TRUE, FALSE})


@dataclass(slots=True)
class Value:
    """`content` is an int for integers, a list of Values for lists and sets, a list of pairs for maps, a Struct, or
    bytes. A Boolean field is its type alone."""

    type: int
    content: Any = None
    # of the elements of a list or set, and the types of keys and values of a map
    inner: tuple[int, ...] = ()


Struct: TypeAlias = dict[int, Value]


def decode(data: bytes) -> Struct:
    """The struct that these bytes begin with. Raises ValueError."""
    return _Reader(data).struct(0)


def encode(struct: Struct) -> bytes:
    out = bytearray()
    _write_struct(out, struct)
    return bytes(out)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self, depth: int) -> Struct:
        if depth > MOST_NESTED:
            raise ValueError("Thrift structs are nested too deeply")
        found: Struct = {}
        last = 0
        while (head := self._byte()) != _STOP:
            kind, delta = head & 15, head >> 4
            last = last + delta if delta else _unzigzag(self._varint())
            if last in found:
                raise ValueError(f"Thrift struct has field {last} twice")
            found[last] = Value(kind) if kind in _BOOLEANS else self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Value:
        if kind in _INTEGERS:
            return Value(kind, _unzigzag(self._varint()))
        if kind == BINARY:
            return Value(kind, self._bytes(self._varint()))
        if kind in _FIXED:
            return Value(kind, self._bytes(_FIXED[kind]))
        if kind == STRUCT:
            return Value(kind, self.struct(depth + 1))
        if kind in {LIST, SET}:
            return self._list(kind, depth + 1)
        if kind == MAP:
            return self._map(depth + 1)
        raise ValueError(f"Thrift has no type {kind}")

    def _list(self, kind: int, depth: int) -> Value:
        head = self._byte()
        inner, count = head & 15, head >> 4
        count = self._count(self._varint() if count == 15 else count)
        return Value(kind, [self._element(inner, depth) for _ in range(count)], (inner,))

    def _map(self, depth: int) -> Value:
        count = self._count(self._varint())
        if not count:
            return Value(MAP, [])
        kinds = self._byte()
        inner = kinds >> 4, kinds & 15
        pairs = [(self._element(inner[0], depth), self._element(inner[1], depth)) for _ in range(count)]
        return Value(MAP, pairs, inner)

    def _element(self, kind: int, depth: int) -> Value:
        """A Boolean that is no field is a byte."""
        if depth > MOST_NESTED:
            raise ValueError("Thrift lists are nested too deeply")
        return Value(BYTE, self._bytes(1)) if kind in _BOOLEANS else self._value(kind, depth)

    def _count(self, count: int) -> int:
        # each takes a byte at least
        if count > len(self._data) - self._at:
            raise ValueError("Thrift list is longer than its bytes")
        return count

    def _bytes(self, count: int) -> bytes:
        start, self._at = self._at, self._at + count
        if self._at > len(self._data):
            raise ValueError("Thrift struct ends too early")
        return self._data[start : self._at]

    def _byte(self) -> int:
        return self._bytes(1)[0]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("Thrift number has more than 64 bits")


def _write_struct(out: bytearray, struct: Struct) -> None:
    last = 0
    for field_id, value in struct.items():
        delta = field_id - last
        if 0 < delta < 16:
            out.append(delta << 4 | value.type)
        else:
            out.append(value.type)
            _write_varint(out, _zigzag(field_id))
        last = field_id
        if value.type not in _BOOLEANS:
            _write_value(out, value)
    out.append(_STOP)


def _write_value(out: bytearray, value: Value) -> None:
    kind, content = value.type, value.content
    if kind in _INTEGERS:
        _write_varint(out, _zigzag(content))
    elif kind == BINARY:
        _write_varint(out, len(content))
        out += content
    elif kind in _FIXED:
        out += content
    elif kind == STRUCT:
        _write_struct(out, content)
    elif kind == MAP:
        _write_varint(out, len(content))
        if content:
            out.append(value.inner[0] << 4 | value.inner[1])
        for pair in content:
            _write_value(out, pair[0])
            _write_value(out, pair[1])
    else:
        short = len(content) < 15
        out.append((len(content) if short else 15) << 4 | value.inner[0])
        if not short:
            _write_varint(out, len(content))
        for element in content:
            _write_value(out, element)


def _write_varint(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def _zigzag(value: int) -> int:
    return value << 1 ^ value >> 63


def _unzigzag(value: int) -> int:
    return value >> 1 ^ -(value & 1)
