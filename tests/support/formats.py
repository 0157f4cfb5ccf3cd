"""In which format versions a test is run that has nothing to do with them."""

import os
import zlib
from collections.abc import Sequence
from random import Random

import pytest

# MERGUS_TEST_LONG=1 runs all of them in both.
LONG = "MERGUS_TEST_LONG" in os.environ
# `./scripts/test --heavy` runs one in so many in the version in which `./scripts/test` does not run it.
ONE_IN = 10


def in_version(chosen: int, fixture: str = "sharing") -> pytest.MarkDecorator:
    every = [2, 3] if LONG else [chosen]
    return pytest.mark.parametrize(fixture, every, indirect=True, ids=lambda version: f"v{version}")


def is_others_turn(name: str) -> bool:
    """Whether `./scripts/test` runs this test in the other format version. Half of all run in either."""
    versions = [v for v in ("v2", "v3") if f"[{v}]" in name or f"[{v}-" in name]
    plain = name.replace("[v2", "[").replace("[v3", "[")
    return bool(versions) and versions[0] != ("v2", "v3")[zlib.crc32(plain.encode()) % 2]


def choose_others(tests: Sequence[str], seed: str) -> set[str]:
    """The tests that `./scripts/test --heavy` runs out of turn. Another seed chooses others."""
    return set(Random(seed).sample(sorted(tests), len(tests) // ONE_IN))
