"""View metadata: a document in and out, and what is refused."""

from typing import Any

import orjson
import pytest
from pyiceberg.view.metadata import ViewMetadata as TheirView

from mergus.errors import IllegalArgument
from mergus.iceberg.view_metadata import parse_version, parse_view_metadata

Json = dict[str, Any]

SCHEMA: Json = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 3, "name": "id", "type": "int", "required": True, "doc": "unique"},
        {
            "id": 4,
            "name": "tags",
            "type": {"type": "list", "element-id": 5, "element": "string", "element-required": False},
            "required": False,
        },
    ],
}


def version(**parts: Any) -> Json:
    told: Json = {
        "version-id": 1,
        "timestamp-ms": 1_700_000_000_000,
        "schema-id": 0,
        "summary": {"engine-name": "spark"},
        "default-catalog": "prod",
        "default-namespace": ["a", "b"],
        "representations": [{"type": "sql", "sql": "SELECT 1", "dialect": "spark"}],
    }
    return {**told, **{name.replace("_", "-"): value for name, value in parts.items()}}


def view(**parts: Any) -> Json:
    told: Json = {
        "view-uuid": "0195b0f6-6f7d-4b6c-8c5e-0123456789ab",
        "format-version": 1,
        "location": "s3://lake/v",
        "properties": {"a": "1", "b": "2"},
        "schemas": [SCHEMA],
        "current-version-id": 1,
        "versions": [version()],
        "version-log": [{"timestamp-ms": 1_700_000_000_000, "version-id": 1}],
    }
    return {**told, **{name.replace("_", "-"): value for name, value in parts.items()}}


def sql(text: str, dialect: str, **more: Any) -> Json:
    return {"type": "sql", "sql": text, "dialect": dialect, **more}


def test_view_metadata_is_read_back_from_json_unchanged() -> None:
    parsed = parse_view_metadata(view())
    assert parsed.json() == view()
    assert parse_view_metadata(parsed.json()) == parsed
    assert TheirView.model_validate_json(orjson.dumps(parsed.json())).view_uuid == parsed.uuid


def test_view_metadata_without_optional_fields_is_parsed() -> None:
    one = version()
    del one["default-catalog"]
    whole = view(versions=[one], location="s3://lake/v/")
    del whole["properties"]
    parsed = parse_view_metadata(whole)
    assert (parsed.location, parsed.properties, parsed.current.default_catalog) == ("s3://lake/v", {}, None)


def test_a_view_dialect_is_found_in_any_case() -> None:
    found = parse_version(version(representations=[sql("SELECT 1", "Spark"), sql("SELECT 2", "DuckDB")]))
    assert (found.sql("duckdb"), found.sql("spark"), found.sql("trino")) == ("SELECT 2", "SELECT 1", None)
    assert found.dialects == ["spark", "duckdb"]


def test_two_queries_for_one_dialect_are_refused() -> None:
    with pytest.raises(IllegalArgument, match="Cannot add multiple queries for dialect trino"):
        parse_version(version(representations=[sql("SELECT 1", "trino"), sql("SELECT 2", "TRINO")]))


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"format_version": 2}, "format version"),
        ({"view_uuid": "x"}, "UUID"),
        ({"location": "/"}, "location"),
        ({"location": None}, "location"),
        ({"schemas": []}, "no schema 0"),
        ({"schemas": [SCHEMA, SCHEMA]}, "twice"),
        ({"schemas": {}}, "a list"),
        ({"schemas": [{**SCHEMA, "schema-id": None}]}, "schema-id"),
        ({"current_version_id": 2}, "no version 2"),
        ({"versions": []}, "no version 1"),
        ({"versions": [version(), version()]}, "twice"),
        ({"versions": [version(schema_id=-1)]}, "no schema -1"),
        ({"version_log": [{"version-id": 1}]}, "timestamp-ms"),
        ({"properties": {"a": 1}}, "text"),
    ],
)
def test_inconsistent_view_metadata_is_refused_with_the_reason(parts: Json, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_view_metadata(view(**parts))


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"representations": []}, "needs a query"),
        ({"representations": "SELECT 1"}, "a list"),
        (
            {"representations": [{"type": "graph", "sql": "x", "dialect": "y"}]},
            "unsupported view representation: graph",
        ),
        ({"representations": [sql(" ", "spark")]}, "needs a dialect and a query"),
        ({"representations": [sql("SELECT 1", "")]}, "needs a dialect and a query"),
        ({"representations": [sql("SELECT '\0'", "spark")]}, "NUL"),
        ({"default_namespace": None}, "default-namespace"),
        ({"default_namespace": "a"}, "a list"),
        ({"summary": None}, "summary"),
        ({"timestamp_ms": "now"}, "whole number"),
        ({"version_id": -1}, "from 0"),
        ({"schema_id": -2}, "from -1"),
    ],
)
def test_a_malformed_view_version_is_refused_with_the_reason(parts: Json, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_version(version(**parts))
