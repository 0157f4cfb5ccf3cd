"""Which snapshots the readers of a story read, and in which format versions tests run."""

import pytest

from tests.support.formats import choose_others, is_others_turn
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


def test_every_test_runs_in_both_format_versions_in_some_heavy_run() -> None:
    tests = [f"test_{i}[{version}]" for i in range(30) for version in ("v2", "v3")]
    others = [test for test in tests if is_others_turn(test)]
    assert len(others) == 30
    assert len({test.partition("[")[0] for test in others}) == 30
    runs = [choose_others(others, str(seed)) for seed in range(200)]
    assert set().union(*runs) == set(others)
    assert {len(run) for run in runs} == {3}


def test_a_seed_chooses_the_same_tests_again() -> None:
    others = [f"test_{i}[v2]" for i in range(30)]
    assert choose_others(others, "7") == choose_others(others[::-1], "7") != choose_others(others, "8")
