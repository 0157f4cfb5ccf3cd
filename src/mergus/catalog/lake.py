"""The lake that a server serves: its Postgres, its objects, and what all its processes share."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from mergus.access.audit import Audit
from mergus.access.authenticate import Authenticator
from mergus.access.clients import ClientsFile, read_file
from mergus.access.context import Principal, RequestContext
from mergus.access.privileges import ALL, Rights
from mergus.access.registry import Registry
from mergus.annex import catalog, clients, markers
from mergus.catalog import request_keys
from mergus.catalog.paging import Fetch, PageRequest, PageTokens, T
from mergus.catalog.served_tables import ServedTables
from mergus.catalog.served_views import ServedViews
from mergus.catalog.table_cache import Body, TableCache
from mergus.config import Settings
from mergus.ducklake import commit
from mergus.ducklake.commit import Commit, CommitInfo
from mergus.ducklake.connect import Conn, Pool, Watch, connection, open_pool
from mergus.ducklake.metadata import check_served, has_files
from mergus.ducklake.snapshots import Head
from mergus.errors import CommitStateUnknown, InTheWay, MergusError, ServiceUnavailable
from mergus.faults import point
from mergus.materialise import side_file
from mergus.materialise.layout import root_beside
from mergus.materialise.reading import Place
from mergus.materialise.table import Materialised, Materialiser
from mergus.metrics import COMMITS, POOL_IDLE, POOL_SIZE, POOL_WAITING
from mergus.storage.objects import Objects
from mergus.storage.signing import Signing
from mergus.storage.vending import Vending

if TYPE_CHECKING:
    from mergus.catalog.holdings import Holdings

POOL_METRICS_SECONDS = 5
PROVE_AFTER = 1
USER_AGENT_KEPT = 256
# of a process's connections, those that commits leave alone
FOR_READERS = 2


@dataclass(slots=True)
class Lake:
    settings: Settings
    pool: Pool
    objects: Objects
    views: ServedViews
    watch: Watch
    authenticator: Authenticator
    registry: Registry
    audit: Audit
    clients_file: ClientsFile
    vending: Vending
    signing: Signing
    _writers: asyncio.Semaphore
    _aside: asyncio.Semaphore
    _page_tokens: PageTokens | None = None
    _tables: ServedTables | None = None
    # where tables have their files, and answers with keys in them: see catalog/delegation.py
    holdings: "dict[int, tuple[Materialised, Head, Holdings]]" = field(
        default_factory=dict[int, "tuple[Materialised, Head, Holdings]"]
    )
    delegated: OrderedDict[str, Body] = field(default_factory=OrderedDict[str, Body])

    @property
    def tables_if_known(self) -> ServedTables | None:
        return self._tables

    async def tables(self) -> ServedTables:
        """Made when they are first asked for: where a lake keeps its data, it says itself."""
        if self._tables is None:
            async with self.read() as conn:
                metadata = await check_served(conn, self.settings.metadata_schema)
            root = root_beside(metadata.location, self.settings.iceberg_path)
            place = Place(self.settings.metadata_schema, metadata.location, root, self.settings.format_version)
            materialiser = Materialiser(self.pool, self.objects, place)
            cache = TableCache(self.watch, self.settings.cached_tables)
            self._tables = ServedTables(self.pool, materialiser, cache, self.settings.history_patience)
        return self._tables

    async def rights(self, principal: Principal) -> Rights:
        """As they are now."""
        if self.authenticator.is_open:
            return ALL
        served = await self.tables()
        await served.look()
        return await self.registry.rights(principal, served.cache.access_version)

    def known_rights(self, principal: Principal) -> Rights | None:
        """As they were when the lake was last looked at; None if they have to be asked for."""
        if self.authenticator.is_open:
            return ALL
        served = self._tables
        return None if served is None else self.registry.known(principal, served.cache.access_version)

    def read(self) -> AbstractAsyncContextManager[Conn]:
        return connection(self.pool)

    @asynccontextmanager
    async def aside(self) -> AsyncGenerator[Conn]:
        """For what may wait and nobody waits for: one connection, however many ask."""
        try:
            async with asyncio.timeout(self.settings.pool_timeout):
                await self._aside.acquire()
        except TimeoutError:
            raise ServiceUnavailable("Too many others are waiting; try again") from None
        try:
            async with self.read() as conn:
                yield conn
        finally:
            self._aside.release()

    @asynccontextmanager
    async def hold_still(self, ctx: RequestContext) -> AsyncGenerator[Conn]:
        async with self._turn(), commit.hold_still(self.pool) as conn:
            yield conn
            await self._seal(conn, ctx)
        self._sealed(ctx)

    @asynccontextmanager
    async def commit(self, ctx: RequestContext) -> AsyncGenerator[Commit]:
        marker = uuid4().hex
        info = CommitInfo(
            author=ctx.principal.name,
            message=ctx.operation,
            extra={
                "request-id": ctx.request_id,
                "user-agent": (ctx.user_agent or "")[:USER_AGENT_KEPT],
                "commit": marker,
            },
        )
        async with self._turn():
            try:
                async with commit.commit(self.pool, info) as tx:
                    yield tx
                    if not tx.is_told:
                        await markers.note(tx.conn, marker)
                    await self._seal(tx.conn, ctx)
            except CommitStateUnknown as e:
                await self._settle(marker, e)
        self._sealed(ctx)
        COMMITS.labels(ctx.operation).inc()

    async def _seal(self, conn: Conn, ctx: RequestContext) -> None:
        point("commit.written")
        await request_keys.seal(conn, ctx, self.settings.idempotency_seconds)
        point("commit.sealed")

    def _sealed(self, ctx: RequestContext) -> None:
        point("commit.committed")
        ctx.is_sealed = ctx.key is not None

    async def _settle(self, marker: str, lost: CommitStateUnknown) -> None:
        """The connection broke during COMMIT: returns if the commit is there after all."""
        try:
            async with commit.hold_still(self.pool) as conn:
                made = await commit.was_made(conn, marker) or await markers.is_noted(conn, marker)
        except ServiceUnavailable:
            raise lost from lost.__cause__
        if not made:
            raise InTheWay("The connection to Postgres broke before the commit was made; try again") from lost

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        """Commits that wait for a lock never take the last connections: reads and probes go on meanwhile."""
        try:
            async with asyncio.timeout(self.settings.lock_timeout):
                await self._writers.acquire()
        except TimeoutError:
            raise ServiceUnavailable("Too many commits are waiting; try again") from None
        try:
            yield
        finally:
            self._writers.release()

    async def page(
        self, listing: list[str], request: PageRequest, fetch: Fetch[T], key: Callable[[T], str] = str
    ) -> tuple[list[T], str | None]:
        """One page, and the token of the next if there is one. `listing` says what is listed: a token is good for that
        alone. `fetch` gives what comes after a key, in order, so many at most."""
        if not request.wanted:
            return await fetch(None, None), None
        tokens = await self._tokens()
        limit = min(request.size or self.settings.page_size, self.settings.page_size)
        after = tokens.read(listing, request.token) if request.token else None
        found = await fetch(after, limit + 1)
        return found[:limit], tokens.issue(listing, key(found[limit - 1])) if len(found) > limit else None

    async def _tokens(self) -> PageTokens:
        if self._page_tokens is None:
            async with self.read() as conn:
                self._page_tokens = PageTokens(await catalog.read_token_key(conn))
        return self._page_tokens

    async def check_postgres(self) -> None:
        """Raises unless Postgres answers and holds a lake that may be served, set up for us."""
        async with self.read() as conn:
            await check_served(conn, self.settings.metadata_schema)
            await catalog.read_token_key(conn)

    async def check_storage(self) -> None:
        async with self.read() as conn:
            metadata = await check_served(conn, self.settings.metadata_schema)
            # DuckDB makes a local directory when it writes the first file
            is_new = metadata.location.scheme == "file" and not await has_files(conn)
        await self.objects.reachable(metadata.location, may_be_new=is_new)

    def observe_pool(self) -> None:
        stats = self.pool.get_stats()
        POOL_SIZE.set(stats.get("pool_size", 0))
        POOL_IDLE.set(stats.get("pool_available", 0))
        POOL_WAITING.set(stats.get("requests_waiting", 0))


@asynccontextmanager
async def open_lake(settings: Settings) -> AsyncGenerator[Lake]:
    """Does not wait for Postgres: a server that starts before it is not ready yet, but it runs."""
    pool = open_pool(settings)
    await pool.open(wait=False)
    writers = asyncio.Semaphore(max(1, settings.pool_max - FOR_READERS))
    watch = Watch(settings)
    objects = Objects(settings)
    views = ServedViews(settings, objects, pool)
    file = read_file(settings.clients_file)

    async def lakes_key() -> bytes:
        async with connection(pool) as conn:
            return await clients.signing_key(conn)

    lake = Lake(
        settings,
        pool,
        objects,
        views,
        watch,
        Authenticator(settings, lakes_key),
        Registry(pool, file),
        Audit(pool, settings.audit_seconds),
        file,
        Vending(settings),
        Signing(settings),
        writers,
        asyncio.Semaphore(1),
    )
    observer = asyncio.create_task(_observe(lake))
    prover = asyncio.create_task(_prove(lake))
    try:
        yield lake
    finally:
        observer.cancel()
        prover.cancel()
        await lake.audit.close()
        await lake.authenticator.close()
        await lake.views.close()
        await asyncio.to_thread(side_file.close)
        await watch.close()
        await pool.close()


async def _prove(lake: Lake) -> None:
    """Before the first client asks. Whatever comes in between is tried again when one does."""
    if not lake.vending.is_configured and not lake.settings.remote_signing:
        return
    while True:
        try:
            root = (await lake.tables()).materialiser.place.root
        except MergusError:
            await asyncio.sleep(PROVE_AFTER)
            continue
        await lake.vending.proof(root)
        await lake.signing.proof(root)
        return


async def _observe(lake: Lake) -> None:
    while True:
        lake.observe_pool()
        await asyncio.sleep(POOL_METRICS_SECONDS)
