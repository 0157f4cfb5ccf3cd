"""View metadata: the one JSON document that says what a view is, in format version 1.

A version has the text of the view in one or several dialects of SQL; the current one is the view. Schemas keep the
field ids that clients gave them: nothing is ever read by them. A document that is parsed is held to what readers rely
on: the current version and its schema are there, ids are there once.

Everything raises ValueError with the reason, but for two texts in one dialect, which is IllegalArgument.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from mergus.errors import IllegalArgument
from mergus.iceberg.json_object import JsonObject, shown
from mergus.iceberg.schema import Schema, schema_json
from mergus.iceberg.schema_parse import parse_schema

# What orjson makes of a client's JSON.
Untyped: TypeAlias = Any

FORMAT_VERSION: Final = 1
LAST_ADDED: Final = -1


@dataclass(frozen=True, slots=True)
class Representation:
    """The text of a view for the engines that speak this dialect."""

    dialect: str
    sql: str

    def json(self) -> dict[str, Any]:
        return {"type": "sql", "sql": self.sql, "dialect": self.dialect}


@dataclass(frozen=True, slots=True)
class ViewVersion:
    """Names that the text does not qualify mean things of `default_namespace`."""

    version_id: int
    timestamp_ms: int
    schema_id: int
    summary: Mapping[str, str]
    representations: tuple[Representation, ...]
    default_namespace: tuple[str, ...]
    default_catalog: str | None = None

    def sql(self, dialect: str) -> str | None:
        return next((r.sql for r in self.representations if r.dialect.lower() == dialect), None)

    @property
    def dialects(self) -> list[str]:
        """As they are compared: in small letters."""
        return [r.dialect.lower() for r in self.representations]

    def json(self) -> dict[str, Any]:
        return {
            "version-id": self.version_id,
            "timestamp-ms": self.timestamp_ms,
            "schema-id": self.schema_id,
            "summary": dict(self.summary),
            **({} if self.default_catalog is None else {"default-catalog": self.default_catalog}),
            "default-namespace": list(self.default_namespace),
            "representations": [r.json() for r in self.representations],
        }


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Since when a version was the current one."""

    timestamp_ms: int
    version_id: int


@dataclass(frozen=True, slots=True)
class ViewMetadata:
    """`schemas` by their ids; `log` has the oldest entry first."""

    uuid: str
    location: str
    schemas: Mapping[int, Schema]
    versions: tuple[ViewVersion, ...]
    current_version_id: int
    log: tuple[LogEntry, ...]
    properties: Mapping[str, str]

    @property
    def current(self) -> ViewVersion:
        return next(v for v in self.versions if v.version_id == self.current_version_id)

    def json(self) -> dict[str, Any]:
        return {
            "view-uuid": self.uuid,
            "format-version": FORMAT_VERSION,
            "location": self.location,
            "properties": dict(sorted(self.properties.items())),
            "schemas": [schema_json(schema, number) for number, schema in self.schemas.items()],
            "current-version-id": self.current_version_id,
            "versions": [v.json() for v in self.versions],
            "version-log": [{"timestamp-ms": e.timestamp_ms, "version-id": e.version_id} for e in self.log],
        }


def parse_view_metadata(json: Untyped) -> ViewMetadata:
    top = JsonObject(json, "View metadata")
    check_format(top.int32("format-version"))
    schemas = {s.int32("schema-id"): parse_schema(whole) for s, whole in _both(top, "schemas")}
    versions = tuple(parse_version(whole) for _, whole in _both(top, "versions"))
    metadata = ViewMetadata(
        uuid=top.uuid("view-uuid"),
        location=parse_location(top),
        schemas=schemas,
        versions=versions,
        current_version_id=top.int32("current-version-id"),
        log=tuple(LogEntry(e.int64("timestamp-ms"), e.int32("version-id")) for e in top.parts("version-log")),
        properties=top.text_map("properties") if top.has("properties") else {},
    )
    ids = [v.version_id for v in versions]
    if len(schemas) < len(top.parts("schemas")) or len(set(ids)) < len(ids):
        raise ValueError("View metadata has a schema-id or a version-id twice")
    if metadata.current_version_id not in ids:
        raise ValueError(f"View metadata has no version {metadata.current_version_id}, which is to be the current one")
    if missing := [v.schema_id for v in versions if v.schema_id not in schemas]:
        raise ValueError(f"View metadata has no schema {missing[0]}, which is that of a version")
    return metadata


def parse_version(json: Untyped) -> ViewVersion:
    """From the specification's JSON; the schema may be the one that was added last (-1)."""
    top = JsonObject(json, "View version")
    found = tuple(_representation(r) for r in top.parts("representations"))
    if not found:
        raise ValueError("View version has no representation: a view needs a query")
    version = ViewVersion(
        version_id=top.int32("version-id"),
        timestamp_ms=top.int64("timestamp-ms"),
        schema_id=top.int32("schema-id", LAST_ADDED),
        summary=top.text_map("summary"),
        representations=found,
        default_namespace=top.texts("default-namespace"),
        default_catalog=top.text("default-catalog") if top.has("default-catalog") else None,
    )
    if twice := [d for d in version.dialects if version.dialects.count(d) > 1]:
        raise IllegalArgument(f"Invalid view version: Cannot add multiple queries for dialect {shown(twice[0])}")
    return version


def parse_location(json: JsonObject) -> str:
    location = json.text("location").rstrip("/")
    if not location:
        raise ValueError("The location of a view is empty")
    return location


def check_format(version: int) -> None:
    if version != FORMAT_VERSION:
        raise ValueError(f"Unsupported format version: {version}; views have {FORMAT_VERSION}")


def _representation(json: JsonObject) -> Representation:
    if (kind := json.text("type").lower()) != "sql":
        raise ValueError(f"Found unsupported view representation: {shown(kind)}")
    dialect, sql = json.text("dialect"), json.text("sql")
    if not dialect or not sql.strip():
        raise ValueError("A representation of a view needs a dialect and a query")
    return Representation(dialect, sql)


def _both(json: JsonObject, name: str) -> list[tuple[JsonObject, Untyped]]:
    """Parts, each as an object of ours and as it came."""
    return list(zip(json.parts(name), json.value(name), strict=True))
