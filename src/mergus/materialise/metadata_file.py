"""Metadata files: each version of a table's metadata as an object, and the signs to the newest.

A version is a new one if it says something new: the log of older files and the time do not count. Its name holds a hash
of that. Processes that see a new state at once take turns by the version number, which only one of them gets, and one
that has read an older state than the newest version's hands its metadata out but does not put it before that.

`v<N>.metadata.json` and `version-hint.text` lead those who come by the directory (DuckDB's `iceberg_scan`, Spark's path
tables) to the newest version; N is its number, from 1.
"""

from dataclasses import dataclass, replace

from mergus.annex import tables as annex
from mergus.annex.tables import MetadataFile
from mergus.ducklake import snapshots
from mergus.ducklake.connect import Pool, connection
from mergus.errors import ServiceUnavailable
from mergus.iceberg.metadata import TableMetadata
from mergus.materialise.layout import Layout, digest, is_metadata_of, metadata_as_of
from mergus.materialise.metadata import describe, render
from mergus.materialise.table import Materialised
from mergus.metrics import timed
from mergus.storage.location import Location
from mergus.storage.objects import Objects

PREVIOUS_VERSIONS = "write.metadata.previous-versions-max"
KEPT_VERSIONS = 100
ATTEMPTS = 20
# after a restore, so many versions that are gone are taken away
LOST_VERSIONS = 1000


@dataclass(frozen=True, slots=True)
class Signpost:
    """To a version; `new` if no sign to it can be there yet."""

    table_id: int
    layout: Layout
    file: MetadataFile
    metadata: TableMetadata
    new: bool


@dataclass(frozen=True, slots=True)
class Written:
    location: str
    metadata: TableMetadata
    sign: Signpost | None = None


async def write(pool: Pool, objects: Objects, table: Materialised) -> Written:
    async with timed("metadata"):
        core = describe(table)
        name = digest(render(replace(core, last_updated_ms=0)))
        for _ in range(ATTEMPTS):
            if (written := await _write(pool, objects, table, core, name)) is not None:
                return written
    raise ServiceUnavailable("Too many processes write the table's metadata; try again")


async def write_past(objects: Objects, table: Materialised) -> Written:
    """Of the table as it was at an older snapshot: an object for whoever reads it, and no version of the metadata. It
    is written whether it is there or not: nothing but its age says that somebody was told of it."""
    described = describe(table)
    data = render(described)
    location = table.reading.view.layout.past_metadata(data)
    await objects.put(location, data)
    return Written(str(location), described)


async def _write(pool: Pool, objects: Objects, table: Materialised, core: TableMetadata, name: str) -> Written | None:
    """None if another process has taken the version."""
    view = table.reading.view
    asked = table.reading.properties.get(PREVIOUS_VERSIONS, "")
    kept = max(1, min(int(asked), KEPT_VERSIONS)) if asked.isdecimal() else KEPT_VERSIONS
    async with connection(pool) as conn:
        log = list(reversed(await annex.read_metadata_files(conn, view.table.id, kept + 1)))
        newest = log[-1] if log else None
        known = metadata_as_of(newest.location) if newest else -1
        is_late = known > view.as_of and known <= (await snapshots.head(conn)).snapshot_id
    if newest is not None and is_metadata_of(newest.location, name):
        described = replace(_after(core, log[:-1]), last_updated_ms=newest.updated_ms)
        data, location = render(described), Location.parse(newest.location)
        if await objects.size(location) != len(data):
            await objects.put(location, data)
        sign = Signpost(view.table.id, view.layout, newest, described, new=False)
        return Written(newest.location, described, sign)
    version = newest.version + 1 if newest else 0
    described = _after(core, log[-kept:])
    file = MetadataFile(version, str(view.layout.metadata(version, view.as_of, name)), described.last_updated_ms)
    await objects.put(Location.parse(file.location), render(described))
    if is_late:
        return Written(file.location, described)
    async with connection(pool) as conn:
        if not await annex.add_metadata_file(conn, view.table.id, file):
            return None
    return Written(file.location, described, Signpost(view.table.id, view.layout, file, described, new=True))


def _after(core: TableMetadata, log: list[MetadataFile]) -> TableMetadata:
    return replace(core, metadata_log=[(file.updated_ms, file.location) for file in log])


async def signpost(pool: Pool, objects: Objects, sign: Signpost) -> None:
    """Leads those who come by the directory to this version, if it is the newest still: one process at a time, so that
    the last one to do it is right. The number is written last, since it must lead to something."""
    async with timed("signs"), connection(pool) as conn, conn.transaction():
        if not await annex.try_to_sign(conn, sign.table_id):
            raise ServiceUnavailable("Another process sets the signs to the table's metadata")
        newest = await annex.read_metadata_files(conn, sign.table_id, 1)
        if newest != [sign.file]:
            await _correct(objects, sign.layout, newest)
            return
        number = sign.file.version + 1
        told = await objects.get(sign.layout.version_hint) or b""
        if told == str(number).encode() and not sign.new:
            return
        await objects.put(sign.layout.numbered_metadata(number), render(sign.metadata))
        await objects.put(sign.layout.version_hint, str(number).encode())
        # readers go on from the number that they are told to the next that is there
        lost = int(told) if told.isdigit() else 0
        for gone in range(number + 1, min(lost, number + LOST_VERSIONS) + 1):
            await objects.delete(sign.layout.numbered_metadata(gone))


async def _correct(objects: Objects, layout: Layout, newest: list[MetadataFile]) -> None:
    """One that lost its connection while it was held up in here may have put its sign over a newer one since."""
    for file in newest:
        number = file.version + 1
        told = await objects.get(layout.version_hint)
        if told != str(number).encode() and await objects.size(layout.numbered_metadata(number)) is not None:
            await objects.put(layout.version_hint, str(number).encode())
