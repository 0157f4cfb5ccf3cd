"""What the documents tell users to type, as tests read it."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
GUIDE = ROOT / "GUIDE.md"

_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def fenced_blocks(document: Path, language: str) -> list[str]:
    return [text for found, text in _FENCED.findall(document.read_text()) if found == language]


def conf_options(command: str) -> dict[str, str]:
    """The `--conf KEY=VALUE` options of a shell command."""
    pairs = [word.partition("=") for flag, word in pairwise(shlex.split(command)) if flag == "--conf"]
    return {key: value for key, _, value in pairs}


def conf_lines(text: str) -> dict[str, str]:
    """Lines of a spark-defaults.conf."""
    pairs = [line.split(maxsplit=1) for line in text.splitlines()]
    return dict(pairs)


def readme_spark_settings(uri: str, warehouse: str) -> dict[str, str]:
    """The settings that README gives to spark-sql, with the shell's variables filled in."""
    (command,) = [text for text in fenced_blocks(README, "sh") if text.startswith("spark-sql")]
    return conf_options(command.replace("$MERGUS_URI", uri).replace("$MERGUS_WAREHOUSE", warehouse))


def guide_spark_settings(uri: str, warehouse: str) -> dict[str, str]:
    """The lines that GUIDE shows of `mergus spark --settings`, for another server than the one that it names."""
    (lines,) = [text for text in fenced_blocks(GUIDE, "properties") if text.startswith("spark.")]
    found = conf_lines(lines)
    assert found["spark.sql.catalog.lake.uri"] == "http://127.0.0.1:8181"
    assert found["spark.sql.catalog.lake.warehouse"] == "lake"
    return {**found, "spark.sql.catalog.lake.uri": uri, "spark.sql.catalog.lake.warehouse": warehouse}
