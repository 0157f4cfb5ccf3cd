"""The one table of operations: it feeds the router, `/v1/config`, the metric labels and the gate.

Each says what it needs: any one of a set of privileges, on whatever it resolves to. An operation that is about more
than one thing says the rest where it does so (`authorise(…, needs=…)`).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal

from fastapi import Response

from mergus.access.context import Kind
from mergus.access.privileges import ADMIN, CREATE, DROP, LOAD, SEE, WRITE, Privileges
from mergus.config import Settings
from mergus.rest import (
    access,
    admin,
    commits,
    config,
    functions,
    health,
    jobs,
    lake_health,
    namespaces,
    oauth,
    reports,
    sign,
    tables,
    views,
)

Handler = Callable[..., Awaitable[Response]]


# For whom it is: those who have a token; anyone, whatever is sent; either, but a token that is sent has to be good;
# those who have a token, unless a setting says anyone.
For = Literal["the known", "anyone", "either", "scrapers"]


@dataclass(frozen=True, slots=True)
class Operation:
    name: str  # operationId of Iceberg's OpenAPI document
    method: str
    path: str
    handler: Handler
    needs: Privileges
    kind: Kind = "table"
    whom: For = "the known"
    # part of the Iceberg protocol, and so named to clients
    announced: bool = True
    # of one that changes something: its status when it has. Such a request may carry an Idempotency-Key
    success: int | None = None
    # whether it leaves something to be done: it is a change like any other, but asking twice is asking once
    begins_work: bool = False

    @property
    def changes(self) -> bool:
        return self.success is not None or self.begins_work

    @property
    def endpoint(self) -> str:
        return f"{self.method} {self.path}"

    def is_offered(self, settings: Settings) -> bool:
        """Whether clients are told of it."""
        return self.announced and (self.name != "signRequest" or settings.remote_signing)

    def asks_for_token(self, settings: Settings) -> bool:
        return self.whom == "the known" or (self.whom == "scrapers" and not settings.metrics_public)


_P = "/v1/{prefix}"
_N = "/v1/{prefix}/namespaces/{namespace}"
_T = "/v1/{prefix}/namespaces/{namespace}/tables/{table}"
_V = "/v1/{prefix}/namespaces/{namespace}/views/{view}"
_A = "/v1/{prefix}/admin"
_AN = f"{_A}/namespaces/{{namespace}}"

OPERATIONS = (
    Operation("getConfig", "GET", "/v1/config", config.get_config, SEE, whom="either"),
    Operation("getToken", "POST", "/v1/oauth/tokens", oauth.get_token, SEE, whom="anyone", announced=False),
    Operation("listNamespaces", "GET", f"{_P}/namespaces", namespaces.list_namespaces, SEE),
    Operation("createNamespace", "POST", f"{_P}/namespaces", namespaces.create_namespace, CREATE, success=200),
    Operation("loadNamespaceMetadata", "GET", _N, namespaces.load_namespace, SEE),
    Operation("namespaceExists", "HEAD", _N, namespaces.namespace_exists, SEE),
    Operation("dropNamespace", "DELETE", _N, namespaces.drop_namespace, DROP, success=204),
    Operation("updateProperties", "POST", f"{_N}/properties", namespaces.update_properties, WRITE, success=200),
    Operation("listTables", "GET", f"{_N}/tables", tables.list_tables, SEE),
    Operation("createTable", "POST", f"{_N}/tables", commits.create_table, CREATE, success=200),
    Operation("registerTable", "POST", f"{_N}/register", commits.register_table, CREATE, success=200),
    Operation("loadTable", "GET", _T, tables.load_table, LOAD),
    Operation("tableExists", "HEAD", _T, tables.table_exists, SEE),
    Operation("updateTable", "POST", _T, commits.update_table, WRITE, success=200),
    Operation("dropTable", "DELETE", _T, commits.drop_table, DROP, success=204),
    Operation("loadCredentials", "GET", f"{_T}/credentials", tables.load_credentials, LOAD),
    Operation("signRequest", "POST", f"{_T}/sign", sign.sign_request, LOAD),
    Operation("reportMetrics", "POST", f"{_T}/metrics", reports.report_metrics, LOAD),
    Operation("unregisterTable", "POST", f"{_T}/unregister", commits.unregister_table, DROP, success=200),
    Operation("renameTable", "POST", f"{_P}/tables/rename", commits.rename_table, DROP, success=204),
    Operation("listViews", "GET", f"{_N}/views", views.list_views, SEE, "view"),
    Operation("createView", "POST", f"{_N}/views", views.create_view, CREATE, "view", success=200),
    Operation("loadView", "GET", _V, views.load_view, LOAD, "view"),
    Operation("viewExists", "HEAD", _V, views.view_exists, SEE, "view"),
    Operation("replaceView", "POST", _V, views.replace_view, WRITE, "view", success=200),
    Operation("dropView", "DELETE", _V, views.drop_view, DROP, "view", success=204),
    Operation("renameView", "POST", f"{_P}/views/rename", views.rename_view, DROP, "view", success=204),
    Operation("registerView", "POST", f"{_N}/register-view", views.register_view, CREATE, "view", success=200),
    Operation("commitTransaction", "POST", f"{_P}/transactions/commit", commits.commit_transaction, WRITE, success=204),
    Operation("listFunctions", "GET", f"{_N}/functions", functions.list_functions, SEE, "function"),
    Operation("loadFunction", "GET", f"{_N}/functions/{{function}}", functions.load_function, LOAD, "function"),
    *(
        replace(operation, announced=False)
        for operation in (
            Operation("getListener", "GET", f"{_A}/listener", admin.get_listener, ADMIN),
            Operation("getStatus", "GET", f"{_A}/status", lake_health.get_status, ADMIN),
            Operation("listHealth", "GET", f"{_A}/health", lake_health.list_health, ADMIN),
            Operation("getTableHealth", "GET", f"{_AN}/tables/{{table}}/health", lake_health.get_table_health, ADMIN),
            Operation("listDropped", "GET", f"{_AN}/dropped", admin.list_dropped, ADMIN),
            Operation("undropTable", "POST", f"{_AN}/undrop", admin.undrop_table, ADMIN, success=200),
            Operation("listReports", "GET", f"{_AN}/tables/{{table}}/reports", reports.list_reports, ADMIN),
            Operation("listTags", "GET", f"{_A}/tags", admin.list_tags, ADMIN),
            Operation("createTag", "POST", f"{_A}/tags", admin.create_tag, ADMIN, success=200),
            Operation("loadTag", "GET", f"{_A}/tags/{{tag}}", admin.load_tag, ADMIN),
            Operation("dropTag", "DELETE", f"{_A}/tags/{{tag}}", admin.drop_tag, ADMIN, success=204),
            Operation("listGrants", "GET", f"{_A}/grants", access.list_grants, ADMIN),
            Operation("addGrant", "POST", f"{_A}/grants", access.add_grant, ADMIN, success=200),
            Operation("removeGrant", "POST", f"{_A}/grants/remove", access.remove_grant, ADMIN, success=204),
            Operation("listAudit", "GET", f"{_A}/audit", access.list_audit, ADMIN),
            Operation("compactCatalog", "POST", f"{_A}/compact", jobs.compact_catalog, ADMIN, begins_work=True),
            Operation("compactNamespace", "POST", f"{_AN}/compact", jobs.compact_namespace, ADMIN, begins_work=True),
            Operation(
                "compactTable", "POST", f"{_AN}/tables/{{table}}/compact", jobs.compact_table, ADMIN, begins_work=True
            ),
            Operation("expireSnapshots", "POST", f"{_A}/expire", jobs.expire_snapshots, ADMIN, begins_work=True),
            Operation("sweepGarbage", "POST", f"{_A}/sweep", jobs.sweep_garbage, ADMIN, begins_work=True),
            Operation("removeOrphans", "POST", f"{_A}/orphans", jobs.remove_orphans, ADMIN, begins_work=True),
            Operation("listJobs", "GET", f"{_A}/jobs", jobs.list_jobs, ADMIN),
            Operation("loadJob", "GET", f"{_A}/jobs/{{job}}", jobs.load_job, ADMIN),
            Operation("cancelJob", "POST", f"{_A}/jobs/{{job}}/cancel", jobs.cancel_job, ADMIN, begins_work=True),
            Operation("healthz", "GET", "/healthz", health.healthz, SEE, whom="anyone"),
            Operation("readyz", "GET", "/readyz", health.readyz, SEE, whom="anyone"),
            Operation("metrics", "GET", "/metrics", health.metrics, ADMIN, whom="scrapers"),
        )
    ),
)
