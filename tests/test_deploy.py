"""Dashboards and alerts: whatever they ask for, a server really tells.

One server with a listener is used, made to fail, and scraped; every expression is held against what it said.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import promql_parser
import pyarrow as pa
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from promql_parser import AggregateExpr, BinaryExpr, MatchOp, VectorSelector

from mergus import metrics
from tests.support import lakes, loads, servers
from tests.support.listeners import eventually, how_far, proxy
from tests.support.servers import Server

ROOT = Path(__file__).parents[1]
GRAFANA = ROOT / "deploy/grafana"
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
OPERATIONS = (ROOT / "OPERATIONS.md").read_text()

# Prometheus adds these to all that it scrapes, and has this metric of its own.
SCRAPED = {"job", "instance"}
OF_PROMETHEUS = {"up": set[str]()}
# what the server here is not made to do: it asks nobody who they are, and has no bugs
NOT_SEEN = {("status", "500"), ("status", "401|403|429"), ("state", "failed")}
VARIABLES = {"$__rate_interval": "5m", "$job": "mergus", "$instance": ".+"}

Json = dict[str, Any]


@dataclass
class Told:
    """What a server said: the series of each name, and the labels that each family can have."""

    series: dict[str, list[dict[str, str]]] = field(default_factory=dict[str, list[dict[str, str]]])
    families: set[str] = field(default_factory=set[str])

    def take(self, exposition: str) -> None:
        for family in text_string_to_metric_families(exposition):
            if family.name.startswith("mergus_") and not family.name.endswith("_created"):
                self.families.add(f"{family.name}_total" if family.type == "counter" else family.name)
            for sample in family.samples:
                self.series.setdefault(sample.name, []).append(sample.labels)

    def labels(self, name: str) -> set[str]:
        if name in OF_PROMETHEUS:
            return OF_PROMETHEUS[name] | SCRAPED
        assert name in self.series, f"no server tells {name}"
        return {label for labels in self.series[name] for label in labels} | SCRAPED


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    found = Told()
    with lakes.lake() as lake, proxy(lake.settings.s3_endpoint or "") as (store, endpoint), lake.duckdb() as db:
        with servers.server(lake.settings, tmp_path_factory.mktemp("server"), s3_endpoint=endpoint) as server:
            db.execute("CREATE TABLE t(i BIGINT); INSERT INTO t SELECT range FROM range(10); CREATE TABLE u(i INTEGER)")
            db.execute("CREATE TABLE strange(i INTEGER, how_long INTERVAL)")
            use(server, loads.catalog(lake.settings, server).load_table("main.t"))
            eventually(lambda: "mergus_listener_failing{" in scrape(server), 20, lambda: how_far(lake))
            eventually(lambda: "mergus_lake_tables " in scrape(server), 20, lambda: how_far(lake))
            found.take(scrape(server))
            store.shut()
            db.execute("INSERT INTO u SELECT range FROM range(20)")
            assert httpx.get(server.uri + loads.url(server, "u"), timeout=60).status_code == 503
            assert server.http.get("/readyz").status_code == 503
            eventually(lambda: 'table="u",type="Service' in scrape(server), 20, lambda: how_far(lake))
            found.take(scrape(server))
            store.open()
        yield found


def scrape(server: Server) -> str:
    answer = server.http.get("/metrics")
    assert answer.status_code == 200, answer.text
    return answer.text


def use(server: Server, table: Any) -> None:
    """Each thing that a panel or an alert is about."""
    table.append(pa.table({"i": [1]}))
    where = loads.url(server)
    first = server.http.get(where)
    assert server.http.get(where, headers={"If-None-Match": first.headers["etag"]}).status_code == 304
    stale = {"requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1}], "updates": []}
    assert server.http.post(where, json=stale).status_code == 409
    assert server.http.post("/v1/lake/admin/compact", json={"wait-seconds": 60}, timeout=90).status_code == 200
    # whatever is answered: they are counted
    server.http.get(f"{where}/credentials")
    server.http.post(f"{where}/sign", json={})
    server.http.post("/v1/oauth/tokens", data={"grant_type": "client_credentials"})
    timer = {"count": 1, "time-unit": "nanoseconds", "total-duration": 1000}
    about = {"table-name": "main.t", "snapshot-id": 1, "sequence-number": 1, "operation": "append"}
    scan = {"schema-id": 0, "projected-field-ids": [1], "projected-field-names": ["i"], "filter": True}
    once = {"unit": "count", "value": 1}
    counts = {
        "result-data-files": {"unit": "count", "value": 3},
        "result-delete-files": once,
        "total-planning-duration": timer,
    }
    for report in (
        {"report-type": "scan-report", **about, **scan, "metrics": counts},
        {"report-type": "commit-report", **about, "metrics": {"total-duration": timer, "attempts": once}},
    ):
        answer = server.http.post(f"{where}/metrics", json=report)
        assert answer.status_code == 204, answer.text


def generator() -> ModuleType:
    spec = spec_from_file_location("dashboards", GRAFANA / "dashboards.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    # dataclasses look their module up by its name
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def dashboards() -> dict[str, Json]:
    return {path.name: json.loads(path.read_text()) for path in sorted(GRAFANA.glob("*.json"))}


def alerts() -> list[Json]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def shown() -> list[tuple[str, str, str]]:
    """(where, expression, legend) of every line in every panel."""
    return [
        (f"{name}: {panel['title']}", target["expr"], target["legendFormat"])
        for name, dashboard in dashboards().items()
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]


def parsed(expression: str) -> Any:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return promql_parser.parse(expression)


def parts(expr: Any) -> Iterator[Any]:
    yield expr
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        if (below := getattr(expr, name, None)) is not None and not isinstance(below, str):
            yield from parts(below)
    for below in getattr(expr, "args", ()):
        yield from parts(below)


def selectors(expr: Any) -> list[VectorSelector]:
    return [part for part in parts(expr) if isinstance(part, VectorSelector)]


def known_labels(told: Told, expr: Any) -> set[str]:
    return set[str]().union(*(told.labels(s.name or "") for s in selectors(expr)))


def left_labels(told: Told, expr: Any) -> set[str]:
    """Those that a result has."""
    if isinstance(expr, AggregateExpr):
        return set(expr.modifier.labels) if expr.modifier is not None else set()
    if isinstance(expr, BinaryExpr):
        return left_labels(told, expr.lhs)
    below = [part for part in parts(expr) if part is not expr and isinstance(part, AggregateExpr)]
    return left_labels(told, below[0]) - {"le"} if below else known_labels(told, expr)


def check(told: Told, expression: str) -> Any:
    """All that it names is there, and every series that it looks for has been seen."""
    expr = parsed(expression)
    found = selectors(expr)
    assert found, expression
    for selector in found:
        name, matchers = selector.name or "", selector.matchers.matchers
        assert {m.name for m in matchers} <= told.labels(name), f"{name} has no such label: {expression}"
        wanted = [m for m in matchers if m.name not in SCRAPED]
        if name not in OF_PROMETHEUS and not any((m.name, m.value) in NOT_SEEN for m in wanted):
            assert any(all(matches(m, s) for m in wanted) for s in told.series[name]), f"never seen: {expression}"
    for part in parts(expr):
        if isinstance(part, AggregateExpr) and part.modifier is not None:
            assert set(part.modifier.labels) <= known_labels(told, part), expression
        if isinstance(part, BinaryExpr) and part.modifier is not None and part.modifier.matching is not None:
            assert set(part.modifier.matching.labels) <= known_labels(told, part), expression
    return expr


def matches(matcher: Any, labels: dict[str, str]) -> bool:
    value = labels.get(matcher.name, "")
    if matcher.op in (MatchOp.Equal, MatchOp.NotEqual):
        return (value == matcher.value) == (matcher.op == MatchOp.Equal)
    return (re.fullmatch(matcher.value, value) is not None) == (matcher.op == MatchOp.Re)


class TestDashboards:
    def test_the_dashboard_files_are_those_of_the_generator(self) -> None:
        made = generator().made()
        assert {path.name for path in made} == set(dashboards())
        for path, text in made.items():
            assert path.read_text() == text, f"run python deploy/grafana/dashboards.py: {path.name} is another"

    @pytest.mark.parametrize("name", sorted(dashboards()))
    def test_every_dashboard_has_the_fields_that_grafana_imports(self, name: str) -> None:
        found = dashboards()[name]
        assert found["schemaVersion"] >= 39
        assert f"{found['uid']}.json" == name
        assert len(found["uid"]) <= 40
        variables = {v["name"]: v for v in found["templating"]["list"]}
        assert variables["datasource"]["type"] == "datasource"
        assert variables["datasource"]["query"] == "prometheus"
        ids = [panel["id"] for panel in found["panels"]]
        assert len(set(ids)) == len(ids)
        for panel in found["panels"]:
            assert panel["title"]
            if panel["type"] == "row":
                continue
            assert panel["type"] in {"timeseries", "stat", "table"}
            assert panel["targets"]
            assert len({t["refId"] for t in panel["targets"]}) == len(panel["targets"])
            for asked in (panel, *panel["targets"]):
                assert asked["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for one, other in combinations([p["gridPos"] for p in found["panels"]], 2):
            assert not overlap(one, other)
            assert one["x"] + one["w"] <= 24

    @pytest.mark.parametrize(("where", "expression", "legend"), shown())
    def test_every_panel_query_uses_existing_metrics_and_labels(
        self, told: Told, where: str, expression: str, legend: str
    ) -> None:
        expr = check(told, expression)
        assert set(re.findall(r"{{(\w+)}}", legend)) <= left_labels(told, expr), where

    def test_dashboard_variables_query_existing_labels(self, told: Told) -> None:
        for found in dashboards().values():
            for variable in found["templating"]["list"]:
                if variable["type"] == "query":
                    asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
                    assert asked is not None
                    assert asked[2] in known_labels(told, check(told, asked[1]))

    def test_every_metric_is_shown_on_a_dashboard(self, told: Told) -> None:
        left_out = generator().NOT_SHOWN
        asked = {s.name for _, expression, _ in shown() for s in selectors(parsed(expression))}
        histograms = {name.removesuffix(end) for name in asked if name for end in ("_bucket", "_sum", "_count")}
        missing = {name for name in told.families - asked - histograms if not name.startswith(left_out)}
        assert not missing
        assert not {name for name in told.families if f"`{name}" not in OPERATIONS and not name.startswith(left_out)}


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return all(one[at] < other[at] + other[size] and other[at] < one[at] + one[size] for at, size in ("xw", "yh"))


def anchors() -> set[str]:
    """Of OPERATIONS.md's headings, as they are made of them."""
    headings: Sequence[str] = re.findall(r"^#+ (.+)$", OPERATIONS, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


class TestAlerts:
    @pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
    def test_every_alert_uses_existing_metrics_and_links_a_runbook(self, told: Told, rule: Json) -> None:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        expr = check(told, rule["expr"])
        assert re.fullmatch(r"[1-9]\d*[smh]", rule.get("for", "1m"))
        assert rule["labels"]["severity"] in {"warning", "critical"}
        notes = rule["annotations"]
        assert set(notes) == {"summary", "description", "runbook_url"}
        assert all(notes.values())
        used = re.findall(r"\$labels\.(\w+)", notes["summary"] + notes["description"])
        assert set(used) <= left_labels(told, expr)
        page, _, anchor = notes["runbook_url"].partition("#")
        assert (ROOT / page).is_file()
        assert anchor in anchors()
        assert anchor == rule["alert"].lower()

    def test_every_alert_has_a_unique_name_and_one_runbook(self) -> None:
        names = [rule["alert"] for rule in alerts()]
        assert len(set(names)) == len(names)
        assert sorted(re.findall(r"^### (Mergus\w+)$", OPERATIONS, re.MULTILINE)) == sorted(names)

    def test_the_query_check_rejects_unknown_metrics_and_labels(self, told: Told) -> None:
        """The checks themselves."""
        for wrong in (
            "sum(rate(mergus_nothing_total[5m]))",
            'mergus_listener_tables{phase="waiting"}',
            'mergus_listener_tables{state="sleeping"}',
            "sum by (operation) (mergus_listener_tables)",
            "sum by (job) (mergus_pool_waiting) > on (table) sum by (job) (mergus_pool_connections)",
        ):
            with pytest.raises(AssertionError):
                check(told, wrong)
        with pytest.raises(ValueError, match="expected type matrix"):
            check(told, "rate(mergus_requests_total)")


def test_every_declared_metric_is_exposed_by_the_test_server(told: Told) -> None:
    """Else the tests above say nothing of it."""
    declared = {value._name for value in vars(metrics).values() if hasattr(value, "_labelnames")}
    assert declared
    assert declared <= {name.removesuffix("_total") for name in told.families}
