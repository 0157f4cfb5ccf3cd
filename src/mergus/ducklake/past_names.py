"""What a table was called at a snapshot, asked of the session that will read it there: `AT (VERSION => …)` knows a
table by the name that it had then."""

from typing import Final

import duckdb

from mergus.ducklake.session import identifier

NAME_AT: Final = """
    SELECT s.schema_name, t.table_name
    FROM {metadata}.ducklake_table t JOIN {metadata}.ducklake_schema s USING (schema_id)
    WHERE CAST(t.table_uuid AS VARCHAR) = $uuid
      AND $at >= t.begin_snapshot AND ($at < t.end_snapshot OR t.end_snapshot IS NULL)
      AND $at >= s.begin_snapshot AND ($at < s.end_snapshot OR s.end_snapshot IS NULL)
"""


def name_at(lake: duckdb.DuckDBPyConnection, uuid: str, at: int, alias: str = "lake") -> tuple[str, str] | None:
    """(schema, table), of a session that has the lake attached."""
    metadata = identifier(f"__ducklake_metadata_{alias}")
    row = lake.execute(NAME_AT.format(metadata=metadata), {"uuid": uuid, "at": at}).fetchone()
    return None if row is None else (row[0], row[1])
