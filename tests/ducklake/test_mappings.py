"""Files that DuckDB added by the names of their columns, as one name mapping of Iceberg's."""

import asyncio
import json
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.table import StaticTable
from pyiceberg.table.name_mapping import parse_mapping_from_json

from mergus.ducklake import columns, mappings
from mergus.ducklake.columns import Columns, Unrepresentable
from mergus.ducklake.connect import connection, open_pool
from mergus.ducklake.mappings import FileMapping, Mappings, Source
from mergus.iceberg.manifest import ADDED, DataFile, Entry
from mergus.iceberg.name_mapping import PROPERTY, MappedField, name_mapping_json
from mergus.iceberg.schema import schema_json
from tests.iceberg.test_manifest_list import Table
from tests.support import spark as sparks
from tests.support.lakes import TestLake


def read(lake: TestLake, table: str) -> tuple[Mappings, Columns]:
    ((table_id,),) = lake.sql(
        "SELECT table_id FROM ducklake_table WHERE table_name = %s AND end_snapshot IS NULL", table
    )

    async def work() -> tuple[Mappings, Columns]:
        async with open_pool(lake.settings) as pool, connection(pool) as conn:
            return await mappings.read(conn, table_id), await columns.read(conn, table_id)

    return asyncio.run(work())


def name_mapping(lake: TestLake, table: str) -> tuple[MappedField, ...]:
    found, of_table = read(lake, table)
    return found.name_mapping(of_table)


class Adds:
    """Writes a Parquet file without field ids and adds it."""

    def __init__(self, db: duckdb.DuckDBPyConnection, folder: Path, table: str) -> None:
        self.db, self.folder, self.table = db, folder, table
        self.count = 0

    def __call__(self, query: str, options: str = "", name: str = "") -> Path:
        self.count += 1
        file = self.folder / (name or f"{self.count}.parquet")
        file.parent.mkdir(parents=True, exist_ok=True)
        self.db.execute(f"COPY ({query}) TO '{file}'")
        self.db.execute(f"CALL ducklake_add_data_files('lake', '{self.table}', '{file}'{options})")
        return file


def test_a_table_of_ducklakes_own_files_has_no_mapping(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE own(a INTEGER)")
    db.execute("INSERT INTO own SELECT range FROM range(20)")
    assert read(lake, "own")[0].mappings == []
    assert name_mapping(lake, "own") == ()


def test_every_nested_column_of_an_added_file_is_mapped_to_the_field_id_of_the_table(
    lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    """Whatever the file's order and case, and what it calls the elements of its lists."""
    db.execute(
        "CREATE TABLE nested(a INTEGER, st STRUCT(x INTEGER, y STRUCT(z VARCHAR)), l STRUCT(e INTEGER)[], "
        "m MAP(VARCHAR, INTEGER[]))"
    )
    file = Adds(db, tmp_path, "nested")(
        "SELECT MAP {'k': [1]} AS m, [{'e': 1}] AS l, {'y': {'z': 'q'}, 'X': 2} AS st, 3::INTEGER AS \"A\""
    )
    theirs = pyarrow_to_schema(
        pq.read_schema(file), parse_mapping_from_json(name_mapping_json(name_mapping(lake, "nested")))
    )
    schema = read(lake, "nested")[1].schema_at(lake.snapshots()[-1][0])
    expected = {f.id: f.name.lower() for f in schema.walk()}
    assert {i: theirs.find_field(i).name.lower() for i in expected} == expected
    assert theirs.find_field("A").field_id == 1
    assert theirs.find_field("st.X").field_id == 3
    assert theirs.find_field("l.element.e").field_id == schema.fields[2].children[0].children[0].id


def test_h38_a_renamed_column_keeps_its_name_in_the_file(
    lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    db.execute("CREATE TABLE renamed(a INTEGER, b VARCHAR)")
    add = Adds(db, tmp_path, "renamed")
    add("SELECT 'x' AS b, 1::INTEGER AS a")
    db.execute("ALTER TABLE renamed RENAME a TO c")
    add("SELECT 2::INTEGER AS c, 'y' AS b")
    assert db.execute("FROM renamed ORDER BY c").fetchall() == [(1, "x"), (2, "y")]
    assert name_mapping(lake, "renamed") == (MappedField(1, ("a", "c")), MappedField(2, ("b",)))


def test_files_that_spell_a_column_in_another_case_share_a_mapping(
    lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    db.execute("CREATE TABLE spelt(id INTEGER, b VARCHAR)")
    add = Adds(db, tmp_path, "spelt")
    add("SELECT 1::INTEGER AS \"ID\", 'x' AS b")
    add("SELECT 2::INTEGER AS id", ", allow_missing => true")
    add("SELECT 2::INTEGER AS id", ", allow_missing => true")
    assert len(read(lake, "spelt")[0].mappings) == 2
    assert name_mapping(lake, "spelt") == (MappedField(1, ("ID", "id")), MappedField(2, ("b",)))


def test_a_name_that_means_another_column_in_another_file_is_refused(
    lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    db.execute("CREATE TABLE swaps(a INTEGER, b INTEGER)")
    add = Adds(db, tmp_path, "swaps")
    add("SELECT 1::INTEGER AS a, 2::INTEGER AS b")
    for old, new in (("a", "t"), ("b", "a"), ("t", "b")):
        db.execute(f"ALTER TABLE swaps RENAME {old} TO {new}")
    add("SELECT 1::INTEGER AS a, 2::INTEGER AS b")
    with pytest.raises(Unrepresentable, match=r"column [ab] is field [12] in one file and field [12] in another"):
        name_mapping(lake, "swaps")


def test_a_column_whose_values_are_in_the_path_is_in_no_name_mapping(
    lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    db.execute("CREATE TABLE hive(a INTEGER, part INTEGER)")
    Adds(db, tmp_path, "hive")("SELECT 1::INTEGER AS a", ", hive_partitioning => true", "part=7/f.parquet")
    assert db.execute("FROM hive").fetchall() == [(1, 7)]
    found, of_table = read(lake, "hive")
    assert found.name_mapping(of_table) == (MappedField(1, ("a",)),)
    assert list(found.in_path.values()) == [(2,)]


def test_a_name_mapping_is_used_as_long_as_a_file_refers_to_it(
    lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    db.execute("CREATE TABLE leaves(a INTEGER)")
    Adds(db, tmp_path, "leaves")("SELECT 1::INTEGER AS a")
    db.execute("DELETE FROM leaves")
    assert len(read(lake, "leaves")[0].mappings) == 1
    # as an expiry does it, which deletes rows of files that have ended
    lake.sql("UPDATE ducklake_data_file SET end_snapshot = begin_snapshot + 1 WHERE path LIKE %s", f"{tmp_path}%")
    lake.sql("DELETE FROM ducklake_data_file WHERE path LIKE %s", f"{tmp_path}%")
    assert read(lake, "leaves")[0].mappings == []


def test_a_new_files_mapping_is_checked_against_the_mappings_of_existing_files(
    lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    """As they would be read after it had come."""
    db.execute("CREATE TABLE coming(a INTEGER, b INTEGER)")
    Adds(db, tmp_path, "coming")("SELECT 1::INTEGER AS a, 2::INTEGER AS b")
    db.execute("ALTER TABLE coming ADD COLUMN c INTEGER")
    found, of_table = read(lake, "coming")
    a, b = MappedField(1, ("a",)), MappedField(2, ("b",))
    after = lake.snapshots()[-1][0] + 1
    same = found.with_file((a, b), of_table, after)
    assert [(m.id, m.first, m.last) for m in same.mappings] == [(m.id, m.first, after) for m in found.mappings]
    assert found.with_file((a,), of_table, after).name_mapping(of_table) == (a, b)
    c = MappedField(3, ("c",))
    assert found.with_file((a, c), of_table, after).name_mapping(of_table) == (a, b, c)
    with pytest.raises(Unrepresentable, match="column a is field 1 in one file and field 2 in another"):
        found.with_file((MappedField(2, ("a",)),), of_table, after).name_mapping(of_table)


@pytest.mark.parametrize(
    ("mapping", "reason"),
    [
        (FileMapping(5, 1, 1, None, ()), "its type is None"),
        (FileMapping(5, 1, 1, "map_by_position", ()), "its type is map_by_position"),
        (FileMapping(5, 1, 1, "map_by_name", (Source(0, None, "l", 1, False),)), "a part of a list"),
        (
            FileMapping(5, 1, 1, "map_by_name", (Source(0, None, "m", 2, False), Source(1, 0, "key", 3, False))),
            "a part of a map",
        ),
    ],
)
def test_a_malformed_name_mapping_is_refused(mapping: FileMapping, reason: str) -> None:
    kinds = Columns(
        [
            columns.Column(1, columns.Span(1, None), "l", "list", True, None),
            columns.Column(2, columns.Span(1, None), "m", "map", True, None),
        ]
    )
    with pytest.raises(Unrepresentable, match=reason):
        Mappings([mapping]).name_mapping(kinds)


@pytest.mark.integration
def test_h38_spark_and_pyiceberg_read_an_added_file_as_duckdb_does(
    lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    db.execute("CREATE TABLE read_by_all(a INTEGER, b INTEGER, st STRUCT(x INTEGER, y VARCHAR), l INTEGER[])")
    add = Adds(db, tmp_path, "read_by_all")
    files = [
        add("SELECT 1::INTEGER AS b, 2::INTEGER AS \"A\", {'y': 'q', 'X': 3} AS st, [4, 5] AS l"),
        add("SELECT 6::INTEGER AS a, [7] AS l", ", allow_missing => true"),
    ]
    expected = db.execute("SELECT a, b, st, l FROM read_by_all ORDER BY a").fetchall()
    mapped, of_table = read(lake, "read_by_all")
    schema = schema_json(of_table.schema_at(lake.snapshots()[-1][0]), 0, 2)
    table = Table(tmp_path / "t", 2, schema, [])
    paths = [(table.put(file.name, file.read_bytes()), file.stat().st_size) for file in files]
    table.add([Entry(ADDED, None, None, None, DataFile(0, path, "PARQUET", (), 1, size)) for path, size in paths])
    metadata = Path(table.commit()) / "metadata" / "v1.metadata.json"
    properties = {PROPERTY: name_mapping_json(mapped.name_mapping(of_table))}
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"properties": properties}))
    by_pyiceberg = StaticTable.from_metadata(str(metadata)).scan().to_arrow().to_pylist()
    by_spark = sparks.session().read.format("iceberg").load(str(table.directory)).collect()
    for found in (by_pyiceberg, [row.asDict(recursive=True) for row in by_spark]):
        assert [tuple(row.values()) for row in sorted(found, key=lambda row: row["a"])] == expected
