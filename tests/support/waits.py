"""What tests wait for instead of letting time pass: that others wait."""

from mergus.annex.jobs import channel
from tests.support.lakes import TestLake
from tests.support.listeners import eventually, metrics
from tests.support.servers import Server


def lock_waiters(lake: TestLake, table: str | None = None) -> int:
    """Sessions of this lake that wait for a lock on one of its tables, or on any."""
    # lakes are copies of one database, so their tables have the same numbers
    query = """SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database
               WHERE NOT granted AND datname = current_database() AND coalesce(relation = %s::regclass, %s)"""
    ((found,),) = lake.sql(query, table, table is None)
    return found


def make_jobs_due(lake: TestLake) -> None:
    """Those that wait for their time, and tell workers, which would look for them seconds later."""
    query = """WITH due AS (UPDATE job SET due_at = now() WHERE state = 'waiting' AND due_at > now() RETURNING job_id)
               SELECT pg_notify(%s, job_id::text)::text FROM due"""
    lake.sql(query, channel(lake.settings))


def in_flight(server: Server) -> float:
    """Requests that the server works on, but for the one that asks."""
    return metrics(server)["mergus_requests_in_flight", ()] - 1


def wait_for_requests(server: Server, number: int) -> None:
    """Until the server works on so many at once."""
    eventually(lambda: in_flight(server) >= number, 20, lambda: f"{in_flight(server)} requests")
