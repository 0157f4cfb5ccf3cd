"""`…/tables/{table}/metrics`, where clients send their reports, and `…/reports`, where they can be read."""

from typing import Annotated, Any, Final, Literal

import orjson
from fastapi import Body, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool

from mergus.catalog import reports
from mergus.catalog.reports import NewReport
from mergus.errors import BadRequest
from mergus.rest.request import Context, Page, PathNamespace, PathTable, PrefixLake, Text, json_response, no_content

# Room for the names of some thousand columns.
LARGEST: Final = 128 * 1024

# As Java's TimeUnit has them.
SECONDS: Final = {
    "nanoseconds": 1e-9,
    "microseconds": 1e-6,
    "milliseconds": 1e-3,
    "seconds": 1.0,
    "minutes": 60.0,
    "hours": 3600.0,
    "days": 86400.0,
}


def _spelt(value: dict[str, Any]) -> dict[str, Any]:
    """An expression is kept, not understood; but it must be possible to say it again."""
    try:
        orjson.dumps(value)
    except TypeError as e:
        raise ValueError(f"it cannot be kept: {e}") from None
    return value


Long = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Expression = StrictBool | Annotated[dict[str, Any], AfterValidator(_spelt)]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, alias_generator=lambda name: name.replace("_", "-"))


class Counter(_Model):
    unit: Text
    value: Long


class Timer(_Model):
    time_unit: Text
    count: Long
    total_duration: Long


class ScanReport(_Model):
    report_type: Literal["scan-report"]
    table_name: Text
    snapshot_id: Long
    filter: Expression
    schema_id: Long
    projected_field_ids: list[Long]
    projected_field_names: list[Text]
    metrics: dict[Text, Counter | Timer]
    metadata: dict[Text, Text] | None = None


class CommitReport(_Model):
    report_type: Literal["commit-report"]
    table_name: Text
    snapshot_id: Long
    sequence_number: Long
    operation: Text
    metrics: dict[Text, Counter | Timer]
    metadata: dict[Text, Text] | None = None


AnyReport = Annotated[ScanReport | CommitReport, Body(discriminator="report_type")]


async def report_metrics(
    request: Request, lake: PrefixLake, ctx: Context, namespace: PathNamespace, table: PathTable, body: AnyReport
) -> Response:
    # as large as the body may be, its content can be larger: escapes
    content = orjson.dumps(body.model_dump(by_alias=True, exclude_none=True))
    if max(len(await request.body()), len(content)) > LARGEST:
        raise BadRequest(f"The report is larger than {LARGEST} bytes")
    measured = body.metrics.items()
    new = NewReport(
        kind=body.report_type,
        content=content,
        timers={
            name: metric.total_duration * SECONDS[unit]
            for name, metric in measured
            if isinstance(metric, Timer) and (unit := metric.time_unit.lower()) in SECONDS
        },
        counters={name: metric.value for name, metric in measured if isinstance(metric, Counter)},
    )
    await reports.report_metrics(lake, ctx, namespace, table, new)
    return no_content()


async def list_reports(
    lake: PrefixLake, ctx: Context, namespace: PathNamespace, table: PathTable, page: Page
) -> Response:
    found, token = await reports.list_reports(lake, ctx, namespace, table, page)
    return json_response({"reports": found, "next-page-token": token})
