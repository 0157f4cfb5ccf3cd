"""What tests wait for instead of letting time pass: that others wait."""

from tests.support.lakes import TestLake
from tests.support.listeners import eventually, metrics
from tests.support.servers import Server


def lock_waiters(lake: TestLake, table: str) -> int:
    """Sessions of this lake that wait for a lock on one of its tables."""
    # lakes are copies of one database, so their tables have the same numbers
    query = """SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database
               WHERE NOT granted AND datname = current_database() AND relation = %s::regclass"""
    ((found,),) = lake.sql(query, table)
    return found


def in_flight(server: Server) -> float:
    """Requests that the server works on, but for the one that asks."""
    return metrics(server)["mergus_requests_in_flight", ()] - 1


def wait_for_requests(server: Server, number: int) -> None:
    """Until the server works on so many at once."""
    eventually(lambda: in_flight(server) >= number, 20, lambda: f"{in_flight(server)} requests")
