"""Which snapshots the readers of a story read."""

import pytest

from tests.support.readers import ALL, questions

SNAPSHOTS = list(range(9))


@pytest.mark.parametrize("count", range(10))
@pytest.mark.parametrize("readers", [ALL, frozenset({"pyiceberg"}), frozenset({"duckdb", "spark"})])
def test_every_reader_reads_every_snapshot(count: int, readers: frozenset[str]) -> None:
    snapshots = [*SNAPSHOTS[:count], None]
    asked = set(questions(readers, snapshots, snapshots, full=False))
    assert {(who, at) for who, _, at in asked} == {(who, at) for who in readers for at in snapshots}


def test_each_reader_reads_through_both_servers() -> None:
    asked = questions(ALL, [*SNAPSHOTS, None], [0, 1], full=False)
    assert {(name, server) for name, server, _ in asked} == {(n, s) for n in ALL for s in ("warm", "cold")}


def test_the_full_product_contains_every_reader_server_and_snapshot() -> None:
    asked = set(questions(ALL, SNAPSHOTS, [], full=True))
    assert asked == {(n, s, at) for n in ("pyiceberg", "duckdb") for s in ("warm", "cold") for at in SNAPSHOTS}
