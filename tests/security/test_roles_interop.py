"""Tests of interop/ once more, on a lake with the roles of OPERATIONS.md: neither servers nor DuckDB sessions are
superusers, and none owns the lake.

This is a part of them: writes of both sides, conflicts, changes of columns, flush, merge, rewrite, expiry and cleanup,
each read back by DuckDB and PyIceberg. All of them: MERGUS_TEST_ROLES=1 ./scripts/test tests/interop
"""

from collections.abc import Iterator

import pytest

from mergus.ducklake.connect import connect
from tests.interop.test_write_conflicts import (  # noqa: F401
    test_h30_a_transaction_that_began_before_an_overwrite_is_aborted,
    test_h32_a_stale_pyiceberg_delete_fails_and_succeeds_after_a_refresh,
)
from tests.interop.test_write_deletes import (  # noqa: F401
    test_h34_deletes_of_duckdb_and_of_clients_are_combined,
    test_h45_an_overwrite_removes_inlined_rows,
)
from tests.interop.test_write_schema import test_h29_duckdb_inlines_rows_after_a_client_changed_the_columns  # noqa: F401
from tests.support import lakes, servers
from tests.support.readers import BIG, CLEANUP, FLUSH, MERGE, REWRITE
from tests.support.sharing import Sharing


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sharing]:
    options = {"format_version": 2, "listener": servers.LISTENER}
    with (
        lakes.lake(True) as lake,
        servers.server(lake.settings, tmp_path_factory.mktemp("server"), **options) as server,
    ):
        yield Sharing(lake, server, 2)


def test_the_interop_sessions_are_neither_superusers_nor_owners_of_the_lake(sharing: Sharing) -> None:
    for settings in (sharing.lake.settings, sharing.lake.of_writers):
        with connect(settings) as conn:
            (found,) = conn.execute(
                "SELECT rolsuper, pg_has_role(c.relowner, 'MEMBER') FROM pg_roles, pg_class c "
                "WHERE rolname = current_user AND c.oid = 'ducklake_snapshot'::regclass"
            ).fetchall()
            assert found == (False, False)


def test_maintenance_between_writes_of_duckdb_and_clients_works_with_restricted_roles(sharing: Sharing) -> None:
    """The last one here: others count snapshots of the lake."""
    with sharing.table(BIG) as t:
        t.append(100, 101)
        t.tell("INSERT INTO t VALUES (200, 'small')", "DELETE FROM t WHERE i = 3")
        t.tell(FLUSH)
        t.append(102)
        t.tell(BIG, MERGE, "DELETE FROM t WHERE i < 10", REWRITE)
        t.overwrite(*range(20))
        t.tell("UPDATE t SET s = 'new' WHERE i = 7", "ALTER TABLE t ADD COLUMN n INTEGER", "DELETE FROM t WHERE i = 8")
        t.agrees()
        t.tell("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)", CLEANUP, FLUSH, CLEANUP)
        t.shows([i for i in range(20) if i != 8], gone=[8, 100])
