"""Tags: names for snapshots of the whole lake, by which `{warehouse}@{tag}` shows it as it was.

A name goes into addresses as it is, since clients do not escape the prefix that they are told. It is never taken for
the number of a snapshot or for a time.
"""

import re
from typing import Any, Final

import orjson

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.annex import tags
from mergus.annex.tags import Tag
from mergus.catalog.lake import Lake
from mergus.catalog.paging import PageRequest
from mergus.catalog.travel import time_of
from mergus.ducklake import snapshots
from mergus.errors import AlreadyExists, BadRequest, NotFound

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


async def list_tags(lake: Lake, ctx: RequestContext, page: PageRequest) -> tuple[list[Tag], str | None]:
    await authorise(ctx, None)

    async def fetch(after: str | None, limit: int | None) -> list[Tag]:
        async with lake.read() as conn:
            return await tags.read(conn, after, limit)

    return await lake.page([ctx.operation], page, fetch, lambda tag: tag.name)


async def create_tag(
    lake: Lake, ctx: RequestContext, name: str, snapshot_id: int | None, message: str | None
) -> dict[str, Any]:
    """Of the newest snapshot, if none is named."""
    await authorise(ctx, None)
    _check_name(name)
    async with lake.hold_still(ctx) as conn:
        await tags.give_name(conn)
        if snapshot_id is None:
            snapshot_id = (await snapshots.head(conn)).snapshot_id
        elif not await snapshots.exists(conn, snapshot_id):
            raise BadRequest(f"Snapshot {snapshot_id} does not exist, or has expired")
        if not await tags.add(conn, name, snapshot_id, message, ctx.principal.name):
            raise AlreadyExists(f"Tag already exists: {name}")
        made = await tags.find(conn, name)
        assert made is not None  # noqa: S101  (inserted above, in this transaction)
        answer = tag_json(made)
        ctx.content = orjson.dumps(answer)
    return answer


async def load_tag(lake: Lake, ctx: RequestContext, name: str) -> dict[str, Any]:
    await authorise(ctx, None)
    async with lake.read() as conn:
        found = None if "\0" in name else await tags.find(conn, name)
    if found is None:
        raise NotFound(f"Tag does not exist: {name}")
    return tag_json(found)


async def drop_tag(lake: Lake, ctx: RequestContext, name: str) -> None:
    """The snapshot stays, but is not protected by it any more."""
    await authorise(ctx, None)
    async with lake.hold_still(ctx) as conn:
        if "\0" in name or not await tags.remove(conn, name):
            raise NotFound(f"Tag does not exist: {name}")


def tag_json(tag: Tag) -> dict[str, Any]:
    """`snapshot-time` is null if the snapshot has expired all the same."""
    return {
        "name": tag.name,
        "snapshot-id": tag.snapshot_id,
        "snapshot-time": tag.snapshot_time,
        "message": tag.message,
        "created-by": tag.created_by,
        "created-at": tag.created_at,
    }


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        rule = "it begins with a letter or a digit, and has up to 128 letters, digits, dots, dashes and underscores"
        raise BadRequest(f"No tag can have this name: {rule}")
    if name.isdecimal() or time_of(name) is not None:
        raise BadRequest(f"No tag can be called {name}: that is the number of a snapshot, or a time")
