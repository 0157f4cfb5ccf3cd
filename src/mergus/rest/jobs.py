"""`/v1/{prefix}/admin/…`: maintenance, and the jobs that it is done by."""

from typing import Annotated, Any, Self

from fastapi import Path, Response
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from mergus.annex.jobs import Kind
from mergus.catalog import jobs
from mergus.iceberg.namespace import Namespace
from mergus.rest.request import (
    Context,
    Page,
    PathNamespace,
    PathTable,
    PrefixLake,
    json_response,
    listing_response,
)

# What a cron job waits for; longer ones are asked about.
PATIENCE = 10.0
MOST_PATIENCE = 60.0


class _Request(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    dry_run: bool = Field(False, alias="dry-run")
    wait: float = Field(PATIENCE, alias="wait-seconds", ge=0, le=MOST_PATIENCE, strict=False)

    def options(self) -> dict[str, Any]:
        """As they are kept: what is not given is not there."""
        return self.model_dump(mode="json", by_alias=True, exclude={"wait"}, exclude_none=True, exclude_defaults=True)


class CompactRequest(_Request):
    steps: list[str] | None = Field(None, min_length=1, max_length=3)
    delete_ratio: float | None = Field(None, alias="delete-ratio", ge=0, le=1, strict=False)
    max_files: int | None = Field(None, alias="max-files", ge=1, le=1_000_000)


class ExpireRequest(_Request):
    older_than: AwareDatetime | None = Field(None, alias="older-than", strict=False)
    older_than_seconds: int | None = Field(None, alias="older-than-seconds", ge=0, le=10**10)
    retain_last: int | None = Field(None, alias="retain-last", ge=1, le=2**31)

    @model_validator(mode="after")
    def _says_which(self) -> Self:
        """Nobody lets everything expire by leaving something out."""
        if self.older_than is not None and self.older_than_seconds is not None:
            raise ValueError("older-than and older-than-seconds exclude each other")
        if self.older_than is None and self.older_than_seconds is None and self.retain_last is None:
            raise ValueError("older-than, older-than-seconds or retain-last is needed")
        return self


class SweepRequest(_Request):
    grace: int | None = Field(None, alias="grace-seconds", ge=0, le=10**10)


class OrphansRequest(_Request):
    older_than_seconds: int | None = Field(None, alias="older-than-seconds", ge=0, le=10**10)


PathJob = Annotated[int, Path(ge=0, lt=2**63)]


async def compact_catalog(lake: PrefixLake, ctx: Context, body: CompactRequest | None = None) -> Response:
    return await _ask(lake, ctx, "compact", body or CompactRequest.model_validate({}))


async def compact_namespace(
    lake: PrefixLake, ctx: Context, namespace: PathNamespace, body: CompactRequest | None = None
) -> Response:
    return await _ask(lake, ctx, "compact", body or CompactRequest.model_validate({}), namespace)


async def compact_table(
    lake: PrefixLake, ctx: Context, namespace: PathNamespace, table: PathTable, body: CompactRequest | None = None
) -> Response:
    return await _ask(lake, ctx, "compact", body or CompactRequest.model_validate({}), namespace, table)


async def expire_snapshots(lake: PrefixLake, ctx: Context, body: ExpireRequest) -> Response:
    return await _ask(lake, ctx, "expire", body)


async def sweep_garbage(lake: PrefixLake, ctx: Context, body: SweepRequest | None = None) -> Response:
    return await _ask(lake, ctx, "sweep", body or SweepRequest.model_validate({}))


async def remove_orphans(lake: PrefixLake, ctx: Context, body: OrphansRequest | None = None) -> Response:
    return await _ask(lake, ctx, "orphans", body or OrphansRequest.model_validate({}))


async def list_jobs(lake: PrefixLake, ctx: Context, page: Page) -> Response:
    found, token = await jobs.list_jobs(lake, ctx, page)
    return listing_response({"jobs": found}, page, token)


async def load_job(lake: PrefixLake, ctx: Context, job: PathJob) -> Response:
    return json_response(await jobs.load_job(lake, ctx, job))


async def cancel_job(lake: PrefixLake, ctx: Context, job: PathJob) -> Response:
    return json_response(await jobs.cancel_job(lake, ctx, job))


async def _ask(
    lake: PrefixLake,
    ctx: Context,
    kind: Kind,
    body: _Request,
    namespace: Namespace | None = None,
    table: str | None = None,
) -> Response:
    """200 if it is done, 202 if it goes on."""
    job, ended = await jobs.ask(lake, ctx, kind, body.options(), namespace, table, patience=body.wait)
    response = json_response(job, 200 if ended else 202)
    response.headers["Location"] = f"/v1/{lake.settings.prefix}/admin/jobs/{job['job-id']}"
    return response
