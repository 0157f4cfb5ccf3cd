"""Which places are a table's own, and which are others': asked of the lake for each commit."""

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from mergus.annex import iceberg_tables as annex
from mergus.catalog.lake import Lake
from mergus.catalog.locations import Premises, TablePlaces, allowed, parse
from mergus.ducklake import tables
from mergus.ducklake.metadata import check_served
from mergus.errors import BadRequest
from mergus.materialise.layout import Layout
from mergus.materialise.table import Materialised
from mergus.storage.location import Location

# Properties by which a client chooses where its writers put files.
PATHS: Final = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


async def premises(lake: Lake) -> Premises:
    served = await lake.tables()
    async with lake.read() as conn:
        metadata = await check_served(conn, lake.settings.metadata_schema)
    return Premises(metadata.location, served.materialiser.place.root, allowed(lake.settings.allowed_locations))


async def of_table(lake: Lake, table: Materialised) -> TablePlaces:
    reading = table.reading
    chosen = [reading.properties[name] for name in PATHS if name in reading.properties]
    chosen += [reading.kept.location] if reading.kept.location else []
    own = [reading.view.layout.directory, parse(reading.view.table.paths.directory), *map(parse, chosen)]
    return TablePlaces(await premises(lake), own, await _others(lake, reading.view.table.id))


async def of_new(lake: Lake, uuid: UUID, staged: str) -> TablePlaces:
    """`staged` is the location that the client was promised, which was looked at then."""
    grounds = await premises(lake)
    return TablePlaces(grounds, [Layout.of(grounds.root, uuid).directory, parse(staged)], await _others(lake, None))


def check_properties(places: TablePlaces, properties: Mapping[str, str]) -> None:
    for name in PATHS:
        if name in properties:
            places.check_directory(properties[name])
    if reserved := sorted(name for name in properties if name.startswith("mergus.") and name not in _OURS_TO_SET):
        raise BadRequest(f"Properties that begin with mergus. are the server's: {reserved[0]}")


_OURS_TO_SET: Final = frozenset({"mergus.format-version"})


async def _others(lake: Lake, table_id: int | None) -> list[Location]:
    async with lake.read() as conn:
        found = [
            *await tables.directories(conn, except_for=table_id),
            *await annex.locations(conn, except_for=table_id),
        ]
    return [parse(text) for text in found]
