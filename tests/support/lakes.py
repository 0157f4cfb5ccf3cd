"""Lakes of a test's own: a database on the suite's Postgres, a prefix in its bucket, real DuckDB sessions.

MERGUS_TEST_ROLES=1 gives every lake the roles of OPERATIONS.md: servers and DuckDB sessions have what they need, and
only what a test does behind their backs is done by a superuser.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
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


def backend_settings() -> Settings:
    if "MERGUS_POSTGRES_DSN" not in os.environ:
        raise RuntimeError("no Postgres and no S3: run the tests with ./scripts/test")
    return Settings()  # pyright: ignore[reportCallIssue]


@contextmanager
def database() -> Iterator[str]:
    """A fresh Postgres database; its DSN."""
    dsn = backend_settings().dsn
    name = f"t_{uuid4().hex[:16]}"
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield dsn.rsplit("/", 1)[0] + f"/{name}"
        finally:
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


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
        """A DuckDB session with its default settings, attached through the ducklake extension."""
        return session.attach(self.of_writers)

    def sql(self, query: str, *args: object) -> list[Row]:
        """Straight to the lake's Postgres."""
        with psycopg.connect(self.superuser_dsn, autocommit=True) as conn:
            path = sql.SQL(", ").join(map(sql.Identifier, (self.settings.annex_schema, self.settings.metadata_schema)))
            conn.execute(sql.SQL("SET search_path = {}").format(path))
            cursor = conn.execute(query.encode(), args or None)
            # not `description`: it is empty for SELECT FROM, too
            answered = cursor.pgresult is not None and cursor.pgresult.status == ExecStatus.TUPLES_OK
            return cursor.fetchall() if answered else []

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
    with _roles() as names, database() as dsn:
        made = TestLake(settings_for(dsn, **changes))
        initialise(made.settings, quiet)
        if with_roles:
            made.sql(script(made.settings, names))
            for name in astuple(names):
                made.sql(f"ALTER ROLE \"{name}\" PASSWORD '{PASSWORD}'")
            made = TestLake(made.as_role(names.server), names)
        yield made


@contextmanager
def _roles() -> Iterator[Roles]:
    """A lake's own, which go when the database is gone that knows them: roles are there in all databases."""
    start = f"r {uuid4().hex[:16]}"
    names = Roles(*(f"{start} {name}" for name in ("owner", "server", "writer", "reader")))
    try:
        yield names
    finally:
        with psycopg.connect(backend_settings().dsn, autocommit=True) as admin:
            for name in map(sql.Identifier, astuple(names)):
                admin.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(name))


def quiet(_: str) -> None:
    pass


def schemas(db: duckdb.DuckDBPyConnection) -> set[str]:
    """What an attached DuckDB session sees."""
    query = "SELECT schema_name FROM information_schema.schemata WHERE catalog_name = 'lake'"
    return {row[0] for row in db.execute(query).fetchall()}
