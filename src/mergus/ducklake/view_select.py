"""Results of a SELECT in the text of a view: their names and types, by what they are grouped and in which order they
come. Rules by which engines find a name differ here most: a name that could be a column's and a result's is refused."""

from collections.abc import Sequence
from typing import Any

from sqlglot import exp
from sqlglot.expressions.core import Expr as Expression

from mergus.ducklake.view_expressions import Resolve, Term, mark_compared, only, read
from mergus.ducklake.view_kinds import NULL, Columns, Uncertain, holds
from mergus.ducklake.view_scope import Scope, Source, column_of, quoted


def read_outputs(items: Sequence[Any], scope: Scope) -> tuple[list[Term], list[str | None]]:
    """The results of a SELECT, and their names; None of what has none."""
    terms, names = list[Term](), list[str | None]()
    for item in items:
        if type(item) is exp.Star or (type(item) is exp.Column and type(item.this) is exp.Star):
            only(item.this if type(item) is exp.Column else item)
            table = item.table if type(item) is exp.Column else ""
            found = [term for source in scope.sources for term in _all(source, table)]
            if not found:
                raise Uncertain("it has * of nothing")
            terms += found
            names += [term.column for term in found]
        elif type(item) is exp.Alias:
            only(item, "this", "alias")
            terms.append(read(item.this, scope.resolve))
            names.append(item.alias)
        else:
            terms.append(read(item, scope.resolve))
            names.append(terms[-1].column)
    return terms, names


def _all(source: Source, table: str) -> list[Term]:
    if table and source.alias.lower() != table.lower():
        return []
    return [
        Term(column_of(source.alias, name), kind, column=name)
        for name, kind in source.columns
        if table or name.lower() not in source.hidden
    ]


def resolve_columns_first(scope: Scope, names: list[str | None], outputs: list[Term]) -> Resolve:
    """Where DuckDB knows the names of results, too: one that is also a column's must be that column."""

    def resolve(table: str | None, name: str) -> Term:
        term = scope.resolve(table, name)
        for other, output in zip(names, outputs, strict=True):
            if table is None and other is not None and other.lower() == name.lower() and output.sql != term.sql:
                raise Uncertain(f"it has the name {name} for a column and for a result")
        return term

    return resolve


def read_group_keys(group: Any, scope: Scope, outputs: list[Term], names: list[str | None]) -> list[Term]:  # noqa: ANN401
    only(group, "expressions", "all")
    if group.args.get("all"):
        keys = [term for term in outputs if not term.has_aggregate]
    else:
        keys = [
            _ordinal(key, outputs) if _is_number(key) else read(key, resolve_columns_first(scope, names, outputs))
            for key in group.expressions
        ]
    # a number would be the place of a result
    if any(key.has_aggregate or not key.sql.find(exp.Column) for key in keys):
        raise Uncertain("it groups by something that is not made of columns")
    check_groupable(keys)
    return keys


def add_order(
    result: Expression,
    node: Expression,
    columns: Columns,
    names: Sequence[str | None],
    outputs: list[Term],
    scope: Scope | None,
) -> None:
    """ORDER BY with NULLS where DuckDB has them, and LIMIT."""
    order, limit = node.args.get("order"), node.args.get("limit")
    if order is not None:
        only(order, "expressions")
        is_grouped = any(result.args.get(name) for name in ("group", "distinct")) or any(
            t.has_aggregate for t in outputs
        )
        scope = None if is_grouped else scope
        terms = [_sort_key(one, columns, names, outputs, scope) for one in order.expressions]
        result.set("order", exp.Order(expressions=terms))
    if limit is not None:
        only(limit, "expression")
        if order is None or not _is_number(limit.expression):
            raise Uncertain("it has LIMIT without ORDER BY, or with something other than a number")
        result.set("limit", exp.Limit(expression=exp.Literal.number(limit.expression.name)))


def _sort_key(
    node: Any,  # noqa: ANN401
    columns: Columns,
    names: Sequence[str | None],
    outputs: list[Term],
    scope: Scope | None,
) -> Expression:
    only(node, "this", "desc", "nulls_first")
    key = node.this
    is_name = type(key) is exp.Column and not key.args.get("table")
    places = [i for i, name in enumerate(names) if is_name and name is not None and name.lower() == key.name.lower()]
    if _is_number(key):
        _ordinal(key, outputs)
        places = [int(key.name) - 1]
    if len(places) == 1:
        place = places[0]
        if is_name and scope is not None and outputs[place].column is None:
            _refuse_column(scope, key.name)
        by, kind = exp.Column(this=quoted(columns[place][0])), columns[place][1]
    elif scope is not None:
        term = read(key, scope.resolve)
        by, kind = without_aggregate(term), term.kind
        if not term.sql.find(exp.Column):
            raise Uncertain("it sorts by something that is not made of columns")
    else:
        raise Uncertain("it sorts by something other than its results")
    if not kind.is_plain or kind == NULL:
        raise Uncertain(f"it sorts by {kind.type}")
    mark_compared(by, kind)
    return exp.Ordered(this=by, desc=bool(node.args.get("desc")), nulls_first=bool(node.args.get("nulls_first")))


def _refuse_column(scope: Scope, name: str) -> None:
    if any(column.lower() == name.lower() for source in scope.sources for column, _ in source.columns):
        raise Uncertain(f"it has the name {name} for a column and for a result")


def name_columns(outputs: list[Term], names: list[str | None], wanted: Columns | None) -> Columns:
    """The columns of a query: those that are wanted, or as they come."""
    if wanted is None:
        columns = tuple(
            (name or f"_c{i}", term.kind) for i, (name, term) in enumerate(zip(names, outputs, strict=True))
        )
        if len({name.lower() for name, _ in columns}) < len(columns):
            raise Uncertain("it has a query with two columns of one name")
        return columns
    if len(wanted) != len(outputs):
        raise Uncertain("it has other columns than DuckDB finds")
    for (name, kind), term in zip(wanted, outputs, strict=True):
        if not holds(kind, term.kind):
            raise Uncertain(f"column {name} is {kind.type} in DuckDB and may be {term.kind.type} elsewhere")
    return wanted


def without_aggregate(term: Term) -> Expression:
    if term.has_aggregate:
        raise Uncertain("it has an aggregate where rows are looked at")
    return term.sql


def check_groupable(terms: Sequence[Term]) -> None:
    if wrong := [term.kind.type for term in terms if not term.kind.is_groupable]:
        raise Uncertain(f"it tells values of {wrong[0]} apart")


def _ordinal(node: Expression, outputs: list[Term]) -> Term:
    if not 0 < int(node.name) <= len(outputs):
        raise Uncertain("it names a result by a number that there is not")
    return outputs[int(node.name) - 1]


def _is_number(node: Any) -> bool:  # noqa: ANN401
    return type(node) is exp.Literal and not node.is_string and node.name.isdecimal()
