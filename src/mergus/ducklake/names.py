"""Names as DuckDB writes them into SQL: bare where it can, else in quotes.

It does so in sort expressions, and in what it asks of Postgres about inlined rows, where a bare name is folded to lower
case. So who makes a table for DuckDB has to know which names are bare.
"""

import re
from functools import cache
from typing import Final

import duckdb

from mergus.ducklake.changes import quoted

_PLAIN: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def written(name: str) -> str:
    return name if is_bare(name) else quoted(name)


def is_bare(name: str) -> bool:
    return _PLAIN.fullmatch(name) is not None and name.lower() not in _keywords()


@cache
def _keywords() -> frozenset[str]:
    with duckdb.connect() as session:
        return frozenset(row[0] for row in session.execute("SELECT keyword_name FROM duckdb_keywords()").fetchall())
