"""H36: equality deletes as Flink writes them, resolved to positions of older files."""

import asyncio
import math
import struct
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mergus.config import Settings
from mergus.errors import BadRequest, Unsupported
from mergus.iceberg.name_mapping import MappedField
from mergus.iceberg.schema import Field, List
from mergus.materialise import equality_deletes
from mergus.materialise.equality_deletes import Candidate, EqualityDelete, resolve
from mergus.storage.location import Location
from mergus.storage.objects import Objects

S = Field(2, "s", "string")
TABLE = {1: Field(1, "i", "long"), 2: S, 3: Field(3, "f", "double")}
INT, LONG, TEXT, DOUBLE = pa.int32(), pa.int64(), pa.string(), pa.float64()


class Files:
    """A place for them, and what was made there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects = Objects(Settings())  # pyright: ignore[reportCallIssue]

    def write(self, columns: Mapping[int, tuple[pa.DataType, list[Any]]], ids: bool = True, **how: Any) -> str:
        fields = [
            pa.field(f"c{i}", kind, metadata={"PARQUET:field_id": str(i)} if ids else None)
            for i, (kind, _) in columns.items()
        ]
        arrays = [pa.array(values, kind) for kind, values in columns.values()]
        path = self.folder / f"{uuid4()}.parquet"
        pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), path, **how)
        return str(path)

    def deletes(
        self, columns: Mapping[int, tuple[pa.DataType, list[Any]]], fields: Mapping[int, Field] = TABLE, **changes: Any
    ) -> EqualityDelete:
        path = self.write(columns)
        rows = len(next(iter(columns.values()))[1])
        values = {"equality_ids": tuple(columns), "spec_id": 0, "partition": (), "sequence_number": 5}
        known = {"path": path, "location": Location.parse(path), "record_count": rows, "fields": fields}
        return EqualityDelete(**(known | values | changes))

    def resolve(self, deletes: list[EqualityDelete], *candidates: Candidate) -> list[list[int]]:
        found = asyncio.run(resolve(self.objects, deletes, candidates))
        return [list(found.get(x.path, [])) for x in candidates]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def candidate(path: str, **changes: Any) -> Candidate:
    return Candidate(**({"path": path, "spec_id": 0, "partition": (), "sequence_number": 4} | changes))


def test_an_equality_delete_finds_the_rows_with_its_keys(files: Files) -> None:
    data = files.write({1: (LONG, [7, 8, None, 7, 9]), 2: (TEXT, list("abcde"))})
    assert files.resolve([files.deletes({1: (LONG, [7, 100])})], candidate(data)) == [[0, 3]]
    assert files.resolve([files.deletes({1: (LONG, [None])})], candidate(data)) == [[2]]
    assert files.resolve([files.deletes({1: (LONG, [])})], candidate(data)) == [[]]


def test_an_equality_delete_compares_all_columns_of_its_key(files: Files) -> None:
    data = files.write({1: (LONG, [1, 1, 2, 2, None]), 2: (TEXT, ["a", "b", "a", None, None])})
    keys = files.deletes({2: (TEXT, ["b", "a", None]), 1: (LONG, [1, 2, None])})
    assert files.resolve([keys], candidate(data)) == [[1, 2, 4]]


def test_equality_deletes_of_several_files_and_columns_are_combined(files: Files) -> None:
    data = files.write({1: (LONG, [1, 2, 3, 4]), 2: (TEXT, ["a", "b", "c", "d"])})
    deletes = [files.deletes({1: (LONG, [1])}), files.deletes({1: (LONG, [2])}), files.deletes({2: (TEXT, ["d"])})]
    assert files.resolve(deletes, candidate(data)) == [[0, 1, 3]]


def test_an_equality_delete_applies_to_older_files_only(files: Files) -> None:
    data = [files.write({1: (LONG, [1])}) for _ in range(3)]
    found = files.resolve(
        [files.deletes({1: (LONG, [1])})], *(candidate(x, sequence_number=4 + i) for i, x in enumerate(data))
    )
    assert found == [[0], [], []]


def test_a_partitioned_equality_delete_applies_to_its_partition_only(files: Files) -> None:
    paths = [files.write({1: (LONG, [1])}) for _ in range(5)]
    places = [(1, ("a",)), (1, ("b",)), (2, ("a",)), (0, ()), (1, (math.nan,))]
    candidates = [candidate(x, spec_id=s, partition=p) for x, (s, p) in zip(paths, places, strict=True)]
    in_a = files.deletes({1: (LONG, [1])}, spec_id=1, partition=("a",))
    assert files.resolve([in_a], *candidates) == [[0], [], [], [], []]
    in_nan = files.deletes({1: (LONG, [1])}, spec_id=1, partition=(math.nan,))
    assert files.resolve([in_nan], *candidates) == [[], [], [], [], [0]]
    everywhere = files.deletes({1: (LONG, [1])})
    assert files.resolve([everywhere], *candidates) == [[0]] * 5


def test_equality_deletes_compare_floats_as_java_does(files: Files) -> None:
    other_nan = struct.unpack("<d", bytes.fromhex("010000000000f8ff"))[0]
    data = files.write({3: (DOUBLE, [0.0, -0.0, math.nan, other_nan, 1.5, None])})
    assert files.resolve([files.deletes({3: (DOUBLE, [math.nan])})], candidate(data)) == [[2, 3]]
    assert files.resolve([files.deletes({3: (DOUBLE, [0.0, 1.5])})], candidate(data)) == [[0, 4]]
    singles = files.write({3: (pa.float32(), [1.5, math.nan])})
    assert files.resolve([files.deletes({3: (DOUBLE, [1.5, math.nan])})], candidate(singles)) == [[0, 1]]


def test_equality_deletes_match_values_of_promoted_types(files: Files) -> None:
    ints, longs = files.write({1: (INT, [1, 2])}), files.write({1: (LONG, [2**40, 2])})
    assert files.resolve([files.deletes({1: (LONG, [2, 2**40])})], candidate(ints), candidate(longs)) == [[1], [0, 1]]
    assert files.resolve([files.deletes({1: (INT, [2])})], candidate(ints), candidate(longs)) == [[1], [1]]


def test_equality_deletes_match_the_default_of_a_column_missing_in_a_file(files: Files) -> None:
    data = files.write({2: (TEXT, ["a", "b"])})
    assert files.resolve([files.deletes({1: (LONG, [None])})], candidate(data)) == [[0, 1]]
    with_default = {1: Field(1, "i", "long", initial_default=7), 2: S}
    assert files.resolve([files.deletes({1: (LONG, [None])}, with_default)], candidate(data)) == [[]]
    assert files.resolve([files.deletes({1: (LONG, [7])}, with_default)], candidate(data)) == [[0, 1]]
    keys = files.deletes({1: (LONG, [7]), 2: (TEXT, ["b"])}, with_default)
    assert files.resolve([keys], candidate(data)) == [[1]]


@pytest.mark.parametrize(
    ("kind", "arrow", "one", "other", "default"),
    [
        ("boolean", pa.bool_(), True, False, True),
        ("date", pa.date32(), date(2020, 2, 29), date(1, 1, 1), "2020-02-29"),
        ("time", pa.time64("us"), time(1, 2, 3, 4), time(0), "01:02:03.000004"),
        ("timestamp", pa.timestamp("us"), datetime(2020, 1, 2, 3), datetime(1969, 1, 1), "2020-01-02T03:00:00.000000"),
        (
            "timestamptz",
            pa.timestamp("us", "UTC"),
            datetime(2020, 1, 2, 3, tzinfo=UTC),
            datetime(1969, 1, 1, tzinfo=UTC),
            "2020-01-02T03:00:00.000000+00:00",
        ),
        ("timestamp_ns", pa.timestamp("ns"), 1_577_934_245_000_000_001, 7, "2020-01-02T03:04:05.000000001"),
        ("string", pa.string(), "é", "e", "é"),
        ("binary", pa.binary(), b"\x00\xff", b"", "00ff"),
        ("fixed[2]", pa.binary(2), b"\x00\xff", b"ab", "00ff"),
        ("uuid", pa.uuid(), UUID(int=7).bytes, UUID(int=8).bytes, str(UUID(int=7))),
        ("decimal(10, 2)", pa.decimal128(10, 2), Decimal("1.20"), Decimal("-3.00"), "1.20"),
        ("float", pa.float32(), 1.5, 2.5, 1.5),
        ("int", pa.int16(), 3, 4, 3),
    ],
)
def test_equality_deletes_match_values_of_every_type(
    files: Files, kind: str, arrow: pa.DataType, one: Any, other: Any, default: Any
) -> None:
    field = Field(9, "x", kind, initial_default=default)
    data = files.write({9: (arrow, [other, one, None, one])})
    without = files.write({1: (LONG, [0, 0])})
    found = files.resolve([files.deletes({9: (arrow, [one])}, {9: field})], candidate(data), candidate(without))
    assert found == [[1, 3], [0, 1]]
    found = files.resolve([files.deletes({9: (arrow, [other, None])}, {9: field})], candidate(data), candidate(without))
    assert found == [[0, 2], []]


def test_equality_deletes_resolve_files_without_field_ids_by_name_mapping(files: Files) -> None:
    data = files.write({2: (LONG, [1, 2]), 1: (LONG, [3, 1])}, ids=False)
    keys = files.deletes({1: (LONG, [1])})
    # named c2 and c1, but the other way round
    mapping = (MappedField(1, ("c2",)), MappedField(2, ("c1",)))
    assert files.resolve([keys], candidate(data, mapping=mapping)) == [[0]]
    with pytest.raises(Unsupported, match="no field ids"):
        files.resolve([keys], candidate(data))


def test_a_file_whose_bounds_exclude_every_key_is_not_read(files: Files) -> None:
    def bounds(low: int, high: int) -> dict[str, Any]:
        return {"lower_bounds": {1: struct.pack("<q", low)}, "upper_bounds": {1: struct.pack("<q", high)}}

    keys = files.deletes({1: (LONG, [10, 30])})
    nowhere = str(files.folder / "not there.parquet")
    for low, high in ((-5, 9), (11, 29), (31, 40)):
        assert files.resolve([keys], candidate(nowhere, **bounds(low, high))) == [[]]
    for low, high in ((10, 10), (5, 35), (30, 31)):
        with pytest.raises(Unsupported, match="cannot be read"):
            files.resolve([keys], candidate(nowhere, **bounds(low, high)))
    # bounds are not about NULLs
    with pytest.raises(Unsupported, match="cannot be read"):
        files.resolve([files.deletes({1: (LONG, [None])})], candidate(nowhere, **bounds(1, 2)))


def test_equality_deletes_respect_truncated_string_bounds(files: Files) -> None:
    data = files.write({2: (TEXT, ["abcdef", "abz"])})
    cut = {"lower_bounds": {2: b"abc"}, "upper_bounds": {2: b"ac"}}
    assert files.resolve([files.deletes({2: (TEXT, ["abcdef"])})], candidate(data, **cut)) == [[0]]


def test_equality_deletes_are_resolved_in_large_files_batch_by_batch(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equality_deletes, "BATCH_ROWS", 100)
    data = files.write({1: (LONG, list(range(1000)))}, row_group_size=130)
    without = files.write({2: (TEXT, ["x"] * 250)})
    keys = files.deletes({1: (LONG, [0, 99, 100, 129, 130, 999, None])})
    assert files.resolve([keys], candidate(data), candidate(without)) == [
        [0, 99, 100, 129, 130, 999],
        list(range(250)),
    ]


def test_an_equality_delete_that_cannot_be_resolved_is_refused(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    data = candidate(files.write({1: (LONG, [1])}))
    nested = {1: Field(1, "l", List(Field(2, "element", "long")))}
    with pytest.raises(Unsupported, match="column 1"):
        files.resolve([files.deletes({1: (pa.list_(LONG), [[1]])}, nested)], data)
    with pytest.raises(Unsupported, match="column 7"):
        files.resolve([files.deletes({7: (LONG, [1])})], data)
    with pytest.raises(BadRequest, match="has no column s"):
        files.resolve([files.deletes({1: (LONG, [1])}, equality_ids=(1, 2))], data)
    with pytest.raises(BadRequest, match="has 1 rows, and its entry says 2"):
        files.resolve([files.deletes({1: (LONG, [1])}, record_count=2)], data)
    with pytest.raises(BadRequest, match="cannot be read"):
        files.resolve([files.deletes({1: (TEXT, ["x"])})], data)
    with pytest.raises(BadRequest, match="is missing"):
        files.resolve([files.deletes({1: (LONG, [1])}, location=Location.parse("/not/there"))], data)
    with pytest.raises(Unsupported, match="cannot be read"):
        files.resolve([files.deletes({1: (LONG, [1])})], candidate(files.write({1: (TEXT, ["x"])})))
    monkeypatch.setattr(equality_deletes, "MOST_KEYS", 1)
    with pytest.raises(Unsupported, match="2 equality deletes"):
        files.resolve([files.deletes({1: (LONG, [1, 2])})], data)


few = st.sampled_from([None, 0, 1, 2])
texts = st.sampled_from([None, "", "a", "b"])
floats = st.sampled_from([None, 0.0, 1.0, math.nan])
rows = st.lists(st.tuples(few, texts, floats), max_size=20)
KINDS = {1: LONG, 2: TEXT, 3: DOUBLE}


def comparable(row: tuple[Any, ...], ids: list[int]) -> tuple[Any, ...]:
    values = [row[i - 1] for i in ids]
    return tuple("NaN" if isinstance(x, float) and math.isnan(x) else x for x in values)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows,
    st.lists(st.tuples(st.sets(st.sampled_from([1, 2, 3]), min_size=1), rows), min_size=1, max_size=3),
    st.sets(st.sampled_from([1, 2, 3]), min_size=1),
)
def test_equality_deletes_find_the_rows_that_plain_python_finds(
    tmp_path: Path, data: list[Any], deletes: list[tuple[set[int], list[Any]]], present: set[int]
) -> None:
    files = Files(tmp_path)
    known = [tuple(x if i + 1 in present else None for i, x in enumerate(row)) for row in data]
    path = files.write({i: (KINDS[i], [row[i - 1] for row in known]) for i in sorted(present)})
    keys = [files.deletes({i: (KINDS[i], [row[i - 1] for row in k]) for i in sorted(ids)}) for ids, k in deletes]
    expected = [
        at
        for at, row in enumerate(known)
        if any(comparable(row, sorted(ids)) in {comparable(k, sorted(ids)) for k in listed} for ids, listed in deletes)
    ]
    assert files.resolve(keys, candidate(path)) == [expected]
