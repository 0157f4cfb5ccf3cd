"""`mergus pipeline compact`: Iceberg's own `rewrite_data_files`, for tables that are too large for the server's job.

Iceberg plans which files are rewritten and Spark writes them, as many executors as there are. The server takes what
comes as one commit that replaces files, so every older snapshot stays as it is, in both engines. Whoever writes to the
table meanwhile comes first: rows that are added stay, and where rows are deleted from a file that is being rewritten
Iceberg refuses the commit and the table is planned anew. A run that is killed leaves files that no snapshot has.

Rows that DuckDB keeps in Postgres are shown as a file of ours, which is another one after the next such row: whoever is
rewriting it has lost. So the server is asked to flush them before each try. Between that and the plan another may come.

Row ids are kept in tables of format version 3. Files of version 2 have no place for them, and Spark would give each row
a new one; so such a table is left alone unless somebody says what is to become of them.

    keep     the table is shown as version 3 while it is compacted, and as version 2 after that. Clients that read no
             version 3 cannot read it meanwhile. A mark among its properties says what it was to a run after one that
             was killed.
    renew    its rows get new ids.
"""

import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal
from urllib.parse import quote

from mergus.client import Client, Levels, Refused, namespace_path
from mergus.errors import SetupError
from mergus.iceberg.schema_parse import parse_schema
from mergus.pipeline.canonical import SPARK
from mergus.pipeline.job import Place, Run, Table
from mergus.pipeline.session import iceberg_table, jvm, message, query, rows, spark_errors
from mergus.pipeline.stats.columns import unread

TRIES: Final = 3
# What Iceberg says when somebody was first: a file has gone, or rows of it.
CONFLICT: Final = "Cannot commit rewrite because of a ValidationException or CommitFailedException"

# For the server to look at its tables: in one request, in all, and between two looks.
AT_ONCE_SECONDS: Final = 60
MOST_SECONDS: Final = 1800
LOOK_SECONDS: Final = 2.0
FLUSH_SECONDS: Final = 20
LEAST_RATIO: Final = 1e-9

FORMAT_VERSION: Final = "mergus.format-version"
MARK: Final = "pipeline.compact.format-version"

Strategy = Literal["binpack", "sort", "zorder"]
Told = dict[str, Any]


@dataclass(frozen=True)
class Wish:
    """`columns` are those of z-order. `options` are Iceberg's, of its procedure."""

    strategy: Strategy = "binpack"
    sort_order: str | None = None
    columns: tuple[str, ...] = ()
    where: str | None = None
    row_ids: Literal["keep", "renew"] | None = None
    options: Mapping[str, str] = field(default_factory=dict[str, str])

    def check(self) -> None:
        if self.strategy != "sort" and self.sort_order is not None:
            raise SetupError("a sort order is for the strategy `sort`")
        if (self.strategy == "zorder") != bool(self.columns):
            raise SetupError("the strategy `zorder` needs columns, and no other takes them")


@dataclass(frozen=True)
class Plan:
    """What Iceberg would rewrite."""

    groups: int = 0
    files: int = 0
    bytes: int = 0
    into: int = 0

    def json(self) -> Told:
        return {"groups": self.groups, "files": self.files, "bytes": self.bytes, "into-files": self.into}


def compact(place: Place, tables: Iterable[tuple[Table, Wish]], run: Run, *, only_plan: bool = False) -> list[Told]:
    found: list[Told] = []
    for table, wish in tables:
        wish.check()
        told = {"table": str(table), **_table(place, table, wish, run, only_plan)}
        run.counts[told["state"]] += 1
        run.say(f"{table}: {told['state']}{f' ({why})' if (why := told.get('reason')) else ''}")
        found.append(told)
    return found


def handed_over(client: Client, namespaces: Iterable[Levels], wish: Wish, run: Run) -> list[tuple[Table, Wish]]:
    """Tables that the server's own compaction leaves to this job, with what it would do to them."""
    found: list[tuple[Table, Wish]] = []
    for namespace in namespaces:
        path = f"admin/{namespace_path(namespace)}/compact"
        job = _ended(client, client.ask("POST", path, {"dry-run": True, "wait-seconds": AT_ONCE_SECONDS}), run)
        for one in job["tables"]:
            if (handed := one.get("handed-over")) is not None:
                # DuckLake would merge two files as well, and Iceberg knows no ratio of nothing
                theirs = {
                    "target-file-size-bytes": str(handed["target-bytes"]),
                    "delete-ratio-threshold": str(handed["delete-ratio"] or LEAST_RATIO),
                    "min-input-files": "2",
                }
                table = Table(tuple(one["namespace"]), one["table"])
                found.append((table, replace(wish, options={**theirs, **wish.options})))
    return found


def _ended(client: Client, job: Told, run: Run) -> Told:
    deadline = time.monotonic() + MOST_SECONDS
    while job["state"] in {"waiting", "running"} and time.monotonic() < deadline:
        run.say(f"the server's job {job['job-id']}, which says what waits, is {job['state']}")
        time.sleep(LOOK_SECONDS)
        job = client.ask("GET", f"admin/jobs/{job['job-id']}")
    if job["state"] != "done":
        raise SetupError(f"the server did not say which tables wait: its job {job['job-id']} is {job['state']}")
    return job


def plan(place: Place, table: Table, wish: Wish) -> Plan:
    """By Iceberg's own planner, which the procedure asks as well; one that sorts may make a few files more."""
    iceberg = jvm(place.spark).org.apache.iceberg
    java = iceberg_table(place.spark, place.sql_name(table))
    at = java.currentSnapshot().snapshotId()
    planner = iceberg.actions.BinPackRewriteFilePlanner(java, _filter(place, table, wish.where), at, False)
    known = set(planner.validOptions())
    planner.init({key: value for key, value in wish.options.items() if key in known})
    groups = list(planner.plan().groups().iterator())
    return Plan(
        len(groups),
        sum(group.inputFileNum() for group in groups),
        sum(group.inputFilesSizeInBytes() for group in groups),
        sum(group.expectedOutputFiles() for group in groups),
    )


def _table(place: Place, table: Table, wish: Wish, run: Run, only_plan: bool) -> Told:
    metadata = place.metadata(table)
    if metadata.get("current-snapshot-id", -1) in {-1, None}:
        return {"state": "nothing", "reason": "it has no snapshot"}
    current = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
    if (kind := unread(parse_schema(current))) is not None:
        return {"state": "unread", "reason": f"Spark opens no table with a column of type {kind}"}
    with run.part("plan"):
        planned = plan(place, table, wish)
    is_marked = MARK in metadata["properties"]
    if only_plan:
        return {"state": "planned" if planned.groups else "nothing", "plan": planned.json()}
    if not planned.groups and not is_marked:
        return {"state": "nothing"}
    version = 2 if is_marked else int(metadata["format-version"])
    if version < 3 and wish.row_ids is None and not is_marked:
        return {"state": "left-alone", "reason": _WHY_LEFT, "plan": planned.json()}
    keeps = version < 3 and (is_marked or wish.row_ids == "keep")
    with _as_version_3(place, table) if keeps else nullcontext(), run.part("rewrite"):
        done = _rewrite(place, table, wish, run)
    if done is None:
        return {"state": "gave-way", "reason": f"others wrote to it {TRIES} times", "plan": planned.json()}
    run.counts.update({"rewritten-files": done["rewritten-files"], "made-files": done["made-files"]})
    state = "failed-files" if done["failed-files"] else "compacted" if done["rewritten-files"] else "nothing"
    return {"state": state, **done, "row-ids": "kept" if version >= 3 or keeps else "renewed"}


_WHY_LEFT: Final = (
    "it is of format version 2, in which Spark's rewrite keeps no row ids. --v2-row-ids keep shows it as version 3 "
    "while it is compacted, --v2-row-ids renew gives its rows new ids"
)


def _rewrite(place: Place, table: Table, wish: Wish, run: Run) -> Told | None:
    """None if others were always first."""
    for _ in range(TRIES):
        _flush(place.client, table, run)
        try:
            ((rewritten, added, size, failed, deletes),) = rows(place.spark, _call(place, table, wish))
        except spark_errors() as e:
            if CONFLICT not in str(e):
                raise
            run.say(f"{table}: somebody else was first, planned anew ({message(e)})")
            continue
        return {
            "rewritten-files": rewritten,
            "made-files": added,
            "rewritten-bytes": size,
            "failed-files": failed,
            "removed-delete-files": deletes,
        }
    return None


def _flush(client: Client, table: Table, run: Run) -> None:
    """As a step of the server's own compaction. Without it the job may have to give way, and is right all the same, so
    nothing depends on being allowed to ask, or on the server being done in time."""
    path = f"admin/{namespace_path(table.namespace)}/tables/{quote(table.name, safe='')}/compact"
    try:
        client.ask("POST", path, {"steps": ["flush"], "wait-seconds": FLUSH_SECONDS})
    except Refused as e:
        run.say(f"{table}: rows in Postgres were not flushed ({e.message})")


def _call(place: Place, table: Table, wish: Wish) -> str:
    within = ".".join(map(SPARK.identifier, [*table.namespace, table.name]))
    order = wish.sort_order
    if wish.columns:
        order = f"zorder({', '.join(map(SPARK.identifier, wish.columns))})"
    texts = {
        "table": within,
        "strategy": "binpack" if wish.strategy == "binpack" else "sort",
        "sort_order": order,
        "where": wish.where,
    }
    given = [f"{key} => {SPARK.literal(value)}" for key, value in texts.items() if value is not None]
    if wish.options:
        pairs = ", ".join(f"{SPARK.literal(key)}, {SPARK.literal(value)}" for key, value in wish.options.items())
        given.append(f"options => map({pairs})")
    return f"CALL {SPARK.identifier(place.catalog)}.system.rewrite_data_files({', '.join(given)})"


def _filter(place: Place, table: Table, where: str | None) -> Any:  # noqa: ANN401
    """As the procedure reads it."""
    process = jvm(place.spark)
    if where is None:
        return process.org.apache.iceberg.expressions.Expressions.alwaysTrue()
    converter = process.org.apache.spark.sql.execution.datasources.SparkExpressionConverter
    session = process.org.apache.spark.sql.SparkSession.active()
    resolved = converter.collectResolvedSparkExpression(session, place.sql_name(table), where)
    return converter.convertToIcebergExpression(resolved)


@contextmanager
def _as_version_3(place: Place, table: Table) -> Generator[None]:
    """For a while. However that ends it is as it was, unless the process is killed; then the mark says so."""
    name = place.sql_name(table)
    pairs = f"'{FORMAT_VERSION}' = '3', '{MARK}' = '2'"
    query(place.spark, f"ALTER TABLE {name} SET TBLPROPERTIES ({pairs})")
    try:
        yield
    finally:
        query(place.spark, f"ALTER TABLE {name} SET TBLPROPERTIES ('{FORMAT_VERSION}' = '2')")
        query(place.spark, f"ALTER TABLE {name} UNSET TBLPROPERTIES IF EXISTS ('{MARK}')")
