"""Manifests written and read, against fastavro on the same records:  .venv/bin/python -m bench.manifests

The floor is plain fastavro, with what it needs already made: parsed schemas without logical types, dicts for writing.
It gives dicts when it reads, and objects are still to be made of them. Time is that of the process, and the best of
several runs, because machines are noisy.
"""

import gc
import random
import time
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import Any

import fastavro
import orjson

from mergus.iceberg import avro, manifest
from mergus.iceberg.manifest import ADDED, DataFile, Entry, PartitionField

RUNS = 5
PARTITION = (PartitionField("day", 1000, "int"),)
LEVELS = (1, 4, 6, 9)


def entries(count: int, columns: int) -> list[Entry]:
    """Files with every statistic that DuckLake keeps: half of the columns are numbers, and half are text."""
    chance = random.Random(7)
    found: list[Entry] = []
    ids = range(1, columns + 1)
    for i in range(count):
        rows = chance.randint(1_000, 1_000_000)
        low = [chance.randint(0, 1_000_000) for _ in ids]
        file = DataFile(
            content=0,
            file_path=f"s3://lake/data/main/events/day={i // 10}/ducklake-{chance.randbytes(16).hex()}.parquet",
            file_format="PARQUET",
            partition=(i // 10,),
            record_count=rows,
            file_size_in_bytes=rows * 50,
            column_sizes={k: chance.randint(100, 4_000_000) for k in ids},
            value_counts=dict.fromkeys(ids, rows),
            null_value_counts={k: chance.choice((0, chance.randint(0, rows))) for k in ids},
            lower_bounds={k: bound(k, x) for k, x in zip(ids, low, strict=True)},
            upper_bounds={k: bound(k, x + rows) for k, x in zip(ids, low, strict=True)},
        )
        found.append(Entry(ADDED, None, None, None, file))
    return found


def bound(column: int, value: int) -> bytes:
    return value.to_bytes(8, "little") if column % 2 else f"name {value}".encode()


def written(found: list[Entry]) -> bytes:
    fields = [{"id": i, "name": f"column{i}", "required": False, "type": "long"} for i in range(1, 21)]
    return manifest.write(
        found,
        schema_json={"type": "struct", "schema-id": 0, "fields": fields},
        schema_id=0,
        spec_json=[{"source-id": 1, "field-id": 1000, "name": "day", "transform": "day"}],
        spec_id=0,
        partition_types=PARTITION,
        content="data",
        format_version=3,
    )


def microseconds(work: Callable[[], object], entries: int) -> float:
    """Of an entry."""
    best = float("inf")
    for _ in range(RUNS):
        gc.collect()
        start = time.process_time()
        for _ in range(max(1, 1000 // entries)):
            work()
        best = min(best, (time.process_time() - start) / max(1, 1000 // entries))
    return best / entries * 1e6


def without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_logical_types(x) for x in schema]
    if isinstance(schema, dict):
        return {k: without_logical_types(v) for k, v in schema.items() if k != "logicalType"}
    return schema


def floor_file(data: bytes) -> tuple[Any, list[Any], bytes]:
    """The schema as fastavro is fastest with it, the records of a manifest as dicts, and a file of them."""
    header: Any = fastavro.reader(BytesIO(data)).metadata
    schema = fastavro.parse_schema(without_logical_types(orjson.loads(header[avro.SCHEMA])))
    records = list(fastavro.reader(BytesIO(data), schema))
    return schema, records, floor_written(schema, records)


def floor_written(schema: Any, records: list[Any]) -> bytes:
    stream = BytesIO()
    fastavro.writer(stream, schema, records, codec="deflate", codec_compression_level=avro.LEVEL)
    return stream.getvalue()


def compression(found: list[Entry]) -> None:
    """Of the blocks of a manifest, level by level."""
    stream = BytesIO()
    schema, records, _ = floor_file(written(found))
    for one in records:
        fastavro.schemaless_writer(stream, schema, one)
    raw = stream.getvalue()
    blocks = [raw[i : i + avro.BLOCK_SIZE] for i in range(0, len(raw), avro.BLOCK_SIZE)]
    print(f"\n{'compression':<14}{'µs/entry':>10}{'bytes/entry':>13}")
    for level in LEVELS:
        packed = [zlib.compress(x, level, wbits=-15) for x in blocks]
        spent = microseconds(lambda level=level: [zlib.compress(x, level, wbits=-15) for x in blocks], len(found))
        print(f"{level:<14}{spent:>10.1f}{sum(map(len, packed)) / len(found):>13.0f}")
    print(f"{'none':<14}{0:>10}{len(raw) / len(found):>13.0f}")


def main() -> None:
    of_one = "".join(f" {x + ' µs':>9}{'fastavro':>9}{'ratio':>7}" for x in ("write", "read"))
    print(f"{'entries':>8}{'columns':>8}{of_one}")
    for columns in (5, 20):
        for count in (10, 1_000, 10_000):
            found = entries(count, columns)
            data = written(found)
            assert manifest.read(data)[1] == found
            schema, records, floor_data = floor_file(data)
            write = microseconds(lambda found=found: written(found), count)
            floor_write = microseconds(lambda s=schema, r=records: floor_written(s, r), count)
            read = microseconds(lambda data=data: manifest.read(data), count)
            floor_read = microseconds(lambda data=floor_data: list(fastavro.reader(BytesIO(data))), count)
            print(
                f"{count:>8,}{columns:>8} {write:>9.1f}{floor_write:>9.1f}{write / floor_write:>7.2f}"
                f" {read:>9.1f}{floor_read:>9.1f}{read / floor_read:>7.2f}"
            )
    compression(entries(2_000, 20))


if __name__ == "__main__":
    main()
