"""A materialised table as TableMetadata: what LoadTable answers and what metadata files hold."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from mergus.annex.chains import Chain
from mergus.ducklake.told import Committed
from mergus.iceberg import metadata
from mergus.iceberg.metadata import COUNTED, MAIN, Ref, Snapshot, TableMetadata, snapshot_json
from mergus.iceberg.partition_spec import spec_json
from mergus.iceberg.schema import Schema, schema_json
from mergus.iceberg.sort_order import sort_order_json
from mergus.materialise.reading import Shown, schema_of_text, schema_text
from mergus.materialise.table import Materialised

# The files are DuckLake's, and snapshots that Iceberg's clients do not list may need them. Spark's expire_snapshots,
# remove_orphan_files and PURGE look at this first. On S3 they may go on: clients are told to delete no object there
# (catalog/warehouse.py), and the server frees what nobody needs. On a disk nothing keeps a client from deleting.
GC_ENABLED: Final = "gc.enabled"
# A table that Iceberg's library makes says zstd; without a word, writers of Java take gzip, in three times the time.
CODEC: Final = "write.parquet.compression-codec"


def default_properties(location: str) -> dict[str, str]:
    """Of a table at this location."""
    return {GC_ENABLED: str(location.startswith("s3://")).lower(), CODEC: "zstd"}


def is_gc_enabled(properties: Mapping[str, str], location: str) -> bool:
    return properties.get(GC_ENABLED, default_properties(location)[GC_ENABLED]).strip().lower() == "true"


def location_of(table: Materialised) -> str:
    return table.reading.kept.location or str(table.reading.view.layout.directory)


def describe(table: Materialised) -> TableMetadata:
    """Without the log of earlier metadata files, which only whoever writes the next one knows."""
    reading, view = table.reading, table.reading.view
    listed, kept = table.listed, reading.kept
    used = {i for shown in listed if (chain := table.chain_of(shown)) for i in chain.counts["specs"]}
    orders = reading.sorts.orders(view.columns, reading.schema, kept.orders)
    ids = {shown.snapshot.id: shown.snapshot.iceberg_id for shown in listed}
    current = reading.main.snapshot.iceberg_id if reading.main and reading.main.snapshot.id in ids else None
    default_spec = view.places.specs.of_partitioning(reading.partitions.current(view.as_of))
    specs = view.places.listed({*used, default_spec.spec_id})
    version = view.format_version
    location = location_of(table)
    return TableMetadata(
        format_version=version,
        table_uuid=str(view.table.uuid),
        location=location,
        last_sequence_number=reading.shown[-1].snapshot.id if reading.shown else 0,
        last_updated_ms=reading.updated_ms,
        last_column_id=max((c.id for c in view.columns.columns), default=0),
        current_schema_id=table.schema_ids[schema_text(reading.schema)],
        schemas=[schema_json(schema, i, version) for i, schema in sorted(_schemas(table).items())],
        default_spec_id=default_spec.spec_id,
        partition_specs=[spec_json(s) for s in specs if s == default_spec or s.spec_id not in kept.removed_specs],
        # the specs of files without a column have fields of their own, which no client counts on
        last_partition_id=view.places.specs.last_field_id,
        default_sort_order_id=reading.sorts.default_order(view.as_of, orders, kept.default_orders).order_id,
        sort_orders=[sort_order_json(order) for order in orders],
        properties={**default_properties(location), **reading.properties},
        current_snapshot_id=current,
        snapshots=[_rendered(table, shown) for shown in listed],
        snapshot_log=_increasing(_log(table)) if current is not None else [],
        refs=_refs(table, ids),
        statistics=_statistics(kept.statistics, ids),
        partition_statistics=_statistics(kept.partition_statistics, ids),
        next_row_id=reading.next_row_id if version >= 3 else None,
        main_retention=kept.refs.get(MAIN, Ref(-1, "branch")),
    )


def render(described: TableMetadata) -> bytes:
    return orjson.dumps(metadata.table_metadata(described))


def refs_only(described: TableMetadata) -> TableMetadata:
    """With no other snapshots than those that a ref names."""
    named = {described.current_snapshot_id, *(ref.snapshot_id for ref in described.refs.values())}
    return replace(described, snapshots=[s for s in described.snapshots if _id(s) in named])


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


def _schemas(table: Materialised) -> dict[int, Schema]:
    """Those that the table has had, or a client added, but for what one removed and nothing needs."""
    reading, kept = table.reading, table.reading.kept
    needed = {shown.schema_text for shown in table.listed} | {schema_text(reading.schema)}
    texts = {schema_text(s): s for s in reading.schemas}
    found = {table.schema_ids[t]: s for t, s in texts.items() if t in needed or t not in kept.schemas_unlisted}
    return found | {table.schema_ids[t]: schema_of_text(t) for t in kept.schemas_listed if t not in texts}


def _log(table: Materialised) -> list[tuple[int, int]]:
    """What main was when."""
    found: list[tuple[int, int]] = []
    listed = {shown.snapshot.id for shown in table.listed}
    for at, main in table.reading.mains:
        if main is not None and main.snapshot.id in listed:
            found.append((at.timestamp_ms, main.snapshot.iceberg_id))
    return found


def _refs(table: Materialised, ids: Mapping[int, int]) -> dict[str, Ref]:
    """Those to snapshots that are listed. What is asked for about main's keeping goes with main."""
    refs = table.reading.kept.refs.items()
    return {name: replace(ref, snapshot_id=ids[ref.snapshot_id]) for name, ref in refs if ref.snapshot_id in ids}


def _statistics(kept: Mapping[int, str], ids: Mapping[int, int]) -> list[dict[str, Any]]:
    return [{**orjson.loads(text), "snapshot-id": ids[i]} for i, text in sorted(kept.items()) if i in ids]


def _increasing(log: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Snapshots of one millisecond are told apart: who goes by time takes the last one that is not later."""
    found: list[tuple[int, int]] = []
    for time, snapshot_id in log:
        found.append((max(time, found[-1][0] + 1) if found else time, snapshot_id))
    return found


def _rendered(table: Materialised, shown: Shown) -> dict[str, Any]:
    """Most of a history is the same as the last time."""
    snapshot_id, chain = shown.snapshot.id, _chain(table, shown)
    parent_id = shown.parent.iceberg_id if shown.parent else None
    key = (shown.snapshot, chain.manifest_list, parent_id, table.schema_id(shown))
    known = table.rendered.get(snapshot_id)
    if known is None or known[0] != key:
        json = snapshot_json(_snapshot(table, shown, chain), table.reading.view.format_version)
        known = table.rendered[snapshot_id] = (key, json)
    return known[1]


def _chain(table: Materialised, shown: Shown) -> Chain:
    chain = table.chain_of(shown)
    assert chain is not None  # noqa: S101  (only what is listed is rendered)
    return chain


def _snapshot(table: Materialised, shown: Shown, chain: Chain) -> Snapshot:
    snapshot = shown.snapshot
    # what it did itself, and not what putting it back did
    counts = table.chains.get(snapshot.id, chain).counts
    told = {"ducklake.author": snapshot.author, "ducklake.commit-message": snapshot.message}
    if isinstance(snapshot.told, Committed):
        # what is counted is counted by us: a client does not know of DuckLake's inlined rows, and what it says of a
        # lake is of another one
        told |= {k: v for k, v in snapshot.told.summary.items() if k not in COUNTED and not k.startswith("ducklake.")}
    else:
        told["ducklake.commit-extra-info"] = snapshot.extra_info
    lineage = table.reading.view.format_version >= 3
    return Snapshot(
        snapshot_id=snapshot.iceberg_id,
        parent_snapshot_id=shown.parent.iceberg_id if shown.parent else None,
        sequence_number=snapshot.id,
        timestamp_ms=snapshot.timestamp_ms,
        manifest_list=chain.manifest_list,
        summary={
            # in one order: Postgres gives it back in another, and every process must write the same document
            **dict(sorted(counts["summary"].items())),
            "ducklake.snapshot-id": str(snapshot.id),
            **{key: value for key, value in told.items() if value is not None and key != "operation"},
        },
        schema_id=table.schema_id(shown),
        first_row_id=counts["first-row-id"] if lineage else None,
        added_rows=counts["added-rows"] if lineage else None,
    )
