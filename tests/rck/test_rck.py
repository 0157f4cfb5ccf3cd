"""Apache Iceberg's REST Compatibility Kit has the say on whether this is an Iceberg REST catalog."""

from pathlib import Path
from tempfile import gettempdir

import pytest

from tests.rck import kit
from tests.support import lakes, servers

pytestmark = pytest.mark.xdist_group("java")

# What the kit asks for and does not get, and why. Everything else of its catalog part passes, or is skipped by the kit.
EXCEPTIONS = {
    "catalog.createTableTransaction[1]": "format version 1: it has no deletes, and DuckDB deletes rows",
    "catalog.replaceTableTransaction[1]": "format version 1",
    "catalog.testCompleteCreateTransactionV2": "sequence numbers are DuckLake's snapshot ids, and do not start at 1",
    "catalog.testCatalogWithCustomMetricsReporter": "a data file without a place: its path is relative to nothing",
    "catalog.testLoadTableWithMissingMetadataFile": "a metadata file that is gone is made again",
    "catalog.testRemoveUnusedSchemas[1]": "branches other than main",
    "catalog.testRemoveUnusedSpec[1]": "branches other than main",
    "catalog.testRegisterTable": "registerTable",
    "catalog.testRegisterExistingTable": "registerTable",
}
# Where the kit's tables say that they are, or have files that nobody ever wrote.
PLACES_OF_THE_KIT = ("file:///path/to", f"file://{gettempdir()}")


def test_the_kit_passes(tmp_path: Path) -> None:
    allowed = " ".join(PLACES_OF_THE_KIT)
    with (
        lakes.lake(data_path=f"file://{tmp_path}/lake/data/") as lake,
        servers.server(lake.settings, tmp_path, allowed_locations=allowed) as running,
    ):
        results = kit.run(running.uri, lake.settings.prefix, "catalog")
    assert len(results) >= 106
    failed = {result.name: result.detail for result in results if result.verdict == "fail"}
    assert failed.keys() == EXCEPTIONS.keys(), "\n".join(f"{n}: {d}" for n, d in failed.items() if n not in EXCEPTIONS)
    assert sum(result.verdict == "pass" for result in results) >= 86
