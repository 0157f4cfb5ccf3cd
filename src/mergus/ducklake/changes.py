"""The words of `ducklake_snapshot_changes.changes_made`.

DuckDB sessions parse every word to find conflicts, and one that they do not know makes all of their commits
fail, so a word can only be made here. The order is the one in which the extension writes them.
"""

from dataclasses import dataclass
from enum import IntEnum, auto


class Kind(IntEnum):
    """In writing order."""

    DROPPED_SCHEMA = auto()
    CREATED_SCHEMA = auto()


@dataclass(frozen=True, slots=True)
class Change:
    kind: Kind
    subject: str
    # whether cached schemas of open DuckDB sessions must be read anew (schema_version + 1)
    alters_schema: bool

    def __str__(self) -> str:
        return f"{self.kind.name.lower()}:{self.subject}"


def created_schema(name: str) -> Change:
    return Change(Kind.CREATED_SCHEMA, quoted(name), alters_schema=True)


def dropped_schema(schema_id: int) -> Change:
    return Change(Kind.DROPPED_SCHEMA, str(schema_id), alters_schema=True)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def changes_made(changes: list[Change]) -> str:
    """As one text; changes of one kind keep the order in which they were recorded."""
    return ",".join(map(str, sorted(changes, key=lambda c: c.kind)))
