"""Apache Iceberg's REST Compatibility Kit has the say on whether this is an Iceberg REST catalog."""

from pathlib import Path

import pytest

from tests.rck import kit
from tests.support import lakes, servers

pytestmark = pytest.mark.xdist_group("java")

# The part of the kit that covers what is implemented.
EXPECTED = {
    "catalog.testCreateExistingNamespace",
    "catalog.testCreateNamespace",
    "catalog.testCreateNamespaceWithProperties",
    "catalog.testDropNamespace",
    "catalog.testDropNonexistentNamespace",
    "catalog.testListNamespaces",
    "catalog.testListNonExistingNamespace",
    "catalog.testLoadNamespaceMetadata",
    "catalog.testRemoveNamespaceProperties",
    "catalog.testRemoveNamespacePropertiesNamespaceDoesNotExist",
    "catalog.testSetNamespaceProperties",
    "catalog.testSetNamespacePropertiesNamespaceDoesNotExist",
    "catalog.testUpdateAndSetNamespaceProperties",
    "catalog.testUpdateNamespaceProperties",
}


def test_the_kit_passes(tmp_path: Path) -> None:
    with lakes.lake() as lake, servers.server(lake.settings, tmp_path) as running:
        results = kit.run(running.uri, lake.settings.prefix, *sorted(EXPECTED))
    passed = {result.name for result in results if result.verdict == "pass"}
    others = [f"{result.verdict} {result.name}: {result.detail}" for result in results if result.verdict != "pass"]
    assert passed >= EXPECTED, "\n".join(others)  # a test that the kit no longer has is amiss, too
