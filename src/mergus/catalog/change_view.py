"""CreateView, ReplaceView, RegisterView.

What a client wants is worked out before the lock is taken, and once more under it if the view is another by then: the
updates of two clients at once are both applied. A view with a text for DuckDB is a row of DuckLake's, and becomes a new
one when that text changes; everything else about it is kept in the annex, in the same transaction.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID, uuid4

import orjson

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.access.privileges import READ
from mergus.annex import views as annex
from mergus.catalog import table_places
from mergus.catalog.find import find_schema
from mergus.catalog.lake import Lake
from mergus.catalog.locations import TablePlaces, given
from mergus.catalog.names import check_name, find_clash, taken
from mergus.catalog.served_views import COMMENT, METADATA_PATH, FoundView, ShownView, find_view, shown
from mergus.catalog.views import find, uuid_of
from mergus.ducklake import tables, view_sql, views
from mergus.ducklake.commit import Commit
from mergus.errors import AlreadyExists, BadRequest, NotFound, ServiceUnavailable, Unsupported
from mergus.iceberg import view_update
from mergus.iceberg.metadata_parse import unpacked
from mergus.iceberg.namespace import Namespace
from mergus.iceberg.schema import Schema
from mergus.iceberg.view_metadata import ViewMetadata, ViewVersion, parse_view_metadata
from mergus.iceberg.view_update import AssertViewUuid, Update
from mergus.logs import log

FILE_NAMES: Final = (".metadata.json", ".metadata.json.gz")
MOST_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class NewView:
    """As a client asks for it."""

    name: str
    schema: Schema
    version: ViewVersion
    properties: Mapping[str, str]
    location: str | None


async def create_view(lake: Lake, ctx: RequestContext, namespace: Namespace, new: NewView) -> ShownView:
    await authorise(ctx, namespace, new.name)
    check_name(new.name, "view")
    uuid = uuid4()
    own = (await table_places.premises(lake)).root / str(uuid)
    location = str(own) if new.location is None else new.location.rstrip("/")
    view = view_update.created(str(uuid), location, new.version, new.schema, new.properties)
    return await _add(lake, ctx, namespace, new.name, view)


async def register_view(
    lake: Lake, ctx: RequestContext, namespace: Namespace, name: str, metadata_location: str
) -> ShownView:
    await authorise(ctx, namespace, name)
    check_name(name, "view")
    await _check_free(lake, namespace, name)
    return await _add(lake, ctx, namespace, name, await _read_file(lake, ctx, namespace, metadata_location))


async def replace_view(
    lake: Lake,
    ctx: RequestContext,
    namespace: Namespace,
    name: str,
    requirements: Sequence[AssertViewUuid],
    updates: Sequence[Update],
) -> ShownView:
    await authorise(ctx, namespace, name)
    root = (await table_places.premises(lake)).root
    now_ms = int(time.time() * 1000)

    async def plan(found: FoundView) -> tuple[ViewMetadata, ViewMetadata, ShownView]:
        """What it is, what it is to be, and how that is shown."""
        base = await lake.views.metadata(found, root)
        view_update.check(requirements, base)
        wanted = view_update.apply(base, updates, now_ms)
        await _check(lake, namespace, base, wanted)
        return base, wanted, await lake.views.shown(found, wanted)

    found = await find(lake, namespace, name)
    base, wanted, view = await plan(found)
    if wanted != base:
        async with lake.commit(ctx) as tx:
            current = await find_view(tx.conn, namespace, name)
            if current != found:
                found = current
                base, wanted, view = await plan(current)
            if wanted != base:
                await _write(tx, found, wanted)
            ctx.content = view.answer()
    return await _published(lake, view)


async def _add(lake: Lake, ctx: RequestContext, namespace: Namespace, name: str, view: ViewMetadata) -> ShownView:
    await _check(lake, namespace, None, view)
    uuid = UUID(view.uuid)
    async with lake.commit(ctx) as tx:
        schema = await find_schema(tx.conn, namespace)
        if clash := await find_clash(tx.conn, schema.schema_id, name):
            raise taken(namespace, name, clash, "view")
        if await views.is_live(tx.conn, uuid) or await annex.is_shown(tx.conn, uuid):
            raise AlreadyExists(f"View already exists under another name: it has the uuid {uuid}")
        await _write(tx, FoundView(namespace, schema, name, None, view), view)
        ctx.content = shown(view).answer()
    return await _published(lake, shown(view))


async def _check_free(lake: Lake, namespace: Namespace, name: str) -> None:
    async with lake.read() as conn:
        schema = await find_schema(conn, namespace)
        if clash := await find_clash(conn, schema.schema_id, name):
            raise taken(namespace, name, clash, "view")


async def _write(tx: Commit, found: FoundView, view: ViewMetadata) -> None:
    """Nothing is read but what was found under the lock."""
    uuid, row = uuid_of(found), found.row
    sql, comment = view.current.sql(views.DIALECT), view.properties.get(COMMENT)
    if row is not None and sql not in {row.sql, row.shown_sql}:
        await views.drop(tx, row)
        row = None
    if row is not None and comment != row.comment:
        await views.set_comment(tx, row, comment)
    elif row is None and sql is not None:
        await views.create(tx, found.schema, found.name, uuid, sql, comment)
    alone = (found.schema.schema_id, found.name) if sql is None else None
    await annex.write(tx.conn, tx.seen_from, uuid, orjson.dumps(view.json()).decode(), alone)


async def _published(lake: Lake, view: ShownView) -> ShownView:
    """The change has been made, whatever happens to the file: who loads the view writes it."""
    try:
        await lake.views.publish(view)
    except ServiceUnavailable as e:
        log.warning("the metadata file of a view is not written yet: %s", e.message)
    return view


async def _check(lake: Lake, namespace: Namespace, base: ViewMetadata | None, view: ViewMetadata) -> None:
    """Whether what is new about it can be: its places, and its text for DuckDB."""
    metadata_path = view.properties.get(METADATA_PATH)
    if base is None or (base.location, base.properties.get(METADATA_PATH)) != (view.location, metadata_path):
        places = await _places(lake, namespace, view.uuid)
        for text in (view.location, metadata_path):
            if text is not None:
                places.check_directory(text)
    sql = view.current.sql(views.DIALECT)
    if sql is not None and (base is None or base.current != view.current):
        await asyncio.to_thread(_check_sql, sql, namespace, view.current.default_namespace)


async def _places(lake: Lake, namespace: Namespace, uuid: str) -> TablePlaces:
    """Of a view, or what might be one. A table's directory is named by its uuid, too, and who registers a view says
    what its uuid is."""
    grounds = await table_places.premises(lake)
    async with lake.read() as conn:
        if await tables.was_there(conn, UUID(uuid)):
            raise BadRequest(f"{uuid} is the uuid of a table")
    places = TablePlaces(grounds, [grounds.root / uuid], schema_name=namespace.schema_name)
    return await table_places.among_others(lake, places, None, UUID(uuid))


async def _directory(lake: Lake, text: str) -> str:
    """The uuid by which the directory is named that the file is in, if it is one of the lake's; else one of nobody."""
    root, location = (await table_places.premises(lake)).root, given(text)
    if root.contains(location):
        with suppress(ValueError, IndexError):
            return str(UUID(location.parts[len(root.parts)]))
    return str(uuid4())


def _check_sql(sql: str, namespace: Namespace, default_namespace: tuple[str, ...]) -> None:
    try:
        view_sql.check(sql)
        names = [] if default_namespace == namespace.levels else view_sql.unqualified_names(sql)
    except ValueError as e:
        raise BadRequest(f"The duckdb representation cannot be a view of DuckDB's: {e}") from None
    if names:
        raise Unsupported(
            f"The duckdb representation names {', '.join(names)}, which DuckDB looks for in the view's own namespace "
            f"{namespace} and not in its default-namespace {'.'.join(default_namespace)}: put the namespace before it"
        )


async def _read_file(lake: Lake, ctx: RequestContext, namespace: Namespace, text: str) -> ViewMetadata:
    """A file that a client names: only where views of the lake have theirs, or its settings say, and only what is
    called like one."""
    if not text.endswith(FILE_NAMES):
        raise BadRequest(f"{text} is not called like a view metadata file")
    places = await _places(lake, namespace, await _directory(lake, text))
    location = replace(places, own=[*places.own, *([] if places.home is None else [places.home])]).check(text)
    grounds = places.premises
    if any(place.contains(location) for place in (grounds.root, grounds.data_path)):
        # it may be of any view that there ever was, under whatever name
        await authorise(ctx, None, needs=READ)
    try:
        data = await lake.objects.get_bounded(location, MOST_BYTES)
        if data is None:
            raise NotFound(f"There is no file at {text}")
        return parse_view_metadata(orjson.loads(unpacked(data)))
    except orjson.JSONDecodeError:
        raise BadRequest(f"{text} is no view metadata file: it is not JSON") from None
    except ValueError as e:
        raise BadRequest(f"{text} is no view metadata file: {e}") from None
