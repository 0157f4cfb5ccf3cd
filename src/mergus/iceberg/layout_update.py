"""The schemas, partition specs and sort orders of a table while the updates of a commit are applied.

A commit speaks of what it adds by numbers of its own: manifests name the specs and orders that they were written with.
What the table has already is not added again, and its number there is told beside the client's. A number that means
another spec to the table than to the client is a conflict: somebody was faster, and the client has to load again. A
sort order gets another number then, since no file is read by it.

What the table has is parsed only when an update asks for it.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Final, Generic, TypeVar, cast

from mergus.errors import BadRequest, CommitFailed, Unsupported
from mergus.iceberg.metadata import TableMetadata
from mergus.iceberg.partition_spec import FIRST_FIELD_ID, PartitionSpec, parse_spec, with_field_ids
from mergus.iceberg.schema import Schema
from mergus.iceberg.schema_change import check_evolution
from mergus.iceberg.schema_parse import check_names, parse_schema
from mergus.iceberg.sort_order import UNSORTED, SortOrder, parse_sort_order
from mergus.iceberg.updates import LAST_ADDED, NO_ID

T = TypeVar("T", PartitionSpec, SortOrder)


class SchemaUpdate:
    """`named` are those that the commit adds, by its own numbers, whether the table had them or not."""

    def __init__(self, table: TableMetadata | None) -> None:
        self.added: list[Schema] = []
        self.removed: list[int] = []
        self.named: dict[int, Schema] = {}
        self._served = {} if table is None else {_id(json, "schema-id"): json for json in table.schemas}
        self._parsed: dict[int, Schema] = {}
        self._last_added: Schema | None = None
        self._last_column_id = 0 if table is None else table.last_column_id
        self.was = None if table is None else self._of_table(table.current_schema_id)
        self.current = self.was
        self._were_current: list[Schema] = []

    def _of_table(self, schema_id: int) -> Schema:
        if schema_id not in self._parsed:
            self._parsed[schema_id] = parse_schema(self._served[schema_id])
        return self._parsed[schema_id]

    @property
    def latest(self) -> Schema | None:
        """Which specs and sort orders are to fit. DuckDB makes a schema current at the very end."""
        return self._last_added or self.current

    def knows(self, schema_id: int) -> bool:
        return schema_id in self.named or schema_id in self._served

    def add(self, schema: Schema, schema_id: int | None) -> None:
        if not schema.fields:
            raise Unsupported("A table without columns is not supported: DuckDB has none")
        check_names(schema)
        _check_identifiers(schema)
        known = [*(self._of_table(i) for i in self._served), *self.added]
        equal = next((other for other in known if same_schema(other, schema)), None)
        if equal is None:
            self.added.append(schema)
        self._last_added = equal or schema
        if schema_id is not None:
            self.named[schema_id] = self._last_added
        if self.current is None:
            # the first of a new table is current, whether somebody says so or not
            self._make_current(schema)

    def set_current(self, schema_id: int, *, empty: bool) -> None:
        """`empty` says that there are no rows that the schema would have to fit: a table that is replaced may give a
        column that keeps its name and id any type."""
        wanted = self._last_added if schema_id == LAST_ADDED else self._find(schema_id)
        if wanted is None:
            raise BadRequest("Cannot set last added schema: no schema has been added")
        if self.current is not None and not empty:
            history = [*(self._of_table(i) for i in self._served), *self._were_current]
            check_evolution(self.current, wanted, self._last_column_id, history)
        self._make_current(wanted)

    def _make_current(self, schema: Schema) -> None:
        self._last_column_id = max(self._last_column_id, schema.highest_field_id)
        self.current = schema
        self._were_current.append(schema)

    def _find(self, schema_id: int) -> Schema:
        if schema_id in self.named:
            return self.named[schema_id]
        if schema_id not in self._served:
            raise BadRequest(f"Cannot set current schema to unknown schema: {schema_id}")
        return self._of_table(schema_id)

    def remove(self, ids: Iterable[int]) -> None:
        """Those that are not there are gone already."""
        for gone in ids:
            if gone in self.named:
                raise BadRequest(f"Schema {gone} cannot be added and removed by the same commit")
            if gone not in self._served:
                continue
            if self.current is not None and same_schema(self._of_table(gone), self.current):
                raise BadRequest(f"Cannot remove the current schema: {gone}")
            del self._served[gone]
            self.removed.append(gone)


class NumberedUpdate(Generic[T]):
    """Partition specs or sort orders."""

    def __init__(self, what: str, served: Callable[[], dict[int, T]], default: int | None) -> None:
        self.added: dict[int, T] = {}
        self.ids: dict[int, int] = {}
        self.removed: list[int] = []
        self.was = default
        self.default = default
        self._what = what
        self._read = served
        self._last_added: int | None = None

    @cached_property
    def known(self) -> dict[int, T]:
        """Of the table and of the commit."""
        return self._read()

    def free_id(self) -> int:
        return max([*self.known, *self.ids, -1]) + 1

    def add(self, number: int, thing: T) -> None:
        equal = next((i for i, other in self.known.items() if _meaning(other) == _meaning(thing)), None)
        if number != equal and (number in self.known or number in self.ids):
            raise CommitFailed(f"{self._what} {number} is another one already: load the table again")
        if equal is None:
            self.added[number] = self.known[number] = thing
        elif number != equal:
            self.ids[number] = equal
        self._last_added = number if equal is None else equal

    def is_taken(self, number: int, thing: T) -> bool:
        """Whether the table has another under this number, and not this one under any."""
        known = self.known.get(number)
        return known is not None and all(_meaning(other) != _meaning(thing) for other in self.known.values())

    def set_default(self, number: int) -> None:
        wanted = self._last_added if number == LAST_ADDED else self.ids.get(number, number)
        if wanted is None:
            raise BadRequest(f"Cannot set last added {self._what.lower()}: none has been added")
        if wanted != self.default and wanted not in self.known:
            raise BadRequest(f"Cannot set default to unknown {self._what.lower()}: {number}")
        self.default = wanted

    def remove(self, numbers: Iterable[int]) -> None:
        """Those that are not there are gone already."""
        for gone in numbers:
            if gone in self.added:
                raise BadRequest(f"{self._what} {gone} cannot be added and removed by the same commit")
            if gone == self.default:
                raise BadRequest(f"Cannot remove the default {self._what.lower()}: {gone}")
            if self.known.pop(gone, None) is not None:
                self.removed.append(gone)


class SpecUpdate(NumberedUpdate[PartitionSpec]):
    def __init__(self, table: TableMetadata | None) -> None:
        jsons = () if table is None else table.partition_specs
        super().__init__(
            "Partition spec",
            lambda: {spec.spec_id: spec for spec in map(parse_spec, jsons)},
            None if table is None else table.default_spec_id,
        )
        self._last_field_id: Final = FIRST_FIELD_ID - 1 if table is None else table.last_partition_id

    def add_spec(self, spec: PartitionSpec) -> None:
        last = max([self._last_field_id, *(f.field_id for s in self.added.values() for f in s.fields)])
        whole = with_field_ids(spec, self.known.values(), last)
        number = self.free_id() if spec.spec_id == NO_ID else spec.spec_id
        self.add(number, PartitionSpec(number, whole.fields))


class OrderUpdate(NumberedUpdate[SortOrder]):
    """Every table has the order of no sorting, one that is made as well."""

    def __init__(self, table: TableMetadata | None) -> None:
        jsons = () if table is None else table.sort_orders
        unsorted = {UNSORTED.order_id: UNSORTED}
        super().__init__(
            "Sort order",
            lambda: unsorted | {order.order_id: order for order in map(parse_sort_order, jsons)},
            UNSORTED.order_id if table is None else table.default_sort_order_id,
        )

    def add_order(self, order: SortOrder) -> None:
        number = order.order_id
        if self.is_taken(number, order):
            free = self.free_id()
            self.add(free, SortOrder(free, order.fields))
            self.ids[number] = free
        else:
            self.add(number, order)


def _check_identifiers(schema: Schema) -> None:
    """Iceberg has identifier fields that every row has, and the fields of a struct are shown as optional."""
    top = {field.id for field in schema.fields}
    nested = {f.id: (f, column) for column in schema.fields for f in column.walk() if f.id not in top}
    for field_id in schema.identifier_ids:
        if field_id in nested:
            field, column = nested[field_id]
            raise BadRequest(
                f"Identifier field {field_id} ({field.name}) is inside of column {column.name}: DuckDB does not keep "
                "NULLs out of the fields of a struct, so it cannot identify rows. Take it out of identifier-field-ids, "
                "or make it a column of its own"
            )


def same_schema(one: Schema, other: Schema) -> bool:
    return one.fields == other.fields and set(one.identifier_ids) == set(other.identifier_ids)


def _meaning(thing: PartitionSpec | SortOrder) -> tuple[object, ...]:
    """As Java compares them: ids of partition fields do not count."""
    if isinstance(thing, SortOrder):
        return thing.fields
    return tuple((field.source_id, field.name, field.transform) for field in thing.fields)


def _id(json: object, name: str) -> int:
    return cast(Mapping[str, Any], json)[name]
