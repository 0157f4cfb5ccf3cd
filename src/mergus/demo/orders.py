"""Orders as they come in: a DuckDB session that inserts, changes and deletes rows, small commit by small commit.

Everything about an order comes from its number, so that two demos of one size have the same orders.
"""

import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import Final

import duckdb

from mergus.config import Settings
from mergus.ducklake import session

CUSTOMERS: Final = 1000
# Rows of one commit, while the demo runs.
BATCH: Final = 50
PAUSE_SECONDS: Final = 0.25

TABLES: Final = """
    CREATE SCHEMA bronze;
    CREATE TABLE bronze.customers(customer_id INTEGER, country VARCHAR);
    CREATE TABLE bronze.orders(order_id BIGINT, customer_id INTEGER, status VARCHAR, amount DECIMAL(12, 2),
                               ordered_at TIMESTAMPTZ);
    INSERT INTO bronze.customers
    SELECT range, ['Austria', 'Brazil', 'Chad', 'Denmark', 'Egypt'][1 + range % 5] FROM range($customers);
"""
# one of a hundred has an amount that no order has
NEW: Final = """
    INSERT INTO bronze.orders
    SELECT n, hash(n) % $customers, 'open',
           CASE WHEN n % 100 = 99 THEN -1 ELSE (hash(n + 1) % 100000) / 100 END,
           TIMESTAMPTZ '2026-01-01 00:00:00+00' + INTERVAL (n % 90) DAY + INTERVAL (n % 86400) SECOND
    FROM range($first, $first + $count) t(n)
"""
SHIP: Final = "UPDATE bronze.orders SET status = 'shipped' WHERE status = 'open' AND order_id % 7 = $first % 7"
RETURN: Final = "UPDATE bronze.orders SET status = 'returned', amount = 0 WHERE order_id % 997 = $first % 997"
CANCEL: Final = "DELETE FROM bronze.orders WHERE order_id % 499 = $first % 499"


def prepare(settings: Settings, orders: int) -> None:
    """Tables, and so many orders in one commit."""
    with closing(session.attach(settings)) as lake:
        for statement in TABLES.split(";"):
            if statement.strip():
                lake.execute(statement, {"customers": CUSTOMERS} if "$" in statement else None)
        lake.execute(NEW, {"first": 0, "count": orders, "customers": CUSTOMERS})


class Writer(threading.Thread):
    """Commits until it is told to stop; `error` is why it stopped before."""

    def __init__(self, settings: Settings, first: int) -> None:
        super().__init__(name="orders", daemon=True)
        self._settings = settings
        self._next = first
        self._stop_now = threading.Event()
        self.commits = 0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with closing(session.attach(self._settings)) as lake:
                while not self._stop_now.wait(PAUSE_SECONDS):
                    self._commit(lake)
        except Exception as e:
            self.error = e

    def _commit(self, lake: duckdb.DuckDBPyConnection) -> None:
        turn = {6: SHIP, 12: RETURN, 18: CANCEL}.get(self.commits % 20)
        if turn is not None:
            lake.execute(turn, {"first": self._next})
        else:
            lake.execute(NEW, {"first": self._next, "count": BATCH, "customers": CUSTOMERS})
            self._next += BATCH
        self.commits += 1

    def stop(self) -> None:
        self._stop_now.set()
        self.join()


@contextmanager
def writing(settings: Settings, first: int) -> Generator[Writer]:
    writer = Writer(settings, first)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()
    if writer.error is not None:
        raise writer.error
