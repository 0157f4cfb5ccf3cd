"""`mergus restored`: what to do once Postgres, or objects, have come back from a backup.

Nothing of it is needed for what the server itself answers: what it makes of the lake hangs on the numbers and times of
snapshots. It is for those who cannot know: readers who follow `version-hint.text`, which leads into the lost future
until the table is looked at; and writers who began before, and would go on with numbers that mean something else now.
"""

from dataclasses import dataclass

from mergus.annex import catalog, chains, listener, migrate
from mergus.config import Settings
from mergus.ducklake.connect import connect
from mergus.ducklake.metadata import check_adoptable, read_metadata
from mergus.ducklake.skipped import skip
from mergus.errors import SetupError


@dataclass(frozen=True, slots=True)
class Restored:
    # of the empty snapshot behind the numbers that are left out
    snapshot_id: int | None
    # how many were taken for lost
    chains: int


def restored(settings: Settings, *, skipped: int, objects: bool) -> Restored:
    """One transaction. A listener looks at every table then: one that runs, for the epoch; the next one to lead, for
    nobody knows how far the last has come."""
    with connect(settings) as conn, conn.transaction():
        metadata = read_metadata(conn, settings.metadata_schema)
        if metadata is None:
            raise SetupError(f"there is no DuckLake in schema {settings.metadata_schema} of this Postgres")
        check_adoptable(metadata, None)
        if migrate.pending(conn, settings):
            raise SetupError("the lake is not set up, or by an older version: run `mergus init` first")
        made = skip(conn, skipped) if skipped else None
        lost = conn.execute(chains.FORGET_ALL).rowcount if objects else 0
        conn.execute(listener.FORGET_DONE)
        conn.execute(catalog.RAISE_EPOCH)
    return Restored(made, lost)
