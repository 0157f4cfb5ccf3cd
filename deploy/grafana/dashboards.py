"""Grafana's dashboards, as `python deploy/grafana/dashboards.py` writes them beside this file.

A panel is a few lines here, and a page of JSON there. Grafana imports the JSON as it is: it asks for nothing but a
Prometheus data source, and finds jobs and instances by itself. One scrape job is one lake. `tests/test_deploy.py` holds
every expression against what a server really tells, and the files against this one.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
SCHEMA_VERSION: Final = 39
WIDTH: Final = 24

# Metrics that no panel shows.
NOT_SHOWN: Final = ("mergus_lake_measured_timestamp_seconds",)

# Of this lake, and of the servers that are looked at. What is read from Postgres every server tells alike.
HERE_ONLY: Final = 'job="$job",instance=~"$instance"'
LAKE: Final = 'job="$job"'
PROBES: Final = "readyz|healthz|metrics"


@dataclass(frozen=True, slots=True)
class Panel:
    """`queries` are expressions with what their lines are called."""

    title: str
    what: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    # from which value on it is red, in a panel of one number
    bad_from: float | None = None
    bad_below: float | None = None
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: Sequence[Panel]


def rate(metric: str, by: str = "", labels: str = "") -> str:
    chosen = f"{HERE_ONLY},{labels}" if labels else HERE_ONLY
    grouped = f"sum by ({by})" if by else "sum"
    return f"{grouped} (rate({metric}{{{chosen}}}[$__rate_interval]))"


def quantile(part: float, metric: str, by: str = "", labels: str = "") -> str:
    return f"histogram_quantile({part}, {rate(f'{metric}_bucket', f'le, {by}' if by else 'le', labels)})"


def now(metric: str, how: str = "sum", by: str = "", labels: str = HERE_ONLY) -> str:
    grouped = f"{how} by ({by})" if by else how
    return f"{grouped} ({metric}{{{labels}}})"


AT_A_GLANCE: Final = Row(
    "At a glance",
    [
        Panel(
            "Servers up",
            "Of those that are scraped.",
            [(now("up", labels=LAKE), "")],
            kind="stat",
            width=4,
            height=4,
            bad_below=1,
        ),
        Panel(
            "Requests",
            "Answered in a second, probes and scrapes left out.",
            [(rate("mergus_requests_total", labels=f'operation!~"{PROBES}"'), "")],
            "reqps",
            "stat",
            4,
            4,
        ),
        Panel(
            "Failed",
            "Share of requests answered with 5xx.",
            [
                (
                    "("
                    + rate("mergus_requests_total", labels=f'operation!~"{PROBES}",status=~"5.."')
                    + " or vector(0)) / "
                    + rate("mergus_requests_total", labels=f'operation!~"{PROBES}"'),
                    "",
                )
            ],
            "percentunit",
            "stat",
            4,
            4,
            bad_from=0.01,
        ),
        Panel(
            "Loads, 95 %",
            "Within this time 95 % of all loads of tables are answered.",
            [(quantile(0.95, "mergus_request_seconds", labels='operation="loadTable"'), "")],
            "s",
            "stat",
            4,
            4,
            bad_from=1,
        ),
        Panel(
            "Listener led",
            "Whether any process puts commits on storage.",
            [(now("mergus_listener_led", "max", labels=LAKE), "")],
            kind="stat",
            width=4,
            height=4,
            bad_below=1,
        ),
        Panel(
            "Listener lag",
            "Age of the oldest snapshot that is not all on storage.",
            [(now("mergus_listener_lag_seconds", "max", labels=LAKE), "")],
            "s",
            "stat",
            4,
            4,
            bad_from=60,
        ),
    ],
)

REQUESTS: Final = Row(
    "Requests",
    [
        Panel(
            "Rate by operation",
            "Iceberg's operation ids.",
            [(rate("mergus_requests_total", "operation"), "{{operation}}")],
            "reqps",
        ),
        Panel(
            "Refused and failed, by status",
            "401, 403: who asks, and what they may (a table that one may not see is 404). 409: conflicts. 503: later.",
            [(rate("mergus_requests_total", "operation, status", 'status=~"[45].."'), "{{status}} {{operation}}")],
            "reqps",
        ),
        Panel(
            "In flight",
            "Requests being worked on.",
            [(now("mergus_requests_in_flight", by="instance"), "{{instance}}")],
        ),
        Panel(
            "Median by operation", "", [(quantile(0.5, "mergus_request_seconds", "operation"), "{{operation}}")], "s"
        ),
        Panel("95 % by operation", "", [(quantile(0.95, "mergus_request_seconds", "operation"), "{{operation}}")], "s"),
        Panel("99 % by operation", "", [(quantile(0.99, "mergus_request_seconds", "operation"), "{{operation}}")], "s"),
    ],
)

COMMITS: Final = Row(
    "Commits",
    [
        Panel(
            "Commits by operation",
            "DuckLake commits through the servers; those of DuckDB sessions are not counted.",
            [(rate("mergus_commits_total", "operation"), "{{operation}}")],
            "ops",
        ),
        Panel(
            "Conflicts",
            "Answered 409: another commit came first, or the name is taken.",
            [(rate("mergus_requests_total", "operation", 'status="409"'), "{{operation}}")],
            "ops",
        ),
        Panel(
            "Stages, 95 %",
            "planned: what it means in rows. locked: other writers wait, DuckDB's too. shown: the answer is made.",
            [(quantile(0.95, "mergus_commit_stage_seconds", "stage"), "{{stage}}")],
            "s",
        ),
    ],
)

ACCESS: Final = Row(
    "Access to objects, and refusals",
    [
        Panel(
            "Keys and signatures",
            "Tokens given, keys for one table's objects, requests to the store that were signed.",
            [
                (
                    rate(
                        "mergus_requests_total",
                        "operation, status",
                        'operation=~"getToken|loadCredentials|signRequest"',
                    ),
                    "{{operation}} {{status}}",
                )
            ],
            "reqps",
        ),
        Panel(
            "Refusals",
            "Requests without a good token, or without the right.",
            [(rate("mergus_requests_total", "status, operation", 'status=~"401|403|429"'), "{{status}} {{operation}}")],
            "reqps",
        ),
        Panel(
            "Audit entries lost",
            "There was no room for them: Postgres does not take them fast enough.",
            [(f"sum (increase(mergus_audit_lost_total{{{HERE_ONLY}}}[$__rate_interval]))", "lost")],
        ),
    ],
)

POSTGRES: Final = Row(
    "Postgres connections",
    [
        Panel(
            "Connections",
            "Of the servers' pools.",
            [
                (now("mergus_pool_connections", by="instance"), "{{instance}}"),
                (now("mergus_pool_connections_idle", by="instance"), "{{instance}} idle"),
            ],
            width=12,
        ),
        Panel(
            "Requests that wait for one", "", [(now("mergus_pool_waiting", by="instance"), "{{instance}}")], width=12
        ),
    ],
)

LISTENER: Final = Row(
    "Listener",
    [
        Panel("Lag", "", [(now("mergus_listener_lag_seconds", "max", labels=LAKE), "age of the oldest snapshot")], "s"),
        Panel(
            "Snapshots behind", "", [(now("mergus_listener_lag_snapshots", "max", labels=LAKE), "not all on storage")]
        ),
        Panel(
            "Who leads",
            "1: a process of this server.",
            [(now("mergus_listener_leads", by="instance", labels=LAKE), "{{instance}}")],
        ),
        Panel(
            "Tables to do",
            "waiting, working, with older snapshots to make (history), failing.",
            [(now("mergus_listener_tables", by="state", labels=LAKE), "{{state}}")],
            stacked=True,
        ),
        Panel(
            "Tables brought up to date",
            "",
            [(f"sum by (instance) (rate(mergus_listener_made_total{{{LAKE}}}[$__rate_interval]))", "{{instance}}")],
            "ops",
        ),
        Panel(
            "Attempts that failed",
            "UnsupportedOperationException: the table holds what Iceberg cannot show.",
            [(f"sum by (type) (rate(mergus_listener_failures_total{{{LAKE}}}[$__rate_interval]))", "{{type}}")],
            "ops",
        ),
        Panel(
            "Failing tables",
            "Attempts on each table that cannot be put on storage.",
            [(now("mergus_listener_failing", "max", "namespace, table, type", LAKE), "")],
            kind="table",
            width=24,
        ),
    ],
)

MATERIALISING: Final = Row(
    "Making what readers need",
    [
        Panel(
            "Snapshots made",
            "Manifest lists written, by the listener or for one who asked.",
            [(rate("mergus_chains_total", "instance"), "{{instance}}")],
            "ops",
        ),
        Panel(
            "Time by stage",
            "Seconds in a second; where it goes when the listener lags.",
            [(rate("mergus_stage_seconds_sum", "stage"), "{{stage}}")],
            "s",
            stacked=True,
        ),
        Panel("Stages, 95 %", "", [(quantile(0.95, "mergus_stage_seconds", "stage"), "{{stage}}")], "s"),
        Panel(
            "Loads that were not made anew",
            "Share of loads answered 304: the client has it already.",
            [
                (
                    "("
                    + rate("mergus_requests_total", labels='operation="loadTable",status="304"')
                    + " or vector(0)) / "
                    + rate("mergus_requests_total", labels='operation="loadTable"'),
                    "not modified",
                )
            ],
            "percentunit",
            width=24,
        ),
    ],
)

STORE: Final = Row(
    "Object store",
    [
        Panel(
            "Requests",
            "By the servers and listeners; clients read and write by themselves.",
            [(rate("mergus_object_requests_total", "method"), "{{method}}")],
            "reqps",
        ),
        Panel("Bytes", "", [(rate("mergus_object_bytes_total", "method"), "{{method}}")], "Bps"),
        Panel(
            "Failures",
            "The store did not answer, or refused.",
            [(rate("mergus_object_failures_total", "method"), "{{method}}")],
            "reqps",
        ),
    ],
)

REPORTS: Final = Row(
    "What clients report",
    [
        Panel("Reports", "", [(rate("mergus_reports_total", "type"), "{{type}}")], "ops"),
        Panel(
            "Time, 95 %",
            "Of planning a scan, or of a commit with all its attempts.",
            [(quantile(0.95, "mergus_reported_seconds", "type"), "{{type}}")],
            "s",
        ),
        Panel(
            "Files of a scan, 95 %",
            "Many delete files: rewrite the table. Many data files: merge them.",
            [(quantile(0.95, "mergus_reported_scan_files", "content"), "{{content}}")],
        ),
        Panel(
            "Attempts of a commit",
            "",
            [
                (quantile(0.5, "mergus_reported_commit_attempts"), "median"),
                (quantile(0.95, "mergus_reported_commit_attempts"), "95 %"),
            ],
            width=24,
        ),
    ],
)

HEALTH: Final = Row(
    "How the lake is",
    [
        Panel(
            "Data files",
            "Small ones are smaller than a quarter of what they should be: compaction makes few of them.",
            [
                (now("mergus_lake_data_files", "max", labels=LAKE), "all"),
                (now("mergus_lake_small_files", "max", labels=LAKE), "small"),
                (now("mergus_lake_scheduled_files", "max", labels=LAKE), "to be deleted"),
            ],
        ),
        Panel(
            "Inlined rows",
            "In Postgres alone, until somebody flushes them.",
            [(now("mergus_lake_inlined_rows", "max", labels=LAKE), "waiting")],
        ),
        Panel(
            "Deleted rows",
            "Of the rows in files, those that readers read for nothing.",
            [(now("mergus_lake_deleted_rows_ratio", "max", labels=LAKE), "part")],
            "percentunit",
        ),
        Panel("Bytes", "Of data files.", [(now("mergus_lake_data_bytes", "max", labels=LAKE), "data")], "bytes"),
        Panel("Snapshots", "", [(now("mergus_lake_snapshots", "max", labels=LAKE), "live")]),
        Panel("Tables", "", [(now("mergus_lake_tables", "max", labels=LAKE), "live")]),
    ],
)

JOBS: Final = Row(
    "Maintenance",
    [
        Panel(
            "Jobs by what became of them",
            "waiting: one gave way to writers, or let others go first, and goes on.",
            [(rate("mergus_jobs_total", "kind, state"), "{{kind}} {{state}}")],
            "ops",
            width=12,
        ),
        Panel(
            "Time of a job, 95 %",
            "Without a break.",
            [(quantile(0.95, "mergus_job_seconds", "kind"), "{{kind}}")],
            "s",
            width=12,
        ),
    ],
)

DASHBOARDS: Final[dict[str, tuple[str, Sequence[Row]]]] = {
    "mergus-overview": ("Mergus: overview", [AT_A_GLANCE, REQUESTS, COMMITS, ACCESS, POSTGRES, REPORTS]),
    "mergus-storage": ("Mergus: listener and storage", [LISTENER, MATERIALISING, STORE, HEALTH, JOBS]),
}


def dashboard(uid: str, title: str, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "uid": uid,
        "title": title,
        "tags": ["mergus"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "",
        "annotations": {"list": []},
        "links": [
            {
                "type": "dashboards",
                "tags": ["mergus"],
                "title": "Mergus",
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {"list": list(_variables())},
        "panels": list(_panels(rows)),
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
    }
    for name, label, query, several in (
        ("job", "Lake", "label_values(mergus_requests_in_flight, job)", False),
        ("instance", "Server", 'label_values(mergus_requests_in_flight{job="$job"}, instance)', True),
    ):
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": _datasource(),
            "query": {"query": query, "refId": name},
            "definition": query,
            "refresh": 2,
            "sort": 1,
            "hide": 0,
            "multi": several,
            "includeAll": several,
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]} if several else {},
        }


def _panels(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for row in rows:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "panels": [],
            "gridPos": _place(0, y, WIDTH, 1),
        }
        x, y, height = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y, height = 0, y + height, 0
            number += 1
            yield _panel(number, panel, _place(x, y, panel.width, panel.height))
            x, height = x + panel.width, max(height, panel.height)
        y += height


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    is_now = panel.kind != "timeseries"
    targets = [
        {
            "refId": chr(ord("A") + i),
            "datasource": _datasource(),
            "expr": expr,
            "legendFormat": legend or "__auto",
            "range": not is_now,
            "instant": is_now,
            "format": "table" if panel.kind == "table" else "time_series",
        }
        for i, (expr, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.what,
        "datasource": _datasource(),
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _OPTIONS[panel.kind],
    }


_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "textMode": "value",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    },
    "table": {"showHeader": True, "cellHeight": "sm"},
}


def _defaults(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "red" if panel.bad_below is not None else "green", "value": None}]
    if panel.bad_below is not None:
        steps.append({"color": "green", "value": panel.bad_below})
    if panel.bad_from is not None:
        steps.append({"color": "red", "value": panel.bad_from})
    found: dict[str, Any] = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "timeseries":
        mode = "normal" if panel.stacked else "none"
        fill = 30 if panel.stacked else 5
        found["custom"] = {
            "lineWidth": 1,
            "fillOpacity": fill,
            "showPoints": "never",
            "stacking": {"mode": mode, "group": "A"},
        }
    return found


def _datasource() -> dict[str, str]:
    return {"type": "prometheus", "uid": "${datasource}"}


def _place(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def made() -> dict[Path, str]:
    """The files, with what is in them."""
    return {
        HERE / f"{uid}.json": json.dumps(dashboard(uid, title, rows), indent=2, ensure_ascii=False) + "\n"
        for uid, (title, rows) in DASHBOARDS.items()
    }


if __name__ == "__main__":
    for path, text in made().items():
        path.write_text(text)
