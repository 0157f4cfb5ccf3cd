"""Apache Iceberg's OpenAPI documents, fitted to what one server announces.

Kept beside this, unchanged: that of release 1.11.0, which says what clients of today expect, and that of main as of
commit 7f879b1, for operations that no release has yet. Of each that a server announces, the release's word counts if
it has one.

What is changed on the way: the prefix stands in the paths; names are those of things that are there as often as not,
else nearly every request would be answered 404; some requests are given as examples; answers are added that the
document has forgotten (`BEYOND`); and every error has the shape of one: where the document names the model of what is
in it, of views, Iceberg's own clients and server have the error around it.
"""

from pathlib import Path
from typing import Any, Final

import yaml

Document = dict[str, Any]

FILES: Final = tuple(
    Path(__file__).with_name(f"rest-catalog-open-api-{version}.yaml") for version in ("1.11.0", "main")
)
METHODS: Final = frozenset({"get", "post", "put", "delete", "head", "patch"})

# Things that are there; see seeds.py.
NAMESPACES: Final = ("fuzzed", "fuzzed\x1fbelow")
NAME: Final = "fuzzed"
# Nothing is made in it, so that it can be dropped.
EMPTY: Final = "empty"

# Answers that the document does not list for an operation, and why they are given all the same. A 400 would say that
# the request is wrong, a 409 that it may be tried again, a 5xx that the server failed. At a 406 Iceberg's clients stop
# and tell its message and type, whatever they asked for.
NO_ROOM: Final = "what is asked for is right, but DuckLake has no room for it"
NOT_SHOWN: Final = "what is there cannot be shown truthfully as Iceberg"
BEYOND: Final[dict[str, dict[int, str]]] = {
    "createTable": {406: NO_ROOM},
    "registerTable": {406: NO_ROOM},
    "loadTable": {406: NOT_SHOWN},
    "updateTable": {406: f"{NO_ROOM}; or {NOT_SHOWN}"},
    "commitTransaction": {406: f"{NO_ROOM}; or {NOT_SHOWN}"},
    "loadFunction": {406: NOT_SHOWN},
    "createView": {406: NO_ROOM},
    "registerView": {406: NO_ROOM},
    "loadView": {406: NOT_SHOWN},
    "replaceView": {406: f"{NO_ROOM}; or {NOT_SHOWN}"},
    "signRequest": {404: "there is no such table, as for every other operation on one"},
}


# Requests that are right, for operations whose requests are rarely so when they are made up. Others are made from them.
_METRICS: Final = {
    "total-planning-duration": {"time-unit": "nanoseconds", "count": 1, "total-duration": 2_644_235_116},
    "result-data-files": {"unit": "count", "value": 1},
}
_THERE: Final = {"namespace": ["fuzzed"], "name": NAME}
_CHANGE: Final = {
    "requirements": [{"type": "assert-ref-snapshot-id", "ref": "nothing", "snapshot-id": None}],
    "updates": [{"action": "set-properties", "updates": {"owner": "somebody"}}],
}
_VIEW: Final = {"namespace": ["fuzzed", "below"], "name": NAME}
SCHEMA: Final = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "i", "type": "long", "required": False}],
}
VERSION: Final = {
    "version-id": 1,
    "timestamp-ms": 0,
    "schema-id": 0,
    "summary": {},
    "default-namespace": ["fuzzed"],
    "representations": [{"type": "sql", "sql": "SELECT 1 AS i", "dialect": "duckdb"}],
}
EXAMPLES: Final[dict[str, list[Document]]] = {
    "createView": [{"name": "made", "schema": SCHEMA, "view-version": VERSION, "properties": {}}],
    "replaceView": [{"requirements": [], "updates": [{"action": "set-properties", "updates": {"owner": "somebody"}}]}],
    "renameView": [{"source": _VIEW, "destination": {"namespace": ["fuzzed"], "name": "renamed_view"}}],
    "updateTable": [_CHANGE, {"requirements": [], "updates": []}],
    "commitTransaction": [{"table-changes": [{"identifier": _THERE, **_CHANGE}]}],
    "renameTable": [{"source": _THERE, "destination": {"namespace": ["fuzzed", "below"], "name": "renamed"}}],
    "reportMetrics": [
        {
            "report-type": "scan-report",
            "table-name": "lake.fuzzed.fuzzed",
            "snapshot-id": 1,
            "filter": {"type": "eq", "term": "i", "value": 1},
            "schema-id": 0,
            "projected-field-ids": [1],
            "projected-field-names": ["i"],
            "metrics": _METRICS,
        },
        {
            "report-type": "commit-report",
            "table-name": "lake.fuzzed.fuzzed",
            "snapshot-id": 1,
            "sequence-number": 1,
            "operation": "append",
            "metrics": _METRICS,
        },
    ],
}


def documents(endpoints: list[str], prefix: str) -> list[Document]:
    """For each file, the document with those operations that are announced and in no file before it."""
    wanted = {*endpoints, "GET /v1/config"}
    fitted: list[Document] = []
    for file in FILES:
        document = yaml.load(file.read_text(), yaml.CSafeLoader)
        operations = {f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item}
        fitted.append(_fit(document, wanted & operations, prefix))
        wanted -= operations
    return fitted


def described() -> set[str]:
    """Every endpoint that some document has."""
    found: set[str] = set()
    for file in FILES:
        paths = yaml.load(file.read_text(), yaml.CSafeLoader)["paths"]
        found |= {f"{method.upper()} {path}" for path, item in paths.items() for method in item if method in METHODS}
    return found


def _fit(document: Document, wanted: set[str], prefix: str) -> Document:
    paths: Document = {}
    for path, item in document["paths"].items():
        kept = {k: v for k, v in item.items() if k not in METHODS or f"{k.upper()} {path}" in wanted}
        if not METHODS & kept.keys():
            continue
        parameters = kept.get("parameters", [])
        kept["parameters"] = [p for p in parameters if not p.get("$ref", "").endswith("/prefix")]
        for method in METHODS & kept.keys():
            _fit_operation(kept[method])
        paths[path.replace("{prefix}", prefix)] = kept
    document["paths"] = paths
    document.pop("servers", None)
    # every request would need a token of each kind
    document.pop("security", None)
    document["components"].pop("securitySchemes", None)
    _name(document["components"])
    return document


def _fit_operation(operation: Document) -> None:
    # every request would carry the same key, and rightly get the same answer
    parameters = operation.get("parameters", [])
    operation["parameters"] = [p for p in parameters if not p.get("$ref", "").endswith("/idempotency-key")]
    if operation["operationId"] == "dropNamespace":
        known = {"anyOf": [{"enum": [*NAMESPACES, EMPTY]}, {"type": "string"}]}
        named = {"name": "namespace", "in": "path", "required": True, "schema": known, "example": EMPTY}
        operation["parameters"].append(named)
    for number, body in enumerate(EXAMPLES.get(operation["operationId"], [])):
        content = operation["requestBody"]["content"]["application/json"]
        content.setdefault("examples", {})[f"example-{number}"] = {"value": body}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/IcebergErrorResponse"}}}
    for answer in operation["responses"].values():
        for content in answer.get("content", {}).values():
            if content.get("schema") == {"$ref": "#/components/schemas/ErrorModel"}:
                content["schema"] = error["application/json"]["schema"]
    for status, reason in BEYOND.get(operation["operationId"], {}).items():
        operation["responses"].setdefault(str(status), {"description": reason, "content": error})


def _name(components: Document) -> None:
    """Lets names be those of things that are there."""
    for parameter in ("namespace", "table", "view", "function"):
        if parameter in components["parameters"]:
            named = components["parameters"][parameter]
            known = NAMESPACES if parameter == "namespace" else (NAME,)
            named["schema"] = {"anyOf": [{"enum": list(known)}, {"type": "string"}]}
            named.pop("example", None)
            named["examples"] = {name: {"value": name} for name in known}
    report = components["schemas"]["ReportMetricsRequest"]["properties"]
    report["report-type"] = {"enum": ["scan-report", "commit-report"]}
    identifier = components["schemas"]["TableIdentifier"]["properties"]
    levels = [name.split("\x1f") for name in NAMESPACES]
    identifier["namespace"] = {"anyOf": [{"enum": levels}, identifier["namespace"]]}
    identifier["name"] = {"anyOf": [{"enum": [NAME]}, identifier["name"]]}
