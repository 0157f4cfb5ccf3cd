"""In which format versions a test is run that has nothing to do with them."""

import os

import pytest

# MERGUS_TEST_LONG=1 runs all of them in both.
LONG = "MERGUS_TEST_LONG" in os.environ


def in_version(chosen: int, fixture: str = "sharing") -> pytest.MarkDecorator:
    every = [2, 3] if LONG else [chosen]
    return pytest.mark.parametrize(fixture, every, indirect=True, ids=lambda version: f"v{version}")
