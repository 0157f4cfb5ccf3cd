"""A materialised table as TableMetadata: what LoadTable answers and what metadata files hold."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from mergus.iceberg import metadata
from mergus.iceberg.metadata import Snapshot, TableMetadata, snapshot_json
from mergus.iceberg.partition_spec import spec_json
from mergus.iceberg.schema import schema_json
from mergus.iceberg.sort_order import sort_order_json
from mergus.materialise.reading import Shown, schema_text
from mergus.materialise.table import Materialised

# DuckLake owns the files: an engine that cleans up by itself would take what other snapshots, or DuckDB, still need.
DEFAULT_PROPERTIES: Final[Mapping[str, str]] = {"gc.enabled": "false"}


def describe(table: Materialised) -> TableMetadata:
    """Without the log of earlier metadata files, which only whoever writes the next one knows."""
    reading, view = table.reading, table.reading.view
    listed = table.listed
    schemas = {table.schema_ids[schema_text(s)]: s for s in reading.schemas}
    specs = view.places.listed(i for shown in listed for i in table.chains[shown.snapshot.id].counts["specs"])
    orders = reading.sorts.orders(view.columns, reading.schema)
    current = listed[-1].snapshot.id if listed else None
    version = view.format_version
    return TableMetadata(
        format_version=version,
        table_uuid=str(view.table.uuid),
        location=str(view.layout.directory),
        last_sequence_number=current or 0,
        last_updated_ms=reading.updated_ms,
        last_column_id=max((c.id for c in view.columns.columns), default=0),
        current_schema_id=table.schema_ids[schema_text(reading.schema)],
        schemas=[schema_json(schema, i, version) for i, schema in sorted(schemas.items())],
        default_spec_id=view.places.specs.spec(reading.partitions.current(view.as_of)).spec_id,
        partition_specs=[spec_json(spec) for spec in specs],
        last_partition_id=max([view.places.specs.last_field_id, *(f.field_id for s in specs for f in s.fields)]),
        default_sort_order_id=reading.sorts.order_at(view.as_of, orders).order_id,
        sort_orders=[sort_order_json(order) for order in orders],
        properties={**DEFAULT_PROPERTIES, **reading.properties},
        current_snapshot_id=current,
        snapshots=[_rendered(table, shown) for shown in listed],
        snapshot_log=_increasing([(shown.snapshot.timestamp_ms, shown.snapshot.id) for shown in listed]),
        next_row_id=reading.next_row_id if version >= 3 else None,
    )


def render(described: TableMetadata) -> bytes:
    return orjson.dumps(metadata.table_metadata(described))


def refs_only(described: TableMetadata) -> TableMetadata:
    """With no other snapshots than those that a ref names."""
    named = {described.current_snapshot_id, *(ref.snapshot_id for ref in described.refs.values())}
    return replace(described, snapshots=[s for s in described.snapshots if _id(s) in named])


def at_snapshot(described: TableMetadata, snapshot_id: int) -> TableMetadata | None:
    """As if this snapshot of the lake, or the table's last before it, were the newest; None if there is none."""
    kept = [s for s in described.snapshots if _id(s) <= snapshot_id]
    if not kept:
        return None
    last: Any = kept[-1]
    return replace(
        described,
        current_snapshot_id=_id(last),
        current_schema_id=last["schema-id"],
        snapshots=kept,
        snapshot_log=[(time, i) for time, i in described.snapshot_log if i <= snapshot_id],
    )


def earlier(described: TableMetadata, milliseconds: int) -> TableMetadata:
    """For a reader that takes nothing from the future and whose clock may be behind: all times are earlier."""
    return replace(
        described,
        last_updated_ms=described.last_updated_ms - milliseconds,
        snapshots=[{**_json(s), "timestamp-ms": _json(s)["timestamp-ms"] - milliseconds} for s in described.snapshots],
        snapshot_log=[(time - milliseconds, i) for time, i in described.snapshot_log],
        metadata_log=[(time - milliseconds, file) for time, file in described.metadata_log],
    )


def _json(snapshot: Any) -> dict[str, Any]:  # noqa: ANN401  (rendered JSON)
    return snapshot


def _id(snapshot: Any) -> int:  # noqa: ANN401  (rendered JSON)
    return snapshot["snapshot-id"]


def _increasing(log: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Snapshots of one millisecond are told apart: who goes by time takes the last one that is not later."""
    found: list[tuple[int, int]] = []
    for time, snapshot_id in log:
        found.append((max(time, found[-1][0] + 1) if found else time, snapshot_id))
    return found


def _rendered(table: Materialised, shown: Shown) -> dict[str, Any]:
    """Most of a history is the same as the last time."""
    snapshot_id, chain = shown.snapshot.id, table.chains[shown.snapshot.id]
    key = (shown.snapshot, chain.manifest_list, shown.parent.id if shown.parent else None, table.schema_id(shown))
    known = table.rendered.get(snapshot_id)
    if known is None or known[0] != key:
        json = snapshot_json(_snapshot(table, shown), table.reading.view.format_version)
        known = table.rendered[snapshot_id] = (key, json)
    return known[1]


def _snapshot(table: Materialised, shown: Shown) -> Snapshot:
    snapshot, chain = shown.snapshot, table.chains[shown.snapshot.id]
    told = {
        "ducklake.author": snapshot.author,
        "ducklake.commit-message": snapshot.message,
        "ducklake.commit-extra-info": snapshot.extra_info,
    }
    lineage = table.reading.view.format_version >= 3
    return Snapshot(
        snapshot_id=snapshot.id,
        parent_snapshot_id=shown.parent.id if shown.parent else None,
        sequence_number=snapshot.id,
        timestamp_ms=snapshot.timestamp_ms,
        manifest_list=chain.manifest_list,
        summary={
            # in one order: Postgres gives it back in another, and every process must write the same document
            **dict(sorted(chain.counts["summary"].items())),
            "ducklake.snapshot-id": str(snapshot.id),
            **{key: value for key, value in told.items() if value is not None},
        },
        schema_id=table.schema_id(shown),
        first_row_id=chain.counts["first-row-id"] if lineage else None,
        added_rows=chain.counts["added-rows"] if lineage else None,
    )
