"""The text of a view of DuckDB's for other engines, where it is certain that they mean the same by it.

The text is parsed by sqlglot and built anew of what `view_expressions.py` and this module know: SELECT with joins,
WHERE, GROUP BY, HAVING, DISTINCT, ORDER BY and LIMIT, common table expressions, subqueries in FROM, and UNION ALL.
Every column is qualified and `*` written out, so that no engine has to look for a name by rules of its own; every
result is cast to the type that the view's column has, if it is another. Whatever else is in the text is not certain.

Nothing is looked up and nothing runs here: the columns of what the view reads are given.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError
from sqlglot.expressions.core import Expr as Expression

from mergus.ducklake.view_expressions import Term, cast, condition, only
from mergus.ducklake.view_kinds import Columns, Uncertain
from mergus.ducklake.view_scope import Scope, Source, join_using, quoted, renamed_columns
from mergus.ducklake.view_select import (
    add_order,
    check_groupable,
    name_columns,
    read_group_keys,
    read_outputs,
    resolve_columns_first,
    without_aggregate,
)

# A text may come from a client: what takes long to parse is not worth it.
MOST_CHARACTERS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or view that a text names: as it is spelled in the lake, and its columns."""

    schema: str
    name: str
    columns: Columns


# A text as sqlglot has parsed it.
Tree = Expression

# By names in small letters; the schema is "" where the text has none.
Relations = Mapping[tuple[str, str], Relation]


@dataclass(frozen=True, slots=True)
class _Query:
    sql: Expression
    columns: Columns


def named_relations(tree: Expression) -> list[tuple[str, str]]:
    """The names of all tables and views in a text, common table expressions among them."""
    return sorted({(table.db.lower(), table.name.lower()) for table in tree.find_all(exp.Table)})


def parse(sql: str) -> Expression:
    if len(sql) > MOST_CHARACTERS:
        raise Uncertain(f"it is longer than {MOST_CHARACTERS} characters")
    try:
        found = sqlglot.parse(sql, dialect="duckdb")
    except RecursionError:
        raise Uncertain("it is nested too deeply") from None
    except SqlglotError:
        raise Uncertain("it cannot be parsed") from None
    if len(found) != 1 or found[0] is None:
        raise Uncertain("it is not one statement")
    return found[0]


def written(tree: Expression, dialect: str, place: Callable[[str, str], list[str]]) -> str:
    """In the words of an engine; `place` gives all parts of a table's name, of its schema and its own. Raises
    Uncertain."""

    def put(node: Expression) -> Expression:
        if not (isinstance(node, exp.Table) and node.db):
            return node
        parts = [quoted(part) for part in place(node.db, node.name)]
        named = exp.Dot.build(parts) if len(parts) > 1 else parts[0]
        return exp.Table(this=named, alias=node.args.get("alias"))

    try:
        return tree.transform(put).sql(dialect=dialect, identify=True, unsupported_level=ErrorLevel.RAISE)
    except RecursionError:
        raise Uncertain("it is nested too deeply") from None
    except SqlglotError:
        raise Uncertain(f"it has something that {dialect} has not") from None


def shared_names(tree: Expression) -> set[str]:
    """Of common table expressions, in small letters."""
    return {one.alias.lower() for one in tree.find_all(exp.CTE)}


def translate(tree: Expression, relations: Relations, wanted: Columns) -> Expression:
    """The same query with other words; its tables have the schema that they are in. `wanted` are the columns that
    DuckDB finds. Raises Uncertain."""
    try:
        return _Translator(relations).query(tree, {}, wanted).sql
    except RecursionError:
        raise Uncertain("it is nested too deeply") from None


class _Translator:
    def __init__(self, relations: Relations) -> None:
        self._relations = relations
        self._shared: set[str] = set()

    def query(self, node: Any, known: Mapping[str, _Query], wanted: Columns | None) -> _Query:  # noqa: ANN401
        match node:
            case exp.Select():
                return self._select(node, known, wanted)
            case exp.Union():
                return self._union(node, known, wanted)
            case exp.Subquery():
                only(node, "this")
                return self.query(node.this, known, wanted)
            case _:
                raise Uncertain("it is no SELECT")

    def _union(self, node: exp.Union, known: Mapping[str, _Query], wanted: Columns | None) -> _Query:
        only(node, "this", "expression", "distinct", "order", "limit", "with_")
        if node.args.get("distinct") is not False:
            raise Uncertain("it has UNION without ALL")
        parts, known = self._with(node, known)
        left = self.query(node.this, known, wanted)
        right = self.query(node.expression, known, wanted)
        if [kind for _, kind in left.columns] != [kind for _, kind in right.columns]:
            raise Uncertain("it has UNION ALL of different types")
        branches = [exp.Subquery(this=one.sql) for one in (left, right)]
        result = exp.Union(this=branches[0], expression=branches[1], distinct=False, with_=parts)
        outputs = [Term(exp.Null(), kind) for _, kind in left.columns]
        add_order(result, node, left.columns, [name for name, _ in left.columns], outputs, None)
        return _Query(result, left.columns)

    def _select(self, node: exp.Select, known: Mapping[str, _Query], wanted: Columns | None) -> _Query:
        only(node, "expressions", "from_", "joins", "where", "group", "having", "distinct", "order", "limit", "with_")
        parts, known = self._with(node, known)
        scope = Scope()
        result = exp.Select(with_=parts)
        if (source := node.args.get("from_")) is not None:
            only(source, "this")
            result.set("from_", exp.From(this=self._relation(source.this, known, scope)))
            result.set("joins", self._joins(node.args.get("joins") or [], known, scope))
        outputs, names = read_outputs(node.expressions, scope)
        if (where := node.args.get("where")) is not None:
            looked_at = condition(where.this, resolve_columns_first(scope, names, outputs))
            result.set("where", exp.Where(this=without_aggregate(looked_at)))
        self._aggregate(node, result, scope, outputs, names)
        columns = name_columns(outputs, names, wanted)
        kinds = zip(outputs, columns, strict=True)
        items = [exp.Alias(this=cast(term, kind), alias=quoted(name)) for term, (name, kind) in kinds]
        result.set("expressions", items)
        add_order(result, node, columns, names, outputs, scope)
        return _Query(result, columns)

    def _aggregate(
        self, node: exp.Select, result: exp.Select, scope: Scope, outputs: list[Term], names: list[str | None]
    ) -> None:
        group, having, distinct = (node.args.get(name) for name in ("group", "having", "distinct"))
        if group is not None:
            keys = read_group_keys(group, scope, outputs, names)
            result.set("group", exp.Group(expressions=[key.sql.copy() for key in keys]))
        if having is not None:
            term = condition(having.this, resolve_columns_first(scope, names, outputs))
            result.set("having", exp.Having(this=term.sql))
        if distinct is not None:
            only(distinct)
            check_groupable(outputs)
            result.set("distinct", exp.Distinct())

    def _with(self, node: Expression, known: Mapping[str, _Query]) -> tuple[exp.With | None, Mapping[str, _Query]]:
        """Its common table expressions, and all that are known with them."""
        found = node.args.get("with_")
        if found is None:
            return None, known
        only(found, "expressions")
        parts, all_known = list[Expression](), dict(known)
        for one in found.expressions:
            only(one, "this", "alias", "materialized")
            name = one.alias
            if name.lower() in self._shared:
                raise Uncertain(f"it has two common table expressions by the name {name}")
            self._shared.add(name.lower())
            query = self.query(one.this, all_known, None)
            query = replace(query, columns=renamed_columns(query.columns, one.args["alias"]))
            alias = exp.TableAlias(this=quoted(name), columns=[quoted(column) for column, _ in query.columns])
            parts.append(exp.CTE(this=query.sql, alias=alias))
            all_known[name.lower()] = query
        return exp.With(expressions=parts), all_known

    def _relation(self, node: Any, known: Mapping[str, _Query], scope: Scope) -> Expression:  # noqa: ANN401
        match node:
            case exp.Table():
                only(node, "this", "db", "alias")
                if type(node.this) is not exp.Identifier:
                    raise Uncertain("it has a function in the place of a table")
                named, columns = self._table(node, known)
            case exp.Subquery():
                only(node, "this", "alias")
                query = self.query(node.this, known, None)
                named, columns = exp.Subquery(this=query.sql), query.columns
            case _:
                raise Uncertain("it reads something that is neither a table nor a query")
        alias = node.args.get("alias")
        if alias is not None:
            columns = renamed_columns(columns, alias)
        name = node.alias or (node.name if isinstance(node, exp.Table) else "unnamed_subquery")
        scope.add(Source(name, columns))
        given = [quoted(column) for column, _ in columns] if alias is not None and alias.args.get("columns") else None
        named.set("alias", exp.TableAlias(this=quoted(name), columns=given))
        return named

    def _table(self, node: exp.Table, known: Mapping[str, _Query]) -> tuple[Expression, Columns]:
        key = (node.db.lower(), node.name.lower())
        if not node.db and key[1] in known:
            return exp.Table(this=quoted(node.name)), known[key[1]].columns
        if (found := self._relations.get(key)) is None:
            raise Uncertain(f"it reads {node.name}, which is no table of the lake")
        return exp.Table(this=quoted(found.name), db=quoted(found.schema)), found.columns

    def _joins(self, joins: Sequence[Any], known: Mapping[str, _Query], scope: Scope) -> list[Expression]:
        has_commas = [not any(join.args.get(name) for name in ("kind", "side", "on", "using")) for join in joins]
        if any(has_commas) and not all(has_commas):
            raise Uncertain("it joins by commas and by JOIN at once")
        return [self._join(join, known, scope) for join in joins]

    def _join(self, join: Any, known: Mapping[str, _Query], scope: Scope) -> Expression:  # noqa: ANN401
        only(join, "this", "kind", "side", "on", "using")
        kind, side = join.kind.upper(), join.side.upper()
        if kind not in {"", "INNER", "OUTER", "CROSS"} or side not in {"", "LEFT", "RIGHT", "FULL"}:
            raise Uncertain(f"it has a join of the kind {f'{side} {kind}'.strip()}")
        left = list(scope.sources)
        result = exp.Join(this=self._relation(join.this, known, scope), side=side or None)
        using, on = join.args.get("using"), join.args.get("on")
        if using:
            if side not in {"", "LEFT"}:
                raise Uncertain(f"it has {side} JOIN with USING")
            result.set("on", join_using([one.name for one in using], left, scope))
        elif on is not None:
            result.set("on", without_aggregate(condition(on, scope.resolve)))
        else:
            result.set("kind", "CROSS")
        return result
