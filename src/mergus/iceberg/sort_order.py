"""Sort orders: by which columns writers sort, as the specification writes it in JSON.

An order is a wish to writers and a hint to readers; no reader trusts rows to be in it. Order 0 is that of no sorting,
and every table lists it.
"""

from dataclasses import dataclass
from typing import Any, Literal

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


def sort_order_json(order: SortOrder) -> dict[str, Any]:
    """Raises ValueError for what no table may have: order 0 sorts by nothing, and no other does."""
    if (order.order_id == UNSORTED.order_id) != (not order.fields):
        raise ValueError(f"Sort order {order.order_id} cannot have {len(order.fields)} fields")
    return {"order-id": order.order_id, "fields": [_field_json(f) for f in order.fields]}


def _field_json(field: SortField) -> dict[str, Any]:
    return {
        "transform": field.transform,
        "source-id": field.source_id,
        "direction": field.direction,
        "null-order": field.null_order,
    }
