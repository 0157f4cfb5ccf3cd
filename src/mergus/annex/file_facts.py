"""Rows of `file_fact`: what was found by looking into data files.

An object never changes under its name, so what was found once holds for good: two processes that look write the same.
Ids of files may come again when Postgres is restored from a backup; the path tells whether a row is about this file.

Facts are texts of two kinds: `COLUMNS`, how the columns of a file are stored, as a tree of `Part`, and `NANS`, how many
NaNs there are in columns, by their id.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import orjson

from mergus.ducklake.connect import Conn

COLUMNS: Final = "columns"
NANS: Final = "nans"

READ: Final = """
    SELECT data_file_id, path, fact FROM file_fact WHERE kind = %(kind)s AND data_file_id = ANY(%(ids)s)
"""
WRITE: Final = """
    INSERT INTO file_fact (data_file_id, kind, path, fact) VALUES (%s, %s, %s, %s)
    ON CONFLICT (data_file_id, kind) DO UPDATE SET path = excluded.path, fact = excluded.fact
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A column of a file, or a part of one. The parts of lists and maps are called element, key and value, whatever the
    file calls them.

    `kind` is struct, list, map, or for a leaf its type in Parquet and what that stands for: int64, int32/uint8,
    binary/string, fixed(4)/decimal(9, 2).
    """

    name: str
    id: int | None
    kind: str
    # whether there may be NULLs among its values
    nulls: bool
    parts: tuple["Part", ...] = ()

    def walk(self) -> Iterator["Part"]:
        yield self
        for part in self.parts:
            yield from part.walk()


def columns_text(parts: Sequence[Part]) -> str:
    return orjson.dumps([_plain(part) for part in parts]).decode()


# most files of a table are stored alike
@lru_cache(maxsize=1024)
def parse_columns(text: str) -> tuple[Part, ...]:
    return tuple(map(_part, orjson.loads(text)))


def nans_text(counts: Mapping[int, int]) -> str:
    return orjson.dumps({str(i): n for i, n in sorted(counts.items())}).decode()


def parse_nans(text: str) -> dict[int, int]:
    return {int(i): n for i, n in orjson.loads(text).items()}


async def read(conn: Conn, kind: str, paths: Mapping[int, str]) -> dict[int, str]:
    """What is known of these files, by their ids."""
    found = await (await conn.execute(READ, {"kind": kind, "ids": list(paths)})).fetchall()
    return {i: fact for i, path, fact in found if paths[i] == path}


async def write(conn: Conn, kind: str, paths: Mapping[int, str], facts: Mapping[int, str]) -> None:
    async with conn.cursor() as cursor:
        await cursor.executemany(WRITE, [(i, kind, paths[i], fact) for i, fact in sorted(facts.items())])


def _plain(part: Part) -> list[Any]:
    return [part.name, part.id, part.kind, part.nulls, [_plain(p) for p in part.parts]]


def _part(plain: list[Any]) -> Part:
    name, field_id, kind, nulls, parts = plain
    return Part(name, field_id, kind, nulls, tuple(map(_part, parts)))
