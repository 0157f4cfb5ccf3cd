"""Lakes of a test's own: a database on the suite's Postgres, a prefix in its bucket, real DuckDB sessions.

MERGUS_TEST_ROLES=1 gives every lake the roles of OPERATIONS.md: servers and DuckDB sessions have what they need, and
only what a test does behind their backs is done by a superuser.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import cache
from typing import Any
from uuid import uuid4

import duckdb
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus
from pydantic import SecretStr

from mergus.annex.roles import Roles, script
from mergus.config import Settings
from mergus.ducklake import session
from mergus.setup import initialise

Row = tuple[Any, ...]

WITH_ROLES = os.environ.get("MERGUS_TEST_ROLES", "0") != "0"
PASSWORD = "of-every-role"
TEMPLATE = "mergus_test_template"
# settings that decide what the set-up of a lake writes
SET_UP_WITH = {"data_path", "warehouse", "metadata_schema"}


def backend_settings() -> Settings:
    if "MERGUS_POSTGRES_DSN" not in os.environ:
        raise RuntimeError("no Postgres and no S3: run the tests with ./scripts/test")
    return Settings()  # pyright: ignore[reportCallIssue]


@contextmanager
def database(template: str = "template1") -> Iterator[str]:
    """A new Postgres database, copied from a template; its DSN."""
    dsn = backend_settings().dsn
    name = f"t_{uuid4().hex[:16]}"
    with psycopg.connect(dsn, autocommit=True) as admin:
        # files are copied faster than they are written to the log, block by block
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
        admin.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
        try:
            yield _dsn_of(name)
        finally:
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _dsn_of(database: str) -> str:
    return backend_settings().dsn.rsplit("/", 1)[0] + f"/{database}"


@cache
def _template() -> str:
    """The database that lakes are copied from; whichever process of the suite comes first sets it up.

    A copy takes a tenth of the time of a set-up, which creates 50 tables and 40 indexes through DuckDB and migrations.
    """
    with psycopg.connect(backend_settings().dsn, autocommit=True) as admin:
        admin.execute("SELECT pg_advisory_lock(hashtext('template of the test lakes'))")
        if admin.execute("SELECT FROM pg_database WHERE datname = %s", (TEMPLATE,)).fetchone() is None:
            draft = f"{TEMPLATE}_{uuid4().hex[:16]}"
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(draft)))
            initialise(settings_for(_dsn_of(draft)), quiet)
            # under its own name only when it is complete
            rename = sql.SQL("ALTER DATABASE {} RENAME TO {}")
            admin.execute(rename.format(sql.Identifier(draft), sql.Identifier(TEMPLATE)))
    return TEMPLATE


def settings_for(dsn: str, **changes: object) -> Settings:
    """As the suite's backends, but on another database and with data of its own. No keys are vended unless a test asks
    for it (`support.vended`): most are about something else, and clients ask for keys whether they need them or not."""
    fresh = {"postgres_dsn": SecretStr(dsn), "data_path": f"s3://mergus/{uuid4().hex}/data/", "sts_role_arn": None}
    return backend_settings().model_copy(update={**fresh, **changes})


@dataclass
class TestLake:
    """`settings` are a server's."""

    settings: Settings
    # None if everything is done by a superuser
    roles: Roles | None = None

    __test__ = False

    def as_role(self, role: str) -> Settings:
        dsn = make_conninfo(self.settings.dsn, user=role, password=PASSWORD)
        return self.settings.model_copy(update={"postgres_dsn": SecretStr(dsn)})

    @property
    def of_writers(self) -> Settings:
        """Of DuckDB sessions."""
        return self.settings if self.roles is None else self.as_role(self.roles.writer)

    @property
    def superuser_dsn(self) -> str:
        if self.roles is None:
            return self.settings.dsn
        given = conninfo_to_dict(backend_settings().dsn)
        return make_conninfo(self.settings.dsn, user=given["user"], password=given.get("password"))

    def duckdb(self) -> duckdb.DuckDBPyConnection:
        """A DuckDB session, attached through the ducklake extension."""
        return one_thread(session.attach(self.of_writers))

    def sql(self, query: str, *args: object) -> list[Row]:
        """Straight to the lake's Postgres."""
        with psycopg.connect(self.superuser_dsn, autocommit=True) as conn:
            path = sql.SQL(", ").join(map(sql.Identifier, (self.settings.annex_schema, self.settings.metadata_schema)))
            conn.execute(sql.SQL("SET search_path = {}").format(path))
            cursor = conn.execute(query.encode(), args or None)
            # not `description`: it is empty for SELECT FROM, too
            answered = cursor.pgresult is not None and cursor.pgresult.status == ExecStatus.TUPLES_OK
            return cursor.fetchall() if answered else []

    def become_another(self, data_path: str | None) -> None:
        """Gives a copy of the template what no two lakes share: where data goes, a key, the time of set-up."""
        query = """
            WITH place AS (UPDATE ducklake_metadata SET value = %s WHERE key = 'data_path'),
                 key AS (UPDATE catalog SET token_key = uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())),
                 time AS (UPDATE ducklake_snapshot SET snapshot_time = now())
            UPDATE ducklake_schema SET schema_uuid = gen_random_uuid()
        """
        self.sql(query, data_path)

    def snapshots(self) -> list[Row]:
        """(id, schema_version, next_catalog_id, next_file_id, changes_made), oldest first."""
        return self.sql(
            "SELECT s.snapshot_id, schema_version, next_catalog_id, next_file_id, changes_made "
            "FROM ducklake_snapshot s JOIN ducklake_snapshot_changes c ON c.snapshot_id = s.snapshot_id ORDER BY 1"
        )

    def sound_snapshots(self) -> list[Row]:
        """The same, after making sure that none is missing and none is without its changes."""
        snapshots = self.snapshots()
        assert [s[0] for s in snapshots] == list(range(len(snapshots)))
        assert self.sql("SELECT count(*) FROM ducklake_snapshot") == [(len(snapshots),)]
        return snapshots


def plain_lake(dsn: str, **changes: object) -> Settings:
    """Of a lake that DuckDB alone has made."""
    settings = settings_for(dsn, **changes)
    session.attach(settings, settings.data_path).close()
    return settings


@contextmanager
def lake(with_roles: bool = WITH_ROLES, /, **changes: Any) -> Iterator[TestLake]:
    """A set-up lake that goes away with its database."""
    # DuckDB spells the path of a local directory in its own way, and schemas of other names are set up anew
    is_copy = not changes.keys() & SET_UP_WITH
    with _roles(with_roles) as names, database(_template() if is_copy else "template1") as dsn:
        made = TestLake(settings_for(dsn, **changes))
        if is_copy:
            made.become_another(made.settings.data_path)
        else:
            initialise(made.settings, quiet)
        if names is not None:
            made.sql(script(made.settings, names))
            for name in astuple(names):
                made.sql(f"ALTER ROLE \"{name}\" PASSWORD '{PASSWORD}'")
            made = TestLake(made.as_role(names.server), names)
        yield made


@contextmanager
def _roles(wanted: bool) -> Iterator[Roles | None]:
    """A lake's own, which go when the database is gone that knows them: roles are there in all databases."""
    if not wanted:
        yield None
        return
    start = f"r {uuid4().hex[:16]}"
    names = Roles(*(f"{start} {name}" for name in ("owner", "server", "writer", "reader")))
    try:
        yield names
    finally:
        with psycopg.connect(backend_settings().dsn, autocommit=True) as admin:
            for name in map(sql.Identifier, astuple(names)):
                admin.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(name))


def one_thread(db: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """The session with one thread: threads that wait for a share of a few rows cost more than the query."""
    db.execute("SET threads = 1")
    return db


def quiet(_: str) -> None:
    pass


def schemas(db: duckdb.DuckDBPyConnection) -> set[str]:
    """What an attached DuckDB session sees."""
    query = "SELECT schema_name FROM information_schema.schemata WHERE catalog_name = 'lake'"
    return {row[0] for row in db.execute(query).fetchall()}
