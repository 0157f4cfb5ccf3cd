"""Which rows of a table came, and which went, between two of its snapshots.

Iceberg plans a scan of each; what both have in common (a data file with the same deletes) is left alone, and only the
other files are read. If none of those is of the older snapshot, all rows in them are new. Else the two sets of rows are
compared, a row that is there twice being two rows: a file that was rewritten shows only what has changed in it.

Iceberg's own incremental scans are not enough. That of appends goes by the snapshot which added a file, and a file that
DuckLake has merged since holds rows of several; that of changes refuses tables with delete files.
"""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from mergus.iceberg.schema import Schema
from mergus.iceberg.schema_parse import parse_schema
from mergus.pipeline.canonical import CANONICAL, SPARK
from mergus.pipeline.job import Place, Table
from mergus.pipeline.session import conf, iceberg_table, jvm, query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TASK_SET: Final = "scan-task-set-id"


@dataclass(frozen=True)
class Changes:
    """`deleted` is None where nothing can have gone."""

    inserted: "DataFrame"
    deleted: "DataFrame | None"


@contextmanager
def between(place: Place, table: Table, start: int, end: int) -> Generator[Changes]:
    """Both in the table's columns of now. The frames are good while the context lasts."""
    schema = _current(place.metadata(table))
    with conf(place.spark, CANONICAL), _Scans(place, table, schema) as scans:
        older, newer = scans.tasks(start), scans.tasks(end)
        gone = scans.frame([task for key, task in older.items() if key not in newer])
        come = scans.frame([task for key, task in newer.items() if key not in older])
        if gone is None or come is None:
            nothing = query(place.spark, f"SELECT * FROM {place.sql_name(table)} LIMIT 0")
            yield Changes(nothing if come is None else come, gone)
        else:
            yield Changes(_minus(place, come, gone, schema), _minus(place, gone, come, schema))


def _current(metadata: dict[str, Any]) -> Schema:
    by_id = {one["schema-id"]: one for one in metadata["schemas"]}
    return parse_schema(by_id[metadata["current-schema-id"]])


def _minus(place: Place, rows: "DataFrame", others: "DataFrame", schema: Schema) -> "DataFrame":
    """Rows that there are more of, as often as there are more of them. By their texts: maps have no order, and Spark
    takes 0.0 and -0.0 for one."""
    names = [f"{kind}_{uuid4().hex}" for kind in ("rows", "others")]
    for name, frame in zip(names, (rows, others), strict=True):
        frame.createOrReplaceTempView(name)
    columns = ", ".join(SPARK.identifier(f.name) for f in schema.fields)
    hashed = f"md5({SPARK.row(schema)})"
    text = f"""
        WITH mine AS (SELECT *, row_number() OVER (PARTITION BY `_hash` ORDER BY `_hash`) AS `_nth`
                      FROM (SELECT *, {hashed} AS `_hash` FROM {names[0]})),
             other AS (SELECT `_hash`, count(*) AS `_times`
                       FROM (SELECT {hashed} AS `_hash` FROM {names[1]}) GROUP BY 1)
        SELECT {columns} FROM mine LEFT JOIN other USING (`_hash`) WHERE `_nth` > coalesce(`_times`, 0)
    """
    found = query(place.spark, text)
    for name in names:
        place.spark.catalog.dropTempView(name)
    return found


class _Scans:
    """Scans of chosen files, through Iceberg's own way for actions that do so (it rewrites files by it)."""

    def __init__(self, place: Place, table: Table, schema: Schema) -> None:
        self._place = place
        self._columns = [SPARK.identifier(f.name) for f in schema.fields]
        self._name = place.sql_name(table)
        self._staged: list[str] = []
        self._java = jvm(place.spark)
        self._table = iceberg_table(place.spark, self._name)
        # a session may keep tables for a while
        self._table.refresh()
        self._manager = self._java.org.apache.iceberg.spark.ScanTaskSetManager.get()

    def __enter__(self) -> "_Scans":
        return self

    def __exit__(self, *_: object) -> None:
        for staged in self._staged:
            self._manager.removeTasks(self._table, staged)

    def tasks(self, snapshot_id: int) -> Mapping[str, Any]:
        """Of Java's, by what they read: a file, and what is deleted of it."""
        planned = self._table.newScan().useSnapshot(snapshot_id).planFiles()
        try:
            found = planned.iterator()
            by_key: dict[str, Any] = {}
            while found.hasNext():
                task = found.next()
                by_key[_key(self._java.org.apache.iceberg.ScanTaskParser.toJson(task))] = task
            return by_key
        finally:
            planned.close()

    def frame(self, tasks: list[Any]) -> "DataFrame | None":
        if not tasks:
            return None
        staged = str(uuid4())
        listed = self._java.java.util.ArrayList()
        for task in tasks:
            listed.add(task)
        self._manager.stageTasks(self._table, staged, listed)
        self._staged.append(staged)
        # those who rewrite files see more than the table's columns
        return self._place.spark.read.format("iceberg").option(TASK_SET, staged).load(self._name).select(*self._columns)


def _key(task: str) -> str:
    told = json.loads(task)
    deletes = [
        (one["file-path"], one.get("content-offset"), one.get("content-size-in-bytes"))
        for one in told.get("delete-files", [])
    ]
    return json.dumps([told["data-file"]["file-path"], told["start"], sorted(deletes, key=str)])
