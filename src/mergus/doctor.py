"""`mergus doctor`: looks at everything a server needs, and says what to do about what is wrong."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import uuid4

import duckdb
import psycopg

from mergus.annex import listener, migrate, roles
from mergus.config import Settings
from mergus.ducklake import session
from mergus.ducklake.connect import connect, dedicated
from mergus.ducklake.inspect import clock, newest_snapshot_time, server_version
from mergus.ducklake.metadata import Metadata, read_metadata
from mergus.errors import MergusError, Unsupported
from mergus.materialise.layout import root_beside
from mergus.storage.objects import Objects
from mergus.storage.signing import Signing
from mergus.storage.vending import Vending

MIN_POSTGRES = 14
MAX_SKEW_SECONDS = 2.0
MOST_FAILURES = 1000
MOST_LACKING = 3


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    ok: bool
    detail: str
    remedy: str = ""


def examine(settings: Settings) -> Iterator[Finding]:
    """One finding at a time, so that a slow check does not hide the others."""
    yield _guarded("extensions", _extensions, "Reinstall with the versions of requirements.lock.")
    postgres = _guarded("postgres", lambda: _postgres(settings), "Check MERGUS_POSTGRES_DSN and the server.")
    yield postgres
    if not postgres.ok:
        return
    yield _guarded("clock", lambda: _clock(settings), "Keep this machine and Postgres's in step (NTP).")
    try:
        with connect(settings) as conn:
            metadata = read_metadata(conn, settings.metadata_schema)
    except psycopg.Error as e:
        yield Finding(
            "ducklake", False, f"its tables cannot be read: {e}", "Grant the rights that OPERATIONS.md names."
        )
        return
    if metadata is None:
        where = f"there is no DuckLake in schema {settings.metadata_schema} of this Postgres"
        yield Finding("ducklake", False, where, "Run `mergus init`, or set MERGUS_METADATA_SCHEMA.")
        return
    if metadata.trouble:
        yield Finding("ducklake", False, metadata.trouble, "See the message; nothing is served until then.")
        return
    yield Finding("ducklake", True, f"version {metadata.version}, data in {metadata.data_path}")
    yield _guarded("history", lambda: _history(settings), "Commits keep that time until clocks pass it; use NTP.")
    yield _guarded("annex", lambda: _annex(settings), "Run `mergus init`.")
    yield _guarded("role", lambda: _role(settings), "Have an administrator run what `mergus roles` prints.")
    yield _guarded("trigger", lambda: _trigger(settings), "Run `mergus init`: it makes the trigger again.")
    yield _guarded(
        "listener",
        lambda: asyncio.run(_listener(settings)),
        "GET /v1/{prefix}/admin/listener of a server names the tables and why; see OPERATIONS.md.",
    )
    yield _guarded(
        "storage",
        lambda: asyncio.run(_storage(settings, metadata)),
        "Check MERGUS_S3_ENDPOINT, the keys, that the bucket exists, and that they may write to it.",
    )
    yield _guarded(
        "credentials",
        lambda: asyncio.run(_credentials(settings, metadata)),
        'See "Credentials for objects" in OPERATIONS.md; until then clients need keys of their own.',
    )
    yield _guarded("duckdb", lambda: _attach(settings), "See the message of DuckDB.")


def _guarded(name: str, check: Callable[[], str], remedy: str) -> Finding:
    try:
        return Finding(name, True, check())
    except MergusError as e:
        return Finding(name, False, e.message, remedy)
    except Exception as e:
        return Finding(name, False, f"{type(e).__name__}: {e}", remedy)


class _Wrong(MergusError):
    pass


def _extensions() -> str:
    for name in session.EXTENSIONS:
        session.extension_file(name)
    return f"duckdb {duckdb.__version__} with {', '.join(session.EXTENSIONS)}"


def _postgres(settings: Settings) -> str:
    with connect(settings) as conn:
        number, text = server_version(conn)
    if number < MIN_POSTGRES * 10_000:
        raise _Wrong(f"Postgres {text} is too old; {MIN_POSTGRES} or newer is needed")
    return f"version {text}"


def _clock(settings: Settings) -> str:
    with connect(settings) as conn:
        before = time.time()
        there = clock(conn)
        here = (before + time.time()) / 2
    skew = there - here
    if abs(skew) > MAX_SKEW_SECONDS:
        raise _Wrong(f"Postgres's clock is {skew:+.1f} s off this machine's")
    return f"within {abs(skew):.2f} s of Postgres's"


def _history(settings: Settings) -> str:
    with connect(settings) as conn:
        ahead = newest_snapshot_time(conn) - clock(conn)
    if ahead > MAX_SKEW_SECONDS:
        raise _Wrong(f"the newest snapshot is {ahead:.0f} s in the future: a clock was set back")
    return f"the newest snapshot is {-ahead:.0f} s old"


def _annex(settings: Settings) -> str:
    with connect(settings) as conn:
        todo = migrate.pending(conn, settings)
    if todo:
        raise _Wrong(f"not up to date: {', '.join(todo)}")
    return f"schema {settings.annex_schema} is up to date"


def _role(settings: Settings) -> str:
    """One that may do more than a server needs works, and is told."""
    with connect(settings) as conn:
        role = roles.current(conn, settings)
    if role.lacks:
        more = f", and {len(role.lacks) - MOST_LACKING} more" if len(role.lacks) > MOST_LACKING else ""
        raise _Wrong(f"{role.name} lacks {'; '.join(role.lacks[:MOST_LACKING])}{more}")
    if role.is_superuser:
        return f"{role.name} is a superuser: more than a server needs (`mergus roles`)"
    return f"{role.name} owns the lake: for `init`" if role.owns_the_lake else f"{role.name} has what a server needs"


def _trigger(settings: Settings) -> str:
    with connect(settings) as conn:
        if missing := [name for name, _, _ in migrate.missing_triggers(conn)]:
            raise _Wrong(f"commits are not announced, or files not kept: missing or disabled: {', '.join(missing)}")
    return f"commits are announced on channel {migrate.channel(settings)}"


async def _listener(settings: Settings) -> str:
    async with dedicated(settings, "mergus doctor") as conn, conn.transaction():
        status = await listener.status(conn, MOST_FAILURES)
    leads = f"{status.leader} leads" if status.is_led else "nobody leads: what is asked for is made then"
    broken = [f for f in status.failing if f.kind != Unsupported.type]
    if broken:
        raise _Wrong(f"{len(broken)} tables cannot be put on storage; {leads}")
    refused = f"; {len(status.failing)} tables cannot be shown as Iceberg" if status.failing else ""
    return f"{leads}; {status.snapshots_behind} snapshots behind{refused}"


async def _storage(settings: Settings, metadata: Metadata) -> str:
    """Writes, reads, conditionally writes and deletes one object beside the data."""
    objects = Objects(settings)
    probe = metadata.location / f"mergus-doctor-{uuid4()}"
    await objects.put(probe, b"mergus")
    try:
        if await objects.get(probe) != b"mergus":
            raise _Wrong("an object that was just written reads back differently")
        conditional = not await objects.put_new(probe, b"other")
    finally:
        await objects.delete(probe)
    return f"{metadata.location.directory} is writable" + (
        "" if conditional else " (conditional writes are ignored by this store: content-named objects are used)"
    )


async def _credentials(settings: Settings, metadata: Metadata) -> str:
    """What clients without keys of their own get."""
    root = root_beside(metadata.location, settings.iceberg_path)
    vended = await Vending(settings).proof(root)
    signed = await Signing(settings).proof(root)
    if vended.outcome in ("refuted", "failed"):
        raise _Wrong(f"no keys are vended: {vended.reason}")
    if settings.remote_signing and not signed.is_proven:
        raise _Wrong(f"no requests are signed: {signed.reason}")
    keys = f"vended, for {settings.vended_seconds} s" if vended.is_proven else "not vended"
    also = "; requests are signed" if signed.is_proven else ""
    return f"keys are {keys}: {vended.reason}{also}"


def _attach(settings: Settings) -> str:
    lake = session.attach(settings)
    try:
        row = lake.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchone()
    finally:
        lake.close()
    return f"a DuckDB session attaches the lake at snapshot {row[0] if row else '?'}"
