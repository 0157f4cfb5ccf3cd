"""Sort orders: by which columns writers sort, as the specification writes it in JSON.

An order is a wish to writers and a hint to readers; no reader trusts rows to be in it. Order 0 is that of no sorting,
and every table lists it.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from mergus.iceberg.json_object import JsonObject, shown
from mergus.iceberg.schema import Schema
from mergus.iceberg.transforms import check_source, parse_transform, paths

Untyped: TypeAlias = Any

Direction = Literal["asc", "desc"]
NullOrder = Literal["nulls-first", "nulls-last"]


@dataclass(frozen=True, slots=True)
class SortField:
    source_id: int
    direction: Direction = "asc"
    null_order: NullOrder = "nulls-first"
    transform: str = "identity"


@dataclass(frozen=True, slots=True)
class SortOrder:
    order_id: int
    fields: tuple[SortField, ...]


UNSORTED = SortOrder(0, ())


def parse_sort_order(json: Untyped) -> SortOrder:
    """The inverse of `sort_order_json`; raises ValueError."""
    top = JsonObject(json, "Sort order")
    order = SortOrder(top.int32("order-id"), tuple(_parse_field(x) for x in top.parts("fields")))
    _check_id(order)
    return order


def check_sort_order(order: SortOrder, schema: Schema) -> None:
    """Raises ValueError for an order that a table with this schema cannot have."""
    fields = paths(schema)
    for field in order.fields:
        check_source(field.source_id, field.transform, fields, "Sort field")


def sort_order_json(order: SortOrder) -> dict[str, Any]:
    """Raises ValueError for what no table may have: order 0 sorts by nothing, and no other does."""
    _check_id(order)
    return {"order-id": order.order_id, "fields": [_field_json(f) for f in order.fields]}


def _field_json(field: SortField) -> dict[str, Any]:
    return {
        "transform": field.transform,
        "source-id": field.source_id,
        "direction": field.direction,
        "null-order": field.null_order,
    }


def _check_id(order: SortOrder) -> None:
    if (order.order_id == UNSORTED.order_id) != (not order.fields):
        raise ValueError(f"Sort order {order.order_id} cannot have {len(order.fields)} fields")


def _parse_field(json: JsonObject) -> SortField:
    field = json.named("Sort field")
    source_id, transform = parse_transform(field, "Sort field")
    return SortField(source_id, _direction(field), _null_order(field), transform)


def _direction(field: JsonObject) -> Direction:
    match field.text("direction"):
        case ("asc" | "desc") as found:
            return found
        case other:
            raise ValueError(f"Sort field has an unknown direction: {shown(other)}")


def _null_order(field: JsonObject) -> NullOrder:
    match field.text("null-order"):
        case ("nulls-first" | "nulls-last") as found:
            return found
        case other:
            raise ValueError(f"Sort field has an unknown null-order: {shown(other)}")
