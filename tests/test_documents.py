"""What README and GUIDE print is what the code has: a reader who copies it gets what the tests ran."""

import re
import tomllib

from mergus.pipeline import versions
from mergus.pipeline.catalog_settings import catalog_settings
from tests.support import documents, trino

PIN = re.compile(r"([\w-]+)(?:\[\w+\])?==([\w.]+)")
URI, WAREHOUSE = "http://lake.example:8181", "lake"


def test_spark_settings_of_readme_and_guide_are_those_of_mergus_spark() -> None:
    ours = catalog_settings(URI, WAREHOUSE)
    assert ours["spark.sql.catalog.lake.cache-enabled"] == "false"
    assert documents.readme_spark_settings(URI, WAREHOUSE) == ours
    assert documents.guide_spark_settings(URI, WAREHOUSE) == ours


def test_no_other_document_prints_the_settings_of_a_spark_catalog() -> None:
    """One that did would have to be compared as well."""
    printing = {path.name for path in documents.ROOT.glob("*.md") if "spark.sql.catalog.lake.type" in path.read_text()}
    assert printing == {"README.md", "GUIDE.md"}


def pinned_versions() -> dict[str, str]:
    """The packages that pyproject.toml pins, of all extras."""
    project = tomllib.loads((documents.ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *(x for extra in project["optional-dependencies"].values() for x in extra)]
    return {found[1]: found[2] for text in named if (found := PIN.match(text))}


def test_the_versions_of_readme_are_those_that_the_tests_run() -> None:
    pins = pinned_versions()
    extensions = ", ".join(f"`{name}` {pins[f'duckdb-extension-{name}']}" for name in ("ducklake", "iceberg"))
    expected = [
        ("DuckDB", pins["duckdb"], extensions),
        ("PyIceberg", pins["pyiceberg"], f"PyArrow {pins['pyarrow']}"),
    ]
    for minor, runtime in versions.RUNTIMES.items():
        delta = runtime.delta.rpartition(":")[2]
        expected.append((f"Spark {minor}", runtime.spark, f"Iceberg {runtime.iceberg}, Delta {delta}"))
    expected.append(("Trino", trino.VERSION, "its own Iceberg connector"))
    section = documents.README.read_text().split("## Tested versions\n")[1].split("\n## ")[0]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in section.splitlines() if "|" in line]
    assert rows[2:] == expected


def test_the_spark_that_is_installed_is_the_one_that_jobs_are_made_for() -> None:
    assert pinned_versions()["pyspark"] == versions.SPARK == versions.installed()
