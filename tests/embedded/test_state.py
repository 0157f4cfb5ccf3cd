"""The directory in which an embedded stack keeps what it chose."""

from pathlib import Path

import pytest

from mergus.embedded import state
from mergus.embedded.state import StateDir, is_free


def test_a_stack_chooses_a_port_of_its_own_for_each_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "PORT_RANGE", range(24_000, 24_040))
    names = [f"part {number}" for number in range(sum(map(is_free, ["127.0.0.1"] * 40, range(24_000, 24_040))) // 2)]
    assert len(names) > 5
    chosen = {name: StateDir(tmp_path).port(name) for name in names}
    assert len(set(chosen.values())) == len(names)
    assert {name: StateDir(tmp_path).port(name) for name in names} == chosen
