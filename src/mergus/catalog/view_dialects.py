"""What other engines are given of a view that DuckDB has made.

Iceberg's Java library takes any dialect where a view has none in the engine's own, and Spark reads DuckDB's `"name"` as
a text. So a view always has a text for Spark, and has it first: the translation if there is one that is certain, else a
query that Spark cannot analyse and that says why. It gives no rows whatever is asked of it; the view can be listed,
described and dropped, and clients that speak DuckDB's dialect find its text beside it. (raise_error() would not do:
`count(*)` does not compute it.)

Trino takes no dialect but its own and says so. It finds the tables of a view only by the name of a catalog, which
`MERGUS_TRINO_CATALOG` gives: a `default-catalog` would lead Spark there, too.
"""

from typing import Final

from mergus.ducklake.view_columns import Describer, Description
from mergus.ducklake.view_kinds import Uncertain
from mergus.ducklake.view_sources import Found
from mergus.ducklake.view_sql import canonical
from mergus.ducklake.view_translate import (
    Relation,
    Tree,
    named_relations,
    parse,
    shared_names,
    translate,
    written,
)
from mergus.ducklake.view_trino import TRINO, write_for_trino
from mergus.iceberg.namespace import Namespace
from mergus.iceberg.view_metadata import Representation

SPARK: Final = "spark"
# Names that are a catalog's in every session of Spark: one that begins so is not looked for in this lake.
_CATALOGS_OF_SPARK: Final = frozenset({"spark_catalog", "system"})
_MOST_OF_REASON: Final = 200


def parse_view(sql: str) -> tuple[Tree, list[tuple[str, str]]]:
    """The text of a view, and all that it names as tables. Raises Uncertain. Blocks: call it in a thread."""
    try:
        tree = parse(canonical(sql))
    except ValueError as e:
        raise Uncertain(str(e)) from None
    return tree, named_relations(tree)


def translate_view(tree: Tree, found: Found, described: Description, describer: Describer, at: int | None) -> Tree:
    """The query of a view as other engines understand it, too. Raises Uncertain. Blocks: call it in a thread."""
    spelled = zip(found.items(), described.others, strict=True)
    relations = {named: Relation(*exact, columns) for (named, exact), columns in spelled}
    result = translate(tree, relations, described.kinds)
    same = written(result, "duckdb", lambda schema, name: ["lake", schema, name])
    if describer.kinds_of_query(same, at) != described.kinds:
        raise Uncertain("DuckDB finds other columns in it when it is written anew")
    return result


def text_for_spark(tree: Tree, own: str) -> Representation:
    """Of what translate_view() gives, for a view in the schema `own`. Raises Uncertain."""
    shared = shared_names(tree)

    def place(schema: str, name: str) -> list[str]:
        if schema == own and name.lower() not in shared:
            return [name]
        levels = Namespace.of_schema(schema).levels
        if levels[0].lower() in _CATALOGS_OF_SPARK:
            raise Uncertain(f"it reads namespace {schema}, which Spark takes for a catalog")
        return [*levels, name]

    return Representation(SPARK, written(tree, SPARK, place))


def texts_for_trino(tree: Tree, catalog: str | None) -> tuple[Representation, ...]:
    """None unless Trino certainly means the same and the lake's catalog in Trino is known."""
    if catalog is None:
        return ()
    try:
        return (Representation(TRINO, write_for_trino(tree, catalog)),)
    except Uncertain:
        return ()


def refusal(view: str, reason: str) -> Representation:
    """A text for Spark that cannot be analysed, for a view that has no other."""
    message = (
        f"View {view} is written for DuckDB and Mergus is not certain that Spark would read the same: "
        f"{reason[:_MOST_OF_REASON]}. Read it with DuckDB, or give the view a text for Spark"
    )
    return Representation(SPARK, "SELECT `" + message.replace("`", "'").replace("$", "") + "`")
