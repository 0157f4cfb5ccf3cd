"""Which tables list a file, by its path, however it is spelled there: the same file may be written in three ways, on S3
(`s3://`, `s3a://`, `s3n://`) and on a local disk, and is relative to the table's directory if it lies below that."""

from collections.abc import Collection, Iterable
from typing import Final, LiteralString

from mergus.ducklake.connect import Conn
from mergus.ducklake.paths import Path, TablePaths
from mergus.storage.location import Location

_S3: Final = "s3://"
_OTHER_S3: Final = ("s3a://", "s3n://")

# By the hash index on paths: a file may be listed by either spelling.
LIVE_PATHS: Final = """
    SELECT path, path_is_relative FROM ducklake_data_file
    WHERE table_id = %(table_id)s AND end_snapshot IS NULL AND path = ANY(%(spellings)s)
"""

# Of tables that are there, at any snapshot; but what the table itself has had is its own. One that was dropped gives
# way, be it in this very commit: a file that two rows name stays until both are gone (see migration 0009).
PATHS_OF_OTHERS: Final = """
    SELECT f.path FROM ducklake_data_file f
    WHERE f.table_id <> %(table_id)s AND NOT f.path_is_relative AND f.path = ANY(%(spellings)s)
      AND NOT EXISTS (SELECT FROM ducklake_data_file o WHERE o.table_id = %(table_id)s AND o.path = f.path)
      AND EXISTS (SELECT FROM ducklake_table t WHERE t.table_id = f.table_id AND t.end_snapshot IS NULL)
    LIMIT 1
"""

# Of any table, at any snapshot, and what DuckLake's cleaner is to delete: that is its own affair.
NAMED: Final = """
    SELECT path FROM ducklake_data_file WHERE path = ANY(%(spellings)s)
    UNION SELECT path FROM ducklake_delete_file WHERE path = ANY(%(spellings)s)
    UNION SELECT path FROM ducklake_files_scheduled_for_deletion WHERE path = ANY(%(spellings)s)
"""


async def live_paths(conn: Conn, table_id: int, paths: TablePaths, candidates: Collection[str]) -> set[str]:
    """Those of the candidates, absolute paths, that the table lists already, however they are spelled there."""
    asked = {one_spelling(path): path for path in candidates}
    known = spellings(candidates, paths.directory)
    found = await (await conn.execute(LIVE_PATHS, {"table_id": table_id, "spellings": known})).fetchall()
    listed = {one_spelling(paths.resolve(*row)) for row in found}
    return {path for spelling, path in asked.items() if spelling in listed}


async def of_another(conn: Conn, table_id: int | None, candidates: Collection[str]) -> str | None:
    """One of the candidates, absolute paths outside of DuckLake's data path, that another table lists, or listed at a
    snapshot that is there still."""
    key: dict[str, object] = {"table_id": -1 if table_id is None else table_id}
    key["spellings"] = spellings(candidates, "")
    found = await (await conn.execute(PATHS_OF_OTHERS, key)).fetchone()
    return None if found is None else found[0]


async def named(conn: Conn, candidates: Collection[str]) -> set[str]:
    """Those of the candidates, absolute paths outside of DuckLake's data path, that any row names."""
    return await among(conn, NAMED, candidates)


async def among(conn: Conn, query: LiteralString, candidates: Collection[str]) -> set[str]:
    """Those of the candidates that a query for `spellings` finds, by whatever spelling a client gave."""
    asked = {one_spelling(path): path for path in candidates}
    found = await (await conn.execute(query, {"spellings": spellings(candidates, "")})).fetchall()
    return {asked[plain] for (path,) in found if (plain := one_spelling(path)) in asked}


def on_s3(path: str) -> str:
    """With the scheme that every reader knows: DuckDB takes two others for the same, and stores what it was told."""
    for scheme in _OTHER_S3:
        if path.startswith(scheme):
            return _S3 + path.removeprefix(scheme)
    return path


def one_spelling(path: str) -> str:
    """The same for all ways to write it; what is no location is itself."""
    path = on_s3(path)
    try:
        return path if path.startswith(_S3) else str(Location.parse(path))
    except ValueError:
        return path


def spellings(candidates: Iterable[str], directory: str) -> list[str]:
    """All ways to write them that clients and DuckDB have, in the directory of a table or without one."""
    found: set[str] = set()
    for path in candidates:
        plain = one_spelling(path)
        found |= {path, plain}
        if plain.startswith("file:///"):
            found |= {plain.removeprefix("file://"), plain.replace("file:///", "file:/", 1)}
        elif plain.startswith(_S3):
            found |= {scheme + plain.removeprefix(_S3) for scheme in _OTHER_S3}
    relative = {stored(path, directory).text for path in found} if directory else set[str]()
    # a text with this in it is none to Postgres, and no path there
    return [path for path in found | relative if "\0" not in path]


def stored(path: str, directory: str) -> Path:
    """As DuckLake stores it: relative if the file is below the directory."""
    below = path.removeprefix(directory)
    return Path(below, relative=below != path)
