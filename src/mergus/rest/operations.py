"""The one table of operations: it feeds the router, `/v1/config`, the metric labels and the gate."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastapi import Response

from mergus.rest import admin, commits, config, health, namespaces, tables

Handler = Callable[..., Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Operation:
    name: str  # operationId of Iceberg's OpenAPI document
    method: str
    path: str
    handler: Handler
    # part of the Iceberg protocol, and so named to clients
    announced: bool = True
    # of one that changes something: its status when it has. Such a request may carry an Idempotency-Key
    success: int | None = None

    @property
    def endpoint(self) -> str:
        return f"{self.method} {self.path}"


_P = "/v1/{prefix}"
_N = "/v1/{prefix}/namespaces/{namespace}"

OPERATIONS = (
    Operation("getConfig", "GET", "/v1/config", config.get_config),
    Operation("listNamespaces", "GET", f"{_P}/namespaces", namespaces.list_namespaces),
    Operation("createNamespace", "POST", f"{_P}/namespaces", namespaces.create_namespace, success=200),
    Operation("loadNamespaceMetadata", "GET", _N, namespaces.load_namespace),
    Operation("namespaceExists", "HEAD", _N, namespaces.namespace_exists),
    Operation("dropNamespace", "DELETE", _N, namespaces.drop_namespace, success=204),
    Operation("updateProperties", "POST", f"{_N}/properties", namespaces.update_properties, success=200),
    Operation("listTables", "GET", f"{_N}/tables", tables.list_tables),
    Operation("createTable", "POST", f"{_N}/tables", commits.create_table, success=200),
    Operation("loadTable", "GET", f"{_N}/tables/{{table}}", tables.load_table),
    Operation("tableExists", "HEAD", f"{_N}/tables/{{table}}", tables.table_exists),
    Operation("updateTable", "POST", f"{_N}/tables/{{table}}", commits.update_table, success=200),
    Operation("dropTable", "DELETE", f"{_N}/tables/{{table}}", commits.drop_table, success=204),
    Operation("renameTable", "POST", f"{_P}/tables/rename", commits.rename_table, success=204),
    Operation("commitTransaction", "POST", f"{_P}/transactions/commit", commits.commit_transaction, success=204),
    Operation("getListener", "GET", f"{_P}/admin/listener", admin.get_listener, announced=False),
    Operation("healthz", "GET", "/healthz", health.healthz, announced=False),
    Operation("readyz", "GET", "/readyz", health.readyz, announced=False),
    Operation("metrics", "GET", "/metrics", health.metrics, announced=False),
)
