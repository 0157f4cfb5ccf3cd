"""The Java that Spark runs on. Spark's own message for a missing one does not say which to install."""

import os
import re
import subprocess
from pathlib import Path
from typing import Final

from mergus.errors import SetupError

OLDEST: Final = 17
REMEDY: Final = (
    f"Spark needs Java {OLDEST}: install it (Debian and Ubuntu: apt-get install openjdk-{OLDEST}-jre-headless; "
    f"macOS: brew install openjdk@{OLDEST}), or set JAVA_HOME to one"
)


def check_java() -> None:
    """Raises SetupError unless there is a Java for Spark where Spark's start script looks for it. Under spark-submit
    Spark runs already."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin/java") if home else "java"
    try:
        # the program that Spark's start script runs
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except OSError:
        raise SetupError(f"JAVA_HOME is {home}, and has no bin/java. {REMEDY}" if home else REMEDY) from None
    if done.returncode:
        raise SetupError(f"`{program} -version` fails: {done.stderr.strip() or done.returncode}. {REMEDY}")
    major = java_version(done.stderr)
    if major is not None and major < OLDEST:
        raise SetupError(f"{program} is Java {major}. {REMEDY}")


def java_version(text: str) -> int | None:
    """The major version in what `java -version` prints; `1.8.0` is Java 8."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return None if found is None else int(found[1])
