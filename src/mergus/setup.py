"""`mergus init`: a lake that Mergus can serve, made or adopted.

A new catalog is made by the ducklake extension, so it is exactly what DuckDB makes. An existing one is left as
it is, but for what `annex.migrate` adds beside it.
"""

from dataclasses import dataclass

from mergus.annex import migrate
from mergus.annex.migrate import Progress
from mergus.config import Settings
from mergus.ducklake import session
from mergus.ducklake.connect import connect
from mergus.ducklake.metadata import Metadata, check_adoptable, read_metadata
from mergus.errors import SetupError
from mergus.storage.location import Location
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
    return Initialised(created, metadata)


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
