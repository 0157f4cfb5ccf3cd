"""The lake as it was: through `lake@N`, PyIceberg finds the namespaces and tables that DuckDB finds at snapshot N, and
reads in each of them, row for row, what DuckDB reads `AT (VERSION => N)`."""

from random import Random

import duckdb
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError, RESTError

from mergus.ducklake.session import identifier, literal
from tests.support import loads
from tests.support.lakes import Row
from tests.support.sharing import Sharing
from tests.support.writers import rows as arrow_rows

BY_TURNS = True
KINDS = (
    *("schema", "create", "create", "insert", "insert", "insert", "big", "big", "delete", "update", "add", "default"),
    *("drop_column", "rename", "rename_column", "drop", "undrop", "iceberg", "move", "flush", "merge", "partition"),
)

Content = dict[tuple[str, str], list[Row]]


def catalog_at(sharing: Sharing, point: int | str) -> Catalog:
    settings = sharing.lake.settings
    warehouse = f"{settings.prefix}@{point}"
    return load_catalog(
        "then", type="rest", uri=sharing.server.uri, warehouse=warehouse, **loads.s3_properties(settings)
    )


def in_pyiceberg(sharing: Sharing, point: int | str) -> tuple[Content, dict[tuple[str, str], list[str]]]:
    """All rows of all tables, and the names of their columns."""
    catalog = catalog_at(sharing, point)
    content: Content = {}
    columns: dict[tuple[str, str], list[str]] = {}
    for namespace in catalog.list_namespaces():
        for schema, name in catalog.list_tables(namespace):
            found = catalog.load_table((schema, name)).scan().to_arrow()
            content[schema, name] = loads.rows(found)
            columns[schema, name] = found.column_names
    return content, columns


def in_duckdb(sharing: Sharing, at: int) -> tuple[Content, dict[tuple[str, str], list[str]]]:
    """The same, in a session that is attached at that snapshot and sees no other."""
    instance, alias = sharing.instance.cursor(), f"at_{at}"
    source = literal(f"ducklake:postgres:{sharing.lake.of_writers.dsn}")
    instance.execute(f"ATTACH {source} AS {alias} (SNAPSHOT_VERSION {at}, READ_ONLY)")
    try:
        query = f"SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = '{alias}'"
        content: Content = {}
        columns: dict[tuple[str, str], list[str]] = {}
        for schema, name in instance.execute(query).fetchall():
            found = instance.execute(f"SELECT * FROM {alias}.{identifier(schema)}.{identifier(name)}")
            columns[schema, name] = [c[0] for c in found.description or ()]
            content[schema, name] = loads.in_order(found.fetchall())
        return content, columns
    finally:
        instance.execute(f"DETACH {alias}")


def agree(sharing: Sharing, at: int) -> Content:
    theirs, ours = in_duckdb(sharing, at), in_pyiceberg(sharing, at)
    assert ours == theirs, f"at {at}"
    return ours[0]


def snapshots(sharing: Sharing) -> list[int]:
    return [i for (i,) in sharing.lake.sql("SELECT snapshot_id FROM ducklake_snapshot ORDER BY 1")]


def random_history(sharing: Sharing, db: duckdb.DuckDBPyConnection, seed: int, steps: int) -> None:
    """Tables come, go, are renamed, moved, altered and written to by both sides."""
    random = Random(seed)
    schemas, tables, dropped = ["main"], dict[tuple[str, str], int](), list[tuple[str, str]]()
    for step in range(steps):
        kind = random.choice(KINDS)
        if kind == "schema":
            schemas.append(f"s{step}")
            db.execute(f"CREATE SCHEMA s{step}")
            continue
        if kind == "create" or not tables:
            place = random.choice(schemas), random.choice(["a", "b", f"t{step}"])
            if place not in tables:
                db.execute(f"CREATE TABLE {place[0]}.{place[1]}(i INTEGER, s VARCHAR)")
                tables[place] = 0
            continue
        place = random.choice(sorted(tables))
        name, extra = f"{place[0]}.{place[1]}", tables[place]
        more = "".join(f", {step}" for _ in range(extra))
        if kind == "insert":
            db.execute(f"INSERT INTO {name} VALUES ({step}, 'in'{more}), ({step + 1000}, NULL{more})")
        elif kind == "big":
            db.execute(f"INSERT INTO {name} SELECT range, 'x' || range % 3{more} FROM range({step}, {step + 30})")
        elif kind == "delete":
            db.execute(f"DELETE FROM {name} WHERE i % 7 = {step % 7}")
        elif kind == "update":
            first = db.execute(f"SELECT * FROM {name} LIMIT 0").description
            db.execute(f"UPDATE {name} SET {first[1][0]} = 'u{step}' WHERE i % 11 = {step % 11}")
        elif kind in {"add", "default"}:
            value = f" DEFAULT {step}" if kind == "default" and sharing.format_version > 2 else ""
            db.execute(f"ALTER TABLE {name} ADD COLUMN c{step} INTEGER{value}")
            tables[place] += 1
        elif kind == "drop_column" and extra:
            last = db.execute(f"SELECT * FROM {name} LIMIT 0").description[-1][0]
            db.execute(f"ALTER TABLE {name} DROP COLUMN {last}")
            tables[place] -= 1
        elif kind == "rename_column":
            second = db.execute(f"SELECT * FROM {name} LIMIT 0").description[1][0]
            db.execute(f"ALTER TABLE {name} RENAME COLUMN {second} TO s{step}")
        elif kind == "partition":
            second = db.execute(f"SELECT * FROM {name} LIMIT 0").description[1][0]
            db.execute(f"ALTER TABLE {name} SET PARTITIONED BY ({second})")
        elif kind == "rename":
            db.execute(f"ALTER TABLE {name} RENAME TO r{step}")
            tables[place[0], f"r{step}"] = tables.pop(place)
        elif kind == "move":
            target = random.choice(schemas), f"m{step}"
            sharing.catalog.rename_table(place, target)
            tables[target] = tables.pop(place)
        elif kind == "drop":
            db.execute(f"DROP TABLE {name}")
            dropped.append(place)
            del tables[place]
        elif kind == "undrop" and dropped:
            back = random.choice(dropped)
            body = {"name": back[1], "as": f"u{step}"}
            answer = sharing.server.http.post(f"/v1/lake/admin/namespaces/{back[0]}/undrop", json=body)
            assert answer.status_code in {200, 404}, answer.text
            if answer.status_code == 200:
                tables[back[0], f"u{step}"] = len(db.execute(f"FROM {back[0]}.u{step} LIMIT 0").description) - 2
        elif kind == "iceberg" and not extra and sharing.format_version < 3:
            table = sharing.catalog.load_table(place)
            if [f.name for f in table.schema().fields] == ["i", "s"] and table.spec().is_unpartitioned():
                table.append(arrow_rows(step, step + 2000))
        elif kind == "flush":
            db.execute("CALL ducklake_flush_inlined_data('lake')")
        elif kind == "merge":
            db.execute("CALL ducklake_merge_adjacent_files('lake')")


@pytest.mark.parametrize("seed", range(2))
def test_pyiceberg_reads_every_table_at_every_snapshot_as_duckdb_does(sharing: Sharing, seed: int) -> None:
    first = snapshots(sharing)[-1]
    with sharing.open() as db:
        for (name,) in sharing.lake.sql(
            "SELECT table_name FROM ducklake_table WHERE end_snapshot IS NULL AND schema_id = 0"
        ):
            db.execute(f"DROP TABLE main.{identifier(name)}")
        for (name,) in sharing.lake.sql(
            "SELECT schema_name FROM ducklake_schema WHERE end_snapshot IS NULL AND schema_id > 0"
        ):
            db.execute(f"DROP SCHEMA {identifier(name)} CASCADE")
        random_history(sharing, db, seed, 45)
    then = {at: agree(sharing, at) for at in snapshots(sharing) if at > first}
    assert len({repr(content) for content in then.values()}) > len(then) // 3
    # and all of it once more, in whatever order
    for at in Random(seed).sample(sorted(then), 5):
        assert agree(sharing, at) == then[at]


def test_a_table_at_a_past_snapshot_does_not_change_with_new_commits(sharing: Sharing) -> None:
    with sharing.table("INSERT INTO t SELECT range, 'x' FROM range(20)") as table:
        at = table.head()
        url = f"/v1/lake@{at}/namespaces/{table.schema}/tables/t"
        first = sharing.server.http.get(url)
        table.tell("INSERT INTO t VALUES (50, 'y')", "ALTER TABLE t ADD COLUMN n INTEGER", "DELETE FROM t WHERE i < 5")
        assert sharing.server.http.get(url).content == first.content
        table.tell("ALTER TABLE t RENAME TO u", "DROP TABLE u", "CREATE TABLE t(x INTEGER)")
        again = sharing.server.http.get(url)
        assert again.content == first.content
        assert again.headers["etag"] == first.headers["etag"]
        known = {"if-none-match": first.headers["etag"]}
        assert sharing.server.http.get(url, headers=known).status_code == 304
        metadata = first.json()["metadata"]
        assert metadata["current-snapshot-id"] == at
        assert loads.Bucket(sharing.lake.settings).get(first.json()["metadata-location"])
        table.tell("DROP TABLE t")
        answer = sharing.server.http.post(f"/v1/lake/admin/namespaces/{table.schema}/undrop", json={"name": "u"})
        assert answer.status_code == 200
        assert sharing.server.http.get(url).content == first.content
        table.name = "u"
        table.tell(f"CALL ducklake_expire_snapshots('lake', versions => {list(range(1, table.head()))})")


def test_writes_to_a_past_snapshot_of_the_lake_are_refused(sharing: Sharing) -> None:
    with sharing.table("INSERT INTO t SELECT range, 'x' FROM range(20)") as table:
        then = catalog_at(sharing, table.head())
        found = then.load_table((table.schema, "t"))
        before = snapshots(sharing)
        if sharing.format_version < 3:
            with pytest.raises((ForbiddenError, RESTError), match="only be read"):
                found.append(arrow_rows(1))
        with pytest.raises(ForbiddenError, match="only be read"):
            then.drop_table((table.schema, "t"))
        with pytest.raises(ForbiddenError, match="only be read"):
            then.create_namespace("new")
        assert snapshots(sharing) == before


def test_a_table_is_shown_at_snapshots_before_it_got_an_unsupported_column(sharing: Sharing) -> None:
    with sharing.table("INSERT INTO t SELECT range, 'x' FROM range(20)") as table:
        at = table.head()
        table.tell("ALTER TABLE t ADD COLUMN odd HUGEINT", "INSERT INTO t VALUES (50, 'y', 1)")
        odd = table.head()
        assert len(loads.rows(catalog_at(sharing, at).load_table((table.schema, "t")).scan().to_arrow())) == 20
        answer = sharing.server.http.get(f"/v1/lake@{odd}/namespaces/{table.schema}/tables/t")
        assert answer.status_code == 406
        table.tell("DROP TABLE t")
        assert len(loads.rows(catalog_at(sharing, at).load_table((table.schema, "t")).scan().to_arrow())) == 20
        table.tell("CREATE TABLE t(i INTEGER, s VARCHAR)")
        with pytest.raises(NoSuchTableError):
            catalog_at(sharing, table.head() - 1).load_table((table.schema, "t"))
