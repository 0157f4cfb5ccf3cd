"""Apache Iceberg's REST Compatibility Kit has the say on whether this is an Iceberg REST catalog.

With MERGUS_TEST_RCK=all, which is what `./scripts/test --rck` sets, the whole kit is run on S3 as well as on a local
directory. Of its 157 tests, 138 pass on either; of Apache's own reference server 144 pass on a local directory and 130
on S3. Thirteen tests want a table in the kit's own temporary directory: the server has to allow it, and on S3 these
tables have their files there all the same.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import gettempdir
from typing import NamedTuple

import pytest

from mergus.config import Settings
from tests.rck import kit
from tests.support import lakes, servers
from tests.support.listeners import samples


class Reason(NamedTuple):
    why: str
    takes: str  # to pass


VERSION_1 = Reason(
    "the table is to be of format version 1, which has no deletes, and becomes one of 2, since DuckDB deletes rows; "
    "the kit asks for the version that it gets",
    "metadata and manifests of version 1, and a table that Iceberg cannot read from the first delete on",
)
BRANCHES = Reason("a branch other than main (406)", "branches, whose snapshots have no rows of DuckLake's")

# What the kit asks for and does not get. Everything else passes, or is skipped by the kit.
EXCEPTIONS = {
    "catalog.createTableTransaction[1]": VERSION_1,
    "catalog.replaceTableTransaction[1]": VERSION_1,
    "catalog.testCompleteCreateTransactionV2": Reason(
        "sequence numbers are DuckLake's snapshot ids, and those of a table do not start at 1",
        "numbers of each table's own, and a translation wherever a row tells when it was written: "
        "_last_updated_sequence_number would not be the same in both engines any more",
    ),
    "catalog.testCatalogWithCustomMetricsReporter": Reason(
        "a data file is named by a bare name, which is relative to nothing (400)",
        "a place that such a name is in. Iceberg names none, and DuckDB would look in the directory that it was "
        "started in: a file of anybody's",
    ),
    "catalog.testLoadTableWithMissingMetadataFile": Reason(
        "loading is to fail when the metadata file is gone, and it is made again",
        "to believe the file rather than DuckLake's rows",
    ),
    "catalog.testRemoveUnusedSchemas[1]": BRANCHES,
    "catalog.testRemoveUnusedSpec[1]": BRANCHES,
}
EXCEPTIONS_ON_S3 = {
    **EXCEPTIONS,
    "catalog.testLoadTableWithMissingMetadataFile": Reason(
        "the kit moves the metadata file as a file of the local disk, and fails there whatever the server is",
        "a kit that moves an object",
    ),
}
# Where the kit's tables say that they are, or have files that nobody ever wrote.
PLACES_OF_THE_KIT = ("file:///path/to", f"file://{gettempdir()}")

# Of each part, how many tests it has, and how many of those pass.
PARTS = {"catalog": (106, 88), "view": (51, 50)}
STORES = {"file": EXCEPTIONS, "s3": EXCEPTIONS_ON_S3}
WANTED = list(STORES) if os.environ.get("MERGUS_TEST_RCK") == "all" else ["file"]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("store", WANTED)
def test_icebergs_rest_compatibility_kit_passes(store: str, part: str, tmp_path: Path) -> None:
    allowed = " ".join(PLACES_OF_THE_KIT)
    place = {"data_path": f"file://{tmp_path}/lake/data/"} if store == "file" else {}
    with (
        lakes.lake(**place) as lake,
        servers.server(lake.settings, tmp_path, allowed_locations=allowed) as running,
    ):
        assert str(lake.settings.data_path).startswith(f"{store}://")
        keys = keys_of(lake.settings) if store == "s3" else {}
        results = kit.run(running.uri, lake.settings.prefix, part, storage=keys)
        told = samples(running.http.get("/metrics").text)
    if part == "catalog":
        # the client reports its scans and commits by itself, and is understood
        reports = {dict(labels)["type"] for name, labels in told if name == "mergus_reports_total"}
        assert reports == {"scan-report", "commit-report"}
    asked = [dict(labels) for name, labels in told if name == "mergus_requests_total"]
    assert {a["status"] for a in asked if a["operation"] == "reportMetrics"} <= {"204", "404"}
    count, passed = PARTS[part]
    assert len(results) >= count
    expected = {name for name in STORES[store] if name.startswith(f"{part}.")}
    failed = {result.name: result.detail for result in results if result.verdict == "fail"}
    assert failed.keys() == expected, "\n".join(f"{n}: {d}" for n, d in failed.items() if n not in expected)
    assert sum(result.verdict == "pass" for result in results) >= passed


def keys_of(settings: Settings) -> Mapping[str, str]:
    """What the server does not hand out; where the store is, it says."""
    secret = settings.s3_secret_access_key
    assert secret is not None
    return {"s3.access-key-id": settings.s3_access_key_id or "", "s3.secret-access-key": secret.get_secret_value()}
