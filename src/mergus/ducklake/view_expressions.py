"""Expressions in the text of a view that mean the same in DuckDB and Spark, and but for what is marked in Trino.

What is not listed in `_READERS` is not certain, nor is an argument of a listed one that its reader does not know. Each
reader gives the expression anew: with columns qualified, casts where engines would convert on their own and not agree
on how, and literals that need no conversion. So nothing that was not looked at can get into the result.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

from sqlglot import exp
from sqlglot.expressions.core import Expr as Expression

from mergus.ducklake.view_kinds import (
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    LONG,
    NULL,
    STRING,
    TIMESTAMP,
    Kind,
    Uncertain,
    common,
    decimal,
    holds,
)

# A macro of the lake by one of these names is something else.
FUNCTIONS: Final = frozenset({"coalesce", "count", "count_star", "day", "length", "max", "min", "month", "sum", "year"})
# DuckDB computes in 64 bits with decimals that fit, and gives up on a result that does not.
_DIGITS_OF_64_BITS: Final = 18
# By the names of Iceberg; DuckDB's, which sqlglot translates.
_TYPES: Final = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "double": "DOUBLE",
    "string": "TEXT",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
}
# A mark in the `meta` of a value: it is compared or sorted with others of its type, which has NaN.
COMPARES_DOUBLES: Final = "compares_doubles"
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?")


@dataclass(frozen=True, slots=True)
class Term:
    """An expression and what it gives. `column` is its name if it is nothing but a column."""

    sql: Expression
    kind: Kind
    has_aggregate: bool = False
    column: str | None = None


# Finds the column that a name means: the table's name or None, and its own.
Resolve = Callable[[str | None, str], Term]


def read(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401  (sqlglot's)
    """Raises Uncertain."""
    reader = _READERS.get(type(node))
    if reader is None:
        raise Uncertain(f"it has {_words(node)}")
    return reader(node, resolve)


def only(node: Expression, *names: str) -> None:
    """Raises Uncertain if the node says anything else."""
    if more := [name for name, value in node.args.items() if value and name not in names]:
        raise Uncertain(f"it has {_words(node)} with {more[0].rstrip('_')}")


def condition(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    term = read(node, resolve)
    if term.kind not in {BOOLEAN, NULL}:
        raise Uncertain(f"it takes a value of type {term.kind.type} for a truth")
    return term


def cast(term: Term, kind: Kind) -> Expression:
    """To a type that holds its values."""
    if kind in {term.kind, NULL}:
        return term.sql
    return exp.Cast(this=term.sql, to=data_type(kind))


def data_type(kind: Kind) -> exp.DataType:
    name = _TYPES.get(kind.type) or (kind.type.upper() if kind.type.startswith("decimal") else None)
    if name is None or not kind.is_plain:
        raise Uncertain(f"it converts to {kind.type}")
    return exp.DataType.build(name, dialect="duckdb")


def _words(node: Any) -> str:  # noqa: ANN401
    if isinstance(node, exp.Anonymous):
        return f"the function {node.name}()"
    if isinstance(node, exp.Func):
        return f"the function {node.sql_name().lower()}()"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).lower()


def _is_text(node: Expression) -> bool:
    return type(node) is exp.Literal and node.is_string


def _read_literal(node: Any, _: Resolve) -> Term:  # noqa: ANN401
    text = str(node.this)
    if node.is_string:
        if "${" in text:
            raise Uncertain("it has a text with ${, which Spark replaces")
        return Term(exp.Literal.string(text), STRING)
    if re.fullmatch(r"\d+", text):
        if int(text) > 2**63 - 1:
            raise Uncertain("it has a number of more than 64 bits")
        return Term(exp.Literal.number(text), INT if int(text) < 2**31 else LONG)
    if found := re.fullmatch(r"(\d+)\.(\d+)", text):
        before = len(found[1].lstrip("0"))
        return Term(exp.Literal.number(text), decimal(max(before, 1), len(found[2])))
    raise Uncertain(f"it has the number {text[:40]}")


def _negative(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    only(node, "this")
    if type(node.this) is not exp.Literal or node.this.is_string:
        raise Uncertain("it has a minus before what is no number")
    term = read(node.this, resolve)
    return Term(exp.Neg(this=term.sql), term.kind)


def _column(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    only(node, "this", "table")
    if type(node.this) is not exp.Identifier:
        raise Uncertain(f"it has {_words(node.this)} for a value")
    return resolve(node.args["table"].name if node.args.get("table") else None, node.name)


def _paren(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    only(node, "this")
    return read(node.this, resolve)


def _joined(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    """AND, OR."""
    only(node, "this", "expression")
    left, right = condition(node.this, resolve), condition(node.expression, resolve)
    return Term(_wrapped(type(node), left.sql, right.sql), BOOLEAN, left.has_aggregate or right.has_aggregate)


def _not(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    only(node, "this")
    term = condition(node.this, resolve)
    return Term(exp.Paren(this=exp.Not(this=exp.Paren(this=term.sql))), BOOLEAN, term.has_aggregate)


def _comparison(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    only(node, "this", "expression")
    (left, right), has_aggregate = _alike([node.this, node.expression], resolve)
    return Term(_wrapped(type(node), left, right), BOOLEAN, has_aggregate)


def _between(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    only(node, "this", "low", "high")
    (value, low, high), has_aggregate = _alike([node.this, node.args["low"], node.args["high"]], resolve)
    return Term(exp.Paren(this=exp.Between(this=value, low=low, high=high)), BOOLEAN, has_aggregate)


def _in(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    only(node, "this", "expressions")
    (value, *others), has_aggregate = _alike([node.this, *node.expressions], resolve)
    return Term(exp.Paren(this=exp.In(this=value, expressions=others)), BOOLEAN, has_aggregate)


def _is_null(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    only(node, "this", "expression")
    if type(node.expression) is not exp.Null:
        raise Uncertain("it has IS with something other than NULL")
    term = read(node.this, resolve)
    return Term(_wrapped(exp.Is, term.sql, exp.Null()), BOOLEAN, term.has_aggregate)


def _like(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    """Without a backslash: Spark takes it for an escape."""
    only(node, "this", "expression", "negate")
    term, pattern = read(node.this, resolve), node.expression
    if term.kind != STRING or not _is_text(pattern) or "\\" in pattern.this:
        raise Uncertain("it has LIKE with something other than a plain pattern")
    like = _wrapped(exp.Like, term.sql, read(pattern, resolve).sql)
    if node.args.get("negate"):
        like = exp.Paren(this=exp.Not(this=like))
    return Term(like, BOOLEAN, term.has_aggregate)


def _concatenation(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    only(node, "this", "expression", "safe")
    left, right = read(node.this, resolve), read(node.expression, resolve)
    if left.kind != STRING or right.kind != STRING:
        raise Uncertain("it has || with something other than strings")
    return Term(_wrapped(exp.DPipe, left.sql, right.sql), STRING, left.has_aggregate or right.has_aggregate)


def _arithmetic(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    """Where no engine can run out of digits: some say so, some do not."""
    only(node, "this", "expression")
    left, right = read(node.this, resolve), read(node.expression, resolve)
    has_aggregate = left.has_aggregate or right.has_aggregate
    of, by = left.kind.digits, right.kind.digits
    if DOUBLE in {left.kind, right.kind} and common([left.kind, right.kind]) == DOUBLE:
        return Term(_wrapped(type(node), cast(left, DOUBLE), cast(right, DOUBLE)), DOUBLE, has_aggregate)
    if of is None or by is None or {left.kind, right.kind} <= {INT, LONG}:
        raise Uncertain(f"it has {_words(node)} with {left.kind.type} and {right.kind.type}")
    if type(node) is exp.Mul:
        # Spark and DuckDB count one digit differently
        decimal(of[0] + by[0] + 1, of[1] + by[1])
        kind = decimal(of[0] + by[0], of[1] + by[1])
    else:
        kind = decimal(max(of[0], by[0]) + 1, max(of[1], by[1]))
    if max(sum(of), sum(by)) <= _DIGITS_OF_64_BITS < sum(kind.digits or ()):
        raise Uncertain(f"it has {_words(node)} that may need more than {_DIGITS_OF_64_BITS} digits")
    result = _wrapped(type(node), cast(left, decimal(*of)), cast(right, decimal(*by)))
    return Term(exp.Cast(this=result, to=data_type(kind)), kind, has_aggregate)


def _case(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    only(node, "ifs", "default")
    ifs = node.args["ifs"]
    for one in ifs:
        only(one, "this", "true")
    conditions = [condition(one.this, resolve) for one in ifs]
    results = [one.args["true"] for one in ifs] + [node.args.get("default") or exp.Null()]
    terms = [read(result, resolve) for result in results]
    kind = common(term.kind for term in terms)
    *then, otherwise = [cast(term, kind) for term in terms]
    pairs = zip(conditions, then, strict=True)
    result = exp.Case(ifs=[exp.If(this=when.sql, true=value) for when, value in pairs], default=otherwise)
    return Term(result, kind, any(term.has_aggregate for term in (*conditions, *terms)))


def _coalesce(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    only(node, "this", "expressions")
    terms = [read(one, resolve) for one in (node.this, *node.expressions)]
    kind = common(term.kind for term in terms)
    first, *others = [cast(term, kind) for term in terms]
    return Term(exp.Coalesce(this=first, expressions=others), kind, any(term.has_aggregate for term in terms))


def _cast(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    only(node, "this", "to")
    to = node.args["to"]
    kind = next((k for name in _TYPES if to == data_type(k := Kind(name))), None)
    if kind is None and to.this == exp.DataType.Type.DECIMAL and len(to.expressions) == 2:
        precision, scale = (int(one.name) for one in to.expressions)
        kind = decimal(precision - scale, scale)
    if kind is None:
        raise Uncertain(f"it has a cast to {to.sql('duckdb')}")
    if _is_text(node.this):
        return _literal(node.this.this, kind)
    term = read(node.this, resolve)
    if not holds(kind, term.kind) and (kind, term.kind) not in {(STRING, INT), (STRING, LONG)}:
        raise Uncertain(f"it has a cast from {term.kind.type} to {kind.type}")
    return Term(exp.Cast(this=term.sql, to=data_type(kind)), kind, term.has_aggregate)


def _literal(text: str, kind: Kind) -> Term:
    """A text that stands for a value of another type."""
    found = None
    if kind == BOOLEAN and text in {"t", "f", "true", "false"}:
        return Term(exp.Boolean(this=text.startswith("t")), BOOLEAN)
    if kind == STRING and "${" not in text:
        return Term(exp.Literal.string(text), STRING)
    try:
        if _DATE.fullmatch(text):
            date.fromisoformat(text)
            found = text if kind == DATE else f"{text} 00:00:00"
        elif kind == TIMESTAMP and _TIMESTAMP.fullmatch(text):
            datetime.strptime(text[:19], "%Y-%m-%d %H:%M:%S")
            found = text
    except ValueError:
        found = None
    if found is None or kind not in {DATE, TIMESTAMP}:
        raise Uncertain(f"it has a text for a value of type {kind.type}")
    return Term(exp.Cast(this=exp.Literal.string(found), to=data_type(kind)), kind)


def _length(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    only(node, "this")
    term = read(node.this, resolve)
    if term.kind != STRING:
        raise Uncertain(f"it has length() of {term.kind.type}")
    return Term(exp.Cast(this=exp.Length(this=term.sql), to=data_type(LONG)), LONG, term.has_aggregate)


def _part(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    """Year, month or day."""
    only(node, "this")
    term = read(node.this, resolve)
    if term.kind not in {DATE, TIMESTAMP}:
        raise Uncertain(f"it has {_words(node)} of {term.kind.type}")
    return Term(exp.Cast(this=type(node)(this=term.sql), to=data_type(LONG)), LONG, term.has_aggregate)


def _count(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    only(node, "this", "big_int")
    of, is_distinct = node.this, type(node.this) is exp.Distinct
    if is_distinct:
        only(of, "expressions")
        (of, *more) = of.expressions
        if more:
            raise Uncertain("it counts several columns")
    term = _inner(of, resolve)
    if is_distinct and not term.kind.is_groupable:
        raise Uncertain(f"it tells values of {term.kind.type} apart")
    return Term(exp.Count(this=exp.Distinct(expressions=[term.sql]) if is_distinct else term.sql), LONG, True)


def _sum(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    only(node, "this")
    term = _inner(node.this, resolve)
    if (digits := term.kind.digits) is None:
        raise Uncertain(f"it has a sum of {term.kind.type}, of which the last digits depend on the order of rows")
    kind = decimal(38 - digits[1], digits[1])
    return Term(exp.Sum(this=exp.Cast(this=term.sql, to=data_type(kind))), kind, True)


def _extreme(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    only(node, "this")
    term = _inner(node.this, resolve)
    if not term.kind.is_groupable or term.kind in {BOOLEAN, NULL}:
        raise Uncertain(f"it has {_words(node)} of {term.kind.type}")
    return Term(type(node)(this=term.sql), term.kind, True)


def _inner(node: Any, resolve: Resolve) -> Term:  # noqa: ANN401
    term = read(node, resolve)
    if term.has_aggregate:
        raise Uncertain("it has an aggregate of an aggregate")
    return term


def _anonymous(node: Any, _: Resolve) -> Term:  # noqa: ANN401
    if node.name.lower() != "count_star" or node.expressions:
        raise Uncertain(f"it has {_words(node)}")
    return Term(exp.Count(this=exp.Star()), LONG, True)


def _alike(nodes: Sequence[Any], resolve: Resolve) -> tuple[list[Expression], bool]:
    """Values that are compared, in one type; and whether one of them has an aggregate."""
    found = [None if _is_text(node) else read(node, resolve) for node in nodes]
    kinds = {term.kind for term in found if term is not None} - {NULL}
    # DuckDB takes a text for a value of the other's type
    meant = next(iter(kinds)) if len(kinds) == 1 and kinds <= {DATE, TIMESTAMP} else STRING
    pairs = zip(nodes, found, strict=True)
    terms = [_literal(node.this, meant) if term is None else term for node, term in pairs]
    terms = [_fitted(term, terms) for term in terms]
    kind = common(term.kind for term in terms)
    values = [cast(term, kind) for term in terms]
    mark_compared(values[0], kind)
    return values, any(term.has_aggregate for term in terms)


def mark_compared(value: Expression, kind: Kind) -> None:
    if kind == DOUBLE:
        value.meta[COMPARES_DOUBLES] = True


def _fitted(term: Term, others: Sequence[Term]) -> Term:
    """A number as a value of the type that it is compared with, so that it is not the column that is cast: engines
    look for rows by columns."""
    if not _is_number(term.sql):
        return term
    kinds = {other.kind for other in others if not _is_number(other.sql)} - {NULL}
    digits = re.sub(r"[^0-9.]", "", term.sql.sql("duckdb")).split(".")
    own = decimal(len(digits[0]), len("".join(digits[1:])))
    if len(kinds) == 1 and (kind := kinds.pop()).type.startswith("decimal") and holds(kind, own):
        return Term(exp.Cast(this=term.sql, to=data_type(kind)), kind)
    return term


def _is_number(node: Expression) -> bool:
    node = node.this if type(node) is exp.Neg else node
    return type(node) is exp.Literal and not node.is_string


def _wrapped(kind: Any, left: Expression, right: Expression) -> Expression:  # noqa: ANN401
    return exp.Paren(this=kind(this=left, expression=right))


_READERS: Final[dict[Any, Callable[[Any, Resolve], Term]]] = {
    exp.Column: _column,
    exp.Literal: _read_literal,
    exp.Neg: _negative,
    exp.Null: lambda _, __: Term(exp.Null(), NULL),
    exp.Boolean: lambda node, _: Term(exp.Boolean(this=node.this), BOOLEAN),
    exp.Paren: _paren,
    **dict.fromkeys((exp.And, exp.Or), _joined),
    exp.Not: _not,
    **dict.fromkeys((exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE), _comparison),
    exp.Between: _between,
    exp.In: _in,
    exp.Is: _is_null,
    exp.Like: _like,
    exp.DPipe: _concatenation,
    **dict.fromkeys((exp.Add, exp.Sub, exp.Mul), _arithmetic),
    exp.Case: _case,
    exp.Coalesce: _coalesce,
    exp.Cast: _cast,
    exp.Length: _length,
    **dict.fromkeys((exp.Year, exp.Month, exp.Day), _part),
    exp.Count: _count,
    exp.Sum: _sum,
    **dict.fromkeys((exp.Min, exp.Max), _extreme),
    exp.Anonymous: _anonymous,
}
