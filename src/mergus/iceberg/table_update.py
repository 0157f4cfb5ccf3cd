"""What a commit makes of a table: its updates, one after another, as Iceberg's own catalogs apply them.

The result says what is different at the end and nothing of how to get there, but for main, whose steps matter. What
makes no sense in itself is a BadRequest, what cannot be done here is Unsupported, and CommitFailed is what another
attempt can mend. Nothing is read or written.

Ids of snapshots, specs and sort orders may be the client's own; `spec_ids` and `order_ids` tell what the table calls
those that it had already. The ids of columns are those of the table.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from mergus.errors import BadRequest, Unsupported
from mergus.iceberg.layout_update import OrderUpdate, SchemaUpdate, SpecUpdate, same_schema
from mergus.iceberg.metadata import Json, Ref, TableMetadata
from mergus.iceberg.partition_spec import UNPARTITIONED, PartitionSpec, check_spec, parse_spec
from mergus.iceberg.ref_update import (
    NO_RETENTION,
    MainStep,
    RefUpdate,
    Statistics,
    partition_statistics_of,
    statistics_of,
)
from mergus.iceberg.schema import Schema
from mergus.iceberg.schema_parse import parse_schema
from mergus.iceberg.sort_order import UNSORTED, SortOrder, check_sort_order, parse_sort_order
from mergus.iceberg.transforms import VOID, check_source, paths
from mergus.iceberg.updates import (
    AddedSnapshot,
    AddSchema,
    AddSnapshot,
    AddSortOrder,
    AddSpec,
    AssignUuid,
    RemovePartitionStatistics,
    RemoveProperties,
    RemoveRef,
    RemoveSchemas,
    RemoveSnapshots,
    RemoveSpecs,
    RemoveStatistics,
    SetCurrentSchema,
    SetDefaultSortOrder,
    SetDefaultSpec,
    SetLocation,
    SetPartitionStatistics,
    SetProperties,
    SetRef,
    SetStatistics,
    Update,
    UpgradeFormatVersion,
)

FORMAT_VERSION: Final = "format-version"
FORMAT_VERSIONS: Final = (2, 3)

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class TableUpdate:
    """`creates` says that there was no table: then everything is new, and None or nothing is the default.

    `upgraded` says that a table gets another format version. `schema`, `default_spec`, `default_order`, `location` and
    `main_retention` are None where they stay as they are. `schema_ids` are the schemas that the commit names itself.
    """

    creates: bool
    uuid: str | None
    format_version: int
    upgraded: bool
    location: str | None
    set_properties: dict[str, str]
    removed_properties: list[str]
    schemas_added: list[Schema]
    schema: Schema | None
    schema_ids: dict[int, Schema]
    schemas_removed: list[int]
    specs_added: list[PartitionSpec]
    default_spec: int | None
    spec_ids: dict[int, int]
    specs_removed: list[int]
    orders_added: list[SortOrder]
    default_order: int | None
    order_ids: dict[int, int]
    main: list[MainStep]
    main_retention: Ref | None
    tags: dict[str, Ref]
    refs_removed: list[str]
    snapshots_removed: list[int]
    statistics: dict[int, Statistics]
    statistics_removed: list[int]
    partition_statistics: dict[int, Statistics]
    partition_statistics_removed: list[int]

    def schema_after(self, table: TableMetadata | None) -> Schema:
        if self.schema is not None or table is None:
            # `apply` takes no new table without one
            return cast(Schema, self.schema)
        return parse_schema(_found(table.schemas, "schema-id", table.current_schema_id))

    def schema_of(self, snapshot: AddedSnapshot, table: TableMetadata | None) -> Schema:
        """That a snapshot of the commit was written with."""
        if snapshot.schema_id is None:
            return self.schema_after(table)
        if table is None or snapshot.schema_id in self.schema_ids:
            return self.schema_ids[snapshot.schema_id]
        return parse_schema(_found(table.schemas, "schema-id", snapshot.schema_id))

    def specs_after(self, table: TableMetadata | None) -> dict[int, PartitionSpec]:
        """By every id that a manifest of the commit may name."""
        had = {} if table is None else {spec.spec_id: spec for spec in map(parse_spec, table.partition_specs)}
        specs = had | {spec.spec_id: spec for spec in self.specs_added}
        return specs | {local: specs[spec_id] for local, spec_id in self.spec_ids.items()}

    def default_spec_after(self, table: TableMetadata | None) -> PartitionSpec:
        default = self.default_spec if self.default_spec is not None or table is None else table.default_spec_id
        return UNPARTITIONED if default is None else self.specs_after(table)[default]

    def default_order_after(self, table: TableMetadata | None) -> SortOrder:
        had = () if table is None else map(parse_sort_order, table.sort_orders)
        orders = {order.order_id: order for order in [UNSORTED, *had, *self.orders_added]}
        default = self.default_order if self.default_order is not None or table is None else table.default_sort_order_id
        return UNSORTED if default is None else orders[default]

    @property
    def changes_nothing(self) -> bool:
        return not (
            self.creates
            or self.upgraded
            or self.location is not None
            or self.set_properties
            or self.removed_properties
            or self.schemas_added
            or self.schema is not None
            or self.schemas_removed
            or self.specs_added
            or self.default_spec is not None
            or self.specs_removed
            or self.orders_added
            or self.default_order is not None
            or self.main
            or self.main_retention is not None
            or self.tags
            or self.refs_removed
            or self.snapshots_removed
            or self.statistics
            or self.statistics_removed
            or self.partition_statistics
            or self.partition_statistics_removed
        )


def apply(table: TableMetadata | None, updates: Sequence[Update], *, format_version: int = 2) -> TableUpdate:
    """`table` is what it is now, with parts that are no `orjson.Fragment`s; None is one that the updates create, in
    `format_version` unless they say another."""
    # whatever follows a snapshot without a parent, what was there before is gone
    replaces = any(isinstance(u, AddSnapshot) and u.snapshot.parent_snapshot_id is None for u in updates)
    building = _Building(table, format_version, replaces)
    try:
        for update in updates:
            building.take(update)
        return building.result()
    except ValueError as error:
        raise BadRequest(str(error)) from error


class _Building:
    def __init__(self, table: TableMetadata | None, format_version: int, replaces: bool) -> None:
        self._table = table
        self._replaces = replaces
        self._uuid: str | None = None
        self._format_version = format_version if table is None else table.format_version
        # the first that a commit gives a new table may be lower than our default
        self._format_version_said = table is not None
        self._location = None if table is None else table.location.rstrip("/")
        self._properties: dict[str, str] = {} if table is None else dict(table.properties)
        self._schemas = SchemaUpdate(table)
        self._specs = SpecUpdate(table)
        self._orders = OrderUpdate(table)
        self._refs = RefUpdate(table)

    def take(self, update: Update) -> None:  # noqa: PLR0912 (one case for each of Iceberg's updates)
        match update:
            case AssignUuid(uuid):
                self._assign(uuid)
            case UpgradeFormatVersion(version):
                self._upgrade(version)
            case SetLocation(location):
                self._location = location
            case SetProperties(properties):
                self._set_properties(properties)
            case RemoveProperties(names):
                for name in names:
                    self._properties.pop(name, None)
            case AddSchema(schema, schema_id):
                self._schemas.add(schema, schema_id)
            case SetCurrentSchema(schema_id):
                self._schemas.set_current(schema_id, empty=self._replaces or self._refs.current is None)
            case RemoveSchemas(ids):
                self._schemas.remove(ids)
            case AddSpec(spec):
                check_spec(spec, self._schema("a partition spec"))
                self._specs.add_spec(spec)
            case SetDefaultSpec(spec_id):
                self._specs.set_default(spec_id)
            case RemoveSpecs(ids):
                self._specs.remove(ids)
            case AddSortOrder(order):
                check_sort_order(order, self._schema("a sort order"))
                self._orders.add_order(order)
            case SetDefaultSortOrder(order_id):
                self._orders.set_default(order_id)
            case AddSnapshot(snapshot):
                self._add_snapshot(snapshot)
            case RemoveSnapshots(ids):
                self._refs.remove_snapshots(ids)
            case SetRef(name, ref):
                self._refs.set(name, ref)
            case RemoveRef(name):
                self._refs.remove(name)
            case SetStatistics(snapshot_id, statistics):
                self._refs.statistics[self._known(snapshot_id)] = statistics
            case RemoveStatistics(snapshot_id):
                self._refs.statistics.pop(snapshot_id, None)
            case SetPartitionStatistics(snapshot_id, statistics):
                self._refs.partition_statistics[self._known(snapshot_id)] = statistics
            case RemovePartitionStatistics(snapshot_id):
                self._refs.partition_statistics.pop(snapshot_id, None)

    def _assign(self, uuid: str) -> None:
        had = self._uuid if self._table is None else self._table.table_uuid.lower()
        if had is not None and had != uuid:
            raise BadRequest(f"Cannot reassign UUID: table has {had}, and the commit says {uuid}")
        self._uuid = uuid

    def _upgrade(self, version: int) -> None:
        if version == 1 and self._table is None:
            # version 1 has no deletes, and DuckDB deletes rows: a table is upgraded when it is made
            version = FORMAT_VERSIONS[0]
        if self._format_version_said and version < self._format_version:
            raise BadRequest(f"Cannot downgrade v{self._format_version} table to v{version}")
        if version not in FORMAT_VERSIONS:
            raise Unsupported(
                f"Format version {version} is not supported. Tables are of version 2 or 3: say one of them in the "
                f"property {FORMAT_VERSION}, or leave it out"
            )
        self._format_version, self._format_version_said = version, True

    def _set_properties(self, properties: Mapping[str, str]) -> None:
        version = properties.get(FORMAT_VERSION)
        if version is not None:
            if self._table is not None:
                raise BadRequest(f"{FORMAT_VERSION} is no property of a table; upgrade-format-version changes it")
            if not (version.isascii() and version.isdecimal()):
                raise BadRequest(f"{FORMAT_VERSION} is 2 or 3, or 1, which becomes 2, and not {version}")
            self._upgrade(int(version))
        self._properties |= {name: value for name, value in properties.items() if name != FORMAT_VERSION}

    def _add_snapshot(self, snapshot: AddedSnapshot) -> None:
        self._schema("a snapshot")
        if snapshot.schema_id is not None and not self._schemas.knows(snapshot.schema_id):
            raise BadRequest(f"Snapshot {snapshot.snapshot_id} is of unknown schema {snapshot.schema_id}")
        self._refs.add(snapshot, self._format_version)

    def _schema(self, what: str) -> Schema:
        if self._schemas.latest is None:
            raise BadRequest(f"Attempting to add {what} before a schema is added")
        return self._schemas.latest

    def _known(self, snapshot_id: int) -> int:
        if not self._refs.knows(snapshot_id):
            raise BadRequest(f"Cannot set statistics of unknown snapshot: {snapshot_id}")
        return snapshot_id

    def result(self) -> TableUpdate:
        table, schemas, specs, orders, refs = self._table, self._schemas, self._specs, self._orders, self._refs
        if schemas.current is None:
            raise BadRequest("The commit creates a table, and adds no schema")
        self._check_version()
        self._check_layout(schemas.current)
        refs.check()
        new_properties, no_properties = _net({} if table is None else table.properties, self._properties)
        tags, no_refs = _net({} if table is None else table.refs, refs.refs)
        statistics, no_statistics = _net(statistics_of(table), refs.statistics)
        of_partitions, none_of_partitions = _net(partition_statistics_of(table), refs.partition_statistics)
        was_at = None if table is None else table.location.rstrip("/")
        retained = NO_RETENTION if table is None else table.main_retention
        return TableUpdate(
            creates=table is None,
            uuid=self._uuid if table is None else None,
            format_version=self._format_version,
            upgraded=table is not None and table.format_version != self._format_version,
            location=None if self._location == was_at else self._location,
            set_properties=new_properties,
            removed_properties=no_properties,
            schemas_added=schemas.added,
            schema=None if schemas.was and same_schema(schemas.was, schemas.current) else schemas.current,
            schema_ids=schemas.named,
            schemas_removed=schemas.removed,
            specs_added=list(specs.added.values()),
            default_spec=None if specs.default == specs.was else specs.default,
            spec_ids=specs.ids,
            specs_removed=specs.removed,
            orders_added=list(orders.added.values()),
            default_order=None if orders.default == orders.was else orders.default,
            order_ids=orders.ids,
            main=refs.main,
            main_retention=None if refs.retention == retained else refs.retention,
            tags=tags,
            refs_removed=no_refs,
            snapshots_removed=refs.removed,
            statistics=statistics,
            statistics_removed=no_statistics,
            partition_statistics=of_partitions,
            partition_statistics_removed=none_of_partitions,
        )

    def _check_version(self) -> None:
        version = self._format_version
        needed = max((schema.format_version for schema in self._schemas.added), default=version)
        if needed > version:
            raise BadRequest(f"The schema needs a table of format version {needed}, and this one is of {version}")

    def _check_layout(self, schema: Schema) -> None:
        """A column that the table is partitioned or sorted by cannot go."""
        specs, orders = self._specs, self._orders
        if schema is self._schemas.was and specs.default == specs.was and orders.default == orders.was:
            return
        fields = paths(schema)
        for field in () if specs.default is None else specs.known[specs.default].fields:
            if field.transform != VOID:
                check_source(field.source_id, field.transform, fields, f"Partition field {field.name}")
        check_sort_order(orders.known[orders.default or UNSORTED.order_id], schema)


def _net(before: Mapping[K, V], after: Mapping[K, V]) -> tuple[dict[K, V], list[K]]:
    """What is set to something else than before, and what is gone."""
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    return changed, [key for key in before if key not in after]


def _found(listed: Iterable[Json], name: str, wanted: int) -> Mapping[str, Any]:
    return next(json for json in cast(Iterable[Mapping[str, Any]], listed) if json[name] == wanted)
