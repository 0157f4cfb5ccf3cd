"""What we add to the Postgres of a DuckLake, and how it is taken away again.

- our own schema, built by the numbered files in `migrations/`, each in one transaction, never changed once
  released;
- indexes on `ducklake_*` tables, which have none beyond five primary keys. Built CONCURRENTLY in a lake that is in use:
  a large one is adopted without holding up its writers. That waits for transactions that are open, so it is given up
  after a while: everything works without an index, slower, and the next `init` tries again;
- triggers on `ducklake_snapshot`: a new snapshot is told on channel `<our schema>_snapshot`, an expiry raises the
  epoch; one on `ducklake_files_scheduled_for_deletion`, which keeps files that other rows need; and two, on
  `ducklake_snapshot_changes` and `ducklake_data_file`, which refuse a commit that would lose another's delete.

All of it is under one advisory lock, taken by polling: a process that *waited* for the lock inside a statement
would hold a snapshot, for which CREATE INDEX CONCURRENTLY waits in turn, forever.
"""

import hashlib
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, LiteralString

from psycopg import Connection, sql
from psycopg.errors import LockNotAvailable

from mergus.config import Settings
from mergus.errors import SetupError

Progress = Callable[[str], None]
Db = Connection[tuple[Any, ...]]

LOCK_WAIT_SECONDS = 300
INDEX_WAIT_SECONDS = 10

# name, what it waits for, the function of ours that it calls
TRIGGERS: Final[tuple[tuple[LiteralString, LiteralString, LiteralString], ...]] = (
    ("mergus_notify_snapshot", "AFTER INSERT ON ducklake_snapshot FOR EACH ROW", "notify_snapshot"),
    ("mergus_raise_epoch", "AFTER DELETE ON ducklake_snapshot FOR EACH STATEMENT", "raise_epoch"),
    (
        "mergus_keep_shared_files",
        "BEFORE INSERT ON ducklake_files_scheduled_for_deletion FOR EACH ROW",
        "keep_shared_files",
    ),
    ("mergus_tell_conflicts", "BEFORE INSERT ON ducklake_snapshot_changes FOR EACH ROW", "refuse_lost_deletes"),
    (
        "mergus_tell_merge_conflicts",
        "AFTER DELETE ON ducklake_data_file REFERENCING OLD TABLE AS gone FOR EACH STATEMENT",
        "refuse_lost_deletes",
    ),
)

# name, table, expression and condition. Every name begins with `mergus_`: that is how they are found again.
INDEXES: Final[tuple[tuple[LiteralString, LiteralString, LiteralString], ...]] = (
    ("mergus_schema_name", "ducklake_schema", "(schema_name) WHERE end_snapshot IS NULL"),
    (
        "mergus_schema_lower_name",
        "ducklake_schema",
        '(lower(schema_name COLLATE "C")) WHERE end_snapshot IS NULL',
    ),
    ("mergus_table_schema", "ducklake_table", "(schema_id, table_name) WHERE end_snapshot IS NULL"),
    ("mergus_view_schema", "ducklake_view", "(schema_id, view_name) WHERE end_snapshot IS NULL"),
    ("mergus_macro_schema", "ducklake_macro", "(schema_id, macro_name) WHERE end_snapshot IS NULL"),
    ("mergus_column_table", "ducklake_column", "(table_id)"),
    ("mergus_column_tag_table", "ducklake_column_tag", "(table_id)"),
    ("mergus_data_file_path", "ducklake_data_file", "USING hash (path)"),
    ("mergus_data_file_table", "ducklake_data_file", "(table_id, begin_snapshot)"),
    ("mergus_data_file_id", "ducklake_data_file", "(table_id, data_file_id)"),
    ("mergus_data_file_end", "ducklake_data_file", "(table_id, end_snapshot) WHERE end_snapshot IS NOT NULL"),
    ("mergus_data_file_partial", "ducklake_data_file", "(table_id, partial_max) WHERE partial_max IS NOT NULL"),
    ("mergus_data_file_mapping", "ducklake_data_file", "(table_id, mapping_id) WHERE mapping_id IS NOT NULL"),
    ("mergus_delete_file_path", "ducklake_delete_file", "USING hash (path)"),
    ("mergus_delete_file_table", "ducklake_delete_file", "(table_id, begin_snapshot)"),
    ("mergus_delete_file_id", "ducklake_delete_file", "(table_id, delete_file_id)"),
    ("mergus_delete_file_data", "ducklake_delete_file", "(table_id, data_file_id)"),
    ("mergus_delete_file_end", "ducklake_delete_file", "(table_id, end_snapshot) WHERE end_snapshot IS NOT NULL"),
    ("mergus_delete_file_partial", "ducklake_delete_file", "(table_id, partial_max) WHERE partial_max IS NOT NULL"),
    ("mergus_table_id", "ducklake_table", "(table_id)"),
    ("mergus_name_mapping", "ducklake_name_mapping", "(mapping_id)"),
    ("mergus_schema_versions_table", "ducklake_schema_versions", "(table_id)"),
    ("mergus_column_stats_file", "ducklake_file_column_stats", "(table_id, data_file_id)"),
    ("mergus_partition_value_file", "ducklake_file_partition_value", "(table_id, data_file_id)"),
)

CREATE_LEDGER: Final = """
    CREATE TABLE IF NOT EXISTS migration (
        number integer PRIMARY KEY,
        name text NOT NULL,
        checksum text NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT now()
    )
"""
LEDGER_EXISTS: Final = "SELECT to_regclass(quote_ident(%s) || '.migration') IS NOT NULL"
SCHEMA_EXISTS: Final = "SELECT to_regnamespace(quote_ident(%s)) IS NOT NULL"
SCHEMA_IN_USE: Final = "SELECT EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace(quote_ident(%s)))"
OPEN_TRANSACTIONS: Final = """
    SELECT string_agg(pid::text, ', ') FROM pg_stat_activity
    WHERE datname = current_database() AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
      AND xact_start < now() - make_interval(secs => %s)
"""
READ_LEDGER: Final = "SELECT number, name, checksum FROM migration ORDER BY number"
WRITE_LEDGER: Final = "INSERT INTO migration (number, name, checksum) VALUES (%s, %s, %s)"
TRY_LOCK: Final = "SELECT pg_try_advisory_lock(hashtextextended('mergus init ' || %s, 0))"
UNLOCK: Final = "SELECT pg_advisory_unlock(hashtextextended('mergus init ' || %s, 0))"

READ_INDEXES: Final = """
    SELECT c.relname, i.indisvalid
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
    WHERE t.relnamespace = to_regnamespace(quote_ident(%s))
      AND t.relname LIKE 'ducklake\\_%%' AND c.relname LIKE 'mergus\\_%%'
"""
TRIGGER_EXISTS: Final = """
    SELECT EXISTS (SELECT FROM pg_trigger
                   WHERE tgrelid IN (to_regclass('ducklake_snapshot'),
                                     to_regclass('ducklake_snapshot_changes'),
                                     to_regclass('ducklake_data_file'),
                                     to_regclass('ducklake_files_scheduled_for_deletion'))
                     AND tgname = %s AND tgenabled <> 'D')
"""


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrations() -> list[Migration]:
    found: list[Migration] = []
    for file in files("mergus.annex.migrations").iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, file.read_text()))
    return sorted(found, key=lambda m: m.number)


@contextmanager
def exclusive(conn: Db, settings: Settings, progress: Progress) -> Generator[None]:
    """One process at a time sets a lake up."""
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    waiting = False
    while not _one(conn, TRY_LOCK, settings.metadata_schema):
        if time.monotonic() > deadline:
            raise SetupError("another process has been setting this lake up for minutes; look for a stuck one")
        if not waiting:
            progress("another process is setting this lake up; waiting for it")
            waiting = True
        time.sleep(0.1)
    try:
        yield
    finally:
        if not conn.closed:
            conn.execute(UNLOCK, (settings.metadata_schema,))


def pending(conn: Db, settings: Settings) -> list[str]:
    """What `apply` would do, in words; empty when there is nothing to do."""
    todo = [f"migration {m.number:04} {m.name}" for m in _missing_migrations(conn, settings)]
    todo += [f"index {name}" for name, _, _ in _missing_indexes(conn, settings)]
    todo += [f"trigger {name}" for name, _, _ in missing_triggers(conn)]
    return todo


def missing_triggers(conn: Db) -> list[tuple[LiteralString, LiteralString, LiteralString]]:
    return [trigger for trigger in TRIGGERS if not _one(conn, TRIGGER_EXISTS, trigger[0])]


def apply(conn: Db, settings: Settings, progress: Progress, *, in_use: bool) -> None:
    """Brings the annex up to date; call inside `exclusive`. Does nothing, quickly, when it is."""
    if not pending(conn, settings):
        return
    _check_ours(conn, settings)
    annex = sql.Identifier(settings.annex_schema)
    with conn.transaction():
        # IF NOT EXISTS would ask for the right to create one, even if it is there
        if not _one(conn, SCHEMA_EXISTS, settings.annex_schema):
            conn.execute(sql.SQL("CREATE SCHEMA {}").format(annex))
        conn.execute(CREATE_LEDGER)
    for migration in _missing_migrations(conn, settings):
        progress(f"migration {migration.number:04} {migration.name}")
        with conn.transaction():
            conn.execute(migration.text.encode())
            conn.execute(WRITE_LEDGER, (migration.number, migration.name, migration.checksum))
    _build_indexes(conn, settings, progress, in_use=in_use)
    for name, when, function in missing_triggers(conn):
        progress(f"trigger {name}")
        told = channel(settings) if function == "notify_snapshot" else settings.annex_schema
        conn.execute(
            sql.SQL("CREATE OR REPLACE TRIGGER {} {} EXECUTE FUNCTION {}.{}({})").format(
                sql.Identifier(name), sql.SQL(when), annex, sql.Identifier(function), sql.Literal(told)
            )
        )


def _build_indexes(conn: Db, settings: Settings, progress: Progress, *, in_use: bool) -> None:
    lake = sql.Identifier(settings.metadata_schema)
    how = sql.SQL("CREATE INDEX CONCURRENTLY" if in_use else "CREATE INDEX")
    conn.execute("SET statement_timeout = 0")
    conn.execute(sql.SQL("SET lock_timeout = {}").format(sql.Literal(f"{INDEX_WAIT_SECONDS}s")))
    for name, table, what in _missing_indexes(conn, settings):
        progress(f"index {name} on {table}")
        # one that failed half way is there but not valid, and IF NOT EXISTS would leave it so
        drop = sql.SQL("DROP INDEX IF EXISTS {}.{}").format(lake, sql.Identifier(name))
        create = sql.SQL("{} {} ON {}.{} {}").format(
            how, sql.Identifier(name), lake, sql.Identifier(table), sql.SQL(what)
        )
        try:
            conn.execute(drop)
            conn.execute(create)
        except LockNotAvailable:
            pids = _one(conn, OPEN_TRANSACTIONS, INDEX_WAIT_SECONDS) or "unknown"
            progress(
                f"not built: it waits for transactions that are open (Postgres processes {pids}). "
                "Serving works without it; run `mergus init` again when they have ended"
            )
            return


def _check_ours(conn: Db, settings: Settings) -> None:
    """Refuses a schema of our name that somebody else fills."""
    schema = settings.annex_schema
    if _one(conn, SCHEMA_IN_USE, schema) and not _one(conn, LEDGER_EXISTS, schema):
        raise SetupError(
            f"Postgres schema {schema} holds something that is not Mergus's; rename it, or keep the lake in another "
            "database or METADATA_SCHEMA"
        )


def remove(conn: Db, settings: Settings, progress: Progress) -> None:
    """Takes everything of ours away: what is left is a plain DuckLake. Call inside `exclusive`."""
    _check_ours(conn, settings)
    for name in sorted(_present_indexes(conn, settings)):
        progress(f"index {name}")
        lake = sql.Identifier(settings.metadata_schema)
        conn.execute(sql.SQL("DROP INDEX IF EXISTS {}.{}").format(lake, sql.Identifier(name)))
    progress(f"triggers and schema {settings.annex_schema}")
    with conn.transaction():
        for name, when, _ in TRIGGERS:
            table = sql.Identifier(when.split(" ON ")[1].split()[0])
            conn.execute(sql.SQL("DROP TRIGGER IF EXISTS {} ON {}").format(sql.Identifier(name), table))
        conn.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(settings.annex_schema)))


def channel(settings: Settings) -> str:
    """The NOTIFY channel on which every new snapshot id of this lake is told."""
    return f"{settings.annex_schema}_snapshot"


def _missing_migrations(conn: Db, settings: Settings) -> list[Migration]:
    known = migrations()
    applied = conn.execute(READ_LEDGER).fetchall() if _one(conn, LEDGER_EXISTS, settings.annex_schema) else []
    by_number = {m.number: m for m in known}
    for number, name, checksum in applied:
        if number not in by_number:
            raise SetupError(f"this lake was set up by a newer Mergus (migration {number:04} {name}); use that version")
        if by_number[number].checksum != checksum:
            raise SetupError(f"migration {number:04} {name} is not the one that this lake was set up with")
    done = {row[0] for row in applied}
    return [m for m in known if m.number not in done]


def _present_indexes(conn: Db, settings: Settings) -> dict[str, bool]:
    return dict(conn.execute(READ_INDEXES, (settings.metadata_schema,)).fetchall())  # pyright: ignore[reportArgumentType,reportCallIssue]


def _missing_indexes(conn: Db, settings: Settings) -> list[tuple[LiteralString, LiteralString, LiteralString]]:
    present = _present_indexes(conn, settings)
    return [index for index in INDEXES if not present.get(index[0])]


def _one(conn: Db, query: Any, *args: object) -> Any:  # noqa: ANN401
    row = conn.execute(query, args).fetchone()
    return row[0] if row else None
