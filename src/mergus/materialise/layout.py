"""Where the objects of a table are, and what they are called.

Everything is below one directory per table uuid, beside DuckLake's data path and never inside it: there DuckLake's
cleaner takes every Parquet file that the catalog does not know for an orphan (H42). Names end in a hash of the content,
so an object never changes: two workers with the same job do no harm, and what is made again never meets a stale object.

    <root>/<table uuid>/metadata/   metadata files, manifest lists, manifests; version-hint.text and v<N>.metadata.json
                                    for those who come by the directory, the only names that are written twice;
                                    past-….metadata.json for those who ask what the table was at a snapshot
    <root>/<table uuid>/data/       rows that DuckLake keeps in Postgres, delete files, deletion vectors
    <root>/schemas/<schema uuid>/   the location of a namespace: clients choose locations of tables and views below it
    <root>/ducklake/<table uuid>/   files that the server writes for rows of DuckLake's: no client is told of a location
                                    above them. Clients that remove orphans delete all below a table's location that
                                    Iceberg's metadata does not name, and DuckLake's delete files it never names

A manifest of DuckLake's files says in its name which file ids it may list, so that the one that lists a file is found
without opening the others.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Final, Literal
from uuid import UUID

from mergus.errors import SetupError
from mergus.storage.location import Location

# `files` are DuckLake's own, `rows` are those of ours that hold inlined rows
Kind = Literal["files", "rows"]
Content = Literal["data", "deletes"]

_MANIFEST: Final = re.compile(r"(files|rows)-(data|deletes)-(\d+)-(\d+)-[0-9a-f]{32}\.avro")
# earlier versions named them so
_METADATA_EARLIER: Final = re.compile(r"(\d+)-(\d+)-[0-9a-f]{32}\.metadata\.json")
_METADATA: Final = re.compile(
    r"(\d+)-([0-9a-f]{8})-([0-9a-f]{4})-8([0-9a-f]{3})-[89ab][0-9a-f]{3}-[0-9a-f]{12}\.metadata\.json"
)
_HASHED: Final = re.compile(r".*-([0-9a-f]{32})\.(?:avro|parquet|puffin)")
_LIST: Final = re.compile(r"snap-\d+-[0-9a-f]{32}\.avro")
_DELETES: Final = re.compile(r"deletes-[0-9a-f]{32}\.(?:parquet|puffin)")
_SIGN: Final = re.compile(r"version-hint\.text|v\d+\.metadata\.json")
NAMESPACES: Final = "schemas"
DUCKLAKE: Final = "ducklake"
_ROWS: Final = re.compile(r"rows-(\d+)-(\d+)-[0-9a-f]{32}\.parquet")


@dataclass(frozen=True, slots=True)
class ManifestName:
    kind: Kind
    content: Content
    first: int
    last: int

    @classmethod
    def of(cls, path: str) -> "ManifestName | None":
        """None for a manifest that is not ours."""
        match = _MANIFEST.fullmatch(path.rpartition("/")[2])
        if match is None:
            return None
        kind: Kind = "files" if match[1] == "files" else "rows"
        content: Content = "data" if match[2] == "data" else "deletes"
        return cls(kind, content, int(match[3]), int(match[4]))


def rows_range(path: str) -> tuple[int, int] | None:
    """The snapshots whose inlined rows are in this file of ours: after the first, up to the second."""
    match = _ROWS.fullmatch(path.rpartition("/")[2])
    return None if match is None else (int(match[1]) - 1, int(match[2]))


def is_chained(path: str) -> bool:
    """Whether an object is called as one that a chain leads to: a list, a manifest, a file of rows or of deletes."""
    name = path.rpartition("/")[2]
    return any(kind.fullmatch(name) for kind in (_LIST, _MANIFEST, _ROWS, _DELETES))


def is_ours(path: str) -> bool:
    """Whether only the server gives such names."""
    name = path.rpartition("/")[2]
    return is_chained(path) or any(kind.fullmatch(name) for kind in (_METADATA, _METADATA_EARLIER, _SIGN))


def metadata_version(path: str) -> int | None:
    """The number of the version that a metadata file is."""
    name = path.rpartition("/")[2]
    match = _METADATA.fullmatch(name) or _METADATA_EARLIER.fullmatch(name)
    return None if match is None else int(match[1])


def metadata_as_of(path: str) -> int:
    """The newest snapshot of the lake that a metadata file knows of; -1 if it does not say."""
    name = path.rpartition("/")[2]
    if (match := _METADATA.fullmatch(name)) is not None:
        return int(match[2] + match[3] + match[4], 16)
    match = _METADATA_EARLIER.fullmatch(name)
    return -1 if match is None else int(match[2])


def is_metadata_of(path: str, core_digest: str) -> bool:
    """Whether a metadata file of ours says this, whatever its version is."""
    version, as_of = metadata_version(path), metadata_as_of(path)
    if version is None:
        return False
    earlier = f"{version:05}-{as_of}-{core_digest}.metadata.json"
    return path.rpartition("/")[2] in (_metadata_name(version, as_of, core_digest), earlier)


def _metadata_name(version: int, as_of: int, core_digest: str) -> str:
    """A number and a UUID, since clients count on both: PyIceberg reads no version from another name. The UUID is of
    the kind that is free to use (8): 60 bits are the snapshot, 62 of the hash."""
    known, hashed = f"{as_of:015x}", int(core_digest[:16], 16) | 1 << 63
    last = f"{hashed & ~(1 << 62):016x}"
    return f"{version:05}-{known[:8]}-{known[8:12]}-8{known[12:]}-{last[:4]}-{last[4:]}.metadata.json"


def root_beside(data_path: Location, given: str | None) -> Location:
    """Where the tables' directories are: `given`, or a sibling of the data path."""
    if given is not None:
        root = Location.parse(given)
        if data_path.contains(root):
            raise SetupError(
                f"MERGUS_ICEBERG_PATH must lie outside of DuckLake's data path {data_path}: "
                "DuckLake deletes Parquet files there that it does not know"
            )
        return root
    if not data_path.parts:
        raise SetupError(
            f"DuckLake's data path {data_path} has nothing beside it: set MERGUS_ICEBERG_PATH to a place outside of it"
        )
    *above, last = data_path.parts
    return Location(data_path.scheme, data_path.bucket, (*above, f"{last}-iceberg"))


def namespace_directory(root: Location, schema_uuid: UUID) -> Location:
    """Named by the uuid: a schema that is dropped and made again has another, and no name can be a path."""
    return root / NAMESPACES / str(schema_uuid)


def is_in_namespace(root: Location, location: Location) -> bool:
    """Whether it lies below the directory of some namespace, and is none itself."""
    return (root / NAMESPACES).contains(location) and len(location.parts) > len(root.parts) + 2


def ducklake_directory(root: Location, table_uuid: UUID) -> Location:
    """Where the server puts files of a table that rows of DuckLake's name."""
    return root / DUCKLAKE / str(table_uuid)


@dataclass(frozen=True, slots=True)
class Layout:
    """Of one table."""

    directory: Location

    @classmethod
    def of(cls, root: Location, table_uuid: UUID) -> "Layout":
        return cls(root / str(table_uuid))

    def manifest(self, name: ManifestName, data: bytes) -> Location:
        ranged = f"{name.kind}-{name.content}-{name.first}-{name.last}"
        return self.directory / f"metadata/{ranged}-{digest(data)}.avro"

    def manifest_list(self, snapshot_id: int, data: bytes) -> Location:
        return self.directory / f"metadata/snap-{snapshot_id}-{digest(data)}.avro"

    def metadata(self, version: int, as_of: int, core_digest: str) -> Location:
        """`as_of` is the newest snapshot of the lake that it knows of: which of two versions is the newer one."""
        return self.directory / f"metadata/{_metadata_name(version, as_of, core_digest)}"

    def past_metadata(self, data: bytes) -> Location:
        """Of the table as it was at an older snapshot; no version of it."""
        return self.directory / f"metadata/past-{digest(data)}.metadata.json"

    def numbered_metadata(self, version: int) -> Location:
        return self.directory / f"metadata/v{version}.metadata.json"

    @property
    def version_hint(self) -> Location:
        return self.directory / "metadata/version-hint.text"

    def rows(self, after: int, upto: int, data: bytes) -> Location:
        """Inlined rows of the snapshots after one and up to another."""
        return self.directory / f"data/rows-{after + 1}-{upto}-{digest(data)}.parquet"

    def deletes(self, data: bytes, ending: Literal["parquet", "puffin"]) -> Location:
        return self.directory / f"data/deletes-{digest(data)}.{ending}"


def digest_in(path: str) -> str | None:
    """The hash of its content that a name of ours ends in; that of a metadata file is no such hash."""
    match = _HASHED.fullmatch(path.rpartition("/")[2])
    return None if match is None else match[1]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
