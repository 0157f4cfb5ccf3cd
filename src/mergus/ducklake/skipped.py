"""Numbers that are left out after a restore.

A lake that is put back to a backup gives its next snapshots, tables and files numbers that others had in the future
that is lost. Whoever has seen those takes the one for the other: an Iceberg client that deletes or overwrites commits
on top of a snapshot whose rows it has never seen, and takes them away; a DuckDB session goes on with the columns that
it knows by the number of the schema. So an empty snapshot comes first, with every counter beyond what the lost future
can have used.

It leaves a gap, into which a transaction that began before would commit without being checked (H30): so it is made only
while nobody else is connected to the database.
"""

from dataclasses import asdict, replace
from typing import Any, Final

from psycopg import Connection

from mergus.ducklake.commit import GIVE_WAY_SECONDS, INSERT_CHANGES, INSERT_SNAPSHOT, LOCK, READ_HEAD, Head
from mergus.ducklake.metadata import SUPPORTED_VERSION
from mergus.errors import SetupError

MESSAGE: Final = "numbers up to this one may have been used before a restore"

# not by backend_type, which one who is no superuser is not told of others; workers of Postgres's own have no user
OTHERS: Final = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND usename IS NOT NULL AND pid <> pg_backend_pid()
"""


def skip(conn: Connection[tuple[Any, ...]], count: int) -> int:
    """Leaves out so many of each kind of number; the id of the empty snapshot. Call inside a transaction."""
    conn.execute(LOCK)
    others = conn.execute(OTHERS).fetchone()
    if others is None or others[0]:
        raise SetupError(
            "others are connected to the lake's database: stop the servers, end all DuckDB sessions, and try again. "
            "With --skip 0 no numbers are left out, and they may stay"
        )
    row = conn.execute(READ_HEAD, {"give_way": GIVE_WAY_SECONDS}).fetchone()
    if row is None or row[4] != SUPPORTED_VERSION:
        raise SetupError(f"the DuckLake catalog is not of version {SUPPORTED_VERSION}: nothing is written to it")
    head = Head(*row[:4])
    made = replace(
        head,
        snapshot_id=head.snapshot_id + count,
        schema_version=head.schema_version + count,
        next_catalog_id=head.next_catalog_id + count,
        next_file_id=head.next_file_id + count,
    )
    told = {"changes_made": "", "author": "mergus", "message": MESSAGE, "extra_info": None}
    conn.execute(INSERT_SNAPSHOT, {**asdict(made), "head": head.snapshot_id})
    conn.execute(INSERT_CHANGES, {**asdict(made), **told})
    return made.snapshot_id
