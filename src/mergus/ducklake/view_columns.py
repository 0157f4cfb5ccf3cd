"""What a view of DuckDB's shows: DuckLake keeps its text alone, and only DuckDB can say which columns that makes.

The view is bound and not run, in a session that may write nothing and reach nothing but the lake: neither files nor
other hosts, whatever the text of a view names. One session is kept, since opening it takes longer than all the rest; if
anything goes wrong, a new one is asked once more. A session is attached to the lake as it is, or at one snapshot, and
can attach nothing later: another snapshot takes another session.

Types are those of results, and not of files: there is an Iceberg type for each DuckDB type whose values it can hold.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

import duckdb

from mergus.config import Settings, hide_password
from mergus.ducklake import session
from mergus.ducklake.columns import Unrepresentable
from mergus.ducklake.view_kinds import PLAIN_TYPES, Columns, kind_of
from mergus.errors import ServiceUnavailable, SetupError
from mergus.iceberg.schema import Field, List, Map, Schema, Struct, Type
from mergus.iceberg.schema_parse import MAX_DEPTH, with_fresh_ids

PRIMITIVES: Final = PLAIN_TYPES | {
    "float": "float",
    "time": "time",
    "timestamp_s": "timestamp",
    "timestamp_ms": "timestamp",
    "timestamp_ns": "timestamp_ns",
    "enum": "string",
    "blob": "binary",
    "uuid": "uuid",
    "variant": "variant",
    "geometry": "geometry",
}

# What is wrong with the view itself; anything else may be gone the next time.
_OF_THE_VIEW: Final = (
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ParserException,
    duckdb.InvalidInputException,
    duckdb.NotImplementedException,
    duckdb.PermissionException,
)


class BrokenView(Exception):
    """DuckDB cannot read the view: why."""


@dataclass(frozen=True, slots=True)
class _Bound:
    columns: list[str]
    types: list[Any]

    @property
    def kinds(self) -> Columns:
        return tuple(zip(self.columns, map(kind_of, self.types), strict=True))


@dataclass(frozen=True, slots=True)
class Description:
    """`kinds` are the view's columns as view_translate.py needs them, `others` those of the other tables and views
    that were asked for."""

    schema: Schema
    kinds: Columns
    others: tuple[Columns, ...]


class Describer:
    """Of one process. Every method blocks: call it in a thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session: duckdb.DuckDBPyConnection | None = None
        self._at: int | None = None
        self._turn = threading.Lock()

    def describe(
        self, schema: str, name: str, at: int | None = None, others: Sequence[tuple[str, str]] = ()
    ) -> Description:
        """The columns that the view has now, or had at a snapshot, and those of other tables and views. Raises
        BrokenView, Unrepresentable, or ServiceUnavailable."""
        named = [f"SELECT * FROM {_place(*one)}" for one in ((schema, name), *others)]
        of_view, *of_others = self._bind(named, at)
        return Description(
            schema_of(of_view.columns, of_view.types), of_view.kinds, tuple(one.kinds for one in of_others)
        )

    def kinds_of_query(self, sql: str, at: int | None = None) -> Columns:
        """The columns of a SELECT. Raises as describe() does."""
        return self._bind([sql], at)[0].kinds

    def _bind(self, queries: Sequence[str], at: int | None) -> list[_Bound]:
        with self._turn:
            if self._at != at:
                self._close()
                self._at = at
            for is_kept in (self._session is not None, False):
                try:
                    return self._bind_at_once(queries)
                except (duckdb.Error, SetupError) as e:
                    self._close()
                    if is_kept:
                        continue
                    if isinstance(e, _OF_THE_VIEW):
                        raise BrokenView(hide_password(str(e).splitlines()[0])) from None
                    raise ServiceUnavailable("DuckDB cannot reach the lake to describe the view; try again") from e
        raise AssertionError

    def interrupt(self) -> None:
        if (current := self._session) is not None:
            with suppress(duckdb.Error):
                current.interrupt()

    def close(self) -> None:
        self.interrupt()
        with self._turn:
            self._close()

    def _bind_at_once(self, queries: Sequence[str]) -> list[_Bound]:
        """All of them in one state of the lake."""
        if self._session is None:
            self._session = _open(self._settings, self._at)
        self._session.begin()
        try:
            found = [self._session.sql(query) for query in queries]
            return [_Bound(one.columns, cast(list[Any], one.types)) for one in found]
        finally:
            with suppress(duckdb.Error):
                self._session.rollback()

    def _close(self) -> None:
        current, self._session = self._session, None
        if current is not None:
            with suppress(duckdb.Error):
                current.close()


def _place(schema: str, name: str) -> str:
    return ".".join(map(session.identifier, ("lake", schema, name)))


def schema_of(names: list[str], types: list[Any]) -> Schema:
    """Of a result; `types` are DuckDB's."""
    ids = iter(range(1, 2**31))
    fields = tuple(_field(name, kind, ids, (name,)) for name, kind in zip(names, types, strict=True))
    schema = Schema(fields)
    if twice := schema.ambiguous_name():
        raise Unrepresentable(f"column {twice}", "Iceberg knows it and a part of a struct by the same name")
    return with_fresh_ids(schema)


def _field(name: str, kind: Any, ids: Any, path: tuple[str, ...], *, required: bool = False) -> Field:  # noqa: ANN401
    if len(path) > MAX_DEPTH:
        raise Unrepresentable(f"column {path[0]}", f"it is nested deeper than {MAX_DEPTH} levels")
    number = next(ids)
    return Field(number, name, _type(kind, ids, path), required)


def _type(kind: Any, ids: Any, path: tuple[str, ...]) -> Type:  # noqa: ANN401
    match kind.id:
        case "struct":
            return Struct(tuple(_field(n, k, ids, (*path, n)) for n, k in kind.children))
        case "list" | "array":
            return List(_field("element", kind.children[0][1], ids, (*path, "element")))
        case "map":
            (_, key), (_, value) = kind.children
            return Map(
                _field("key", key, ids, (*path, "key"), required=True), _field("value", value, ids, (*path, "value"))
            )
        case "decimal":
            digits = dict(kind.children)
            return f"decimal({digits['precision']}, {digits['scale']})"
        case plain if plain in PRIMITIVES:
            return PRIMITIVES[plain]
        case _:
            raise Unrepresentable(f"column {'.'.join(path)} of type {kind}", "Iceberg has no such type")


def _open(settings: Settings, at: int | None) -> duckdb.DuckDBPyConnection:
    opened = session.attach(settings, read_only=True, at=at)
    opened.execute("SET enable_external_access = false")
    opened.execute("SET lock_configuration = true")
    return opened
