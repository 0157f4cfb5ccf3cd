from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import MetastoreCatalog

from mergus.errors import SetupError
from mergus.materialise.layout import (
    Layout,
    ManifestName,
    digest,
    digest_in,
    is_metadata_of,
    is_ours,
    metadata_as_of,
    metadata_version,
    root_beside,
    rows_range,
)
from mergus.storage.location import Location

ROOT = Location.parse("s3://bucket/lake/data-iceberg")
LAYOUT = Layout.of(ROOT, UUID("00000000-0000-7000-8000-000000000001"))
ids = st.integers(0, 2**63 - 1)


@given(st.sampled_from(["files", "rows"]), st.sampled_from(["data", "deletes"]), ids, ids, st.binary(max_size=50))
def test_the_name_of_a_manifest_tells_its_kind_and_file_range(
    kind: str, content: str, first: int, last: int, data: bytes
) -> None:
    name = ManifestName(kind, content, first, last)  # pyright: ignore[reportArgumentType]
    path = str(LAYOUT.manifest(name, data))
    assert ManifestName.of(path) == name
    assert digest_in(path) == digest(data)
    assert rows_range(path) is None


@given(ids, ids, st.binary(max_size=50))
def test_the_name_of_a_rows_file_tells_its_snapshot_range(after: int, upto: int, data: bytes) -> None:
    path = str(LAYOUT.rows(after, upto, data))
    assert rows_range(path) == (after, upto)
    assert digest_in(path) == digest(data)
    assert ManifestName.of(path) is None


def test_the_name_of_a_rows_file_may_begin_before_the_first_snapshot() -> None:
    assert rows_range(str(LAYOUT.rows(-1, 7, b"x"))) == (-1, 7)


@given(st.integers(0, 10**9), st.integers(0, 2**60 - 1), st.binary(max_size=50))
def test_the_name_of_a_metadata_file_tells_its_version_and_snapshot(version: int, as_of: int, core: bytes) -> None:
    path = str(LAYOUT.metadata(version, as_of, digest(core)))
    assert (metadata_version(path), metadata_as_of(path)) == (version, as_of)
    assert is_ours(path)
    assert is_metadata_of(path, digest(core))
    assert not is_metadata_of(path, digest(b"other than " + core))
    # its hash is not one of the whole content
    assert digest_in(path) is None


@given(st.integers(0, 10**9), st.integers(0, 2**60 - 1))
def test_pyiceberg_parses_the_version_from_the_name_of_a_metadata_file(version: int, as_of: int) -> None:
    path = str(LAYOUT.metadata(version, as_of, digest(b"core")))
    assert MetastoreCatalog._parse_metadata_version(path) == version  # pyright: ignore[reportPrivateUsage]


def test_names_of_metadata_files_of_earlier_versions_are_recognised() -> None:
    path = f"s3://b/t/metadata/00012-345-{digest(b'core')}.metadata.json"
    assert (metadata_version(path), metadata_as_of(path)) == (12, 345)
    assert is_ours(path)
    assert is_metadata_of(path, digest(b"core"))
    assert not is_metadata_of(path, digest(b"other"))


@pytest.mark.parametrize(
    "path",
    [
        "s3://b/t/metadata/0a1b2c3d-m0.avro",
        "s3://b/t/metadata/files-data-1-2.avro",
        "s3://b/t/metadata/v3.metadata.json",
        "s3://b/t/metadata/00003-6c97e413-d51b-4538-ac70-12fe2a85cb83.metadata.json",
        "s3://b/t/files-data-1-2-00000000000000000000000000000000.avro/x",
        "",
    ],
)
def test_file_names_of_other_writers_are_not_recognised_as_own_files(path: str) -> None:
    assert ManifestName.of(path) is None
    assert rows_range(path) is None
    assert digest_in(path) is None
    assert metadata_as_of(path) == -1


def test_all_objects_of_a_table_lie_below_its_directory() -> None:
    of_all_kinds = [
        LAYOUT.manifest(ManifestName("files", "data", 1, 2), b""),
        LAYOUT.manifest_list(3, b""),
        LAYOUT.metadata(1, 2, digest(b"")),
        LAYOUT.numbered_metadata(4),
        LAYOUT.version_hint,
        LAYOUT.rows(1, 2, b""),
        LAYOUT.deletes(b"", "parquet"),
        LAYOUT.deletes(b"", "puffin"),
    ]
    assert all(LAYOUT.directory.contains(location) for location in of_all_kinds)
    assert len(set(of_all_kinds)) == len(of_all_kinds)


@pytest.mark.parametrize(
    ("data_path", "root"),
    [
        ("s3://b/lake/data/", "s3://b/lake/data-iceberg"),
        ("s3://b/data/", "s3://b/data-iceberg"),
        ("/srv/x/", "/srv/x-iceberg"),
    ],
)
def test_h42_the_default_iceberg_root_lies_beside_the_data_path(data_path: str, root: str) -> None:
    beside = root_beside(Location.parse(data_path), None)
    assert beside == Location.parse(root)
    assert not Location.parse(data_path).contains(beside)


@pytest.mark.parametrize("given_root", ["s3://b/lake/data/iceberg", "s3://b/lake/data/", "s3://b/lake/data/a/b/"])
def test_h42_an_iceberg_root_inside_the_data_path_is_refused(given_root: str) -> None:
    with pytest.raises(SetupError, match="outside"):
        root_beside(Location.parse("s3://b/lake/data/"), given_root)


def test_an_iceberg_root_outside_the_data_path_is_accepted() -> None:
    data_path = Location.parse("s3://b/lake/data/")
    for elsewhere in ("s3://other/lake/data/", "s3://b/lake/data2/", "s3://b/lake/"):
        assert root_beside(data_path, elsewhere) == Location.parse(elsewhere)


def test_a_data_path_that_is_a_whole_bucket_needs_a_configured_iceberg_root() -> None:
    with pytest.raises(SetupError, match="MERGUS_ICEBERG_PATH"):
        root_beside(Location.parse("s3://whole-bucket/"), None)
    assert root_beside(Location.parse("s3://whole-bucket/"), "s3://other/x") == Location.parse("s3://other/x")
