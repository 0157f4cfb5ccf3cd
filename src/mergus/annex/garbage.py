"""Rows of `garbage`: objects that nobody needs any more, and since when; and the turn of who deletes them.

Triggers fill it when a chain gives way to another or goes, and when a version of the metadata goes; commits of
clients, with what they leave behind; and `retire`, with what no transaction of ours notices: snapshots that DuckLake
has expired, and tables that it has forgotten.

What is to be deleted is doomed first, in the transaction that raises the table's turn (`doom`). From then on no chain
is made from it, and every chain that is written waits for who holds the turn (`hold`), or has been written before, and
is among those that are looked at then (`kept_lists`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, LiteralString
from uuid import UUID

from psycopg import sql

from mergus.ducklake.connect import Conn
from mergus.ducklake.listed_paths import among

Kind = Literal["list", "metadata", "hint", "client"]

ADD: Final = """
    INSERT INTO garbage (table_id, path, kind)
    SELECT %(table_id)s, path, 'client' FROM unnest(%(paths)s::text[]) AS given(path)
    ON CONFLICT (table_id, path) DO UPDATE SET since = excluded.since
"""

# So many rows at a time: one statement must not take too long.
AT_ONCE: Final = 10_000
RETIRE_EXPIRED: Final = """
    DELETE FROM chain WHERE ctid = ANY(ARRAY(
        SELECT c.ctid FROM chain c
        WHERE NOT EXISTS (SELECT FROM ducklake_snapshot s WHERE s.snapshot_id = c.snapshot_id) LIMIT %(limit)s))
"""
RETIRE_CHAINS: Final = """
    DELETE FROM chain WHERE ctid = ANY(ARRAY(
        SELECT c.ctid FROM chain c
        WHERE NOT EXISTS (SELECT FROM ducklake_table t WHERE t.table_id = c.table_id) LIMIT %(limit)s))
"""
# As many as the newest one lists in its log, which is what metadata_file.py reads, stay.
RETIRE_VERSIONS: Final = """
    DELETE FROM metadata_file WHERE ctid = ANY(ARRAY(
        SELECT m.ctid FROM metadata_file m
        JOIN (SELECT table_id, max(version) AS newest FROM metadata_file GROUP BY table_id) AS last USING (table_id)
        LEFT JOIN table_property p ON p.table_id = m.table_id AND p.key = %(property)s AND p.value ~ '^[0-9]{1,9}$'
        WHERE m.version < last.newest - greatest(1, least(%(most)s, coalesce(p.value::integer, %(most)s)))
        LIMIT %(limit)s))
"""
RETIRE_METADATA: Final = """
    WITH gone AS (
        DELETE FROM metadata_file WHERE ctid = ANY(ARRAY(
            SELECT m.ctid FROM metadata_file m
            WHERE NOT EXISTS (SELECT FROM ducklake_table t WHERE t.table_id = m.table_id) LIMIT %(limit)s))
        RETURNING table_id, location
    )
    INSERT INTO garbage (table_id, path, kind)
    SELECT DISTINCT table_id, regexp_replace(location, '[^/]+$', 'version-hint.text'), 'hint' FROM gone
    ON CONFLICT (table_id, path) DO UPDATE SET since = excluded.since
"""
# What is known of a table that DuckLake has forgotten.
FORGET_TABLES: Final = """
    DELETE FROM {rows} r WHERE NOT EXISTS (SELECT FROM ducklake_table t WHERE t.table_id = r.table_id)
"""
ROWS_OF_TABLES: Final[tuple[LiteralString, ...]] = (
    *("table_property", "table_schema", "table_arrangement", "table_spec", "table_partitioning", "table_sort_order"),
    *("table_default_order", "table_ref", "removed_snapshot", "table_statistics", "table_location", "table_report"),
    *("listener_failure", "chain_replaced", "committed_once"),
)
FORGET_TURNS: Final = """
    DELETE FROM chain_turn r WHERE NOT sweeping
      AND NOT EXISTS (SELECT FROM ducklake_table t WHERE t.table_id = r.table_id)
      AND NOT EXISTS (SELECT FROM garbage g WHERE g.table_id = r.table_id)
"""

# A metadata file is in the directory of its table, which may be all that is known of that.
REGISTER: Final = """
    INSERT INTO table_directory (table_uuid, table_id)
    SELECT table_uuid, table_id FROM ducklake_table
    UNION
    SELECT substring(location FROM '/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/metadata/[^/]+$')::uuid, table_id
    FROM metadata_file WHERE location ~ '/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/metadata/[^/]+$'
    ON CONFLICT DO NOTHING
"""
# Before what is known of a table is forgotten with it.
REGISTER_CHOSEN: Final = """
    INSERT INTO chosen_directory (table_uuid, location)
    SELECT t.table_uuid, l.location FROM table_location l JOIN ducklake_table t USING (table_id)
    ON CONFLICT DO NOTHING
"""
FORGET_CHOSEN: Final = """
    DELETE FROM chosen_directory c WHERE table_uuid = %(uuid)s
      AND NOT EXISTS (SELECT FROM table_directory d WHERE d.table_uuid = c.table_uuid)
"""
UNREGISTER: Final = """
    DELETE FROM table_directory WHERE table_uuid = %(uuid)s
      AND NOT EXISTS (SELECT FROM ducklake_table t WHERE t.table_uuid = %(uuid)s)
      AND NOT EXISTS (SELECT FROM staged_table s WHERE s.table_uuid = %(uuid)s)
"""
DIRECTORIES: Final = """
    SELECT d.table_uuid, array_remove(array_agg(d.table_id), -1),
           EXISTS (SELECT FROM ducklake_table t WHERE t.table_uuid = d.table_uuid),
           EXISTS (SELECT FROM staged_table s WHERE s.table_uuid = d.table_uuid),
           ARRAY(SELECT location FROM chosen_directory c WHERE c.table_uuid = d.table_uuid ORDER BY 1)
    FROM table_directory d
    WHERE d.table_uuid > %(after)s GROUP BY d.table_uuid ORDER BY d.table_uuid LIMIT %(limit)s
"""
SHARING: Final = """
    SELECT table_id FROM table_directory WHERE table_uuid = ANY(%(uuids)s) AND table_id >= 0
    UNION SELECT table_id FROM ducklake_table WHERE table_uuid = ANY(%(uuids)s)
"""

DUE: Final = """
    SELECT table_id FROM garbage WHERE since <= now() - %(grace)s
    GROUP BY table_id ORDER BY min(since), table_id LIMIT %(limit)s
"""
READ: Final = """
    SELECT path, kind, since FROM garbage WHERE table_id = %(table_id)s AND since <= now() - %(grace)s
    ORDER BY since, path LIMIT %(limit)s
"""
REMOVE: Final = """
    DELETE FROM garbage WHERE table_id = %(table_id)s AND path = ANY(%(paths)s) AND (doomed OR kind <> 'list')
"""

# What is needed all the same, whatever was noted.
STILL_METADATA: Final = """
    SELECT version, location FROM metadata_file WHERE table_id = ANY(%(table_ids)s)
"""
STATISTICS: Final = """
    SELECT content::jsonb ->> 'statistics-path' FROM table_statistics
    WHERE content::jsonb ->> 'statistics-path' = ANY(%(spellings)s)
"""
NOTED: Final = "SELECT path FROM garbage WHERE path = ANY(%(spellings)s)"

KEPT_LISTS: Final = """
    SELECT manifest_list FROM chain WHERE table_id = ANY(%(table_ids)s)
    UNION SELECT path FROM garbage
    WHERE table_id = ANY(%(table_ids)s) AND kind = 'list' AND (NOT doomed OR %(doomed)s) AND path <> ALL(%(except_for)s)
"""
LIVE_LISTS: Final = "SELECT manifest_list FROM chain WHERE table_id = ANY(%(table_ids)s)"

SWEEP: Final = """
    INSERT INTO chain_turn AS t (table_id, sweeps, sweeping)
    SELECT id, 1, true FROM unnest(%(table_ids)s::bigint[]) AS id ORDER BY id
    ON CONFLICT (table_id) DO UPDATE SET sweeps = t.sweeps + 1, sweeping = true
"""
DOOM: Final = """
    UPDATE garbage SET doomed = true
    WHERE table_id = ANY(%(table_ids)s) AND path = ANY(%(paths)s) AND kind = 'list' AND since <= now() - %(grace)s
"""
HOLD: Final = """
    SELECT sweeping FROM chain_turn WHERE table_id = ANY(%(table_ids)s) ORDER BY table_id FOR UPDATE
"""
# Longer than a store is waited for, so that whoever holds the turn has it until it has heard; and not for ever, since
# chains of the table wait for it.
PATIENCE: Final = "SET LOCAL idle_in_transaction_session_timeout = '120s'"
END: Final = "UPDATE chain_turn SET sweeps = sweeps + 1, sweeping = false WHERE table_id = ANY(%(table_ids)s)"
# Of those who did not come to their end. Who is at work notices, and begins again.
END_ALL: Final = """
    UPDATE chain_turn SET sweeps = sweeps + 1, sweeping = false WHERE table_id IN (
        SELECT table_id FROM chain_turn WHERE sweeping FOR UPDATE SKIP LOCKED)
"""
NOW: Final = "SELECT now()"


@dataclass(frozen=True, slots=True)
class Garbage:
    path: str
    kind: Kind
    since: datetime


@dataclass(frozen=True, slots=True)
class Directory:
    """Of all tables that have it or had it; whether DuckLake knows one of them, whether it is promised, and the
    locations that clients chose for them."""

    uuid: UUID
    table_ids: Sequence[int]
    known: bool
    staged: bool
    chosen: Sequence[str]


async def add(conn: Conn, table_id: int, paths: Collection[str]) -> None:
    """What a client's commit leaves behind."""
    await conn.execute(ADD, {"table_id": table_id, "paths": list(paths)})


async def retire(conn: Conn, previous_versions: str, most_versions: int) -> None:
    """Notes what only a look at DuckLake's rows tells. The property says how many versions of the metadata stay."""
    await register(conn)
    key = {"limit": AT_ONCE, "property": previous_versions, "most": most_versions}
    for query in (RETIRE_EXPIRED, RETIRE_CHAINS, RETIRE_VERSIONS):
        while (await conn.execute(query, key)).rowcount == AT_ONCE:
            pass
    while (await conn.execute(RETIRE_METADATA, key)).rowcount > 0:
        pass
    for rows in ROWS_OF_TABLES:
        await conn.execute(sql.SQL(FORGET_TABLES).format(rows=sql.Identifier(rows)))
    await conn.execute(FORGET_TURNS)
    await conn.execute(END_ALL)


async def tables_due(conn: Conn, grace: timedelta, limit: int) -> list[int]:
    """Those with something whose grace is over, by how long it has been waiting."""
    found = await conn.execute(DUE, {"grace": grace, "limit": limit})
    return [row[0] for row in await found.fetchall()]


async def read(conn: Conn, table_id: int, grace: timedelta, limit: int) -> list[Garbage]:
    found = await conn.execute(READ, {"table_id": table_id, "grace": grace, "limit": limit})
    return [Garbage(*row) for row in await found.fetchall()]


async def remove(conn: Conn, table_id: int, paths: Collection[str]) -> None:
    """They are deleted, or needed again; but a list that has been retired again since stays."""
    await conn.execute(REMOVE, {"table_id": table_id, "paths": list(paths)})


async def metadata_files(conn: Conn, table_ids: Sequence[int]) -> dict[str, int]:
    """The versions that are there, by their locations."""
    found = await conn.execute(STILL_METADATA, {"table_ids": list(table_ids)})
    return {location: version for version, location in await found.fetchall()}


async def statistics_among(conn: Conn, paths: Collection[str]) -> set[str]:
    return await among(conn, STATISTICS, paths)


async def noted_among(conn: Conn, paths: Collection[str]) -> set[str]:
    return await among(conn, NOTED, paths)


async def kept_lists(
    conn: Conn, table_ids: Sequence[int], *, doomed: bool = False, except_for: Collection[str] = ()
) -> set[str]:
    """The manifest lists of chains, and of those that were chains and are in their grace; with `doomed` all of them."""
    key = {"table_ids": list(table_ids), "doomed": doomed, "except_for": list(except_for)}
    return {row[0] for row in await (await conn.execute(KEPT_LISTS, key)).fetchall()}


async def live_lists(conn: Conn, table_ids: Sequence[int]) -> set[str]:
    return {row[0] for row in await (await conn.execute(LIVE_LISTS, {"table_ids": list(table_ids)})).fetchall()}


async def doom(conn: Conn, table_ids: Sequence[int], paths: Collection[str], grace: timedelta) -> None:
    """Begins to delete objects of a table: those of these lists that are to go. Nothing may be deleted before this is
    committed."""
    key = {"table_ids": list(table_ids), "paths": list(paths), "grace": grace}
    async with conn.transaction():
        await conn.execute(SWEEP, key)
        await conn.execute(DOOM, key)


async def hold(conn: Conn, table_ids: Sequence[int]) -> bool:
    """Nobody writes a chain of the table until this transaction ends; whether those who do know that some of it is
    deleted."""
    await conn.execute(PATIENCE)
    rows = await (await conn.execute(HOLD, {"table_ids": list(table_ids)})).fetchall()
    return len(rows) == len(set(table_ids)) and all(sweeping for (sweeping,) in rows)


async def end(conn: Conn, table_ids: Sequence[int]) -> None:
    await conn.execute(END, {"table_ids": list(table_ids)})


async def directories(conn: Conn, after: UUID, limit: int) -> list[Directory]:
    found = await conn.execute(DIRECTORIES, {"after": after, "limit": limit})
    return [Directory(*row) for row in await found.fetchall()]


async def sharing(conn: Conn, uuids: Collection[UUID]) -> set[int]:
    """The tables that have, or had, the directories of these uuids."""
    return {row[0] for row in await (await conn.execute(SHARING, {"uuids": list(uuids)})).fetchall()}


async def register(conn: Conn) -> None:
    """The directories of tables that are there."""
    await conn.execute(REGISTER)
    await conn.execute(REGISTER_CHOSEN)


async def unregister(conn: Conn, uuid: UUID) -> None:
    """Nothing is left in it; unless it is a table's all the same."""
    await conn.execute(UNREGISTER, {"uuid": uuid})
    await conn.execute(FORGET_CHOSEN, {"uuid": uuid})


async def now(conn: Conn) -> datetime:
    row = await (await conn.execute(NOW)).fetchone()
    assert row is not None  # noqa: S101  (it has the time)
    return row[0]
