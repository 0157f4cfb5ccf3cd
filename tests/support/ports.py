"""Ports that no other process of the suite takes between our finding them free and a server's binding them.

Each process has a range of its own and goes through it, from anywhere in it: two runs may be on one machine. The
embedded Postgres and S3 stores choose theirs above these.
"""

import os
import secrets
from itertools import cycle
from typing import Final

from mergus.embedded.state import is_free

RANGE: Final = 2000
_NUMBER: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 5
_FIRST: Final = 10_000 + RANGE * _NUMBER
_BEGIN: Final = secrets.randbelow(RANGE)
_ports = cycle([*range(_FIRST + _BEGIN, _FIRST + RANGE), *range(_FIRST, _FIRST + _BEGIN)])


def free_port() -> int:
    return next(port for port in _ports if is_free("127.0.0.1", port))
