"""Lakes of a test's own: a database on the suite's Postgres, a prefix in its bucket, real DuckDB sessions."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import duckdb
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.pq import ExecStatus
from pydantic import SecretStr

from mergus.config import Settings
from mergus.ducklake import session
from mergus.setup import initialise

Row = tuple[Any, ...]


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
    """As the suite's backends, but on another database and with data of its own."""
    fresh = {"postgres_dsn": SecretStr(dsn), "data_path": f"s3://mergus/{uuid4().hex}/data/"}
    return backend_settings().model_copy(update={**fresh, **changes})


@dataclass
class TestLake:
    settings: Settings

    __test__ = False

    def duckdb(self) -> duckdb.DuckDBPyConnection:
        """A DuckDB session with its default settings, attached through the ducklake extension."""
        return session.attach(self.settings)

    def sql(self, query: str, *args: object) -> list[Row]:
        """Straight to the lake's Postgres."""
        with psycopg.connect(make_conninfo(self.settings.dsn), autocommit=True) as conn:
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


@contextmanager
def lake(**changes: object) -> Iterator[TestLake]:
    """A set-up lake that goes away with its database."""
    with database() as dsn:
        settings = settings_for(dsn, **changes)
        initialise(settings, quiet)
        yield TestLake(settings)


def quiet(_: str) -> None:
    pass


def schemas(db: duckdb.DuckDBPyConnection) -> set[str]:
    """What an attached DuckDB session sees."""
    query = "SELECT schema_name FROM information_schema.schemata WHERE catalog_name = 'lake'"
    return {row[0] for row in db.execute(query).fetchall()}
