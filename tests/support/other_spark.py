"""Another Spark than the suite's: in an environment of its own, made once in the user's cache directory."""

import shutil
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from mergus.pipeline.versions import RUNTIMES, SPARK
from tests.support.ministack import cache

VERSIONS = [runtime.spark for runtime in RUNTIMES.values() if runtime.spark != SPARK]


def python(version: str) -> Path:
    """The interpreter of the environment that has this pyspark; installed first if it is not there. Processes that
    install at once do not meet."""
    place = cache() / f"pyspark-{version}-py{sys.version_info[0]}.{sys.version_info[1]}"
    program = place / "bin/python"
    if not program.exists():
        draft = place.with_name(f"{place.name}.{uuid4().hex}")
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(draft)], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", str(draft / "bin/python"), f"pyspark=={version}"]
        # behind a proxy that signs for itself only the system's certificates are right
        if subprocess.run(install, check=False).returncode:
            subprocess.run([*install, "--system-certs"], check=True)
        try:
            draft.rename(place)
        except OSError:
            shutil.rmtree(draft)
    return program
