import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from mergus.ducklake import session
from mergus.errors import SetupError
from tests.support import lakes


def test_published_extensions_load_by_path_and_by_name(tmp_path: Path) -> None:
    folder = session.publish_extensions(tmp_path)
    by_path = duckdb.connect()
    for name in session.EXTENSIONS:
        by_path.execute(f"LOAD '{folder}/{name}.duckdb_extension'")
    by_name = duckdb.connect(config={"extension_directory": str(folder), "autoinstall_known_extensions": "false"})
    for name in session.EXTENSIONS:
        by_name.execute(f"LOAD {name}")


@pytest.mark.integration
def test_a_lake_is_not_made_by_attaching() -> None:
    with lakes.database() as dsn, pytest.raises(SetupError, match="cannot attach"):
        session.attach(lakes.settings_for(dsn))


@pytest.mark.integration
def test_a_password_does_not_reach_the_message_of_a_failed_attach() -> None:
    settings = lakes.settings_for("postgresql://mergus:hunter2secret@127.0.0.1:1/x")
    with pytest.raises(SetupError) as caught:
        session.attach(settings)
    assert "hunter2secret" not in str(caught.value)


@pytest.mark.integration
def test_attaching_loads_extensions_without_a_download() -> None:
    """With downloads impossible and an empty home, a session still attaches."""
    with lakes.lake() as lake:
        script = (
            "from mergus.config import Settings; from mergus.ducklake.session import attach; "
            "print(attach(Settings()).execute('SELECT 1').fetchone())"
        )
        from mergus.serve import environment

        env = {"PATH": "", "HOME": "/nonexistent", "MERGUS_STATE_DIR": "/nonexistent", **environment(lake.settings)}
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
        assert done.stdout == "(1,)\n", done.stderr
