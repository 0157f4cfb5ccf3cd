"""`mergus init`: a lake that Mergus can serve, made or adopted.

A new catalog is made by the ducklake extension, so it is exactly what DuckDB makes. An existing one is left as
it is, but for what `annex.migrate` adds beside it.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from mergus.annex import migrate
from mergus.annex.migrate import Progress
from mergus.config import Settings
from mergus.ducklake import session
from mergus.ducklake.connect import connect, dedicated, meaningful
from mergus.ducklake.metadata import Metadata, check_adoptable, read_metadata
from mergus.errors import ApiError, SetupError
from mergus.maintenance.moving import has_files_to_move, move_delete_files
from mergus.materialise.layout import root_beside
from mergus.storage.location import Location
from mergus.storage.objects import Objects
from mergus.storage.place import ensure_place


@dataclass(frozen=True, slots=True)
class Initialised:
    created: bool
    metadata: Metadata


def initialise(settings: Settings, progress: Progress) -> Initialised:
    """Safe to call from any number of processes at once, and cheap when there is nothing to do."""
    if settings.new_data_path is not None:
        _check_location(settings.new_data_path)
    with connect(settings) as conn:
        metadata = read_metadata(conn, settings.metadata_schema)
        if metadata is not None:
            check_adoptable(metadata, settings.new_data_path)
            if not migrate.pending(conn, settings):
                _move_delete_files(conn, settings, metadata, progress)
                return Initialised(False, metadata)
        with migrate.exclusive(conn, settings, progress):
            # looked at again under the lock: another process may have made it meanwhile
            metadata, created = read_metadata(conn, settings.metadata_schema), False
            if metadata is None:
                _create(settings, progress)
                metadata, created = read_metadata(conn, settings.metadata_schema), True
            if metadata is None:
                raise SetupError(f"DuckDB made the lake, but its tables are not in schema {settings.metadata_schema}")
            check_adoptable(metadata, settings.new_data_path)
            migrate.apply(conn, settings, progress, in_use=not created)
        _move_delete_files(conn, settings, metadata, progress)
    return Initialised(created, metadata)


def _move_delete_files(
    conn: Connection[tuple[Any, ...]], settings: Settings, metadata: Metadata, progress: Progress
) -> None:
    """Who may set up a lake may have no keys for its objects: then a sweep does it."""
    try:
        root = root_beside(metadata.location, settings.iceberg_path)
    except SetupError:
        # there is none: who serves the lake is told
        return
    if not has_files_to_move(conn, root):
        return

    async def move() -> int:
        async with meaningful(), dedicated(settings, "mergus init") as own:
            return await move_delete_files(own, Objects(settings), root)

    try:
        progress(f"moved {asyncio.run(move())} delete files out of the locations of tables")
    except ApiError as e:
        progress(f"delete files stay in the locations of tables until the next sweep: {e.message}")


def uninitialise(settings: Settings, progress: Progress) -> None:
    with connect(settings) as conn:
        if read_metadata(conn, settings.metadata_schema) is None:
            raise SetupError(f"there is no DuckLake in schema {settings.metadata_schema} of this Postgres")
        with migrate.exclusive(conn, settings, progress):
            migrate.remove(conn, settings, progress)


def _create(settings: Settings, progress: Progress) -> None:
    if settings.new_data_path is None:
        raise SetupError(
            "there is no DuckLake here yet: set MERGUS_WAREHOUSE to where a new one goes, s3://… or file://…"
        )
    progress(f"creating a DuckLake with its data in {settings.new_data_path}")
    location = Location.parse(settings.new_data_path)
    if location.scheme == "file":
        ensure_place(location, settings)
    session.attach(settings, settings.new_data_path).close()


def _check_location(text: str) -> None:
    try:
        Location.parse(text)
    except ValueError as e:
        raise SetupError(f"MERGUS_WAREHOUSE or MERGUS_DATA_PATH: {e}") from None
