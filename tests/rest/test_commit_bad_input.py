"""Commits that cannot be right: each a precise 4xx, and not a row is written anywhere."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import duckdb
import pytest

from mergus.iceberg.manifest import ADDED, DELETED, EXISTING, DataFile, Entry, PartitionField
from mergus.iceberg.manifest_list import ManifestFile
from tests.support import servers
from tests.support.commits import (
    FIELDS,
    HandTable,
    Json,
    described,
    everything,
    field_of,
    in_duckdb,
    new_snapshot_id,
    new_table,
    rows,
    shown,
)
from tests.support.lakes import TestLake
from tests.support.loads import Bucket
from tests.support.servers import Server, error_of

BAD, FAILED, UNSUPPORTED = (
    (400, "BadRequestException"),
    (409, "CommitFailedException"),
    (406, "UnsupportedOperationException"),
)
LARGE = os.environ.get("MERGUS_TEST_LARGE") == "1"
MAX_BODY = 64 * 1024


@pytest.fixture(scope="module")
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with servers.server(lake.settings, folder, listener="off", max_body_bytes=MAX_BODY) as running:
        yield running


@pytest.fixture(scope="module")
def bucket(lake: TestLake) -> Bucket:
    return Bucket(lake.settings)


@pytest.fixture(scope="module")
def loaded(server: Server, bucket: Bucket) -> HandTable:
    made = new_table(server, bucket, "held")
    made.append(1)
    return made


@pytest.fixture
def table(loaded: HandTable, lake: TestLake) -> Iterator[HandTable]:
    """One that nothing happens to, whatever a test sends."""
    loaded.load()
    state, before = loaded.state, everything(lake)
    yield loaded
    assert everything(lake) == before
    assert loaded.load() == state
    assert '"status":5' not in loaded.server.log.read_text()


def sent(table: HandTable, manifests: Sequence[ManifestFile], snapshot_id: int, **changes: Any) -> tuple[int, str]:
    listed = table.list_of([*table.manifests(), *manifests], snapshot_id)
    return error_of(table.send(shown(table.snapshot_json(listed, snapshot_id, **changes))))


def appended(table: HandTable, *files: DataFile) -> tuple[int, str]:
    snapshot_id = new_snapshot_id()
    return error_of(table.send(table.append_updates(files, snapshot_id)))


def outside(table: HandTable, other: HandTable, lake: TestLake) -> list[str]:
    """Places where the table may have nothing."""
    return [
        f"{other.location}/data/x",
        f"{lake.settings.data_path}elsewhere/t/x",
        f"{table.location}/../x",
        f"{table.location}/data/../../x",
        f"{table.location}//data/x",
        f"{table.location}-more/x",
        table.location.rsplit("/", 1)[0] + "/x",
        "s3://another-bucket/x",
        "s3://mergus/x",
        table.location.replace("s3://", "s3a://") + "/x",
        table.location.replace("s3://", "gs://") + "/x",
        table.location.replace("s3://mergus/", "s3://mergus@evil/") + "/x",
        "file:///etc/passwd",
        "/etc/passwd",
        "http://169.254.169.254/latest/meta-data",
        "x",
        "",
        "\n",
    ]


@pytest.fixture(scope="module")
def other(server: Server, bucket: Bucket, lake: TestLake) -> HandTable:
    made = new_table(server, bucket, "elsewhere")
    made.append(1)
    return made


def test_a_commit_with_paths_outside_the_table_is_refused(
    other: HandTable, table: HandTable, lake: TestLake, bucket: Bucket
) -> None:
    for place in outside(table, other, lake):
        snapshot_id = new_snapshot_id()
        # the list
        snapshot = table.snapshot_json(place, snapshot_id)
        assert error_of(table.send(shown(snapshot))) == BAD, place
        # a manifest
        stray = replace(table.added([table.file(10)], snapshot_id), manifest_path=place)
        assert sent(table, [stray], snapshot_id) == BAD, place
        # a file
        assert appended(table, described(place, 10, 3, 100)) == BAD, place
    # things of another table that are really there
    (theirs,) = other.manifests()
    (entry,) = other.entries(theirs)
    snapshot_id = new_snapshot_id()
    assert appended(table, entry.data_file) == BAD
    assert sent(table, [theirs], snapshot_id) == BAD
    assert error_of(table.send(shown(table.snapshot_json(other.snapshot()["manifest-list"], snapshot_id)))) == BAD


def test_a_commit_with_missing_or_broken_objects_is_refused(table: HandTable, bucket: Bucket) -> None:
    snapshot_id = new_snapshot_id()
    assert error_of(table.send(shown(table.snapshot_json(table.path("metadata", "avro"), snapshot_id)))) == BAD
    manifest = table.added([table.file(10)], snapshot_id)
    listed = table.list_of([*table.manifests(), manifest], snapshot_id)
    bucket.delete(manifest.manifest_path)
    assert error_of(table.send(shown(table.snapshot_json(listed, snapshot_id)))) == BAD
    for broken in (b"", b"Obj\x01", b"nothing of ours", b"\0" * 1000):
        bucket.put(listed, broken)
        assert error_of(table.send(shown(table.snapshot_json(listed, snapshot_id)))) == BAD
        manifest = table.added([table.file(10)], snapshot_id)
        bucket.put(manifest.manifest_path, broken)
        assert sent(table, [manifest], snapshot_id) == BAD
        assert sent(table, [replace(manifest, manifest_length=len(broken))], snapshot_id) == BAD
    for cut in range(2):
        manifest = table.added([table.file(10)], snapshot_id)
        listed = table.list_of([*table.manifests(), manifest], snapshot_id)
        bucket.cut(listed if cut else manifest.manifest_path)
        assert error_of(table.send(shown(table.snapshot_json(listed, snapshot_id)))) == BAD
    # a directory
    assert error_of(table.send(shown(table.snapshot_json(table.location, snapshot_id)))) == BAD


@pytest.mark.parametrize(
    "lie",
    [
        {"added_files_count": 2},
        {"added_rows_count": 2},
        {"existing_files_count": 1},
        {"deleted_rows_count": 1},
        {"manifest_length": 10},
        {"manifest_length": 10**6},
        {"manifest_length": 0},
        {"manifest_length": -1},
        {"manifest_length": 2**40},
        {"content": 1},
        {"partition_spec_id": 99},
        {"partition_spec_id": -1},
    ],
    ids=str,
)
def test_a_commit_whose_manifest_list_contradicts_its_manifests_is_refused(
    table: HandTable, lie: dict[str, int]
) -> None:
    snapshot_id = new_snapshot_id()
    manifest = table.added([table.file(10)], snapshot_id)
    assert sent(table, [replace(manifest, **lie)], snapshot_id) == BAD  # pyright: ignore[reportArgumentType]


def test_a_commit_with_duplicate_or_encrypted_manifests_is_refused(table: HandTable) -> None:
    snapshot_id = new_snapshot_id()
    manifest = table.added([table.file(10)], snapshot_id)
    assert sent(table, [manifest, manifest], snapshot_id) == BAD
    assert sent(table, [replace(manifest, key_metadata=b"k")], snapshot_id) == UNSUPPORTED


def test_a_commit_with_duplicate_or_existing_files_is_refused(table: HandTable) -> None:
    new = table.file(10)
    assert appended(table, new, new) == BAD
    snapshot_id = new_snapshot_id()
    assert sent(table, [table.added([new], snapshot_id), table.added([new], snapshot_id)], snapshot_id) == BAD
    (known,) = table.manifests()
    (entry,) = table.entries(known)
    refused = appended(table, entry.data_file)
    assert refused in (BAD, FAILED)
    # beside the manifest that has it, and in its place
    again = table.added([entry.data_file], snapshot_id)
    listed = table.list_of([again], snapshot_id)
    assert error_of(table.send(shown(table.snapshot_json(listed, snapshot_id)))) == BAD


def change_of(**changes: Any) -> Callable[[DataFile], DataFile]:
    return lambda file: replace(file, **changes)


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (change_of(record_count=-1), BAD),
        (change_of(file_size_in_bytes=-1), BAD),
        (change_of(null_value_counts={1: -1}), BAD),
        (change_of(key_metadata=b"k"), UNSUPPORTED),
        (change_of(file_format="ORC"), UNSUPPORTED),
        (change_of(file_format="AVRO"), UNSUPPORTED),
        (change_of(file_format="NONSENSE"), UNSUPPORTED),
    ],
)
def test_a_commit_with_impossible_file_entries_is_refused(
    table: HandTable, change: Callable[[DataFile], DataFile], refused: tuple[int, str]
) -> None:
    assert appended(table, change(table.file(10))) == refused


def test_malformed_bounds_in_a_commit_do_not_hide_rows(server: Server, bucket: Bucket, lake: TestLake) -> None:
    """They are only there to skip files by: what cannot be read is not used, and rows are found all the same."""
    made = new_table(server, bucket, "unbound")
    for nonsense in (b"", b"\1", b"\0" * 9):
        file = replace(made.file(10), lower_bounds={1: nonsense, 99: b"x"}, upper_bounds={1: nonsense})
        answer = made.send(made.append_updates([file], new_snapshot_id()))
        assert answer.status_code in {200, 400}, answer.text
        made.load()
    with lake.duckdb() as db:
        listed = len(made.state["snapshots"])
        assert db.execute("SELECT count(*) FROM unbound.t WHERE i = 11").fetchall() == [(listed,)]


def test_a_commit_with_manifest_entries_of_other_snapshots_is_refused(table: HandTable) -> None:
    """A file that nobody added, or that another snapshot is said to have."""
    file = table.file(10)
    for entry, refused in (
        (Entry(EXISTING, 4711, 1, 1, file), FAILED),
        (Entry(ADDED, 4711, 1, 1, file), BAD),
    ):
        snapshot_id = new_snapshot_id()
        assert sent(table, [table.manifest([entry], snapshot_id)], snapshot_id) == refused
    # an append does not remove anything: it was made from a table that had less
    snapshot_id = new_snapshot_id()
    (known,) = table.manifests()
    (entry,) = table.entries(known)
    removes = table.manifest([replace(entry, status=DELETED, snapshot_id=snapshot_id)], snapshot_id)
    listed = table.list_of([removes], snapshot_id)
    assert error_of(table.send(shown(table.snapshot_json(listed, snapshot_id)))) == FAILED


def test_a_commit_with_partition_tuples_that_do_not_fit_the_spec_is_refused(table: HandTable) -> None:
    types = [PartitionField("p", 1000, "int")]
    spec = [{"source-id": 1, "field-id": 1000, "name": "p", "transform": "identity"}]
    file = replace(table.file(10), partition=(1,))
    snapshot_id = new_snapshot_id()
    assert sent(table, [table.added([file], snapshot_id, types=types, spec=spec)], snapshot_id) == BAD
    assert sent(table, [table.added([file], snapshot_id, types=types, spec=spec, spec_id=99)], snapshot_id) == BAD


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"snapshot_id": 0}, BAD),
        ({"snapshot_id": -1}, BAD),
        ({"snapshot_id": 2**63}, BAD),
        ({"snapshot_id": "1"}, BAD),
        ({"parent_snapshot_id": 4711}, FAILED),
        ({"schema_id": 99}, BAD),
        ({"sequence_number": 0}, FAILED),
        ({"sequence_number": -1}, BAD),
        ({"timestamp_ms": "now"}, BAD),
        ({"summary": {}}, BAD),
        ({"summary": {"operation": "nonsense"}}, BAD),
        ({"summary": {"operation": "append", "a": 1}}, BAD),
        ({"summary": {"operation": "append", "a": "\0"}}, BAD),
        ({"summary": None}, BAD),
        ({"manifest_list": None}, BAD),
        ({"manifest_list": None, "manifests": ["a"]}, BAD),
        ({"manifest_list": 7}, BAD),
        ({"key_id": "k"}, UNSUPPORTED),
    ],
    ids=str,
)
def test_a_commit_with_a_malformed_snapshot_is_refused(
    table: HandTable, changes: dict[str, Any], refused: tuple[int, str]
) -> None:
    snapshot_id = new_snapshot_id()
    listed = table.list_of([*table.manifests(), table.added([table.file(10)], snapshot_id)], snapshot_id)
    whole = {"snapshot_id": snapshot_id, "manifest_list": listed, **changes}
    snapshot = table.snapshot_json(listed, snapshot_id)
    snapshot |= {key.replace("_", "-"): value for key, value in whole.items()}
    assert error_of(table.send(shown(snapshot))) == refused


def test_a_commit_that_adds_a_snapshot_twice_is_refused(table: HandTable) -> None:
    """The id of one of DuckLake's, or of this very commit."""
    snapshot_id = new_snapshot_id()
    add, main = table.append_updates([table.file(10)], snapshot_id)
    assert error_of(table.send([add, add, main])) == BAD


@pytest.mark.parametrize(
    "fields",
    [
        # an id means one thing for ever
        [FIELDS[0], field_of(2, "s", "long")],
        [field_of(1, "i", "string"), FIELDS[1]],
        # types only widen
        [field_of(1, "i", "float"), FIELDS[1]],
        [field_of(1, "i", "boolean"), FIELDS[1]],
        [field_of(1, "i", {"type": "struct", "fields": [field_of(3, "x")]}), FIELDS[1]],
        # rows may be without
        [field_of(1, "i", required=True), FIELDS[1]],
        [*FIELDS, field_of(3, "n", required=True)],
        # names
        [*FIELDS, field_of(3, "I")],
        [*FIELDS, field_of(3, "row_id")],
        [*FIELDS, field_of(3, "_pos")],
        [*FIELDS, field_of(3, "x" * 64)],
        [*FIELDS, field_of(3, "")],
        [*FIELDS, field_of(3, "a\0")],
        [*FIELDS, field_of(2, "twice")],
        [*FIELDS, field_of(2**31 - 1, "reserved")],
        [*FIELDS, field_of(3, "n", "timestamp_ns")],
        [*FIELDS, field_of(3, "n", "nonsense")],
        [*FIELDS, {**field_of(3, "n"), "initial-default": 7}],
    ],
    ids=str,
)
def test_a_commit_with_an_incompatible_schema_is_refused(table: HandTable, fields: list[Json]) -> None:
    updates = [
        {"action": "add-schema", "schema": {"type": "struct", "schema-id": 1, "fields": fields}},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    assert error_of(table.send(updates)) == BAD


@pytest.mark.parametrize("kind", ["fixed[4]", "unknown"])
def test_a_commit_with_a_column_type_that_ducklake_lacks_is_refused(
    server: Server, bucket: Bucket, lake: TestLake, kind: str
) -> None:
    made = new_table(server, bucket, f"typed_{kind[:5]}", properties={"format-version": "3"})
    before = everything(lake)
    updates = [
        {"action": "add-schema", "schema": {"type": "struct", "fields": [*FIELDS, field_of(3, "n", kind)]}},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    assert error_of(made.send(updates)) == UNSUPPORTED
    assert everything(lake) == before


def test_a_commit_that_reuses_a_field_id_is_refused(
    server: Server, bucket: Bucket, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    """Not even that of a column which DuckDB has dropped."""
    made = new_table(server, bucket, "reuse")
    made.append(1)
    db.execute("ALTER TABLE reuse.t ADD COLUMN j INTEGER; ALTER TABLE reuse.t DROP COLUMN j")
    assert made.load()["last-column-id"] == 3
    before = everything(lake)
    for kind in ("string", "date"):
        updates = [
            {"action": "add-schema", "schema": {"type": "struct", "fields": [*FIELDS, field_of(3, "k", kind)]}},
            {"action": "set-current-schema", "schema-id": -1},
        ]
        assert error_of(made.send(updates)) in (BAD, FAILED)
    assert everything(lake) == before


def test_a_commit_body_over_the_limit_is_refused(table: HandTable) -> None:
    large = [{"action": "set-properties", "updates": {"a": "x" * MAX_BODY}}]
    assert error_of(table.send(large)) == (413, "PayloadTooLargeException")

    def unsized() -> Iterator[bytes]:
        for _ in range(MAX_BODY // 1024 + 2):
            yield b" " * 1024

    answer = table.server.http.post(table.url, content=unsized(), headers={"Content-Type": "application/json"})
    assert error_of(answer) == (413, "PayloadTooLargeException")


@pytest.mark.parametrize(
    "count", [10_000, pytest.param(100_000, marks=pytest.mark.skipif(not LARGE, reason="MERGUS_TEST_LARGE=1"))]
)
def test_a_commit_of_many_files_is_applied(
    server: Server, bucket: Bucket, lake: TestLake, db: duckdb.DuckDBPyConnection, count: int
) -> None:
    made = new_table(server, bucket, f"many{count}")
    real = made.file(0)
    size = real.file_size_in_bytes
    files = [real, *(described(f"{made.location}/data/{n}.parquet", 10 * n, 3, size) for n in range(1, count))]
    parts = [files[n : n + 2500] for n in range(0, count, 2500)]
    snapshot_id = new_snapshot_id()
    manifests = [made.added(part, snapshot_id) for part in parts]
    listed = made.list_of(manifests, snapshot_id)
    answer = server.http.post(
        made.url,
        json={"requirements": [], "updates": shown(made.snapshot_json(listed, snapshot_id))},
        timeout=300,
    )
    assert answer.status_code == 200, answer.text
    assert db.execute(f"SELECT count(*) FROM many{count}.t").fetchall() == [(3 * count,)]
    # of all these files only one is there: what each holds is known, and the others are not opened
    assert db.execute(f"SELECT i, s FROM many{count}.t WHERE i < 5 ORDER BY i").fetchall() == rows(0)
    # and the table takes more
    made.load()
    made.append(-10)
    assert db.execute(f"SELECT count(*) FROM many{count}.t").fetchall() == [(3 * count + 3,)]


def test_the_table_is_unchanged_and_writable_after_refused_commits(
    loaded: HandTable, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    assert in_duckdb(lake, db, "held") == rows(1)
    loaded.load()
    loaded.append(10)
    assert in_duckdb(lake, db, "held") == [*rows(1), *rows(10)]
