"""How a table that a job makes is partitioned, as people write it: `region`, `days(at)`, `bucket(16, id)`."""

import re
from typing import Final

from mergus.errors import SetupError
from mergus.pipeline.canonical import SPARK

TRANSFORM: Final = re.compile(r"(\w+)\((?:(\d+)\s*,\s*)?([^(),]+)\)")
WITH_NUMBER: Final = frozenset({"bucket", "truncate"})
TRANSFORMS: Final = frozenset({"years", "months", "days", "hours", "year", "month", "day", "hour"}) | WITH_NUMBER


def partition(text: str) -> str:
    """For PARTITIONED BY of Spark's, with its column quoted."""
    match = TRANSFORM.fullmatch(text.strip())
    if match is None:
        if not text.strip() or any(c in text for c in "(),"):
            raise SetupError(f"{text!r} is no partitioning: COLUMN, days(COLUMN) or bucket(16, COLUMN) are")
        return SPARK.identifier(text.strip())
    name, number, column = match[1].lower(), match[2], match[3].strip()
    if name not in TRANSFORMS or (number is None) == (name in WITH_NUMBER):
        raise SetupError(f"{text!r} is no partitioning: transforms are {', '.join(sorted(TRANSFORMS))}")
    return f"{name}({f'{number}, ' if number else ''}{SPARK.identifier(column)})"
