"""`mergus pipeline stats`: statistics of a snapshot's columns, measured and kept with the table.

What is kept already is not measured again, so a run that was interrupted goes on where it was. A file is written whole
before the table names it: a run that ends in between leaves an object that nothing names, and no figure.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from mergus.errors import SetupError
from mergus.iceberg.schema import Schema
from mergus.iceberg.schema_parse import parse_schema
from mergus.pipeline.job import Place, Run, Table
from mergus.pipeline.session import message, rows, spark_errors
from mergus.pipeline.stats import texts
from mergus.pipeline.stats.columns import Column, choose, unread
from mergus.pipeline.stats.measure import Figures, measure
from mergus.pipeline.stats.puffin import OURS, SKETCH, Blob, File, Statistics

BUCKETS: Final = 64
# Of our blob, what is said in the properties of the sketch as well.
_SERVED: Final = ("row-count", "null-count", "nan-count", "min", "max", "min-is-cut", "max-is-cut")

Told = dict[str, Any]


def compute(
    place: Place,
    tables: Iterable[Table],
    run: Run,
    *,
    columns: Sequence[str] = (),
    snapshot: int | None = None,
    buckets: int = BUCKETS,
    again: bool = False,
) -> list[Told]:
    """Of each table, at its current snapshot or at this one: what is known now."""
    found: list[Told] = []
    for table in tables:
        told = _table(place, table, run, columns, snapshot, buckets, again)
        run.counts[told["state"]] += 1
        run.say(f"{table}: {told['state']}{f' ({why})' if (why := told.get('reason')) else ''}")
        found.append(told)
    return found


def show(place: Place, tables: Iterable[Table], snapshot: int | None = None) -> list[Told]:
    """What is kept, of this snapshot or of the newest that has any: everything that is in the file."""
    found: list[Told] = []
    for table in tables:
        metadata = place.metadata(table)
        kept = _kept(metadata)
        ids = [s["snapshot-id"] for s in metadata["snapshots"] if s["snapshot-id"] in kept]
        at = _snapshot(metadata, snapshot)["snapshot-id"] if snapshot is not None else ids[-1] if ids else None
        if at not in kept:
            found.append({"table": str(table), "state": "none"})
            continue
        blobs = Statistics(place, table).read(File.of(kept[at]))
        found.append(_told(table, "kept", at, blobs) | {"is-current": at == metadata["current-snapshot-id"]})
    return found


def brief(told: Told) -> Told:
    """For the summary of a run over many tables: without what only a reader of one wants to see."""
    columns = [{k: v for k, v in one.items() if k != "histogram"} for one in told.get("columns", ())]
    return {key: value for key, value in told.items() if key != "others"} | ({"columns": columns} if columns else {})


def _table(
    place: Place, table: Table, run: Run, names: Sequence[str], snapshot: int | None, buckets: int, again: bool
) -> Told:
    metadata = place.metadata(table)
    if snapshot is None and metadata.get("current-snapshot-id", -1) in {-1, None}:
        return {"table": str(table), "state": "empty", "reason": "it has no snapshot"}
    chosen = _snapshot(metadata, snapshot)
    at = int(chosen["snapshot-id"])
    schema = _schema(metadata, chosen)
    columns = choose(schema, names)
    if (kind := unread(schema)) is not None:
        return {"table": str(table), "state": "unread", "reason": f"Spark opens no table with a column of type {kind}"}
    statistics = Statistics(place, table)
    before = _before(statistics, _kept(metadata).get(at), again)
    if not again and _has(before, columns, buckets):
        return _told(table, "kept", at, before)
    source = f"{place.sql_name(table)} VERSION AS OF {at}"
    with run.part("measure"):
        figures = measure(place.spark, source, _records(place, chosen, source), columns, buckets)
    made = [
        blob
        for column in columns
        for blob in _blobs(column, figures[column.field.id], at, int(chosen["sequence-number"]), buckets)
    ]
    replaced = {(blob.type, blob.fields) for blob in made}
    carried = [blob for blob in before if (blob.type, blob.fields) not in replaced]
    with run.part("write"):
        statistics.write(at, [*carried, *made])
    run.counts["columns"] += len(columns)
    return _told(table, "measured", at, made)


def _before(statistics: Statistics, kept: dict[str, Any] | None, again: bool) -> list[Blob]:
    """What the snapshot has. A file that is lost or broken is in the way of nobody who wants it made again."""
    try:
        return [] if kept is None else statistics.read(File.of(kept))
    except spark_errors() as e:
        if again:
            return []
        raise SetupError(f"its statistics cannot be read, --again makes them anew: {message(e)}") from None


def _snapshot(metadata: dict[str, Any], wanted: int | None) -> dict[str, Any]:
    """By Iceberg's id or, where that is none, by DuckLake's."""
    snapshots: list[dict[str, Any]] = metadata["snapshots"]
    if wanted is None:
        wanted = metadata["current-snapshot-id"]
    for snapshot in snapshots:
        if snapshot["snapshot-id"] == wanted:
            return snapshot
    for snapshot in snapshots:
        if snapshot["summary"].get("ducklake.snapshot-id") == str(wanted):
            return snapshot
    raise SetupError(f"the table has no snapshot {wanted}")


def _schema(metadata: dict[str, Any], snapshot: dict[str, Any]) -> Schema:
    wanted = snapshot.get("schema-id", metadata["current-schema-id"])
    return parse_schema(next(found for found in metadata["schemas"] if found["schema-id"] == wanted))


def _kept(metadata: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {int(file["snapshot-id"]): file for file in metadata.get("statistics", ())}


def _has(blobs: Sequence[Blob], columns: Sequence[Column], buckets: int) -> bool:
    wanted = {(OURS, (column.field.id,), str(buckets)) for column in columns}
    return wanted <= {(blob.type, blob.fields, blob.properties.get("buckets", "")) for blob in blobs}


def _records(place: Place, snapshot: dict[str, Any], source: str) -> int:
    """About how many: of these a sample is taken, and nobody may be surprised by more."""
    told = snapshot["summary"].get("total-records")
    if told is not None:
        return int(told)
    ((counted,),) = rows(place.spark, f"SELECT count(*) FROM {source}")
    return int(counted)


def _blobs(column: Column, figures: Figures, at: int, sequence: int, buckets: int) -> list[Blob]:
    told = content(column, figures)
    fields = (column.field.id,)
    ours = Blob(OURS, fields, at, sequence, json.dumps(told).encode(), {"buckets": str(buckets)})
    if figures.sketch is None:
        return [ours]
    properties = {"ndv": str(figures.distinct), **{key: _text(told[key]) for key in _SERVED if key in told}}
    return [Blob(SKETCH, fields, at, sequence, figures.sketch, properties), ours]


def content(column: Column, figures: Figures) -> Told:
    """What our blob says. Of what is not known there is no member."""
    low = None if figures.lowest is None else texts.lower(column.kind, figures.lowest)
    high = None if figures.highest is None else texts.upper(column.kind, figures.highest)
    told: Told = {
        "column": column.name,
        "type": column.kind,
        "row-count": figures.rows,
        "null-count": figures.nulls,
        "nan-count": figures.nans,
        "distinct-count": figures.distinct,
    }
    for name, bound in (("min", low), ("max", high)):
        if bound is not None:
            told |= {name: bound.text} | ({f"{name}-is-cut": True} if bound.is_cut else {})
    if (histogram := figures.histogram) is not None and low is not None and high is not None:
        inner = [texts.text(column.kind, value) for value in histogram.uppers[:-1]]
        told["histogram"] = {
            "bounds": [low.text, *inner, high.text],
            "counts": list(histogram.counts),
            "is-exact": histogram.is_exact,
        }
    return {key: value for key, value in told.items() if value is not None}


def _told(table: Table, state: str, at: int, blobs: Sequence[Blob]) -> Told:
    return {
        "table": str(table),
        "state": state,
        "snapshot-id": at,
        "columns": [json.loads(blob.data) for blob in blobs if blob.type == OURS],
        "others": [
            {"type": blob.type, "fields": list(blob.fields), "properties": dict(blob.properties)}
            for blob in blobs
            if blob.type != OURS
        ],
    }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
