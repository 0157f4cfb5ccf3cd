"""Properties by which tables and namespaces say how they are to be looked after."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mergus.ducklake.connect import Conn

_WANTED: Final = "(starts_with(key, %(prefix)s) OR key = ANY(%(keys)s))"
OF_TABLES: Final = f"SELECT table_id, key, value FROM table_property WHERE {_WANTED}"
OF_SCHEMAS: Final = f"""
    SELECT s.schema_name, key, value FROM namespace_property n
    JOIN ducklake_schema s ON s.schema_id = n.schema_id AND s.end_snapshot IS NULL WHERE {_WANTED}
"""


@dataclass(frozen=True, slots=True)
class Properties:
    by_table: dict[int, dict[str, str]]
    by_schema: dict[str, dict[str, str]]


async def read(conn: Conn, prefix: str, keys: Sequence[str]) -> Properties:
    """Those with this prefix, or with one of these keys."""
    wanted = {"prefix": prefix, "keys": list(keys)}
    by_table: dict[int, dict[str, str]] = defaultdict(dict)
    for table_id, key, value in await (await conn.execute(OF_TABLES, wanted)).fetchall():
        by_table[table_id][key] = value
    by_schema: dict[str, dict[str, str]] = defaultdict(dict)
    for name, key, value in await (await conn.execute(OF_SCHEMAS, wanted)).fetchall():
        by_schema[name][key] = value
    return Properties(dict(by_table), dict(by_schema))
