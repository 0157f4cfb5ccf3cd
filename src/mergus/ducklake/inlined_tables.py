"""Making a Postgres table for inlined rows, as the extension makes it.

DuckDB puts small inserts into the newest of a table's inlined tables, value by value in the order of the columns, and
reads them by the columns' names at the version in the table's name. So every change of the columns needs another one,
or each small insert fails (H29). When such rows are flushed, they are partitioned as the table was at that version: a
change of the partitioning needs one, too. A table that has none gets one by the first small insert, but then without a
row in `ducklake_schema_versions`, and DuckDB itself takes its columns for those that the table began with. So we make
one wherever a DuckDB session with its default settings would: unless inlining is turned off and never was on.

All of them belong to one role, that of their register `ducklake_inlined_data_tables`, whoever makes them: Postgres lets
nobody else drop them, and DuckDB sessions drop ours as we drop theirs.

Nobody inlines rows of a table that has a VARIANT or GEOMETRY in it, or a name that is one of the inlined table's own or
longer than Postgres has names (H49). A few other names DuckDB writes into SQL in a way that Postgres does not take:
with them no small insert would ever work, so they are refused.
"""

import re
from dataclasses import dataclass
from typing import Final, LiteralString

from psycopg import sql

from mergus.ducklake.commit import Commit
from mergus.ducklake.inlined import SYSTEM_COLUMNS
from mergus.ducklake.names import is_bare
from mergus.errors import Unsupported
from mergus.iceberg.schema_parse import folded

# The schema of DuckLake's own tables, whether the table has an inlined one, and the limit of rows that somebody set:
# for the table, else for its schema, else for the lake. Then the role that we act as, and the one to make tables as.
READ_STATE: Final = """
    SELECT n.nspname,
           EXISTS (SELECT FROM ducklake_inlined_data_tables WHERE table_id = %(table_id)s),
           (SELECT m.value FROM ducklake_metadata m
            JOIN ducklake_table t ON t.table_id = %(table_id)s AND t.end_snapshot IS NULL
            WHERE m.key = 'data_inlining_row_limit'
              AND (m.scope IS NULL OR (m.scope = 'schema' AND m.scope_id = t.schema_id)
                                   OR (m.scope = 'table' AND m.scope_id = t.table_id))
            ORDER BY array_position(ARRAY['table', 'schema'], m.scope::text) LIMIT 1),
           current_setting('role'),
           (SELECT pg_get_userbyid(r.relowner) FROM pg_class r
            WHERE r.oid = 'ducklake_inlined_data_tables'::regclass AND pg_get_userbyid(r.relowner) <> current_user
              AND pg_has_role(r.relowner, 'MEMBER'))
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = 'ducklake_snapshot'::regclass
"""
READ_COLUMNS: Final = """
    SELECT column_name, column_type, parent_column IS NULL FROM ducklake_column
    WHERE table_id = %(table_id)s AND end_snapshot IS NULL ORDER BY column_order
"""
REGISTER: Final = """
    INSERT INTO ducklake_inlined_data_tables SELECT %(table_id)s, %(name)s, %(schema_version)s
    WHERE NOT EXISTS (SELECT FROM ducklake_inlined_data_tables
                      WHERE table_id = %(table_id)s AND schema_version = %(schema_version)s)
"""
BECOME: Final = "SELECT set_config('role', %(role)s, true)"
# Of a version that is not committed yet: only this very transaction can have made one before.
DROP: Final = "DROP TABLE IF EXISTS {table}"
CREATE: Final = "CREATE TABLE {table} (row_id bigint, begin_snapshot bigint, end_snapshot bigint, {columns})"

POSTGRES_TYPES: Final[dict[str, LiteralString]] = {
    "boolean": "boolean",
    "int8": "smallint",
    "int16": "smallint",
    "int32": "integer",
    "int64": "bigint",
    "uint8": "integer",
    "uint16": "integer",
    "uint32": "bigint",
    "float32": "real",
    "float64": "double precision",
    "time": "time",
    "timetz": "time with time zone",
    "interval": "interval",
    "uuid": "uuid",
    **dict.fromkeys(("varchar", "json", "blob"), "bytea"),
    **dict.fromkeys(("uint64", "int128", "uint128"), "varchar"),
    **dict.fromkeys(("date", "timestamp", "timestamp_us", "timestamp_s"), "varchar"),
    **dict.fromkeys(("timestamp_ms", "timestamp_ns", "timestamptz"), "varchar"),
    **dict.fromkeys(("struct", "list", "map"), "varchar"),
}

_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")

MAX_NAME_BYTES: Final = 63
MAX_COLUMNS: Final = 1600

# DuckDB writes them bare, and bare they are something else to Postgres.
UNWRITABLE: Final = frozenset(
    {"current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp"}
    | {"current_user", "localtime", "localtimestamp", "session_user", "system_user"}
    | {"cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"}
)


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    type: str
    top_level: bool


async def add(tx: Commit, table_id: int) -> None:
    """For the columns as they are by now in this commit, where DuckDB would have made one. Called again in the same
    commit, it makes the one of before anew. Raises Unsupported for a name that DuckDB cannot write.
    """
    key = {"table_id": table_id}
    state = await (await tx.conn.execute(READ_STATE, key)).fetchone()
    schema, has_one, limit, role, owner = state or ("", False, None, "none", None)
    if limit == "0" and not has_one:
        return
    columns = [_Column(*row) for row in await (await tx.conn.execute(READ_COLUMNS, key)).fetchall()]
    if not all(map(_is_inlined, columns)):
        return
    top = [column for column in columns if column.top_level]
    _check(top)
    name = f"ducklake_inlined_data_{table_id}_{tx.altered_schema_version}"
    parts = {
        "table": sql.Identifier(schema, name),
        "columns": sql.SQL(", ").join(sql.SQL("{} {}").format(_identifier(c.name), _type(c.type)) for c in top),
    }
    if owner is not None:
        await tx.conn.execute(BECOME, {"role": owner})
    for statement in (DROP, CREATE):
        await tx.conn.execute(sql.SQL(statement).format(**parts))
    if owner is not None:
        await tx.conn.execute(BECOME, {"role": role})
    await tx.conn.execute(REGISTER, {**key, "name": name, "schema_version": tx.altered_schema_version})


def _is_inlined(column: _Column) -> bool:
    if column.type not in POSTGRES_TYPES and not _DECIMAL.fullmatch(column.type):
        return False
    fits = folded(column.name) not in SYSTEM_COLUMNS and len(column.name.encode()) <= MAX_NAME_BYTES
    return fits or not column.top_level


def _check(columns: list[_Column]) -> None:
    for column in columns:
        if folded(column.name) in UNWRITABLE:
            reason = "in Postgres, where DuckDB sessions put small inserts, no column can have this name"
            raise Unsupported(f"Column {column.name}: {reason}")
    if len(columns) + len(SYSTEM_COLUMNS) > MAX_COLUMNS:
        reason = f"Postgres, where DuckDB sessions put small inserts, has tables of at most {MAX_COLUMNS}"
        raise Unsupported(f"A table of {len(columns)} columns: {reason}")


def _identifier(name: str) -> sql.Identifier:
    return sql.Identifier(folded(name) if is_bare(name) else name)


def _type(ducklake_type: str) -> sql.Composable:
    if decimal := _DECIMAL.fullmatch(ducklake_type):
        return sql.SQL("numeric({}, {})").format(sql.Literal(int(decimal[1])), sql.Literal(int(decimal[2])))
    return sql.SQL(POSTGRES_TYPES[ducklake_type])
