"""Which places are a table's own, and which are others': asked of the lake for each commit, and once more under the
lock for those that the commit takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from mergus.annex import iceberg_tables as annex
from mergus.catalog.lake import Lake
from mergus.catalog.locations import Premises, TablePlaces, allowed, given, parse
from mergus.ducklake import tables
from mergus.ducklake.connect import Conn
from mergus.errors import BadRequest
from mergus.iceberg.table_update import TableUpdate
from mergus.maintenance.policy import PREFIX, check_policy
from mergus.materialise.layout import Layout
from mergus.materialise.table import Materialised
from mergus.storage.location import Location

# Properties by which a client chooses where its writers put files.
PATHS: Final = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


async def premises(lake: Lake) -> Premises:
    place = (await lake.tables()).materialiser.place
    return Premises(place.data_path, place.root, allowed(lake.settings.allowed_locations))


async def of_table(lake: Lake, table: Materialised) -> TablePlaces:
    """What was chosen for it counts as long as it is allowed: settings may be others by now."""
    reading, grounds = table.reading, await premises(lake)
    chosen = [reading.properties[name] for name in PATHS if name in reading.properties]
    chosen += [reading.kept.location] if reading.kept.location else []
    own = [place for place in map(_known, chosen) if place is not None and grounds.allows(place)]
    ducklakes = _known(reading.view.table.paths.directory)
    return TablePlaces(grounds, [reading.view.layout.directory, *own], beside=ducklakes)


async def of_new(lake: Lake, uuid: UUID, staged: str) -> TablePlaces:
    """`staged` is the location that the client was promised. It was looked at then; another may have it by now."""
    grounds = await premises(lake)
    places = TablePlaces(grounds, [Layout.of(grounds.root, uuid).directory])
    if places.own[0].contains(parse(staged)):
        return places
    location = (await among_others(lake, places, None)).check_directory(staged)
    return replace(places, own=[*places.own, location])


async def among_others(lake: Lake, places: TablePlaces, table_id: int | None) -> TablePlaces:
    """The same, with the places of all other tables."""
    async with lake.read() as conn:
        return replace(places, others=await others(conn, table_id))


async def others(conn: Conn, table_id: int | None) -> list[Location]:
    """Where all tables but this one have files: DuckLake's directories, and what clients chose."""
    directories = await tables.directories(conn, except_for=table_id)
    chosen = await annex.locations(conn, except_for=table_id, keys=PATHS)
    return [place for place in map(_known, (*directories, *chosen)) if place is not None]


def _known(text: str) -> Location | None:
    """None for what nobody can have files in: an operator may set any property."""
    try:
        return parse(text)
    except BadRequest:
        return None


def check_properties(places: TablePlaces, properties: Mapping[str, str]) -> None:
    for name in PATHS:
        if name in properties:
            places.check_directory(properties[name])
    check_policy(properties)
    ours = (name for name in properties if name.startswith("mergus.") and not name.startswith(PREFIX))
    if reserved := sorted(name for name in ours if name not in _OURS_TO_SET):
        raise BadRequest(f"Properties that begin with mergus. are the server's: {reserved[0]}")


def check_update(places: TablePlaces, update: TableUpdate) -> None:
    """Every place that the table is to have from now on, and every file beside those of its snapshots."""
    if (location := update.location) is not None and given(location) not in places.own:
        places.check_directory(location)
    check_properties(places, update.set_properties)
    for files in (update.statistics, update.partition_statistics):
        for content in files.values():
            places.check(content["statistics-path"])


@dataclass(frozen=True, slots=True)
class Claims:
    """Directories that a table takes with a commit; `table_id` is None for one that the commit creates."""

    table_id: int | None
    places: Sequence[Location]

    @classmethod
    def of(cls, table_id: int | None, places: TablePlaces, update: TableUpdate) -> "Claims":
        """None below the directory that is the table's by its uuid: nobody else can have that."""
        named = [update.set_properties[name] for name in PATHS if name in update.set_properties]
        named += [] if update.location is None else [update.location]
        return cls(table_id, [place for place in map(given, named) if not places.own[0].contains(place)])


async def check_claims(conn: Conn, claims: Sequence[Claims]) -> None:
    """Call under the lock. Others may have taken a place since the commit was planned, and of one commit two tables may
    want the same."""
    for index, claim in enumerate(claims):
        if claim.places:
            wanted = [place for i, other in enumerate(claims) if i != index for place in other.places]
            for theirs in (*await others(conn, claim.table_id), *wanted):
                if taken := next((place for place in claim.places if place.overlaps(theirs)), None):
                    raise BadRequest(f"{taken} cannot be a table's location: another table has {theirs}")


_OURS_TO_SET: Final = frozenset({"mergus.format-version"})
