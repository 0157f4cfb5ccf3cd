"""Whether the two worlds hold the same rows of a table at a snapshot, and which ones differ.

Each side computes a count of rows, and for every column a count of values and a checksum (canonical.py), in one scan of
its own engine: nothing but sums travels. Only if those differ are rows looked at: by the first digits of their hashes
the differing ones are found in a few groups, and only those groups' rows are fetched.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mergus.iceberg.schema import Schema
from mergus.pipeline.canonical import Dialect

# Hexadecimal digits by which rows are grouped: 4096 groups.
DIGITS: Final = 3
# Groups whose rows are fetched: of a table that is wholly different, a few show as much as all.
MOST_GROUPS: Final = 64


@dataclass(frozen=True)
class Side:
    """One engine's view of a table at a snapshot: `source` is what stands in its FROM."""

    dialect: Dialect
    source: str
    ask: Callable[[str], list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Sums:
    """Of a table: rows, a checksum of rows, and of each column its values (not nulls) and their checksum."""

    rows: int
    checksum: int
    columns: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Difference:
    """A row that one side has more often than the other."""

    only_in: str
    times: int
    row: dict[str, str | None]


@dataclass(frozen=True)
class Compared:
    duckdb: Sums
    spark: Sums
    differences: list[Difference] = field(default_factory=list[Difference])

    @property
    def is_equal(self) -> bool:
        return self.duckdb == self.spark

    @property
    def columns(self) -> list[str]:
        """Those that differ."""
        ours, theirs = self.duckdb.columns, self.spark.columns
        return [name for name in ours if ours[name] != theirs.get(name)]


def compare(duckdb: Side, spark: Side, schema: Schema, most: int) -> Compared:
    """With so many rows at most of those that differ."""
    ours, theirs = sums(duckdb, schema), sums(spark, schema)
    found = Compared(ours, theirs)
    if not found.is_equal and most:
        found.differences.extend(_different(duckdb, spark, schema, most))
    return found


def sums(side: Side, schema: Schema) -> Sums:
    dialect = side.dialect
    names = [f"c{n}" for n in range(len(schema.fields))]
    asked = ["count(*)", dialect.checksum("r")]
    for name in names:
        asked += [f"count({name})", dialect.checksum(name)]
    texts = [dialect.text(dialect.identifier(f.name), f.type) for f in schema.fields]
    inner = _texts({"r": dialect.row(schema), **dict(zip(names, texts, strict=True))})
    ((rows, checksum, *columns),) = side.ask(f"SELECT {', '.join(asked)} FROM (SELECT {inner} FROM {side.source}) x")
    pairs = zip(map(int, columns[::2]), map(int, columns[1::2]), strict=True)
    return Sums(int(rows), int(checksum), dict(zip((f.name for f in schema.fields), pairs, strict=True)))


def _texts(named: dict[str, str]) -> str:
    """In a query of their own: Spark does not know that they are the same each time, and aggregates nothing such."""
    return ", ".join(f"{text} AS {name}" for name, text in named.items())


def _different(duckdb: Side, spark: Side, schema: Schema, most: int) -> Iterator[Difference]:
    groups = [_groups(side, schema) for side in (duckdb, spark)]
    names = sorted(name for name in {*groups[0], *groups[1]} if groups[0].get(name) != groups[1].get(name))
    counts = [_hashes(side, schema, names[:MOST_GROUPS]) for side in (duckdb, spark)]
    for name, side, mine, others in (("duckdb", duckdb, *counts), ("spark", spark, *counts[::-1])):
        more = sorted((mine - others).items())[:most]
        rows = _rows(side, schema, [hashed for hashed, _ in more])
        yield from (Difference(name, times, rows[hashed]) for hashed, times in more)


def _groups(side: Side, schema: Schema) -> dict[str, tuple[int, int]]:
    query = f"""SELECT substring(md5(r), 1, {DIGITS}), count(*), {side.dialect.checksum("r")}
                FROM (SELECT {side.dialect.row(schema)} AS r FROM {side.source}) x GROUP BY 1"""
    return {name: (int(rows), int(checksum)) for name, rows, checksum in side.ask(query)}


def _hashes(side: Side, schema: Schema, groups: Sequence[str]) -> Counter[str]:
    if not groups:
        return Counter()
    query = f"""SELECT h, count(*) FROM (SELECT md5({side.dialect.row(schema)}) AS h FROM {side.source}) x
                WHERE substring(h, 1, {DIGITS}) IN ({_listed(groups)}) GROUP BY 1"""
    return Counter({name: int(times) for name, times in side.ask(query)})


def _rows(side: Side, schema: Schema, hashes: Sequence[str]) -> dict[str, dict[str, str | None]]:
    """As texts: a difference may be in what a value is to one engine."""
    if not hashes:
        return {}
    dialect = side.dialect
    names = [f.name for f in schema.fields]
    texts = {f"c{n}": dialect.text(dialect.identifier(f.name), f.type) for n, f in enumerate(schema.fields)}
    inner = _texts({"h": f"md5({dialect.row(schema)})", **texts})
    query = f"SELECT DISTINCT * FROM (SELECT {inner} FROM {side.source}) x WHERE h IN ({_listed(hashes)})"
    return {one: dict(zip(names, values, strict=True)) for one, *values in side.ask(query)}


def _listed(texts: Sequence[str]) -> str:
    """Of hexadecimal digits."""
    return ", ".join(f"'{text}'" for text in texts)
