"""Every cell of GUIDE.md, in its order, prints what stands below it."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mergus.cli import main
from mergus.embedded.stack import connection_values
from mergus.embedded.state import StateDir
from tests.support import spark as sparks
from tests.support.lakes import TestLake
from tests.support.servers import Server

GUIDE = Path(__file__).parents[1] / "GUIDE.md"
CELL = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def shell(text: str) -> None:
    """What a reader would type, but for how a lake is started and packages are installed."""
    for line in text.splitlines():
        if line.startswith("mergus "):
            done = CliRunner().invoke(main, line.split()[1:])
            # quarantined rows are something to look at
            assert done.exit_code in {0, 3}, f"{line}\n{done.output}"


def test_every_cell_of_the_guide_prints_what_is_documented(
    lake: TestLake, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = connection_values(StateDir(tmp_path), lake.of_writers, server.uri, "")
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    sparks.session()
    cells = CELL.findall(GUIDE.read_text())
    names: dict[str, Any] = {}
    printed = ""
    for kind, text in cells:
        if kind == "python":
            output = io.StringIO()
            with redirect_stdout(output):
                exec(compile(text, str(GUIDE), "exec"), names)
            printed = output.getvalue()
        elif kind == "sh":
            shell(text)
        elif kind == "text":
            assert printed == text
    names["db"].close()
    assert sum(kind == "text" for kind, _ in cells) >= 8
