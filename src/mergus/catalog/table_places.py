"""Which places are a table's own, and which are others': asked of the lake for each commit, and once more under the
lock for those that the commit takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from mergus.annex import iceberg_tables as annex
from mergus.annex import views as annex_views
from mergus.catalog.lake import Lake
from mergus.catalog.locations import Premises, TablePlaces, allowed, given, parse
from mergus.ducklake import schemas, tables
from mergus.ducklake.connect import Conn
from mergus.errors import BadRequest
from mergus.iceberg.table_update import TableUpdate
from mergus.maintenance.policy import PREFIX, check_policy
from mergus.materialise.layout import Layout, is_in_namespace
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
    own = [place for place in map(_known, chosen) if place is not None and grounds.may_have_chosen(place)]
    ducklakes = _known(reading.view.table.paths.directory)
    directory, schema_name = reading.view.layout.directory, reading.view.table.schema_name
    return TablePlaces(grounds, [directory, *own], beside=ducklakes, schema_name=schema_name)


async def of_new(lake: Lake, uuid: UUID, schema_name: str, staged: str) -> TablePlaces:
    """`staged` is the location that the client was promised. It was looked at then; another may have it by now."""
    grounds = await premises(lake)
    places = TablePlaces(grounds, [Layout.of(grounds.root, uuid).directory], schema_name=schema_name)
    if places.own[0].contains(parse(staged)):
        return places
    location = (await among_others(lake, places, None)).check_directory(staged)
    return replace(places, own=[*places.own, location])


async def among_others(lake: Lake, places: TablePlaces, table_id: int | None, view: UUID | None = None) -> TablePlaces:
    """The same, with the places of all other tables and views, and with that of the namespace."""
    async with lake.read() as conn:
        schema = None if places.schema_name is None else await schemas.find(conn, places.schema_name)
        home = None if schema is None else places.premises.home_of(schema.uuid)
        found = [*await others(conn, table_id), *await remembered(conn, places.premises, table_id, view)]
        return replace(places, others=found, home=home)


async def remembered(conn: Conn, premises: Premises, table_id: int | None, view: UUID | None = None) -> list[Location]:
    """Below the locations of namespaces: what clients chose for views, and for tables that were dropped and are there
    still at older snapshots. Who removes orphans there would take their files."""
    chosen = await annex.remembered(conn, except_for=table_id, keys=PATHS)
    chosen += await annex_views.locations(conn, except_for=view)
    known = [place for place in map(_known, chosen) if place is not None]
    return [place for place in known if is_in_namespace(premises.root, place)]


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
    premises: Premises
    places: Sequence[Location]

    @classmethod
    def of(cls, table_id: int | None, places: TablePlaces, update: TableUpdate) -> "Claims":
        """None below the directory that is the table's by its uuid: nobody else can have that."""
        named = [update.set_properties[name] for name in PATHS if name in update.set_properties]
        named += [] if update.location is None else [update.location]
        taken = [place for place in map(given, named) if not places.own[0].contains(place)]
        return cls(table_id, places.premises, taken)


async def check_claims(conn: Conn, claims: Sequence[Claims]) -> None:
    """Call under the lock. Others may have taken a place since the commit was planned, and of one commit two tables may
    want the same."""
    for index, claim in enumerate(claims):
        if claim.places:
            wanted = [place for i, other in enumerate(claims) if i != index for place in other.places]
            known = await others(conn, claim.table_id) + await remembered(conn, claim.premises, claim.table_id)
            for theirs in (*known, *wanted):
                if taken := next((place for place in claim.places if place.overlaps(theirs)), None):
                    raise BadRequest(f"{taken} cannot be a table's location: another table has {theirs}")


_OURS_TO_SET: Final = frozenset({"mergus.format-version"})
