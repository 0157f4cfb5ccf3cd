"""Names in the text of a view: what stands in FROM, and which column a name means."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from typing import cast as cast_type

from sqlglot import exp
from sqlglot.expressions.core import Expr as Expression

from mergus.ducklake.view_expressions import Term, only
from mergus.ducklake.view_kinds import Columns, Uncertain


@dataclass(frozen=True, slots=True)
class Source:
    """What stands in FROM. `hidden` are columns that USING has joined to another's."""

    alias: str
    columns: Columns
    hidden: frozenset[str] = frozenset()


@dataclass(slots=True)
class Scope:
    sources: list[Source] = field(default_factory=list[Source])

    def add(self, source: Source) -> None:
        if source.alias.lower() in {one.alias.lower() for one in self.sources}:
            raise Uncertain(f"it has two tables by the name {source.alias}")
        self.sources.append(source)

    def resolve(self, table: str | None, name: str) -> Term:
        found = [
            (source, column, kind)
            for source in self.sources
            if table is None or source.alias.lower() == table.lower()
            for column, kind in source.columns
            if column.lower() == name.lower() and (table is not None or column.lower() not in source.hidden)
        ]
        if len(found) != 1:
            raise Uncertain(f"it has the name {name}, which is not that of one column")
        source, column, kind = found[0]
        return Term(column_of(source.alias, column), kind, column=column)


def join_using(names: Sequence[str], left: list[Source], scope: Scope) -> Expression:
    right = scope.sources[-1]
    pairs = list[Expression]()
    for name in names:
        one, other = Scope(left).resolve(None, name), scope.resolve(right.alias, name)
        if one.kind != other.kind or not one.kind.is_groupable:
            raise Uncertain(f"it joins {one.kind.type} with {other.kind.type} by USING")
        pairs.append(exp.Paren(this=exp.EQ(this=one.sql, expression=other.sql)))
    scope.sources[-1] = replace(right, hidden=frozenset(name.lower() for name in names))
    return exp.and_(*pairs)


def renamed_columns(columns: Columns, alias: Expression) -> Columns:
    only(alias, "this", "columns")
    names = [str(one.name) for one in _parts(alias, "columns")]
    if len(names) > len(columns):
        raise Uncertain("it names more columns than there are")
    renamed = [*names, *(name for name, _ in columns[len(names) :])]
    if len({name.lower() for name in renamed}) < len(renamed):
        raise Uncertain("it has two columns of one name")
    return tuple((name, kind) for name, (_, kind) in zip(renamed, columns, strict=True))


def _parts(node: Expression, name: str) -> list[Any]:
    return cast_type(list[Any], node.args.get(name) or [])


def column_of(table: str, name: str) -> Expression:
    return exp.Column(this=quoted(name), table=quoted(table))


def quoted(name: str) -> exp.Identifier:
    if "${" in name:
        raise Uncertain("it has a name with ${, which Spark replaces")
    return exp.Identifier(this=name, quoted=True)
