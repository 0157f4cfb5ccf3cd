"""Which places are a table's own, and which are others': asked of the lake for each commit."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from uuid import UUID

from mergus.annex import iceberg_tables as annex
from mergus.catalog.lake import Lake
from mergus.catalog.locations import Premises, TablePlaces, allowed, parse
from mergus.ducklake import tables
from mergus.errors import BadRequest
from mergus.materialise.layout import Layout
from mergus.materialise.table import Materialised

# Properties by which a client chooses where its writers put files.
PATHS: Final = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


async def premises(lake: Lake) -> Premises:
    place = (await lake.tables()).materialiser.place
    return Premises(place.data_path, place.root, allowed(lake.settings.allowed_locations))


async def of_table(lake: Lake, table: Materialised) -> TablePlaces:
    reading = table.reading
    chosen = [reading.properties[name] for name in PATHS if name in reading.properties]
    chosen += [reading.kept.location] if reading.kept.location else []
    own = [reading.view.layout.directory, parse(reading.view.table.paths.directory), *map(parse, chosen)]
    return TablePlaces(await premises(lake), own)


async def of_new(lake: Lake, uuid: UUID, staged: str) -> TablePlaces:
    """`staged` is the location that the client was promised, which was looked at then."""
    grounds = await premises(lake)
    return TablePlaces(grounds, [Layout.of(grounds.root, uuid).directory, parse(staged)])


async def among_others(lake: Lake, places: TablePlaces, table_id: int | None) -> TablePlaces:
    """The same, with the places of all other tables."""
    async with lake.read() as conn:
        directories = await tables.directories(conn, except_for=table_id)
        locations = await annex.locations(conn, except_for=table_id)
    return replace(places, others=[parse(text) for text in (*directories, *locations)])


def check_properties(places: TablePlaces, properties: Mapping[str, str]) -> None:
    for name in PATHS:
        if name in properties:
            places.check_directory(properties[name])
    if reserved := sorted(name for name in properties if name.startswith("mergus.") and name not in _OURS_TO_SET):
        raise BadRequest(f"Properties that begin with mergus. are the server's: {reserved[0]}")


_OURS_TO_SET: Final = frozenset({"mergus.format-version"})
