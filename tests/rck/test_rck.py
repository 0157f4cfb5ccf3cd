"""Apache Iceberg's REST Compatibility Kit has the say on whether this is an Iceberg REST catalog."""

from pathlib import Path
from tempfile import gettempdir

import pytest

from tests.rck import kit
from tests.support import lakes, servers
from tests.support.listeners import samples

pytestmark = pytest.mark.xdist_group("java")

# What the kit asks for and does not get, and why. Everything else passes, or is skipped by the kit.
EXCEPTIONS = {
    "catalog.createTableTransaction[1]": "format version 1: it has no deletes, and DuckDB deletes rows",
    "catalog.replaceTableTransaction[1]": "format version 1",
    "catalog.testCompleteCreateTransactionV2": "sequence numbers are DuckLake's snapshot ids, and do not start at 1",
    "catalog.testCatalogWithCustomMetricsReporter": "a data file without a place: its path is relative to nothing",
    "catalog.testLoadTableWithMissingMetadataFile": "a metadata file that is gone is made again",
    "catalog.testRemoveUnusedSchemas[1]": "branches other than main",
    "catalog.testRemoveUnusedSpec[1]": "branches other than main",
}
# Where the kit's tables say that they are, or have files that nobody ever wrote.
PLACES_OF_THE_KIT = ("file:///path/to", f"file://{gettempdir()}")


# Of each part, how many tests it has, and how many of those pass.
PARTS = {"catalog": (106, 88), "view": (51, 50)}


@pytest.mark.parametrize("part", PARTS)
def test_the_kit_passes(part: str, tmp_path: Path) -> None:
    allowed = " ".join(PLACES_OF_THE_KIT)
    with (
        lakes.lake(data_path=f"file://{tmp_path}/lake/data/") as lake,
        servers.server(lake.settings, tmp_path, allowed_locations=allowed) as running,
    ):
        results = kit.run(running.uri, lake.settings.prefix, part)
        told = samples(running.http.get("/metrics").text)
    if part == "catalog":
        # the client reports its scans and commits by itself, and is understood
        reports = {dict(labels)["type"] for name, labels in told if name == "mergus_reports_total"}
        assert reports == {"scan-report", "commit-report"}
    asked = [dict(labels) for name, labels in told if name == "mergus_requests_total"]
    assert {a["status"] for a in asked if a["operation"] == "reportMetrics"} <= {"204", "404"}
    count, passed = PARTS[part]
    assert len(results) >= count
    expected = {name for name in EXCEPTIONS if name.startswith(f"{part}.")}
    failed = {result.name: result.detail for result in results if result.verdict == "fail"}
    assert failed.keys() == expected, "\n".join(f"{n}: {d}" for n, d in failed.items() if n not in expected)
    assert sum(result.verdict == "pass" for result in results) >= passed
