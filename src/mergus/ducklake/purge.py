"""A dropped table taken out of history: all its rows go, and its files are scheduled for deletion, as the expiry of
every snapshot that had it would do it.

Files are those that rows of this very table id name (H22). One that another table lists as well stays: DuckLake lets a
file be added to two. The table's name at older snapshots means nothing any more.
"""

from typing import Final

from psycopg import sql

from mergus.ducklake.commit import Commit

# Paths are relative to the table's directory there, and to the lake's data path here.
READ_FILES: Final = """
    WITH place AS (
        SELECT DISTINCT ON (t.table_id) t.table_id,
               CASE WHEN t.path_is_relative THEN s.path || t.path
                    ELSE t.path END AS directory,
               t.path_is_relative AND s.path_is_relative AS relative
        FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id
        WHERE t.table_id = %(table_id)s
        ORDER BY t.table_id, t.begin_snapshot DESC, s.begin_snapshot DESC
    ), file AS (
        SELECT data_file_id AS id, path, path_is_relative FROM ducklake_data_file f WHERE table_id = %(table_id)s
          AND NOT EXISTS (SELECT FROM ducklake_data_file o
                          WHERE o.path = f.path AND NOT f.path_is_relative AND o.table_id <> f.table_id)
        UNION ALL
        SELECT delete_file_id, path, path_is_relative FROM ducklake_delete_file WHERE table_id = %(table_id)s
    )
    SELECT DISTINCT ON (whole.path) id, whole.path, whole.relative
    FROM file CROSS JOIN place CROSS JOIN LATERAL (
        SELECT CASE WHEN path_is_relative THEN directory || file.path ELSE file.path END AS path,
               path_is_relative AND place.relative AS relative
    ) AS whole
    ORDER BY whole.path, id
"""
SCHEDULE: Final = """
    INSERT INTO ducklake_files_scheduled_for_deletion (data_file_id, path, path_is_relative, schedule_start)
    VALUES (%s, %s, %s, now())
"""

FIND_INLINED: Final = """
    SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s
      AND (c.relname IN (SELECT table_name FROM ducklake_inlined_data_tables WHERE table_id = %(table_id)s)
           OR c.relname = 'ducklake_inlined_delete_' || %(table_id)s)
"""
DROP_INLINED: Final = "DROP TABLE {}"
DELETE: Final = "DELETE FROM {rows} WHERE {of} = %(table_id)s"
DELETE_NAME_MAPPINGS: Final = """
    DELETE FROM ducklake_name_mapping WHERE mapping_id IN (
        SELECT mapping_id FROM ducklake_column_mapping WHERE table_id = %(table_id)s)
"""

# What has rows about a table, by the column that names it.
ROWS: Final = {
    "ducklake_data_file": "table_id",
    "ducklake_delete_file": "table_id",
    "ducklake_file_column_stats": "table_id",
    "ducklake_file_variant_stats": "table_id",
    "ducklake_file_partition_value": "table_id",
    "ducklake_table_stats": "table_id",
    "ducklake_table_column_stats": "table_id",
    "ducklake_partition_info": "table_id",
    "ducklake_partition_column": "table_id",
    "ducklake_sort_info": "table_id",
    "ducklake_sort_expression": "table_id",
    "ducklake_schema_versions": "table_id",
    "ducklake_inlined_data_tables": "table_id",
    "ducklake_column_mapping": "table_id",
    "ducklake_column": "table_id",
    "ducklake_column_tag": "table_id",
    "ducklake_tag": "object_id",
    "ducklake_table": "table_id",
}


async def purge(tx: Commit, schema: str, table_id: int) -> None:
    """Of a table that this commit drops."""
    key = {"table_id": table_id, "schema": schema}
    files = await (await tx.conn.execute(READ_FILES, key)).fetchall()
    for (name,) in await (await tx.conn.execute(FIND_INLINED, key)).fetchall():
        await tx.conn.execute(sql.SQL(DROP_INLINED).format(sql.Identifier(schema, name)))
    await tx.conn.execute(DELETE_NAME_MAPPINGS, key)
    for rows, of in ROWS.items():
        await tx.conn.execute(sql.SQL(DELETE).format(rows=sql.Identifier(rows), of=sql.Identifier(of)), key)
    # not earlier: what rows name is not scheduled
    async with tx.conn.cursor() as cursor:
        await cursor.executemany(SCHEDULE, files)
