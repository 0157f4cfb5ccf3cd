"""The text of a view, as DuckDB's own parser has it. Nothing is looked up and nothing runs: a text comes from a client.

A row of `ducklake_view` that is no single SELECT breaks no session, but nobody can read it either.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

import duckdb
import orjson

from mergus.ducklake.views import CATALOG

_CONFIG: Final[dict[str, str | bool | int | float | list[str]]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "enable_external_access": False,
    "threads": 1,
}


def check(sql: str) -> None:
    """Raises ValueError unless it is one SELECT without parameters. Blocks: call it in a thread."""
    with duckdb.connect(config=_CONFIG) as session:
        try:
            found = session.extract_statements(_plain(sql))
        except duckdb.Error as e:
            raise ValueError(f"DuckDB cannot parse it: {str(e).splitlines()[0]}") from None
    if len(found) != 1 or found[0].type != duckdb.StatementType.SELECT:
        raise ValueError("it is not a single SELECT statement")
    if found[0].named_parameters:
        raise ValueError("it has parameters, and a view has none")


@dataclass(frozen=True, slots=True)
class Names:
    """All that a text names, wherever: tables and views, functions, those that stand in the place of a table, and what
    stands before the name of any of them."""

    tables: frozenset[str]
    functions: frozenset[str]
    table_functions: frozenset[str]
    qualifiers: frozenset[str]


def names_of(texts: Iterable[str]) -> list[Names]:
    """Raises ValueError for what cannot be looked through. Blocks: call it in a thread."""
    with duckdb.connect(config=_CONFIG) as session:
        return [_names(_tree(session, text)) for text in texts]


def _names(tree: Any) -> Names:  # noqa: ANN401  (JSON)
    objects = list(_objects(tree))
    tables = [node for node in objects if node.get("type") == "BASE_TABLE"]
    functions = [node for node in objects if "function_name" in node]
    in_place = [node["function"] for node in objects if node.get("type") == "TABLE_FUNCTION"]
    keys = ("schema_name", "catalog_name", "schema", "catalog")
    return Names(
        tables=frozenset(str(node["table_name"]) for node in tables),
        functions=frozenset(str(node["function_name"]) for node in functions),
        table_functions=frozenset(str(node.get("function_name")) for node in in_place),
        qualifiers=frozenset(str(node[key]) for node in (*tables, *functions) for key in keys if node.get(key)),
    )


def _tree(session: duckdb.DuckDBPyConnection, sql: str) -> Any:  # noqa: ANN401  (JSON)
    row = session.execute("SELECT json_serialize_sql(?::VARCHAR)", [_plain(sql)]).fetchone()
    try:
        tree: Any = orjson.loads(row[0]) if row else {}
    except orjson.JSONDecodeError:
        raise ValueError("it is nested too deeply to look through it for names") from None
    if tree.get("error") is not False:
        raise ValueError("DuckDB cannot say which names it has")
    return tree


def canonical(sql: str) -> str:
    """The same text as DuckDB writes it, with parentheses around every expression. Raises ValueError for what it does
    not write so that it reads the same. Blocks: call it in a thread."""
    with duckdb.connect(config=_CONFIG) as session:
        tree = _tree(session, sql)
        query = "SELECT json_deserialize_sql(json_serialize_sql(?::VARCHAR))"
        row = session.execute(query, [_plain(sql)]).fetchone()
        text = str(row[0]) if row else ""
        try:
            is_same = _without_places(tree) == _without_places(_tree(session, text))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
    if not is_same:
        raise ValueError("DuckDB writes it with other words")
    return text


def unqualified_names(sql: str) -> list[str]:
    """Tables and views that it names without a schema. One that is also the name of a common table expression is
    taken for that. Raises ValueError for what cannot be looked through. Blocks: call it in a thread."""
    with duckdb.connect(config=_CONFIG) as session:
        objects = list(_objects(_tree(session, sql)))
    ours = {str(entry.get("key")).lower() for node in objects for entry in _entries(node.get("cte_map"))}
    names = [
        str(node["table_name"])
        for node in objects
        if node.get("type") == "BASE_TABLE" and not node.get("schema_name") and not node.get("catalog_name")
    ]
    return sorted({name for name in names if name.lower() not in ours})


def _plain(sql: str) -> str:
    """The parser does not know the placeholder."""
    return sql.replace(CATALOG, "lake")


def _without_places(tree: Any) -> Any:  # noqa: ANN401  (JSON)
    """Where in the text something stands is no part of what it says."""
    for node in _objects(tree):
        node.pop("query_location", None)
    return tree


def _objects(tree: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401  (JSON)
    waiting: list[Any] = [tree]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            node = cast(dict[str, Any], found)
            yield node
            waiting.extend(node.values())
        elif isinstance(found, list):
            waiting.extend(cast(list[Any], found))


def _entries(cte_map: Any) -> list[dict[str, Any]]:  # noqa: ANN401  (JSON)
    return cast(dict[str, Any], cte_map).get("map", []) if isinstance(cte_map, dict) else []
