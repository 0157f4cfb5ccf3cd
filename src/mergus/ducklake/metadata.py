"""What a DuckLake says about itself, and whether we may touch it."""

from dataclasses import dataclass
from typing import Any, Final

from psycopg import AsyncConnection, Connection, sql

from mergus.errors import ServiceUnavailable, SetupError
from mergus.storage.location import Location

SUPPORTED_VERSION = "1.0"

# Where there may be no lake, its own schema is asked by name: other schemas in the search path may hold another.
EXISTS: Final = "SELECT to_regclass(quote_ident(%s) || '.ducklake_metadata') IS NOT NULL"
READ_METADATA: Final = """
    SELECT key, value FROM {}.ducklake_metadata
    WHERE scope IS NULL AND key IN ('version', 'encrypted', 'data_path')
"""
ANY_FILE: Final = "SELECT EXISTS (SELECT FROM ducklake_data_file WHERE path_is_relative)"


@dataclass(frozen=True, slots=True)
class Metadata:
    version: str
    encrypted: bool
    data_path: str

    @property
    def trouble(self) -> str | None:
        """Why this lake cannot be served, or None."""
        if self.version != SUPPORTED_VERSION:
            return (
                f"this DuckLake has catalog version {self.version}, and only {SUPPORTED_VERSION} is supported. "
                "An older one is migrated by DuckDB 1.5.5: ATTACH it with AUTOMATIC_MIGRATION TRUE; "
                "a newer one needs a newer Mergus"
            )
        if self.encrypted:
            return (
                "this DuckLake is encrypted, and Iceberg readers cannot read DuckDB's encrypted files. "
                "Copy its tables into an unencrypted lake"
            )
        try:
            Location.parse(self.data_path)
        except ValueError as e:
            return f"the data path of this DuckLake cannot be served: {e}"
        return None

    @property
    def location(self) -> Location:
        return Location.parse(self.data_path)


def _parse(rows: list[tuple[Any, ...]]) -> Metadata:
    values: dict[str, str] = dict(rows)  # pyright: ignore[reportArgumentType,reportCallIssue]
    return Metadata(
        version=values.get("version", "unknown"),
        encrypted=values.get("encrypted", "false").lower() == "true",
        data_path=values.get("data_path", ""),
    )


def read_metadata(conn: Connection[tuple[Any, ...]], schema: str) -> Metadata | None:
    """None where there is no DuckLake in this Postgres schema yet."""
    row = conn.execute(EXISTS, (schema,)).fetchone()
    if row is None or not row[0]:
        return None
    return _parse(conn.execute(sql.SQL(READ_METADATA).format(sql.Identifier(schema))).fetchall())


async def check_served(conn: AsyncConnection[tuple[Any, ...]], schema: str) -> Metadata:
    """For a running server: the lake is there and is one that we may touch."""
    row = await (await conn.execute(EXISTS, (schema,))).fetchone()
    if row is None or not row[0]:
        raise ServiceUnavailable("There is no DuckLake catalog in this Postgres")
    found = await conn.execute(sql.SQL(READ_METADATA).format(sql.Identifier(schema)))
    metadata = _parse(await found.fetchall())
    if metadata.trouble:
        raise ServiceUnavailable(metadata.trouble)
    return metadata


async def has_files(conn: AsyncConnection[tuple[Any, ...]]) -> bool:
    """Whether there is a file below the data path, if only of the past."""
    row = await (await conn.execute(ANY_FILE)).fetchone()
    return row is not None and bool(row[0])


def check_adoptable(metadata: Metadata, data_path: str | None) -> None:
    if metadata.trouble:
        raise SetupError(metadata.trouble)
    if data_path is not None and Location.parse(data_path) != metadata.location:
        raise SetupError(
            f"this DuckLake keeps its data in {metadata.data_path}, but the settings say {data_path}. "
            "Unset MERGUS_DATA_PATH (and MERGUS_WAREHOUSE), or point MERGUS_POSTGRES_DSN at the lake you mean"
        )
