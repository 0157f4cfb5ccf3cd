"""The words of `ducklake_snapshot_changes.changes_made`.

DuckDB sessions parse every word to find conflicts, and one that they do not know makes all of their commits
fail, so a word can only be made here. The order is the one in which the extension writes them.

Read, a word tells whether a snapshot changed a table: what is stored in it (`DATA`), only how it is stored (`LAYOUT`),
or what it looks like (`altered_table`).
"""

import re
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Final

INSERTS: Final = frozenset({"inserted_into_table", "inlined_insert"})
DATA: Final = INSERTS | {"deleted_from_table", "inlined_delete"}
FLUSHES: Final = frozenset({"inline_flush", "flushed_inlined"})
MERGES: Final = frozenset({"merge_adjacent", "compacted_table"})
LAYOUT: Final = FLUSHES | MERGES | {"rewrite_delete"}
ALTERED: Final = "altered_table"
DROPPED: Final = "dropped_table"

# a word, and its subject: an id, or quoted names with doubled quotes in them
_WORD: Final = re.compile(r'([a-z_]+):((?:"(?:[^"]|"")*"|[^",])*)(?:,|$)', re.IGNORECASE)


class Kind(IntEnum):
    """In writing order."""

    DROPPED_SCHEMA = auto()
    DROPPED_TABLE = auto()
    DROPPED_VIEW = auto()
    CREATED_SCHEMA = auto()
    CREATED_TABLE = auto()
    CREATED_VIEW = auto()
    INSERTED_INTO_TABLE = auto()
    DELETED_FROM_TABLE = auto()
    ALTERED_TABLE = auto()
    ALTERED_VIEW = auto()
    INLINED_INSERT = auto()
    INLINED_DELETE = auto()


# Those after which every table is what it was.
TABLES_STAY: Final = frozenset(
    {Kind.DROPPED_SCHEMA, Kind.CREATED_SCHEMA, Kind.DROPPED_VIEW, Kind.CREATED_VIEW, Kind.ALTERED_VIEW}
)


@dataclass(frozen=True, slots=True)
class Change:
    kind: Kind
    subject: str
    # whether cached schemas of open DuckDB sessions must be read anew (schema_version + 1)
    alters_schema: bool = False

    def __str__(self) -> str:
        return f"{self.kind.name.lower()}:{self.subject}"


def created_schema(name: str) -> Change:
    return Change(Kind.CREATED_SCHEMA, quoted(name), alters_schema=True)


def dropped_schema(schema_id: int) -> Change:
    return Change(Kind.DROPPED_SCHEMA, str(schema_id), alters_schema=True)


def created_table(schema_name: str, name: str) -> Change:
    """Of a table that is renamed, too: then by its new name."""
    return Change(Kind.CREATED_TABLE, f"{quoted(schema_name)}.{quoted(name)}", alters_schema=True)


def dropped_table(table_id: int) -> Change:
    return Change(Kind.DROPPED_TABLE, str(table_id), alters_schema=True)


def altered_table(table_id: int) -> Change:
    return Change(Kind.ALTERED_TABLE, str(table_id), alters_schema=True)


def created_view(schema_name: str, name: str) -> Change:
    """Of a view that is renamed, too: then by its new name."""
    return Change(Kind.CREATED_VIEW, f"{quoted(schema_name)}.{quoted(name)}", alters_schema=True)


def dropped_view(view_id: int) -> Change:
    return Change(Kind.DROPPED_VIEW, str(view_id), alters_schema=True)


def altered_view(view_id: int) -> Change:
    """Its comment."""
    return Change(Kind.ALTERED_VIEW, str(view_id), alters_schema=True)


def inserted_into_table(table_id: int) -> Change:
    return Change(Kind.INSERTED_INTO_TABLE, str(table_id))


def deleted_from_table(table_id: int) -> Change:
    return Change(Kind.DELETED_FROM_TABLE, str(table_id))


def inlined_insert(table_id: int) -> Change:
    return Change(Kind.INLINED_INSERT, str(table_id))


def inlined_delete(table_id: int) -> Change:
    return Change(Kind.INLINED_DELETE, str(table_id))


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def changes_made(changes: list[Change]) -> str:
    """As one text, each once; changes of one kind keep the order in which they were recorded."""
    return ",".join(map(str, sorted(dict.fromkeys(changes), key=lambda c: c.kind)))


def parse(text: str | None) -> list[tuple[str, str]]:
    """Words with their subjects; a name that looks like a word is a name."""
    return [(word.lower(), subject) for word, subject in _WORD.findall(text or "")]


def words_about(table_id: int, text: str | None) -> frozenset[str]:
    """What was done to this table."""
    return frozenset(word for word, subject in parse(text) if subject == str(table_id) and word in DATA | LAYOUT)


def is_alone(table_id: int, text: str | None) -> bool:
    """Whether rows or files of this table are all that changed."""
    words = parse(text)
    return bool(words) and all(word in DATA | LAYOUT and subject == str(table_id) for word, subject in words)


def tables_named(text: str | None) -> set[int]:
    """Tables that look different afterwards, or are gone; new ones have no id here."""
    about = DATA | LAYOUT | {ALTERED, DROPPED}
    return {int(subject) for word, subject in parse(text) if word in about and subject.isdecimal()}


def names_stay(text: str | None) -> bool:
    """Whether every table is called what it was called, and none is new."""
    return all(word in DATA | LAYOUT for word, _ in parse(text))
