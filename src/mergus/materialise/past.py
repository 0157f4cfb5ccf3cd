"""A table as it was at an older snapshot of the lake, out of what is known of it now.

Chains are what they are, whoever looks at them from when; so the past is a matter of leaving out what came later:
snapshots, schemas, partitionings, sort orders, what main was. Properties, tags and statistics files have no history:
those of now are shown, as far as they are about snapshots that are listed, and so is the format version. Nothing else
depends on what came later, so it stays the same document for as long as DuckLake rewrites and expires nothing of it.
"""

from dataclasses import replace

from mergus.ducklake import places
from mergus.ducklake.columns import Columns, Unrepresentable
from mergus.ducklake.partitions import Given, Partitions
from mergus.ducklake.places import Places
from mergus.ducklake.sorts import Sorts
from mergus.errors import NoSuchTable, Unsupported
from mergus.iceberg.schema import Schema
from mergus.materialise.reading import TableReading, how_to_hide, schema_at, schemas_upto
from mergus.materialise.table import Materialised


def as_at(table: Materialised, at: int, updated_ms: int) -> Materialised:
    """As if that snapshot were the newest; `updated_ms` is when the table was last changed by then.

    Raises Unsupported if it cannot be shown, and NoSuchTable if it was not there.
    """
    reading = table.reading
    if not reading.view.table.was_there(at):
        raise NoSuchTable(f"The table did not exist at snapshot {at}")
    schema = _schema(reading, at)
    shown = [s for s in reading.shown if s.snapshot.id <= at]
    mains = [(since, main) for since, main in reading.mains if since.id <= at]
    own = [s.id for s in reading.known.snapshots if s.id <= at]
    if own and (not mains or mains[-1][0].id != own[-1]):
        raise Unsupported(f"At snapshot {at} the table cannot be shown as Iceberg: snapshot {own[-1]} is not listed")
    columns = replace(reading.view.columns, columns=[c for c in reading.view.columns.columns if c.span.begin <= at])
    parts = Partitions([p for p in reading.partitions.partitionings if p.span.begin <= at])
    kept = reading.kept
    then = replace(
        reading,
        shown=shown,
        mains=mains,
        kept=replace(kept, default_orders=[chosen for chosen in kept.default_orders if chosen[0] <= at]),
        schemas=schemas_upto([turn for turn in reading.timeline if turn[0] <= at], schema),
        partitions=parts,
        sorts=Sorts([s for s in reading.sorts.sorts if s.span.begin <= at]),
        view=replace(reading.view, as_of=at, columns=columns),
        updated_ms=updated_ms,
    )
    cut = replace(table, reading=then)
    placed = _places(cut, schema, columns, at)
    counts = [chain.counts for s in shown if (chain := table.chains.get(s.snapshot.id))]
    next_row_id = max((c["first-row-id"] + c["added-rows"] for c in counts), default=0)
    return replace(cut, reading=replace(then, view=replace(then.view, places=placed), next_row_id=next_row_id))


def is_there(table: Materialised) -> bool:
    """Whether the snapshot that main is has been made; the next call of whoever makes history may."""
    main = table.reading.main
    return main is None or table.chain_of(main) is not None


def _schema(reading: TableReading, at: int) -> Schema:
    try:
        schema = schema_at(reading.timeline, at)
        if (misfit := reading.examined.misfit_at(at)) is not None:
            raise misfit
    except Unrepresentable as e:
        raise Unsupported(f"At snapshot {at} the table cannot be shown as Iceberg: {e}{how_to_hide(e)}") from e
    return schema


def _places(cut: Materialised, schema: Schema, columns: Columns, at: int) -> Places:
    """Partition specs with the names of then: Java refuses a field that is called as another column is. Those that
    manifests name have the same numbers and fields whichever schema they are about."""
    reading, kept = cut.reading, cut.reading.kept
    specs = reading.partitions.specs(schema, columns, at, Given(kept.specs, kept.partitionings))
    in_path = {i: tuple(p.field.source_id for p in parts) for i, parts in reading.view.places.in_path.items()}
    then = places.places(specs, schema, columns, at, in_path)
    used = {i for s in cut.listed if (chain := cut.chain_of(s)) for i in chain.counts["specs"]}
    return then if all(then.spec(i).spec_id == i for i in used) else reading.view.places
