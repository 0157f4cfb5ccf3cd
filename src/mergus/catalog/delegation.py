"""Access to a table's files for clients that bring no keys of their own: keys that the server vends, or requests that
it signs.

Clients say which they can use (X-Iceberg-Access-Delegation). The answer about the table is the same for all, and made
once; what is one client's own is put into its bytes. An ETag then names the keys, too: a client is told that it has the
newest answer only while the keys that it holds are those that it would get.

What no policy can say, or what lies in one place with tables that the client may not read, is refused: 403 with the
reason. A client with keys of its own asks for no delegation and is not concerned.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import quote
from uuid import UUID

import orjson

from mergus.access.authorise import may
from mergus.access.context import RequestContext
from mergus.access.privileges import LOAD, WRITE
from mergus.catalog import holdings, travel
from mergus.catalog.find import find_asked
from mergus.catalog.holdings import MOST_PLACES, Grounds, Holdings
from mergus.catalog.lake import Lake
from mergus.catalog.locations import parse
from mergus.catalog.newest import keep_newest
from mergus.catalog.table_cache import Body
from mergus.config import Settings
from mergus.ducklake import directories
from mergus.ducklake.snapshots import Head
from mergus.errors import ApiError, Forbidden
from mergus.iceberg.namespace import UNIT_SEPARATOR, Namespace
from mergus.logs import log
from mergus.materialise.table import Materialised
from mergus.storage.location import Location
from mergus.storage.policy import Scope, Unspeakable
from mergus.storage.vending import Keys

VENDED: Final = "vended-credentials"
SIGNED: Final = "remote-signing"
HEADER: Final = "x-iceberg-access-delegation"

# DuckDB's iceberg extension uses a single entry for the table's location alone, and several for what they are about;
# Java's client wants a single one when it comes for new keys. And the extension writes delete files beside data files.
DUCKDB: Final = "duckdb/"
NOTHING: Final = b'"config":{}}'
KEPT_BODIES: Final = 64


@dataclass(frozen=True, slots=True)
class Delegation:
    """What one client's answer says beside the table. Not shown when printed: there are keys in it."""

    config: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    credentials: list[dict[str, object]] = field(default_factory=list[dict[str, object]], repr=False)

    def __bool__(self) -> bool:
        return bool(self.config)


def parse_header(value: str) -> frozenset[str]:
    """What clients say that they can use."""
    return frozenset(part.strip().lower() for part in value.split(",")) & {VENDED, SIGNED}


def is_asked(lake: Lake, ctx: RequestContext) -> bool:
    """Whether the request at hand may get an answer of its own."""
    wanted = ctx.delegation
    return (VENDED in wanted and lake.vending.is_configured) or (SIGNED in wanted and lake.settings.remote_signing)


def may_write(ctx: RequestContext, namespace: Namespace, name: str) -> bool:
    return ctx.at is None and may(ctx, WRITE, namespace, name)


async def of_table(
    lake: Lake,
    ctx: RequestContext,
    table: Materialised,
    head: Head,
    named: tuple[Namespace, str] | None = None,
    wanted: frozenset[str] | None = None,
) -> Delegation:
    """For the request at hand; empty if it asks for nothing that there is. `named` is what it calls the table."""
    if wanted is None and not is_asked(lake, ctx):
        return Delegation()
    named = named or _named(table)
    grounds = await grounds_of(lake, ctx, table, head, named)
    return await delegated(lake, ctx, table, grounds, ctx.delegation if wanted is None else wanted, named)


async def of_promised(
    lake: Lake, ctx: RequestContext, uuid: UUID, location: str, named: tuple[Namespace, str]
) -> Delegation:
    """The same for a table that is only staged."""
    if not is_asked(lake, ctx):
        return Delegation()
    held = await holdings.of_promised(lake, uuid, location)
    grounds = holdings.grounds(held, ctx.rights, may_write=may_write(ctx, *named))
    return await delegated(lake, ctx, None, grounds, ctx.delegation, named)


async def with_access(lake: Lake, ctx: RequestContext, body: Body, named: tuple[Namespace, str] | None) -> Body:
    """An answer about a table that was just made, or promised. What is done is done: it is told without keys, too."""
    if not is_asked(lake, ctx):
        return body
    if ctx.table_id is None:
        promised = orjson.loads(body.plain.data)["metadata"]
        assert named is not None  # noqa: S101  (a table that is not there has no other name)
        found = await of_promised(lake, ctx, UUID(promised["table-uuid"]), promised["location"], named)
        return put_into(body, found, lake.delegated)
    served = await lake.tables()
    try:
        head = await served.look()
        table = (await served.answer(ctx.table_id, head)).table
        # by the name that it has by now, which is another if the request is answered again after a rename
        return put_into(body, await of_table(lake, ctx, table, head), lake.delegated)
    except ApiError as e:
        log.warning("a table is made, and its client gets no keys: %s", e.message)
        return body


async def find(lake: Lake, ctx: RequestContext, namespace: Namespace, name: str) -> tuple[Materialised, Head]:
    """The table that the request at hand calls so, as the lake is or was."""
    served = await lake.tables()
    head = await served.look()
    if ctx.at is None:
        return (await served.answer(await served.resolve(namespace, name, head), head)).table, head
    async with lake.read() as conn:
        table_id = await find_asked(conn, ctx, namespace, name)
    return await served.past(table_id, head, ctx.at), head


async def _held_by(lake: Lake, table: Materialised, head: Head) -> Holdings:
    """Kept as long as neither the table nor the lake changes."""
    table_id = table.reading.view.table.id
    of, at, held = lake.holdings.get(table_id, (None, None, None))
    if held is None or of is not table or at != head:
        held = await holdings.of_table(lake, table)
        keep_newest(lake.holdings, table_id, (table, head, held), lake.settings.cached_tables)
    return held


async def grounds_of(
    lake: Lake, ctx: RequestContext, table: Materialised, head: Head, named: tuple[Namespace, str]
) -> Grounds:
    """What of the table's files is open to who asks for it by this name."""
    now = _named(table)
    # keys for what a table was are keys for what it is
    if now != named and not may(ctx, LOAD, *now):
        raise Forbidden("The table has another name by now, under which you may not read it")
    return holdings.grounds(await _held_by(lake, table, head), ctx.rights, may_write=may_write(ctx, *named))


async def delegated(
    lake: Lake,
    ctx: RequestContext,
    table: Materialised | None,
    grounds: Grounds,
    wanted: frozenset[str],
    named: tuple[Namespace, str],
) -> Delegation:
    root = (await lake.tables()).materialiser.place.root
    if VENDED in wanted and (proof := await lake.vending.proof(root)).is_proven:
        is_duckdb = (ctx.user_agent or "").startswith(DUCKDB)
        scope = await _scope_of(lake, table, grounds if is_duckdb else replace(grounds, beside=()))
        try:
            keys = await lake.vending.vend(scope, proof)
        except Unspeakable as e:
            raise Forbidden(f"No keys can be made that are limited to the files of the table: {e}") from None
        ctx.handed_out.append("keys to write" if scope.write else "keys to read")
        endpoint = {"client.refresh-credentials-endpoint": f"{_path(lake.settings, ctx, *named)}/credentials"}
        config = {**store_of(lake.settings), **endpoint, **_shown(keys)}
        prefixes = [d.directory for d in (*scope.write, *scope.read)] + [str(o) for o in scope.objects]
        entries = list(dict.fromkeys(prefixes)) if is_duckdb else [common(prefixes)]
        return Delegation(config, [{"prefix": prefix, "config": config} for prefix in entries])
    if SIGNED in wanted and (await lake.signing.proof(root)).is_proven:
        return Delegation({**store_of(lake.settings), **_signed_at(f"{_path(lake.settings, ctx, *named)}/sign")})
    return Delegation()


async def _scope_of(lake: Lake, table: Materialised | None, grounds: Grounds) -> Scope:
    """With the single objects that a guarded directory has of the table."""
    objects: list[Location] = []
    if grounds.guarded and table is not None:
        view = table.reading.view.table
        open_places = [place.directory for place in grounds.read]
        async with lake.read() as conn:
            found = await directories.files(conn, view.id, view.paths.directory, open_places, MOST_PLACES + 1)
        if len(found) > MOST_PLACES:
            raise Forbidden(
                "The table shares a directory with another, which you may not read, and has too many files there for "
                "keys that are limited to them"
            )
        objects = [parse(path) for path in sorted(found)]
    read = tuple(place for place in grounds.read if place.scheme == "s3" and place not in grounds.write)
    return Scope(read, grounds.write, tuple(objects), grounds.beside)


def put_into(body: Body, delegation: Delegation, kept: OrderedDict[str, Body]) -> Body:
    """The same answer with what is this client's own. Without reading it: it may be large."""
    if not delegation:
        return body
    plain = body.plain.data
    if not plain.endswith(NOTHING):
        raise RuntimeError("an answer about a table does not end as it should")
    config = orjson.dumps(delegation.config)
    entries = orjson.dumps(delegation.credentials)
    added = b'"config":' + config + b',"storage-credentials":' + entries + b"}"
    tag = hashlib.sha256(body.plain.etag.encode() + added).hexdigest()[:32]
    if (known := kept.get(tag)) is not None:
        kept.move_to_end(tag)
        return known
    kept[tag] = Body(tag, plain[: -len(NOTHING)] + added)
    while len(kept) > KEPT_BODIES:
        kept.popitem(last=False)
    return kept[tag]


def common(prefixes: list[str]) -> str:
    """The longest directory that all of these lie in, or the store as a whole: tells a client when to use a key, and
    not what it is good for."""
    first, *others = (prefix.split("/") for prefix in prefixes)
    length = len(first) - 1
    for parts in others:
        same = next((i for i, (a, b) in enumerate(zip(first, parts, strict=False)) if a != b), len(parts) - 1)
        length = min(length, same)
    shared = "/".join(first[:length]) + "/"
    return shared if length > 2 else "s3://"


def _named(table: Materialised) -> tuple[Namespace, str]:
    found = table.reading.view.table
    return Namespace.of_schema(found.schema_name), found.name


def store_of(settings: Settings) -> dict[str, str]:
    """Where the store is: who has no keys does not know that either. Each client reads another name of the region.
    Java's does not try to delete what it may not delete if it is told."""
    found = {"client.region": settings.s3_region, "s3.region": settings.s3_region, "s3.delete-enabled": "false"}
    if settings.s3_endpoint is not None:
        found["s3.endpoint"] = settings.s3_endpoint
    if settings.path_style:
        found["s3.path-style-access"] = "true"
    return found


def _shown(keys: Keys) -> dict[str, str]:
    return {
        "s3.access-key-id": keys.access_key_id,
        "s3.secret-access-key": keys.secret_access_key.get_secret_value(),
        "s3.session-token": keys.session_token.get_secret_value(),
        "s3.session-token-expires-at-ms": str(keys.expires_ms),
    }


def _path(settings: Settings, ctx: RequestContext, namespace: Namespace, name: str) -> str:
    """Relative, since a server does not know what clients call it; they take it from the catalog's own address."""
    prefix = settings.prefix if ctx.at is None else f"{settings.prefix}{travel.SEPARATOR}{ctx.at}"
    levels = UNIT_SEPARATOR.join(namespace.levels)
    return f"v1/{quote(prefix, safe='')}/namespaces/{quote(levels, safe='')}/tables/{quote(name, safe='')}"


def _signed_at(endpoint: str) -> dict[str, str]:
    """Java reads the shorter name from 1.11 on; PyIceberg has to be told the signer, too."""
    return {
        "s3.remote-signing-enabled": "true",
        "signer.endpoint": endpoint,
        "s3.signer.endpoint": endpoint,
        "s3.signer": "S3V4RestSigner",
    }
