"""What an import decides, and what it says, without any source at hand."""

from pathlib import Path
from typing import Any

import pytest

from mergus.annex.file_facts import Part
from mergus.errors import SetupError
from mergus.iceberg.name_mapping import MappedField
from mergus.iceberg.schema import Field, Schema
from mergus.pipeline.imports.connector import Described, Partition
from mergus.pipeline.imports.iceberg import catalog_conf, partition
from mergus.pipeline.imports.secrets import Secrets, from_environment, from_file
from mergus.pipeline.imports.standing import is_touched, marks, remaining, standing
from mergus.pipeline.imports.stored import misfit

SOURCE = Described("iceberg 1-2-3", "iceberg v2", "s3://b/t", {"i": "int"}, "7", uuid="1-2-3")


def metadata(
    properties: dict[str, str] | None = None, uuid: str = "other", *snapshots: tuple[int, int | None, dict[str, str]]
) -> dict[str, Any]:
    """Of snapshots by (id, parent, summary); the last is current."""
    listed = [
        {"snapshot-id": one, "summary": summary, **({} if parent is None else {"parent-snapshot-id": parent})}
        for one, parent, summary in snapshots
    ]
    current = {"current-snapshot-id": snapshots[-1][0]} if snapshots else {}
    return {"table-uuid": uuid, "properties": properties or {}, "snapshots": listed, **current}


@pytest.mark.parametrize(
    ("found", "stands"),
    [
        ({}, "free"),
        (metadata(), "foreign"),
        (metadata({"imported-from": "iceberg 4-5-6", "imported-snapshot": "7"}), "foreign"),
        (metadata(marks(SOURCE, "7", "copy")), "done"),
        (metadata(marks(SOURCE, "6", "copy")), "changed"),
        (metadata(None, "1-2-3", (6, None, {}), (7, 6, {})), "begun"),
        (metadata(None, "1-2-3", (6, None, {})), "changed"),
    ],
)
def test_the_state_of_an_import_target_follows_from_its_properties(found: dict[str, Any], stands: str) -> None:
    assert standing(found, SOURCE) == stands


def test_a_target_written_to_after_its_import_is_detected() -> None:
    ours: tuple[int, None, dict[str, str]] = (1, None, {"operation": "append", "mergus.import": "7"})
    assert not is_touched(metadata())
    assert not is_touched(metadata(None, "u", ours))
    assert not is_touched(metadata(None, "u", ours, (2, 1, {"operation": "replace"})))
    assert is_touched(metadata(None, "u", ours, (2, 1, {"operation": "append"})))
    assert is_touched(metadata(None, "u", ours, (2, 1, {"operation": "append"}), (3, 2, {"operation": "replace"})))
    # what was there before it was compacted is not known any more
    assert is_touched(metadata(None, "u", (3, 2, {"operation": "replace"})))


def test_an_import_continues_after_the_last_imported_snapshot() -> None:
    assert remaining({}, ["1", "2", "3"]) == ["1", "2", "3"]
    assert remaining(metadata({"imported-snapshot": "2"}), ["1", "2", "3"]) == ["3"]
    assert remaining(metadata({"imported-snapshot": "9"}), ["1", "2"]) == ["1", "2"]


@pytest.mark.parametrize(
    ("transform", "column", "is_nested", "found"),
    [
        ("identity", "a`b", False, Partition("a`b", "`a``b`")),
        ("day", "a.b", True, Partition("a", "days(`a`.`b`)")),
        ("day", "a.b", False, Partition("a.b", "days(`a.b`)")),
        ("bucket[16]", "i", False, Partition("i", "bucket(16, `i`)")),
        ("truncate[4]", "s", False, Partition("s", "truncate(4, `s`)")),
        ("void", "s", False, None),
    ],
)
def test_partition_transforms_become_spark_sql_with_quoted_columns(
    transform: str, column: str, is_nested: bool, found: Partition | None
) -> None:
    assert partition(transform, column, is_nested) == found


def test_source_catalogs_become_spark_catalog_settings() -> None:
    start = "spark.sql.catalog.c"
    hive = catalog_conf("c", "hive", "thrift://h:9083", {"io-impl": "mine"})
    assert hive == {
        start: "org.apache.iceberg.spark.SparkCatalog",
        f"{start}.type": "hive",
        f"{start}.uri": "thrift://h:9083",
        f"{start}.cache-enabled": "false",
        f"{start}.io-impl": "mine",
    }
    glue = catalog_conf("c", "glue", None, {"client.region": "eu-central-1"})
    assert glue[f"{start}.type"] == "glue"
    assert glue[f"{start}.client.region"] == "eu-central-1"
    assert not {f"{start}.uri", f"{start}.warehouse"} & glue.keys()


def test_parquet_files_that_do_not_fit_the_table_are_found_with_the_reason() -> None:
    schema = Schema((Field(1, "i", "long"), Field(2, "t", "timestamptz")))
    mapping = (MappedField(1, ("i",)), MappedField(2, ("t",)))
    i, t = Part("i", None, "int64", nulls=True), Part("t", None, "int64/timestamptz_us", nulls=True)
    assert misfit((i, t), schema, mapping) is None
    assert misfit((i,), schema, mapping) == "it has no column t, which other files of the table have"
    assert misfit((Part("i", 1, "int64", nulls=True), t), schema, mapping) == "it has field ids of another table"
    old = Part("t", None, "int96", nulls=True)
    assert "column t is stored as int96" in (misfit((i, old), schema, mapping) or "")


def test_secrets_of_a_source_are_masked_in_messages() -> None:
    conf = {"s3.secret-access-key": "longer", "token": "long", "uri": "http://h", "s3.sas-token.x": ""}
    assert Secrets(conf).hide("longer long http://h http://me:pass@h") == "*** *** http://h http://me:***@h"


def test_source_settings_are_read_from_environment_and_file(tmp_path: Path) -> None:
    environ = {"MERGUS_SOURCE_S3__SECRET_ACCESS_KEY": "a", "MERGUS_SOURCE_TOKEN": "b", "MERGUS_URI": "c"}
    assert from_environment(environ) == {"s3.secret-access-key": "a", "token": "b"}
    file = tmp_path / "conf"
    file.write_text("# not this\n\ntoken = a=b\n")
    assert from_file(file) == {"token": "a=b"}
    file.write_text("token=x\nhush\n")
    with pytest.raises(SetupError) as e:
        from_file(file)
    assert ("line 2" in str(e.value), "hush" in str(e.value)) == (True, False)
