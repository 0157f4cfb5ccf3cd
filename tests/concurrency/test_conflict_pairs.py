"""Every pair of operations of two DuckDB sessions at once, on a lake with `mergus init` and on one without: the outcome
is the same, but where DuckLake alone loses a delete."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import NamedTuple

import duckdb
import pytest

from mergus.config import Settings
from mergus.ducklake import session
from mergus.ducklake.session import literal
from mergus.setup import initialise
from tests.support import lakes
from tests.support.lakes import plain_lake, quiet

OPERATIONS = {
    "insert a file": "INSERT INTO {t} SELECT range + 2000 FROM range(100)",
    "insert an inlined row": "INSERT INTO {t} VALUES (3000)",
    "delete many rows of a file": "DELETE FROM {t} WHERE i < 40",
    "delete all rows of a file": "DELETE FROM {t} WHERE i < 100",
    "delete a row of a file": "DELETE FROM {t} WHERE i = 77",
    "delete a row of a file with deletes": "DELETE FROM {t} WHERE i = 277",
    "delete an inlined row": "DELETE FROM {t} WHERE i = 1000",
    "update a row of a file": "UPDATE {t} SET i = -i WHERE i = 77",
    "update a row of a file with deletes": "UPDATE {t} SET i = -i WHERE i = 277",
    "update an inlined row": "UPDATE {t} SET i = -i WHERE i = 1000",
    "merge": "CALL ducklake_merge_adjacent_files('lake', '{t}')",
    "rewrite": "CALL ducklake_rewrite_data_files('lake', '{t}', delete_threshold => 0.1)",
    "flush": "CALL ducklake_flush_inlined_data('lake', table_name => '{t}')",
    "add a column": "ALTER TABLE {t} ADD COLUMN j INTEGER",
}
# What compacts a file, and what deletes a row of that file in Postgres alone, with the row: DuckLake lets both commit,
# whichever is first, and the row is there again, beside its new version if it was updated.
EXCLUDE_EACH_OTHER = {
    ("merge", "delete a row of a file"): 77,
    ("merge", "update a row of a file"): 77,
    ("rewrite", "delete a row of a file with deletes"): 277,
    ("rewrite", "update a row of a file with deletes"): 277,
}
LOSES_A_DELETE = EXCLUDE_EACH_OTHER | {(b, a): row for (a, b), row in EXCLUDE_EACH_OTHER.items()}
# A flush that has not committed holds locks on inlined rows, for which the other session waits in Postgres.
WAITS = {(first, "flush") for first in ("delete an inlined row", "update an inlined row", "flush")}

NUMBERS = count(1)


class Outcome(NamedTuple):
    # of the second commit, without numbers
    error: str | None
    rows: Counter[int]


class Writers:
    """Two sessions on one lake."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.first = session.attach(settings)
        self.second = session.attach(settings)
        self.fresh = session.with_extensions(*session.LAKE_EXTENSIONS)

    def close(self) -> None:
        for db in (self.first, self.second, self.fresh):
            db.close()

    def run(self, table: str, first: str, second: str | None) -> Outcome:
        """`second` begins before `first` commits, and commits after it."""
        self._fill(table)
        error = None
        if second is not None:
            self.second.execute("BEGIN")
            self.second.execute(OPERATIONS[second].format(t=table)).fetchall()
        self.first.execute(OPERATIONS[first].format(t=table))
        if second is not None:
            try:
                self.second.execute("COMMIT")
            except duckdb.TransactionException as e:
                error = re.sub(r"\d+", "N", str(e))
        rows = Counter(row[0] for row in self._read_afresh(table))
        # a session reads the columns and files of all tables when it begins
        self.first.execute(f"DROP TABLE {table}")
        return Outcome(error, rows)

    def _read_afresh(self, table: str) -> list[tuple[int]]:
        """In a catalog that has seen nothing yet."""
        alias = f"fresh_{table}"
        source = literal(f"ducklake:postgres:{self.settings.dsn}")
        self.fresh.execute(f"ATTACH {source} AS {alias} (CREATE_IF_NOT_EXISTS false)")
        try:
            return self.fresh.execute(f"SELECT i FROM {alias}.{table}").fetchall()
        finally:
            self.fresh.execute(f"DETACH {alias}")

    def _fill(self, table: str) -> None:
        """Two files that can be merged, one of which half is deleted in a file, and two inlined rows."""
        self.first.execute(f"CREATE TABLE {table} (i INTEGER)")
        for k in range(3):
            self.first.execute(f"INSERT INTO {table} SELECT range + {k * 100} FROM range(100)")
        self.first.execute(f"DELETE FROM {table} WHERE i >= 200 AND i < 250")
        self.first.execute(f"INSERT INTO {table} VALUES (1000), (1001)")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writers]:
    with lakes.database() as dsn, closing(Writers(_made(dsn, tmp_path_factory.mktemp("plain")))) as writers:
        yield writers


@pytest.fixture(scope="module")
def adopted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writers]:
    with lakes.database() as dsn:
        settings = _made(dsn, tmp_path_factory.mktemp("adopted"))
        initialise(settings, quiet)
        with closing(Writers(settings)) as writers:
            yield writers


def _made(dsn: str, directory: Path) -> Settings:
    return plain_lake(dsn, data_path=f"{directory}/data/")


@pytest.mark.parametrize("first", OPERATIONS)
def test_two_sessions_at_once_meet_the_same_conflicts_with_and_without_mergus_unless_a_delete_would_be_lost(
    plain: Writers, adopted: Writers, first: str
) -> None:
    for second in OPERATIONS:
        if (first, second) in WAITS:
            continue
        table = f"t{next(NUMBERS)}"
        theirs, ours = plain.run(table, first, second), adopted.run(table, first, second)
        if (first, second) in LOSES_A_DELETE:
            row = LOSES_A_DELETE[first, second]
            assert theirs.error is None, (first, second)
            assert theirs.rows[row] == 1, (first, second)
            assert ours.error is not None, (first, second)
            assert "Transaction cannot commit - attempting to" in ours.error
            alone = adopted.run(f"{table}_alone", first, None)
            assert ours.rows == alone.rows, (first, second)
        else:
            assert ours == theirs, (first, second)
