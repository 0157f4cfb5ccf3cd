"""Commits of Iceberg clients to a table that is shown without some of its columns (`mergus.unsupported-columns=hide`).

A client knows nothing of a hidden column, so no file of its has a value for it. What must hold: no commit takes a value
of a hidden column away, and a row that a client appends has what an INSERT would put there that does not name the
column. Deleting rows is harmless: DuckLake keeps their files. A commit that deletes rows and adds some rewrites them
for all that can be known (copy-on-write, UPDATE, MERGE, compaction), and is refused; so is one that replaces the table.
"""

from collections.abc import Sequence

from mergus.catalog.commit_data import DataStep
from mergus.ducklake.column_changes import NO_DEFAULT
from mergus.ducklake.columns import Column
from mergus.errors import BadRequest, Unsupported
from mergus.iceberg.schema import Schema
from mergus.iceberg.schema_parse import folded


def check_fields(hidden: Sequence[Column], shown: Schema, wanted: Schema) -> None:
    """Raises BadRequest for a new or renamed column that has the name or the id of a hidden one."""
    names = {folded(column.name): column for column in hidden}
    ids = {column.id: column for column in hidden}
    before = {field.id: field.name for field in shown.fields}
    for field in wanted.fields:
        other = ids.get(field.id)
        if before.get(field.id) != field.name:
            other = other or names.get(folded(field.name))
        if other is not None:
            raise BadRequest(
                f"Column {field.name} cannot be added: the table has a hidden column {_text(other)}. Choose another "
                "name, or drop or rename the hidden column in DuckDB"
            )


def check_main(hidden: Sequence[Column], main: Sequence[object]) -> None:
    """Raises Unsupported for a commit that starts the table anew, as CREATE OR REPLACE TABLE does: it takes main away
    first, which is a None among the steps of `main`."""
    if hidden and any(step is None for step in main):
        raise Unsupported(
            f"The table has hidden columns, which a commit that replaces its content would lose: "
            f"{', '.join(map(_text, hidden))}. Drop these columns in DuckDB first, or drop the table and create it"
        )


def check_rows(hidden: Sequence[Column], steps: Sequence[object]) -> None:
    """Raises Unsupported for a commit that would lose values of a hidden column, or leave out one that a row needs."""
    data = [step for step in steps if isinstance(step, DataStep)]
    if not hidden or not any(file.file.record_count for step in data for file in step.added):
        return
    if any(step.ended or step.deletes or step.ended_rows for step in data):
        raise Unsupported(
            f"The commit deletes rows and adds others, which would lose the values of hidden columns: "
            f"{', '.join(map(_text, hidden))}. Delete and append rows in commits of their own (Spark deletes without "
            "rewriting files if write.delete.mode is merge-on-read), or change the rows in DuckDB"
        )
    for column in hidden:
        if reason := _why_needed(column):
            raise Unsupported(
                f"Rows cannot be appended without a value for the hidden column {_text(column)}, which {reason}. "
                "Insert them in DuckDB"
            )


def _why_needed(column: Column) -> str | None:
    """To DuckDB, rows of a file without the column have its initial default, or NULL."""
    if not column.nulls_allowed:
        return "is NOT NULL"
    default = None if column.default_value in {None, NO_DEFAULT} else column.default_value
    if default != column.initial_default:
        return f"has the default {column.default_value}"
    return None


def _text(column: Column) -> str:
    return f"{column.name} ({column.type})"
