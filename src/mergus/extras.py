"""Optional packages: how a user installs those that a command lacks.

No registry has Mergus itself, so `pip install 'mergus[spark]'` is no answer. The metadata of the installed package
names the packages of each extra with their versions, and those are in a registry.
"""

import re
import shlex
import sys
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec


def packages_of(extra: str) -> list[str]:
    """With the versions that are tested; none if this code runs without being installed."""
    try:
        listed = requires("mergus") or []
    except PackageNotFoundError:
        return []
    parts = [text.partition(";") for text in listed]
    return [name.strip() for name, _, marker in parts if re.search(rf"extra == ['\"]{extra}['\"]", marker)]


def install_command(extra: str) -> str:
    """The shell command that installs the packages of an extra beside this one."""
    names = shlex.join(packages_of(extra)) or f"'.[{extra}]'"
    python = shlex.quote(sys.executable)
    if find_spec("pip") is None:
        return f"uv pip install --python {python} {names}"
    return f"{python} -m pip install {names}"
