"""Commits that change columns, partitions and rows at once: what is taken can be loaded, and both engines read the same
rows; what is refused has changed nothing."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from tests.support import lakes, loads, servers
from tests.support.at_once import TYPES, AtOnce
from tests.support.commits import HandTable, everything, field_of, new_table
from tests.support.formats import LONG
from tests.support.lakes import TestLake
from tests.support.loads import Bucket, get
from tests.support.servers import Server

SCHEMA = "at_once"
EXAMPLES = 150 if LONG else 25
_NAMES = count()

Op = tuple[Any, ...]

SMALL = st.integers(0, 5)
COLUMNS = st.one_of(
    st.tuples(st.just("add_column"), st.sampled_from(TYPES), st.booleans()),
    st.tuples(st.just("add_default"), st.booleans()),
    st.tuples(st.just("drop_column"), SMALL),
    st.tuples(st.just("rename_column"), SMALL),
    st.tuples(st.just("reorder_columns"), SMALL),
    st.tuples(st.just("retype"), SMALL, st.sampled_from(TYPES)),
    st.tuples(st.just("require"), SMALL, st.booleans()),
)
SPECS = st.tuples(st.just("set_spec"), SMALL, st.sampled_from(["identity", "bucket[4]", "none"]))
ROWS = st.one_of(
    st.tuples(st.just("append"), SMALL, st.booleans(), st.integers(0, 2)),
    st.tuples(st.just("append"), SMALL, st.booleans(), st.just(0)),
    st.tuples(st.just("delete"), SMALL, SMALL),
    st.tuples(st.just("remove"), SMALL),
    st.tuples(st.just("replace"), SMALL, st.booleans()),
    st.tuples(st.just("roll_back"), SMALL),
)
OPS = st.one_of(COLUMNS, SPECS, ROWS, ROWS)


@pytest.fixture(scope="module", params=[2, 3], ids=["v2", "v3"])
def format_version(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def lake() -> Iterator[TestLake]:
    with lakes.lake() as made:
        yield made


@pytest.fixture(scope="module")
def server(lake: TestLake, format_version: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = {"format_version": format_version, "listener": "off"}
    with servers.server(lake.settings, tmp_path_factory.mktemp("server"), **options) as running:
        yield running


@pytest.fixture(scope="module")
def bucket(lake: TestLake) -> Bucket:
    return Bucket(lake.settings)


def apply(commit: AtOnce, op: Op) -> None:
    match op:
        case ("add_column", kind, required):
            commit.add_column(kind, required=required)
        case ("add_default", required):
            commit.add_default(required=required)
        case ("retype", at, kind):
            commit.change_column(at, type=kind)
        case ("require", at, required):
            commit.change_column(at, required=required)
        case ("replace", seed, nulls):
            commit.append(seed, nulls, root=True)
        case (name, *args):
            getattr(commit, name)(*args)
        case _:
            raise AssertionError(op)


def fields_of(metadata: dict[str, Any]) -> list[tuple[Any, ...]]:
    (current,) = [s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"]]
    return [(f["id"], f["name"], f["type"], f["required"]) for f in current["fields"]]


def agree(lake: TestLake, db: duckdb.DuckDBPyConnection, table: HandTable, name: str) -> None:
    """PyIceberg reads what DuckDB does, now and at every listed snapshot. DuckDB has another order of columns."""
    loaded = loads.catalog(lake.settings, table.server).load_table((table.schema, table.name))
    for at, wanted in [(None, None), *((s.snapshot_id, s) for s in loaded.metadata.snapshots)]:
        found = loaded.scan(snapshot_id=at).to_arrow()
        columns = ", ".join(found.column_names)
        version = "" if wanted is None else f" AT (VERSION => {loads.lake_id(wanted)})"
        ours = db.execute(f"SELECT {columns} FROM {name}{version}").fetchall()
        assert loads.rows(found) == loads.in_order(ours), f"at {version}"


def check(lake: TestLake, db: duckdb.DuckDBPyConnection, table: HandTable, commit: AtOnce) -> bool:
    """Sends it, and tells whether it was taken."""
    before, shown = everything(lake), table.load()
    answer = commit.send()
    now = get(table.server, table.name, table.schema)
    assert now.status_code == 200, f"{answer.status_code} left a table that cannot be loaded: {now.text}"
    if answer.status_code != 200:
        assert 400 <= answer.status_code < 500, f"{answer.text}\n{table.server.log.read_text()[-6000:]}"
        assert everything(lake) == before
        assert now.json()["metadata"] == shown
        return False
    table.load()
    assert fields_of(table.state) == [(f["id"], f["name"], f["type"], f["required"]) for f in commit.fields]
    name = f"{table.schema}.{table.name}"
    agree(lake, db, table, name)
    columns = [f["name"] for f in commit.fields]
    everyone = db.execute(f"SELECT {', '.join(columns)} FROM {name}").fetchall()
    assert commit.rolls_back or len(everyone) == commit.rows
    for index, column in enumerate(columns):
        values = sorted({row[index] for row in everyone if row[index] is not None})
        for value in {*values[:1], *values[-1:]}:
            found = db.execute(f"SELECT count(*) FROM {name} WHERE {column} = ?", [value]).fetchone()
            assert found == ([row[index] for row in everyone].count(value),)
    return True


@given(
    st.lists(st.one_of(OPS, st.just(("inline",))), max_size=3),
    st.lists(OPS, min_size=2, max_size=7),
    st.booleans(),
)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_commit_of_many_changes_is_readable_or_refused(
    lake: TestLake, server: Server, bucket: Bucket, before: list[Op], ops: list[Op], eager: bool
) -> None:
    note(f"before {before}, then {ops}, eager {eager}")
    name = f"t{next(_NAMES)}"
    fields = [field_of(1, "a", "int"), field_of(2, "b", "string"), field_of(3, "d", "date")]
    table = new_table(server, bucket, SCHEMA, name, fields=fields)
    with lake.duckdb() as db:
        for op in before:
            if op == ("inline",):
                db.execute(f"INSERT INTO {SCHEMA}.{name} SELECT * FROM {SCHEMA}.{name} LIMIT 2")
                table.load()
                continue
            commit = AtOnce(table, eager=True)
            apply(commit, op)
            check(lake, db, table, commit)
        commit = AtOnce(table, eager)
        for op in ops:
            apply(commit, op)
        check(lake, db, table, commit)


def test_a_rollback_to_rows_that_the_current_columns_cannot_hold_is_refused(
    lake: TestLake, server: Server, bucket: Bucket
) -> None:
    """A table is replaced, its dates are timestamps since, and then it is rolled back: readers would not take the dates
    in the old files for timestamps."""
    table = new_table(
        server, bucket, SCHEMA, f"rolled{next(_NAMES)}", fields=[field_of(1, "d", "date"), field_of(2, "i")]
    )
    with lake.duckdb() as db:
        old = AtOnce(table, eager=True)
        old.append(1, nulls=False)
        assert check(lake, db, table, old)
        new = AtOnce(table, eager=True)
        new.change_column(0, type="timestamp")
        new.append(2, nulls=False, root=True)
        assert check(lake, db, table, new)
        back = AtOnce(table, eager=True)
        back.roll_back(0)
        assert not check(lake, db, table, back)
        answer = back.send()
        assert "column d is stored as int32/date" in answer.text
        # what can be read goes back
        wider = AtOnce(table, eager=True)
        wider.change_column(1, type="long")
        wider.append(3, nulls=True)
        assert check(lake, db, table, wider)
        again = AtOnce(table, eager=True)
        again.roll_back(1)
        assert check(lake, db, table, again)


def test_a_transaction_is_refused_whole_if_one_table_would_become_unreadable(
    lake: TestLake, server: Server, bucket: Bucket
) -> None:
    fields = [field_of(1, "d", "date"), field_of(2, "i")]
    one = new_table(server, bucket, SCHEMA, f"one{next(_NAMES)}", fields=fields)
    other = new_table(server, bucket, SCHEMA, f"other{next(_NAMES)}", fields=fields)
    good, bad = AtOnce(one, eager=True), AtOnce(other, eager=True)
    good.append(1, nulls=False)
    bad.append(1, nulls=False)
    bad.change_column(0, type="timestamp")
    before = everything(lake)
    changes = [
        {"identifier": {"namespace": [SCHEMA], "name": t.name}, "requirements": [], "updates": c.updates}
        for t, c in ((one, good), (other, bad))
    ]
    answer = server.http.post("/v1/lake/transactions/commit", json={"table-changes": changes})
    assert answer.status_code == 400, answer.text
    assert "column d is stored as int32/date" in answer.text
    assert everything(lake) == before
    assert one.load()["snapshots"] == other.load()["snapshots"] == []
