"""Delete files of DuckLake's that earlier versions have put into the directories of tables: they move out of there.

Clients are told of that directory as the table's location. One that removes orphans deletes all below it that Iceberg's
metadata does not name, and these it never names. New ones are written elsewhere (`layout.ducklake_directory`).

An object is copied, and its rows then say where the copy is: killed in between, the next run copies it once more. The
old object stays, for sessions that have read the old path and for older backups of Postgres, until somebody removes
orphans.
"""

import re
from typing import Any, Final
from uuid import UUID

from psycopg import Connection

from mergus.ducklake import delete_paths
from mergus.ducklake.connect import Conn
from mergus.faults import point
from mergus.logs import log
from mergus.materialise.at_once import each
from mergus.materialise.layout import ducklake_directory
from mergus.storage.location import Location
from mergus.storage.objects import Objects

AT_ONCE: Final = 500
COPIES_AT_ONCE: Final = 16
# As a regular expression of Postgres and of Python.
NAME: Final = r"/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/data/(ducklake-deletes-[0-9a-f-]+\.parquet)$"


def has_files_to_move(conn: Connection[tuple[Any, ...]], root: Location) -> bool:
    key = {"directory": root.directory, "pattern": NAME, "after": "", "limit": 1}
    return conn.execute(delete_paths.FIND, key).fetchone() is not None


async def move_delete_files(conn: Conn, objects: Objects, root: Location) -> int:
    """How many have moved. One whose object is gone stays what it is: lost, under the name that it has."""
    after, moved = "", 0
    while found := await delete_paths.find(conn, root.directory, NAME, after, AT_ONCE):
        after = found[-1]
        targets = {path: target for path in found if (target := _target(root, path)) is not None}

        async def copy(item: tuple[str, Location]) -> bool:
            path, target = item
            content = await objects.get(Location.parse(path))
            if content is None:
                log.warning("delete file %s is gone, and cannot be moved", path)
                return False
            await objects.put(target, content)
            return True

        done = await each(copy, targets.items(), COPIES_AT_ONCE)
        copied = {path: str(target) for (path, target), there in zip(targets.items(), done, strict=True) if there}
        point("moving.copied")
        if copied:
            await delete_paths.move(conn, copied)
            moved += len(copied)
            point("moving.moved")
    return moved


def _target(root: Location, path: str) -> Location | None:
    """None for one that is not in the directory of a table right below the root."""
    match = re.search(NAME, path)
    if match is None or path != f"{root.directory}{match[0].removeprefix('/')}":
        return None
    return ducklake_directory(root, UUID(match[1])) / match[2]
