"""Small questions to the Postgres behind a lake, for `mergus doctor`."""

from typing import Any, Final

from psycopg import Connection

Db = Connection[tuple[Any, ...]]

CLOCK: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"
NEWEST_SNAPSHOT_TIME: Final = """
    SELECT extract(epoch FROM snapshot_time)::float8 FROM ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1
"""
SERVER_VERSION: Final = "SELECT current_setting('server_version_num')::int, current_setting('server_version')"


def clock(conn: Db) -> float:
    return _row(conn, CLOCK)[0]


def newest_snapshot_time(conn: Db) -> float:
    return _row(conn, NEWEST_SNAPSHOT_TIME)[0]


def server_version(conn: Db) -> tuple[int, str]:
    number, text = _row(conn, SERVER_VERSION)
    return number, text


def _row(conn: Db, query: Any) -> tuple[Any, ...]:  # noqa: ANN401
    row = conn.execute(query).fetchone()
    assert row is not None  # noqa: S101  (each of these statements gives a row)
    return row
