"""The text for Trino of a query that view_translate.py has built.

Trino means the same by less of it than Spark. It takes NaN for neither equal to itself nor greater than other numbers,
so what compares or sorts values of DOUBLE is left out. It takes names in small letters, so tables that it could
confuse are left out, and it takes `t$history` for the history of `t`. Its TIMESTAMP has three digits after the second
unless it is told to have six.
"""

from typing import Final

from sqlglot import exp
from sqlglot.expressions.core import Expr as Expression

from mergus.ducklake.view_expressions import COMPARES_DOUBLES, data_type
from mergus.ducklake.view_kinds import TIMESTAMP, Uncertain
from mergus.ducklake.view_translate import Tree, written

TRINO: Final = "trino"
# Schemas that every catalog of Trino's has of its own.
_OWN_SCHEMAS: Final = frozenset({"information_schema", "system"})
_DIGITS_OF_SECOND: Final = 6


def write_for_trino(tree: Tree, catalog: str) -> str:
    """`catalog` is the name that the lake has in Trino. Raises Uncertain."""

    def place(schema: str, name: str) -> list[str]:
        if schema.lower() in _OWN_SCHEMAS:
            raise Uncertain(f"it reads namespace {schema}, which is Trino's own")
        for part in (schema, name):
            _check_name(part)
        return [catalog, schema, name]

    for node in tree.walk():
        if node.meta.get(COMPARES_DOUBLES):
            raise Uncertain("it compares or sorts values of DOUBLE, among which Trino has no place for NaN")
        if isinstance(node, exp.Column) and node.name.startswith("$"):
            raise Uncertain(f"it has the column {node.name}, which may be Trino's own")
    return written(tree.transform(_with_microseconds), TRINO, place)


def _check_name(name: str) -> None:
    # DuckDB takes only letters of ASCII in any case: tables `ä` and `Ä` are two in DuckDB, and one in Trino
    if not name.isascii() and name.lower() != name.upper():
        raise Uncertain(f"it reads {name}, which Trino may confuse with a name in other letters")
    if "$" in name or "@" in name:
        raise Uncertain(f"it reads {name}, which Trino takes for a part of a table")


def _with_microseconds(node: Expression) -> Expression:
    if not (isinstance(node, exp.DataType) and node == data_type(TIMESTAMP)):
        return node
    digits = exp.DataTypeParam(this=exp.Literal.number(_DIGITS_OF_SECOND))
    return exp.DataType(this=exp.DataType.Type.TIMESTAMP, expressions=[digits])
