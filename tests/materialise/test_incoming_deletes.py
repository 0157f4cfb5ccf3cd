"""Position deletes and deletion vectors of clients, whole and broken."""

import asyncio
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from mergus.config import Settings
from mergus.errors import BadRequest, Forbidden
from mergus.iceberg import position_deletes, puffin
from mergus.iceberg.manifest import EQUALITY_DELETES, POSITION_DELETES, DataFile
from mergus.materialise import incoming_deletes
from mergus.materialise.incoming import AddedDelete
from mergus.materialise.incoming_deletes import positions
from mergus.storage.location import Location
from mergus.storage.objects import Objects
from tests.support.lakes import backend_settings

pytestmark = pytest.mark.integration

ONE, TWO = "s3://b/1.parquet", "s3://b/2.parquet"
IDS = (position_deletes.FILE_PATH_ID, position_deletes.POSITION_ID)


def parquet(rows: Sequence[tuple[Any, Any]], ids: Sequence[int | None] = IDS, **how: Any) -> bytes:
    """In the order given."""
    tags = [None if i is None else {"PARQUET:field_id": str(i)} for i in ids]
    kinds = how.pop("kinds", (pa.string(), pa.int64()))
    names = how.pop("names", ("file_path", "pos"))
    fields = [pa.field(n, k, metadata=t) for n, k, t in zip(names, kinds, tags, strict=True)]
    arrays = [pa.array([row[i] for row in rows], kinds[i]) for i in range(2)]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), sink, **how)
    return sink.getvalue()


class Client:
    def __init__(self, root: str, objects: Objects) -> None:
        self.root, self.objects = root, objects

    def put(self, data: bytes, rows: int, **changes: Any) -> AddedDelete:
        path = f"{self.root}/{uuid4()}"
        asyncio.run(self.objects.put(Location.parse(path), data))
        file = DataFile(POSITION_DELETES, path, "PARQUET", (), rows, len(data))
        return AddedDelete(0, replace(file, **changes))

    def vectors(self, deletes: dict[str, set[int]]) -> list[AddedDelete]:
        """All in one file."""
        made = puffin.write([puffin.deletion_vector(path, rows) for path, rows in deletes.items()], {})
        whole = self.put(made.data, 0, file_format="PUFFIN")
        return [
            replace(
                whole,
                file=replace(
                    whole.file,
                    record_count=len(rows),
                    content_offset=blob.offset,
                    content_size_in_bytes=blob.length,
                    referenced_data_file=path,
                ),
            )
            for (path, rows), blob in zip(deletes.items(), made.blobs, strict=True)
        ]

    def read(self, *deletes: AddedDelete) -> dict[str, list[int]]:
        def check(path: str, /, *, deletes: bool = False) -> Location:
            if "/forbidden/" in path:
                raise Forbidden(path)
            return Location.parse(path)

        found = asyncio.run(positions(self.objects, check, deletes))
        assert all(isinstance(x, BitMap64) for x in found.values())
        return {path: list(rows) for path, rows in found.items()}


@pytest.fixture(params=["s3", "file"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Client:
    root = f"s3://mergus/{uuid4()}" if request.param == "s3" else str(tmp_path)
    return Client(root, Objects(backend_settings()))


def changed(delete: AddedDelete, **changes: Any) -> AddedDelete:
    return replace(delete, file=replace(delete.file, **changes))


def test_h33_a_delete_file_may_delete_from_two_data_files(client: Client) -> None:
    delete = client.put(position_deletes.write({ONE: [3, 5], TWO: [3]}), 3)
    assert client.read(delete) == {ONE: [3, 5], TWO: [3]}


def test_h35_unsorted_and_duplicate_positions_are_read_as_a_set(client: Client) -> None:
    data = parquet([(TWO, 9), (ONE, 5), (TWO, 1), (ONE, 5), (TWO, 9)])
    assert client.read(client.put(data, 5)) == {ONE: [5], TWO: [1, 9]}


def test_several_delete_files_of_one_data_file_are_combined(client: Client) -> None:
    first, second = client.put(parquet([(ONE, 1), (ONE, 2)]), 2), client.put(parquet([(ONE, 2), (TWO, 0)]), 2)
    assert client.read(first, second) == {ONE: [1, 2], TWO: [0]}
    assert client.read() == {}


def test_equality_delete_files_are_not_read_as_position_deletes(client: Client) -> None:
    delete = client.put(b"", 1, content=EQUALITY_DELETES, equality_ids=[1])
    assert client.read(delete) == {}


def test_columns_of_a_delete_file_are_found_by_field_id_and_then_by_name(client: Client) -> None:
    data = parquet([(ONE, 4)], names=("pos", "file_path"))
    assert client.read(client.put(data, 1)) == {ONE: [4]}
    swapped = parquet([(4, ONE)], ids=IDS[::-1], kinds=(pa.int64(), pa.string()))
    assert client.read(client.put(swapped, 1)) == {ONE: [4]}
    assert client.read(client.put(parquet([(ONE, 4)], ids=(None, None)), 1)) == {ONE: [4]}
    assert client.read(client.put(parquet([(ONE, 4)], kinds=(pa.large_string(), pa.int64())), 1)) == {ONE: [4]}


def test_the_row_column_of_a_delete_file_is_ignored(client: Client) -> None:
    kind = pa.struct([pa.field("x", pa.int64())])
    columns = [pa.array([ONE]), pa.array([4], pa.int64()), pa.array([{"x": 7}], kind)]
    sink = io.BytesIO()
    pq.write_table(pa.table(columns, names=["file_path", "pos", "row"]), sink)
    assert client.read(client.put(sink.getvalue(), 1)) == {ONE: [4]}


def test_large_delete_files_are_read_batch_by_batch(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming_deletes, "BATCH_ROWS", 100)
    rows = [((ONE, TWO)[i % 2], i) for i in range(1000)]
    data = parquet(rows, row_group_size=130)
    assert client.read(client.put(data, 1000)) == {ONE: list(range(0, 1000, 2)), TWO: list(range(1, 1000, 2))}


def test_deletion_vectors_of_a_client_are_read(client: Client) -> None:
    deletes = {ONE: {0, 7, 2**33}, TWO: set(range(100_000))}
    vectors = client.vectors(deletes)
    assert client.read(*vectors) == {path: sorted(rows) for path, rows in deletes.items()}
    assert client.read(vectors[1]) == {TWO: list(range(100_000))}
    with pytest.raises(BadRequest, match="Two deletion vectors"):
        client.read(vectors[0], *client.vectors({ONE: {1}}))


def test_a_deletion_vector_that_contradicts_its_entry_is_refused(client: Client) -> None:
    first, second = client.vectors({ONE: {1, 2}, TWO: {3}})
    offset, size = first.file.content_offset or 0, first.file.content_size_in_bytes or 0
    for changes, says in (
        ({"record_count": 3}, "has 2 positions, and its entry says 3"),
        ({"content_offset": second.file.content_offset}, "cannot be read|has 1 positions"),
        ({"content_offset": offset + 1}, "cannot be read"),
        ({"content_size_in_bytes": size - 1}, "cannot be read"),
        ({"content_offset": -1}, "outside of its file"),
        ({"content_size_in_bytes": first.file.file_size_in_bytes}, "outside of its file"),
        ({"content_size_in_bytes": 0}, "may have up to"),
        ({"content_size_in_bytes": 2**40}, "may have up to"),
        ({"content_offset": None}, "has no place"),
        ({"referenced_data_file": None}, "has no place"),
        ({"file_size_in_bytes": 5}, "its entry says 5"),
    ):
        with pytest.raises(BadRequest, match=says):
            client.read(changed(first, **changes))


def test_a_delete_file_that_contradicts_its_entry_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    good = client.put(parquet([(ONE, 1), (TWO, 2)]), 2)
    for changes, says in (
        ({"record_count": 3}, "has 2 rows, and its entry says 3"),
        ({"referenced_data_file": ONE}, "alone, and is not"),
        ({"file_size_in_bytes": 5}, "its entry says 5"),
        ({"file_path": f"{client.root}/nothing"}, "is missing"),
    ):
        with pytest.raises(BadRequest, match=says):
            client.read(changed(good, **changes))
    with pytest.raises(Forbidden):
        client.read(changed(good, file_path=f"{client.root}/forbidden/x"))
    for data, says in (
        (parquet([(None, 1)]), "without a path"),
        (parquet([(ONE, None)]), "without a path or a position"),
        (parquet([(ONE, -1)]), "negative"),
        (parquet([(ONE, 1)], kinds=(pa.string(), pa.int32())), "types string and int32"),
        (parquet([(ONE, 1)], names=("a", "b"), ids=(None, None)), "has no column file_path"),
        (parquet([(ONE, 1)], ids=(IDS[0], IDS[0])), "or more than one"),
        (b"PAR1", "cannot be read"),
        (b"", "cannot be read"),
    ):
        with pytest.raises(BadRequest, match=says):
            client.read(client.put(data, 1))
    monkeypatch.setattr(incoming_deletes, "MOST_PER_CHUNK", 1)
    with pytest.raises(BadRequest, match="more than 1 bytes"):
        client.read(good)


def damaged(data: st.DataObject, content: bytes) -> bytes:
    broken = bytearray(content)
    anywhere = st.integers(0, 10**6).map(lambda x: x % len(content))
    if data.draw(st.booleans(), "cut"):
        return bytes(broken[: data.draw(anywhere)])
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(anywhere)] = data.draw(st.integers(0, 255))
    return bytes(broken)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.booleans())
def test_a_damaged_delete_file_is_a_bad_request(tmp_path: Path, data: st.DataObject, vector: bool) -> None:
    client = Client(str(tmp_path), Objects(Settings()))  # pyright: ignore[reportCallIssue]
    if vector:
        (whole,) = client.vectors({ONE: {1, 5, 70_000}})
    else:
        whole = client.put(position_deletes.write({ONE: [1, 5], TWO: [7]}), 3)
    place = Location.parse(whole.file.file_path)
    content = damaged(data, asyncio.run(client.objects.get(place)) or b"")
    asyncio.run(client.objects.put(place, content))
    try:
        client.read(changed(whole, file_size_in_bytes=len(content)))
    except BadRequest:
        return
