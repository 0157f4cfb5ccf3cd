"""The order of a schema's fields, and its identifier fields, as somebody has arranged them.

DuckLake orders columns by their ids and knows no identifier fields, so an arrangement is kept beside it: a whole schema
of which little else counts. It holds for whatever columns the table has later: new ones come last, and a field that
cannot identify rows any more does not. An initial default that a client gave a column is shown even if no file can be
older than the column: it never changes, and who asked for it expects it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from mergus.iceberg.schema import Field, List, Map, Schema, Struct

Ranks: TypeAlias = dict[int, tuple[int, Field]]


def arranged(schema: Schema, like: Schema) -> Schema:
    ranks = {field.id: (rank, field) for rank, field in enumerate(like.walk())}
    fields = _in_order(schema.fields, ranks)
    required = {field.id for field in fields if field.required}
    return Schema(fields, tuple(i for i in like.identifier_ids if i in required))


def _in_order(fields: Sequence[Field], ranks: Ranks) -> tuple[Field, ...]:
    last = len(ranks)
    return tuple(_below(f, ranks) for f in sorted(fields, key=lambda f: ranks[f.id][0] if f.id in ranks else last))


def _below(field: Field, ranks: Ranks) -> Field:
    like = ranks[field.id][1] if field.id in ranks else None
    if like is not None and field.initial_default is None and like.type == field.type:
        field = replace(field, initial_default=like.initial_default)
    match field.type:
        case Struct(fields):
            return replace(field, type=Struct(_in_order(fields, ranks)))
        case List(element):
            return replace(field, type=List(_below(element, ranks)))
        case Map(key, value):
            return replace(field, type=Map(_below(key, ranks), _below(value, ranks)))
        case _:
            return field
