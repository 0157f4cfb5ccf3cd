"""Where a table has its files, who else may have some there, and what of it a client may therefore touch.

A grant is about the name of a table; keys are about directories. Where the two differ is decided here:

- The directory of Iceberg's files is named by the table's uuid, and nobody else's; clients write there, or in a place
  that they chose, and not in DuckLake's data path. One exception: DuckDB's iceberg extension puts delete files where
  data files are, so it may write there what is called like those, and like none of DuckLake's.
- DuckLake's directory may hold files of other tables: of one that was dropped and made again, or renamed (H22). It is
  open as a whole only to who may read each of them, under the name that it has or had last. To others it is *guarded*:
  they may read those very objects that are this table's.
- Files that were added from elsewhere open the directory they are in, if no other table has any there, and else
  themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from mergus.access.privileges import READ, Resource, Rights
from mergus.annex import chosen
from mergus.catalog.lake import Lake
from mergus.catalog.locations import parse
from mergus.catalog.table_places import PATHS, premises
from mergus.ducklake import directories
from mergus.ducklake.connect import Conn
from mergus.errors import BadRequest, Forbidden
from mergus.iceberg.namespace import Namespace
from mergus.materialise.layout import Layout, ducklake_directory, is_in_namespace
from mergus.materialise.table import Materialised
from mergus.storage.location import Location

# More directories, or single objects, than that do not fit into a policy.
MOST_PLACES: Final = 40


@dataclass(frozen=True, slots=True)
class Holdings:
    """Of a table, whoever asks. `neighbours` are those of others that may have files in a place; a place that is
    `closed` is opened to nobody as a whole."""

    uuid: UUID
    directory: Location
    ducklake: Location | None
    chosen: tuple[Location, ...] = ()
    elsewhere: tuple[Location, ...] = ()
    neighbours: Mapping[Location, frozenset[tuple[str, str]]] = field(
        default_factory=dict[Location, frozenset[tuple[str, str]]]
    )
    closed: frozenset[Location] = frozenset()
    unwritable: frozenset[Location] = frozenset()

    @property
    def places(self) -> tuple[Location, ...]:
        found = (self.directory, self.ducklake, *self.chosen, *self.elsewhere)
        return tuple(dict.fromkeys(place for place in found if place is not None))


@dataclass(frozen=True, slots=True)
class Grounds:
    """Of a table, for who asks: directories to read and to write, those where only its own files may be read, and that
    of DuckLake's files if delete files of the table may lie beside them."""

    read: tuple[Location, ...]
    write: tuple[Location, ...]
    guarded: tuple[Location, ...]
    beside: tuple[Location, ...] = ()


async def of_table(lake: Lake, table: Materialised) -> Holdings:
    reading = table.reading
    named = [reading.properties[name] for name in PATHS if name in reading.properties]
    named += [reading.kept.location] if reading.kept.location else []
    ducklake = parse(reading.view.table.paths.directory)
    directory = reading.view.layout.directory
    own = tuple(dict.fromkeys(place for place in map(parse, named) if not directory.contains(place)))
    async with lake.read() as conn:
        known = [place.directory for place in (directory, ducklake, *own)]
        text = reading.view.table.paths.directory
        found = await directories.outside(conn, reading.view.table.id, text, known, MOST_PLACES + 1)
        if len(found) > MOST_PLACES:
            raise Forbidden("The table has files in more directories than keys can be limited to")
        elsewhere = tuple(place for place in map(_place, found) if place is not None)
        held = Holdings(reading.view.table.uuid, directory, ducklake, own, elsewhere)
        return await _among_others(lake, conn, held, reading.view.table.id)


async def of_promised(lake: Lake, uuid: UUID, location: str) -> Holdings:
    """A table that is staged: nobody else knows of it yet."""
    directory = Layout.of((await premises(lake)).root, uuid).directory
    place = parse(location)
    own = () if directory.contains(place) else (place,)
    async with lake.read() as conn:
        return await _among_others(lake, conn, Holdings(uuid, directory, None, own), None)


def _place(text: str) -> Location | None:
    """None for what no keys of this store are good for."""
    try:
        return parse(text)
    except BadRequest:
        return None


async def _among_others(lake: Lake, conn: Conn, held: Holdings, table_id: int | None) -> Holdings:
    by_text = {place.directory: place for place in held.places}
    own = held.directory.directory
    texts = [text for text in by_text if text != own]
    near = await directories.neighbours(conn, table_id, held.uuid, own, texts)
    near += await chosen.neighbours(conn, table_id, held.uuid, texts, PATHS)
    found: dict[Location, set[tuple[str, str]]] = {}
    for neighbour in near:
        found.setdefault(by_text[neighbour.place], set()).add((neighbour.schema_name, neighbour.name))
    grounds = await premises(lake)
    closed = {
        place for place in held.places if _overlap(place, grounds.root) and not _is_own(held, grounds.root, place)
    }
    if table_id is not None and held.elsewhere:
        elsewhere = [place.directory for place in held.elsewhere]
        closed |= {by_text[text] for text in await directories.taken(conn, table_id, elsewhere)}
    return Holdings(
        held.uuid,
        held.directory,
        held.ducklake,
        held.chosen,
        held.elsewhere,
        {place: frozenset(names) for place, names in found.items()},
        frozenset(closed),
        frozenset(place for place in held.places if _overlap(place, grounds.data_path)),
    )


def grounds(held: Holdings, rights: Rights, *, may_write: bool) -> Grounds:
    """What of it is open to whom: `rights` tell which others may be read."""
    read: list[Location] = []
    write: list[Location] = []
    guarded: list[Location] = []
    beside: list[Location] = []
    for place in held.places:
        others = held.neighbours.get(place, frozenset[tuple[str, str]]())
        if place in held.closed or not _may_read(others, rights):
            guarded.append(place)
            continue
        read.append(place)
        if not may_write or others:
            continue
        if place == held.ducklake:
            beside.append(place)
        elif place not in held.elsewhere and place not in held.unwritable:
            write.append(place)
    if held.directory in guarded:
        raise Forbidden("The table shares its directory with another, which you may not read")
    return Grounds(tuple(read), tuple(write), tuple(guarded), tuple(beside))


def _is_own(held: Holdings, root: Location, place: Location) -> bool:
    """Whether a place below the root is for this table alone: by its uuid, or below the location of a namespace."""
    return place in (held.directory, ducklake_directory(root, held.uuid)) or is_in_namespace(root, place)


def _may_read(others: frozenset[tuple[str, str]], rights: Rights) -> bool:
    return all(rights.allow(READ, Resource(Namespace.of_schema(schema), name)) for schema, name in others)


def _overlap(one: Location, other: Location) -> bool:
    """As a store sees it that does not tell apart upper and lower case."""
    a, b = _folded(one), _folded(other)
    return a.contains(b) or b.contains(a)


def _folded(place: Location) -> Location:
    return Location(place.scheme, place.bucket, tuple(part.lower() for part in place.parts))
