"""What is said of a source must not say its secrets.

Settings of a source come from the command line, a file, or MERGUS_SOURCE_… variables, which is where secrets belong: a
command line is seen by everybody on the machine. Whatever key looks like a secret's, its value appears in no report, no
message and no error, even where a library repeats it.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mergus.config import hide_password
from mergus.errors import SetupError

VARIABLES: Final = "MERGUS_SOURCE_"
HIDDEN: Final = "***"
_LOOKS_SECRET: Final = re.compile(r"token|credential|secret|passw|key|sas|auth|signature", re.IGNORECASE)


class Secrets:
    def __init__(self, conf: Mapping[str, str]) -> None:
        # longer ones first: one may be part of another
        self._values = sorted((v for k, v in conf.items() if v and _LOOKS_SECRET.search(k)), key=len, reverse=True)

    def hide(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return hide_password(text)


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """MERGUS_SOURCE_S3__SECRET_ACCESS_KEY is s3.secret-access-key: one underscore is a hyphen, two are a dot."""
    given = {k.removeprefix(VARIABLES): v for k, v in environ.items() if k.startswith(VARIABLES)}
    return {name.lower().replace("__", ".").replace("_", "-"): value for name, value in given.items()}


def from_file(path: Path) -> dict[str, str]:
    """KEY=VALUE in each line. A message names the line, not what is in it."""
    found: dict[str, str] = {}
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise SetupError(f"{path} cannot be read: {type(e).__name__}") from None
    for number, line in enumerate(lines, 1):
        key, equals, value = line.strip().partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not key or not equals:
            raise SetupError(f"{path}, line {number}: not KEY=VALUE")
        found[key.strip()] = value.strip()
    return found
