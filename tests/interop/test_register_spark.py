"""Tables of Spark's own Hadoop catalog are registered, and Spark goes on with them through the server."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support import lakes, servers
from tests.support import spark as sparks
from tests.support.elsewhere import register
from tests.support.lakes import Row, TestLake
from tests.support.loads import in_order
from tests.support.servers import Server


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestLake, Server, Path]]:
    """On the local disk, where Hadoop needs nothing of its own to write. And a place for the other catalog."""
    folder = tmp_path_factory.mktemp("spark")
    other = folder / "elsewhere"
    with (
        lakes.lake(data_path=f"file://{folder}/lake/data/") as lake,
        servers.server(lake.settings, folder, allowed_locations=f"file://{other}") as server,
    ):
        yield lake, server, other


def spark(query: str) -> list[Row]:
    return in_order(tuple(row) for row in sparks.session().sql(query).collect())


def _history(table: str) -> list[int]:
    """Its snapshots, the oldest first."""
    shown = sparks.session().sql(f"SELECT snapshot_id FROM {table}.snapshots ORDER BY committed_at")
    return [row[0] for row in shown.collect()]


@pytest.mark.parametrize("version", [1, 2, 3], ids=["v1", "v2", "v3"])
def test_duckdb_and_spark_read_and_write_a_registered_hadoop_table(
    there: tuple[TestLake, Server, Path], version: int
) -> None:
    lake, server, other = there
    hadoop = f"hadoop_{uuid4().hex[:8]}"
    conf = sparks.session().conf
    conf.set(f"spark.sql.catalog.{hadoop}", "org.apache.iceberg.spark.SparkCatalog")
    conf.set(f"spark.sql.catalog.{hadoop}.type", "hadoop")
    conf.set(f"spark.sql.catalog.{hadoop}.warehouse", f"file://{other}")
    schema = f"s{version}"
    old = f"{hadoop}.{schema}.t"
    mode = "merge-on-read" if version > 1 else "copy-on-write"
    modes = ", ".join(f"'write.{what}.mode' = '{mode}'" for what in ("delete", "update", "merge"))
    spark(
        f"CREATE TABLE {old} (id INT, name STRING, d DATE, n STRUCT<x: INT, y: ARRAY<STRING>>) USING iceberg "
        f"PARTITIONED BY (days(d), bucket(4, id)) TBLPROPERTIES ('format-version' = '{version}', {modes})"
    )
    values = ", ".join(
        f"({i}, 'n{i}', DATE'2020-01-0{1 + i % 3}', named_struct('x', {i}, 'y', array('a{i}')))" for i in range(30)
    )
    spark(f"INSERT INTO {old} VALUES {values}")
    spark(f"DELETE FROM {old} WHERE id IN (3, 4)")
    spark(f"UPDATE {old} SET name = 'u' WHERE id IN (5, 6)")
    spark(f"ALTER TABLE {old} ADD COLUMN more BIGINT")
    spark(f"ALTER TABLE {old} RENAME COLUMN name TO title")
    spark(f"ALTER TABLE {old} ALTER COLUMN id TYPE BIGINT")
    spark(f"ALTER TABLE {old} DROP PARTITION FIELD bucket(4, id)")
    spark(f"INSERT INTO {old} VALUES (100, 'late', DATE'2021-01-01', NULL, 7)")
    spark(f"DELETE FROM {old} WHERE id IN (7, 100) OR d = DATE'2020-01-03'")
    spark(f"INSERT INTO {old} VALUES (101, 'later', NULL, NULL, 8)")
    wanted = spark(f"SELECT id, title, d, n.x, n.y[0], more FROM {old}")
    assert len(wanted) == 30 - 2 - 1 - 10 + 1
    spark(f"ALTER TABLE {old} CREATE TAG kept AS OF VERSION {_history(old)[-3]}")
    # those that have the columns of now
    replayed = _history(old)[-3:]
    then = {i: spark(f"SELECT id, title, d, n.x, n.y[0], more FROM {old} VERSION AS OF {i}") for i in replayed}
    assert len({len(found) for found in then.values()}) == 3
    rows = "id, _row_id" if version == 3 else "id"
    lineage = {i: spark(f"SELECT {rows} FROM {old} VERSION AS OF {i}") for i in replayed}
    newest = max((other / schema / "t" / "metadata").glob("v*.metadata.json"), key=lambda f: int(f.name[1:-14]))

    assert server.create(schema).status_code == 200
    answer = register(server, schema, "t", f"file://{newest}")
    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"]["format-version"] == max(2, version)
    db = lake.duckdb()
    duck, now = f"lake.{schema}.t", f"{sparks.catalog(lake.settings, server.uri)}.{schema}.t"

    def duckdb(query: str) -> list[Row]:
        return in_order(db.execute(query).fetchall())

    def agreed() -> list[Row]:
        spark(f"REFRESH TABLE {now}")
        found = duckdb(f"SELECT id, title, d, n.x, n.y[1], more FROM {duck}")
        assert spark(f"SELECT id, title, d, n.x, n.y[0], more FROM {now}") == found
        ids = duckdb(f"SELECT rowid FROM {duck}")
        assert len(set(ids)) == len(ids)
        return found

    assert agreed() == wanted
    assert duckdb(f"SELECT id FROM {duck} WHERE d = DATE '2020-01-02'") == spark(
        f"SELECT id FROM {old} WHERE d = DATE'2020-01-02'"
    )
    assert duckdb(f"SELECT id FROM {duck} WHERE id = 10") == [(10,)]
    numbers = dict(spark(f"SELECT snapshot_id, summary['ducklake.snapshot-id'] FROM {now}.snapshots"))
    assert set(numbers) == set(replayed)

    def agreed_then() -> None:
        """At each snapshot that was there before."""
        for i, at in numbers.items():
            assert spark(f"SELECT id, title, d, n.x, n.y[0], more FROM {now} VERSION AS OF {i}") == then[i]
            assert duckdb(f"SELECT id, title, d, n.x, n.y[1], more FROM {duck} AT (VERSION => {at})") == then[i]
            assert duckdb(f"SELECT {rows.replace('_row_id', 'rowid')} FROM {duck} AT (VERSION => {at})") == lineage[i]
        assert spark(f"SELECT id FROM {now} VERSION AS OF 'kept'") == [row[:1] for row in then[replayed[0]]]

    agreed_then()
    db.execute(f"INSERT INTO {duck} BY NAME SELECT 200 AS id, 'duck' AS title")
    db.execute(f"DELETE FROM {duck} WHERE id = 10")
    db.execute(f"UPDATE {duck} SET title = 'duck' WHERE id = 1")
    assert len(agreed()) == len(wanted)
    spark(f"INSERT INTO {now} VALUES (300, 'spark', DATE'2020-01-02', NULL, 1)")
    spark(f"DELETE FROM {now} WHERE id IN (0, 200)")
    spark(f"UPDATE {now} SET title = 'spark' WHERE id IN (12, 13)")
    assert len(agreed()) == len(wanted) - 1
    spark(f"ALTER TABLE {now} ADD COLUMN last STRING")
    assert {row[0] for row in duckdb(f"SELECT last FROM {duck}")} == {None}
    agreed_then()
    # the other catalog's table is what it was
    assert spark(f"SELECT id, title, d, n.x, n.y[0], more FROM {old}") == wanted
    snapshots = spark(f"SELECT summary['ducklake.snapshot-id'], snapshot_id FROM {now}.snapshots")
    assert len(snapshots) > 5
    for at, snapshot_id in snapshots:
        shown = spark(f"SELECT id, title FROM {now} VERSION AS OF {snapshot_id}")
        assert shown == duckdb(f"SELECT id, title FROM {duck} AT (VERSION => {at})"), at
    db.close()
