"""A writer in a process of its own: commits until its time is over, and says at the end what was acknowledged.

    python -m tests.concurrency.commit_writer '{"kind": "duckdb", "name": "d1", "seconds": 25, …}'

Every row belongs to its writer and has a number that is never used again. A conflict is tried again, from the state
that the conflict was with, and after some times the writer does something else; anything but a conflict ends the run.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, ValidationException

from mergus.config import Settings
from mergus.ducklake.session import attach
from tests.support import loads

# What DuckDB says when somebody else was faster; "write-write" and the primary key are the catalog's own words for it.
CONFLICTS = ("conflict", "cannot commit", "primary key", "unique", "concurrent")

TRIES = 5


@dataclass
class Outcome:
    """What was acknowledged: the rows that are there for all that the writer knows, and how it went."""

    name: str
    rows: dict[str, dict[int, int]]
    commits: int = 0
    retries: int = 0
    given_up: int = 0
    longest_seconds: float = 0
    failure: str | None = None
    conflicts: dict[str, int] = field(default_factory=dict[str, int])


class Conflict(Exception):
    pass


@dataclass
class Writer:
    """`rows` are number and value. Operations come from subclasses; each is one commit, after a pause of that many
    seconds on average."""

    name: str
    tables: list[str]
    seconds: float
    seed: int
    pause: float

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.outcome = Outcome(self.name, {table: {} for table in self.tables})
        self.next = 0

    def run(self) -> Outcome:
        deadline = time.monotonic() + self.seconds
        try:
            while time.monotonic() < deadline:
                self._turn()
                time.sleep(self.random.uniform(0, 2 * self.pause))
        except Exception as e:
            self.outcome.failure = f"{type(e).__name__}: {str(e)[:2000]}"
        return self.outcome

    def _turn(self) -> None:
        table = self.random.choice(self.tables)
        known = self.outcome.rows[table]
        work: Callable[[], None]
        first = self.next
        kind = self.random.random()
        if kind < 0.65 or len(known) < 5:
            # few rows are kept in Postgres, more are a file
            count = self.random.choice((1, 3, 15, 30))
            self.next += count
            new = dict.fromkeys(range(first, self.next), 0)
            work, after = (lambda: self.insert(table, new)), {**known, **new}
        else:
            chosen = sorted(known)
            at = self.random.randrange(len(chosen))
            low, high = chosen[at], chosen[min(at + self.random.choice((1, 3, 12)), len(chosen) - 1)] + 1
            if kind < 0.88:
                work, after = (
                    lambda: self.delete(table, low, high),
                    {n: v for n, v in known.items() if not low <= n < high},
                )
            else:
                value = self.random.randrange(1, 1000)
                work = lambda: self.update(table, low, high, value, known)  # noqa: E731
                after = {n: value if low <= n < high else v for n, v in known.items()}
        begun = time.monotonic()
        for _ in range(TRIES):
            try:
                work()
                break
            except Conflict as e:
                self.outcome.retries += 1
                said = str(e)[:100]
                self.outcome.conflicts[said] = self.outcome.conflicts.get(said, 0) + 1
        else:
            self.outcome.given_up += 1
            return
        self.outcome.rows[table] = after
        self.outcome.commits += 1
        self.outcome.longest_seconds = max(self.outcome.longest_seconds, time.monotonic() - begun)

    def insert(self, table: str, new: dict[int, int]) -> None:
        raise NotImplementedError

    def delete(self, table: str, low: int, high: int) -> None:
        raise NotImplementedError

    def update(self, table: str, low: int, high: int, value: int, known: dict[int, int]) -> None:
        raise NotImplementedError


class DuckWriter(Writer):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.db = attach(Settings())  # pyright: ignore[reportCallIssue]

    def insert(self, table: str, new: dict[int, int]) -> None:
        self._do(f"INSERT INTO {table} SELECT '{self.name}', range, 0 FROM range({min(new)}, {max(new) + 1})")

    def delete(self, table: str, low: int, high: int) -> None:
        self._do(f"DELETE FROM {table} WHERE who = '{self.name}' AND n >= {low} AND n < {high}")

    def update(self, table: str, low: int, high: int, value: int, known: dict[int, int]) -> None:
        self._do(f"UPDATE {table} SET v = {value} WHERE who = '{self.name}' AND n >= {low} AND n < {high}")

    def _do(self, statement: str) -> None:
        try:
            self.db.execute(statement)
        except duckdb.Error as e:
            if not any(word in str(e).lower() for word in CONFLICTS):
                raise
            raise Conflict(str(e)) from e


@dataclass
class IcebergWriter(Writer):
    settings: Settings = field(kw_only=True)
    server: Any = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.catalog = loads.catalog(self.settings, self.server)

    def insert(self, table: str, new: dict[int, int]) -> None:
        rows = self._rows(new)
        self._do(lambda: self._open(table).append(rows))

    def delete(self, table: str, low: int, high: int) -> None:
        where = f"who = '{self.name}' AND n >= {low} AND n < {high}"
        self._do(lambda: self._open(table).delete(where))

    def update(self, table: str, low: int, high: int, value: int, known: dict[int, int]) -> None:
        rows = self._rows({n: value for n in known if low <= n < high})
        self._do(lambda: self._open(table).upsert(rows, ["who", "n"]))

    def _rows(self, values: dict[int, int]) -> pa.Table:
        columns = {
            "who": pa.array([self.name] * len(values), pa.string()),
            "n": pa.array(list(values), pa.int64()),
            "v": pa.array(list(values.values()), pa.int32()),
        }
        return pa.table(columns)

    def _open(self, table: str) -> Any:
        return self.catalog.load_table(tuple(table.split(".")))

    def _do(self, work: Callable[[], object]) -> None:
        try:
            work()
        except (CommitFailedException, ValidationException) as e:
            raise Conflict(str(e)) from e


@dataclass
class Address:
    uri: str


def main(order: dict[str, Any]) -> None:
    common = {key: order[key] for key in ("name", "tables", "seconds", "seed", "pause")}
    if order["kind"] == "duckdb":
        writer: Writer = DuckWriter(**common)
    else:
        settings = Settings()  # pyright: ignore[reportCallIssue]
        writer = IcebergWriter(**common, settings=settings, server=Address(order["uri"]))
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(asdict(writer.run())), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
