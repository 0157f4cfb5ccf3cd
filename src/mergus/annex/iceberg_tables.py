"""What of an Iceberg table DuckLake has no room for: the order of fields, specs and sort orders as clients wrote them,
tags, statistics files, a location of its own.

`read` is one query, since every load asks. Everything is written inside a commit, or with the epoch raised where no
snapshot tells that the table looks different.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson
from psycopg.types.json import Jsonb

from mergus.ducklake.connect import Conn
from mergus.ducklake.partitions import GivenSpec
from mergus.iceberg.metadata import MAIN, Ref
from mergus.iceberg.partition_spec import PartitionSpec, parse_spec, spec_json
from mergus.iceberg.schema import Schema, schema_json
from mergus.iceberg.schema_parse import parse_schema
from mergus.iceberg.sort_order import SortOrder, parse_sort_order, sort_order_json

Kind = Literal["statistics", "partition-statistics"]

READ: Final = """
    SELECT 'arrangement', begin_snapshot, NULL::bigint, schema, NULL::text FROM table_arrangement
    WHERE table_id = %(table_id)s
    UNION ALL SELECT 'spec', spec_id, since, fields, removed::text FROM table_spec WHERE table_id = %(table_id)s
    UNION ALL SELECT 'partitioning', partition_id, spec_id, NULL, NULL FROM table_partitioning
    WHERE table_id = %(table_id)s
    UNION ALL SELECT 'order', order_id, NULL, fields, NULL FROM table_sort_order WHERE table_id = %(table_id)s
    UNION ALL SELECT 'default order', begin_snapshot, order_id, NULL, NULL FROM table_default_order
    WHERE table_id = %(table_id)s
    UNION ALL SELECT 'ref', snapshot_id, NULL, name, retention::text FROM table_ref WHERE table_id = %(table_id)s
    UNION ALL SELECT 'removed', snapshot_id, NULL, NULL, NULL FROM removed_snapshot WHERE table_id = %(table_id)s
    UNION ALL SELECT kind, snapshot_id, NULL, content, NULL FROM table_statistics WHERE table_id = %(table_id)s
    UNION ALL SELECT 'location', NULL, NULL, location, NULL FROM table_location WHERE table_id = %(table_id)s
    UNION ALL SELECT 'schema', schema_id, listed::int, fields, NULL FROM table_schema
    WHERE table_id = %(table_id)s AND listed IS NOT NULL
    ORDER BY 1, 2
"""

ADD_ARRANGEMENT: Final = "INSERT INTO table_arrangement VALUES (%(table_id)s, %(snapshot_id)s, %(schema)s)"
LIST_SCHEMA: Final = """
    UPDATE table_schema SET listed = %(listed)s WHERE table_id = %(table_id)s AND schema_id = %(schema_id)s
"""
ADD_SPEC: Final = """
    INSERT INTO table_spec (table_id, spec_id, since, fields)
    VALUES (%(table_id)s, %(spec_id)s, %(since)s, %(fields)s)
"""
# one of DuckLake's own has no row yet, and needs none but for this
REMOVE_SPEC: Final = """
    INSERT INTO table_spec (table_id, spec_id, since, fields, removed)
    VALUES (%(table_id)s, %(spec_id)s, %(spec_id)s, '[]', true)
    ON CONFLICT (table_id, spec_id) DO UPDATE SET removed = true
"""
ADD_PARTITIONING: Final = "INSERT INTO table_partitioning VALUES (%(table_id)s, %(partition_id)s, %(spec_id)s)"
ADD_ORDER: Final = "INSERT INTO table_sort_order VALUES (%(table_id)s, %(order_id)s, %(fields)s)"
SET_DEFAULT_ORDER: Final = """
    INSERT INTO table_default_order VALUES (%(table_id)s, %(snapshot_id)s, %(order_id)s)
    ON CONFLICT (table_id, begin_snapshot) DO UPDATE SET order_id = excluded.order_id
"""
SET_REF: Final = """
    INSERT INTO table_ref VALUES (%(table_id)s, %(name)s, %(snapshot_id)s, %(retention)s)
    ON CONFLICT (table_id, name) DO UPDATE SET snapshot_id = excluded.snapshot_id, retention = excluded.retention
"""
REMOVE_REF: Final = "DELETE FROM table_ref WHERE table_id = %(table_id)s AND name = %(name)s"
REMOVED_SNAPSHOTS: Final = """
    SELECT snapshot_id FROM removed_snapshot JOIN ducklake_snapshot USING (snapshot_id) WHERE table_id = %(table_id)s
"""
REMOVE_SNAPSHOT: Final = """
    INSERT INTO removed_snapshot VALUES (%(table_id)s, %(snapshot_id)s) ON CONFLICT DO NOTHING
"""
SET_STATISTICS: Final = """
    INSERT INTO table_statistics VALUES (%(table_id)s, %(kind)s, %(snapshot_id)s, %(content)s)
    ON CONFLICT (table_id, kind, snapshot_id) DO UPDATE SET content = excluded.content
"""
REMOVE_STATISTICS: Final = """
    DELETE FROM table_statistics WHERE table_id = %(table_id)s AND kind = %(kind)s AND snapshot_id = %(snapshot_id)s
"""
SET_LOCATION: Final = """
    INSERT INTO table_location VALUES (%(table_id)s, %(location)s)
    ON CONFLICT (table_id) DO UPDATE SET location = excluded.location
"""
COPY_COMMITTED_FILES: Final = "COPY committed_file (data_file_id, spec_id, partition, sort_order_id) FROM STDIN"

LOCATIONS: Final = """
    SELECT place FROM (
        SELECT table_id, location AS place FROM table_location
        UNION ALL SELECT table_id, value FROM table_property WHERE key = ANY(%(keys)s)
    ) AS chosen JOIN ducklake_table USING (table_id)
    WHERE end_snapshot IS NULL AND table_id IS DISTINCT FROM %(except_for)s
"""
# Of tables that were dropped, as long as a snapshot has them.
REMEMBERED: Final = """
    SELECT DISTINCT place FROM (
        SELECT table_id, location AS place FROM table_location
        UNION ALL SELECT table_id, value FROM table_property WHERE key = ANY(%(keys)s)
    ) AS chosen
    WHERE table_id IS DISTINCT FROM %(except_for)s
      AND EXISTS (SELECT FROM ducklake_table t WHERE t.table_id = chosen.table_id)
      AND NOT EXISTS (SELECT FROM ducklake_table t WHERE t.table_id = chosen.table_id AND t.end_snapshot IS NULL)
"""


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """Snapshots are the lake's."""

    # oldest first
    arrangements: Sequence[tuple[int, Schema]] = ()
    specs: Mapping[int, GivenSpec] = field(default_factory=dict[int, GivenSpec])
    removed_specs: frozenset[int] = frozenset()
    # the spec that a partitioning of DuckLake's was made for
    partitionings: Mapping[int, int] = field(default_factory=dict[int, int])
    orders: Mapping[int, SortOrder] = field(default_factory=dict[int, SortOrder])
    default_orders: Sequence[tuple[int, int]] = ()
    # main is here for its retention alone
    refs: Mapping[str, Ref] = field(default_factory=dict[str, Ref])
    removed_snapshots: frozenset[int] = frozenset()
    statistics: Mapping[int, str] = field(default_factory=dict[int, str])
    partition_statistics: Mapping[int, str] = field(default_factory=dict[int, str])
    location: str | None = None
    # by their fields
    schemas_listed: frozenset[str] = frozenset()
    schemas_unlisted: frozenset[str] = frozenset()


async def read(conn: Conn, table_id: int) -> IcebergTable:
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for what, *row in await (await conn.execute(READ, {"table_id": table_id})).fetchall():
        rows.setdefault(what, []).append(tuple(row))

    def of(what: str) -> list[tuple[Any, ...]]:
        return rows.get(what, [])

    return IcebergTable(
        arrangements=[(since, parse_schema(orjson.loads(schema))) for since, _, schema, _ in of("arrangement")],
        specs={
            i: GivenSpec(parse_spec({"spec-id": i, "fields": loaded}), since)
            for i, since, fields, _ in of("spec")
            if (loaded := orjson.loads(fields))
        },
        removed_specs=frozenset(i for i, _, _, removed in of("spec") if removed == "true"),
        partitionings={partition_id: spec_id for partition_id, spec_id, *_ in of("partitioning")},
        orders={
            i: parse_sort_order({"order-id": i, "fields": orjson.loads(fields)}) for i, _, fields, _ in of("order")
        },
        default_orders=[(since, order_id) for since, order_id, *_ in of("default order")],
        refs={name: _ref(name, snapshot_id, retention) for snapshot_id, _, name, retention in of("ref")},
        removed_snapshots=frozenset(i for i, *_ in of("removed")),
        statistics={i: content for i, _, content, _ in of("statistics")},
        partition_statistics={i: content for i, _, content, _ in of("partition-statistics")},
        location=next((location for _, _, location, _ in of("location")), None),
        schemas_listed=frozenset(fields for _, listed, fields, _ in of("schema") if listed),
        schemas_unlisted=frozenset(fields for _, listed, fields, _ in of("schema") if not listed),
    )


def _ref(name: str, snapshot_id: int | None, retention: str) -> Ref:
    kept = {key.replace("-", "_"): value for key, value in orjson.loads(retention).items()}
    return Ref(-1 if snapshot_id is None else snapshot_id, "branch" if name == MAIN else "tag", **kept)


async def arrange(conn: Conn, table_id: int, snapshot_id: int, schema: Schema) -> None:
    text = orjson.dumps(schema_json(schema, 0)).decode()
    await conn.execute(ADD_ARRANGEMENT, {"table_id": table_id, "snapshot_id": snapshot_id, "schema": text})


async def list_schema(conn: Conn, table_id: int, schema_id: int, *, listed: bool) -> None:
    await conn.execute(LIST_SCHEMA, {"table_id": table_id, "schema_id": schema_id, "listed": listed})


async def add_spec(conn: Conn, table_id: int, spec: PartitionSpec, since: int) -> None:
    fields = orjson.dumps(spec_json(spec)["fields"]).decode()
    await conn.execute(ADD_SPEC, {"table_id": table_id, "spec_id": spec.spec_id, "since": since, "fields": fields})


async def remove_spec(conn: Conn, table_id: int, spec_id: int) -> None:
    await conn.execute(REMOVE_SPEC, {"table_id": table_id, "spec_id": spec_id})


async def add_partitioning(conn: Conn, table_id: int, partition_id: int, spec_id: int) -> None:
    key = {"table_id": table_id, "partition_id": partition_id, "spec_id": spec_id}
    await conn.execute(ADD_PARTITIONING, key)


async def add_order(conn: Conn, table_id: int, order: SortOrder) -> None:
    fields = orjson.dumps(sort_order_json(order)["fields"]).decode()
    await conn.execute(ADD_ORDER, {"table_id": table_id, "order_id": order.order_id, "fields": fields})


async def set_default_order(conn: Conn, table_id: int, snapshot_id: int, order_id: int) -> None:
    key = {"table_id": table_id, "snapshot_id": snapshot_id, "order_id": order_id}
    await conn.execute(SET_DEFAULT_ORDER, key)


async def set_ref(conn: Conn, table_id: int, name: str, snapshot_id: int | None, retention: Mapping[str, int]) -> None:
    key = {"table_id": table_id, "name": name, "snapshot_id": snapshot_id, "retention": Jsonb(dict(retention))}
    await conn.execute(SET_REF, key)


async def remove_ref(conn: Conn, table_id: int, name: str) -> None:
    await conn.execute(REMOVE_REF, {"table_id": table_id, "name": name})


async def removed_snapshots(conn: Conn, table_id: int) -> frozenset[int]:
    """Those that the table does not list any more, and the lake has."""
    found = await conn.execute(REMOVED_SNAPSHOTS, {"table_id": table_id})
    return frozenset(row[0] for row in await found.fetchall())


async def remove_snapshot(conn: Conn, table_id: int, snapshot_id: int) -> None:
    await conn.execute(REMOVE_SNAPSHOT, {"table_id": table_id, "snapshot_id": snapshot_id})


async def set_statistics(conn: Conn, table_id: int, kind: Kind, snapshot_id: int, content: str | None) -> None:
    """None removes them."""
    key = {"table_id": table_id, "kind": kind, "snapshot_id": snapshot_id, "content": content}
    await conn.execute(REMOVE_STATISTICS if content is None else SET_STATISTICS, key)


async def set_location(conn: Conn, table_id: int, location: str) -> None:
    await conn.execute(SET_LOCATION, {"table_id": table_id, "location": location})


async def place_files(conn: Conn, places: Iterable[tuple[int, int, Mapping[str, Any], int]]) -> None:
    """Data file id, spec id, the values of its fields by their ids, and sort order id of each file that a client
    committed."""
    async with conn.cursor() as cursor, cursor.copy(COPY_COMMITTED_FILES) as copy:
        for data_file_id, spec_id, partition, sort_order_id in places:
            await copy.write_row((data_file_id, spec_id, orjson.dumps(partition).decode(), sort_order_id))


async def locations(conn: Conn, except_for: int | None, keys: Sequence[str]) -> list[str]:
    """That other tables have of their own. `keys` are properties that name some."""
    found = await conn.execute(LOCATIONS, {"except_for": except_for, "keys": list(keys)})
    return [row[0] for row in await found.fetchall()]


async def remembered(conn: Conn, except_for: int | None, keys: Sequence[str]) -> list[str]:
    """That dropped tables have of their own, which may come back."""
    found = await conn.execute(REMEMBERED, {"except_for": except_for, "keys": list(keys)})
    return [row[0] for row in await found.fetchall()]
