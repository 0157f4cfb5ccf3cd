"""The SQL expressions that a table is sorted by: of one column, which columns they name, the same by other names.

An expression holds names, so it has to be written anew when a column is renamed. DuckDB's own parser finds the names,
and DuckDB prints the expression, as in the extension: nothing else tells `lower(lower)` from `lower(x)` for certain.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import duckdb

from mergus.ducklake.names import written
from mergus.ducklake.sorts import Key
from mergus.iceberg.schema_parse import folded
from mergus.iceberg.sort_order import Direction, NullOrder

PARSE: Final = "SELECT json_serialize_sql('SELECT ' || $1::varchar)"
PRINT: Final = "SELECT json_deserialize_sql($1::json)"

_DIRECTIONS: Final = {"asc": "ASC", "desc": "DESC"}
_NULL_ORDERS: Final = {"nulls-first": "NULLS_FIRST", "nulls-last": "NULLS_LAST"}


def by_column(name: str, direction: Direction, null_order: NullOrder) -> Key:
    """As DuckDB writes a key that is a column of the top level."""
    return Key(written(name), "duckdb", _DIRECTIONS[direction], _NULL_ORDERS[null_order])


def named(keys: Sequence[Key]) -> set[str]:
    """The columns that the keys are about, folded as DuckDB compares names."""
    found: set[str] = set()

    def note(name: str) -> str:
        found.add(folded(name))
        return name

    _rewritten(keys, note)
    return found


def renamed(keys: Sequence[Key], names: Mapping[str, str]) -> tuple[Key, ...]:
    """With each column by its new name. A key that names none of these columns stays as it is."""
    new = {folded(old): name for old, name in names.items()}
    return _rewritten(keys, lambda name: new.get(folded(name), name))


def _rewritten(keys: Sequence[Key], name_for: Callable[[str], str]) -> tuple[Key, ...]:
    with duckdb.connect() as session:
        return tuple(_rewritten_key(session, key, name_for) for key in keys)


def _rewritten_key(session: duckdb.DuckDBPyConnection, key: Key, name_for: Callable[[str], str]) -> Key:
    if key.dialect != "duckdb":
        return key

    def substitute(node: dict[str, Any]) -> dict[str, Any]:
        if node.get("class") == "COLUMN_REF" and len(node["column_names"]) == 1:
            node["column_names"] = [name_for(node["column_names"][0])]
        return node

    tree = _one(session, PARSE, key.expression)
    changed = json.loads(tree, object_hook=substitute)
    # what DuckDB cannot parse names no column to it
    if changed["error"] or changed == json.loads(tree):
        return key
    return replace(key, expression=_one(session, PRINT, json.dumps(changed)).removeprefix("SELECT "))


def _one(session: duckdb.DuckDBPyConnection, query: str, text: str) -> str:
    row = session.execute(query, [text]).fetchone()
    return "" if row is None else str(row[0])
