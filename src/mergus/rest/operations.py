"""The one table of operations: it feeds the router, `/v1/config`, the metric labels and the gate."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastapi import Response

from mergus.rest import admin, commits, config, functions, health, namespaces, reports, tables, views

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
_A = "/v1/{prefix}/admin"

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
    Operation("registerTable", "POST", f"{_N}/register", commits.register_table, success=200),
    Operation("loadTable", "GET", f"{_N}/tables/{{table}}", tables.load_table),
    Operation("tableExists", "HEAD", f"{_N}/tables/{{table}}", tables.table_exists),
    Operation("updateTable", "POST", f"{_N}/tables/{{table}}", commits.update_table, success=200),
    Operation("dropTable", "DELETE", f"{_N}/tables/{{table}}", commits.drop_table, success=204),
    Operation("loadCredentials", "GET", f"{_N}/tables/{{table}}/credentials", tables.load_credentials),
    Operation("reportMetrics", "POST", f"{_N}/tables/{{table}}/metrics", reports.report_metrics),
    Operation("unregisterTable", "POST", f"{_N}/tables/{{table}}/unregister", commits.unregister_table, success=200),
    Operation("renameTable", "POST", f"{_P}/tables/rename", commits.rename_table, success=204),
    Operation("listViews", "GET", f"{_N}/views", views.list_views),
    Operation("createView", "POST", f"{_N}/views", views.create_view, success=200),
    Operation("loadView", "GET", f"{_N}/views/{{view}}", views.load_view),
    Operation("viewExists", "HEAD", f"{_N}/views/{{view}}", views.view_exists),
    Operation("replaceView", "POST", f"{_N}/views/{{view}}", views.replace_view, success=200),
    Operation("dropView", "DELETE", f"{_N}/views/{{view}}", views.drop_view, success=204),
    Operation("renameView", "POST", f"{_P}/views/rename", views.rename_view, success=204),
    Operation("registerView", "POST", f"{_N}/register-view", views.register_view, success=200),
    Operation("commitTransaction", "POST", f"{_P}/transactions/commit", commits.commit_transaction, success=204),
    Operation("listFunctions", "GET", f"{_N}/functions", functions.list_functions),
    Operation("loadFunction", "GET", f"{_N}/functions/{{function}}", functions.load_function),
    Operation("getListener", "GET", f"{_A}/listener", admin.get_listener, announced=False),
    Operation("listDropped", "GET", f"{_A}/namespaces/{{namespace}}/dropped", admin.list_dropped, announced=False),
    Operation(
        "undropTable",
        "POST",
        f"{_A}/namespaces/{{namespace}}/undrop",
        admin.undrop_table,
        announced=False,
        success=200,
    ),
    Operation(
        "listReports",
        "GET",
        f"{_A}/namespaces/{{namespace}}/tables/{{table}}/reports",
        reports.list_reports,
        announced=False,
    ),
    Operation("listTags", "GET", f"{_A}/tags", admin.list_tags, announced=False),
    Operation("createTag", "POST", f"{_A}/tags", admin.create_tag, announced=False, success=200),
    Operation("loadTag", "GET", f"{_A}/tags/{{tag}}", admin.load_tag, announced=False),
    Operation("dropTag", "DELETE", f"{_A}/tags/{{tag}}", admin.drop_tag, announced=False, success=204),
    Operation("healthz", "GET", "/healthz", health.healthz, announced=False),
    Operation("readyz", "GET", "/readyz", health.readyz, announced=False),
    Operation("metrics", "GET", "/metrics", health.metrics, announced=False),
)
