"""The tables of an example, as far as statements about them need to know, and what each was at each snapshot."""

from dataclasses import dataclass, field
from typing import Final

from tests.machine.iceberg_view import Rows

# A value of each type for an integer x; NULL now and then where the column takes it. Few dates and texts: they
# partition. No dates in the struct, no quotes in its text: DuckDB cannot read such inlined rows itself (N§10).
VALUES: Final = {
    "SMALLINT": "(x % 100)::SMALLINT",
    "INTEGER": "x::INTEGER",
    "BIGINT": "x::BIGINT",
    "FLOAT": "(x / 4)::FLOAT",
    "DOUBLE": "(x / 4)::DOUBLE",
    "DECIMAL(9,2)": "(x / 4)::DECIMAL(9,2)",
    "VARCHAR": "('s' || (x % 3))",
    "BOOLEAN": "(x % 2 = 0)",
    "DATE": "(DATE '2019-12-30' + (x % 4)::INTEGER)",
    "TIMESTAMP": "(TIMESTAMP '2019-12-31 22:30:00' + INTERVAL (x % 4) HOUR)",
    "INTEGER[]": "[x::INTEGER, NULL]",
    "STRUCT(p INTEGER, q VARCHAR)": "{'p': x::INTEGER, 'q': 'q' || (x % 3)}",
}
# ADD COLUMN takes nothing but plain literals (N§10).
DEFAULTS: Final = {"INTEGER": "7", "BIGINT": "8", "VARCHAR": "'given'", "DOUBLE": "0.5", "DECIMAL(9,2)": "1.25"}
WIDER: Final = {"SMALLINT": "INTEGER", "INTEGER": "BIGINT", "FLOAT": "DOUBLE"}


@dataclass(slots=True)
class Column:
    name: str
    type: str
    nullable: bool = True

    def value(self, with_nulls: bool) -> str:
        given = VALUES[self.type]
        return f"CASE WHEN x % 5 = 3 THEN NULL ELSE {given} END" if with_nulls and self.nullable else given


@dataclass(slots=True)
class Model:
    """A table as far as statements about it need to know, and what it was at each snapshot when that was the newest."""

    schema: str
    name: str
    id: int
    begin: int
    columns: list[Column]
    # what it was called from each snapshot on
    names: dict[int, str]
    limit: int = 10
    # snapshots that added a column with a default
    reshaped: set[int] = field(default_factory=set[int])
    # snapshots that put the table back to what it was: Iceberg has no snapshot for them
    restored: set[int] = field(default_factory=set[int])
    noted: dict[int, Rows] = field(default_factory=dict[int, Rows])
    # rows that were read, by what they were read from
    read: dict[tuple[str, str], Rows] = field(default_factory=dict[tuple[str, str], Rows])

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    def name_at(self, snapshot_id: int) -> str:
        return f"{self.schema}.{self.names[max(i for i in self.names if i <= snapshot_id)]}"

    def select(self, start: int, count: int, with_nulls: bool) -> str:
        values = ", ".join(c.value(with_nulls) for c in self.columns)
        return f"SELECT {values} FROM range({start}, {start + count}) r(x)"

    def partition_keys(self) -> list[str]:
        """What it may be partitioned by; nothing is one of them."""
        keys = ["", "bucket(3, k)"]
        for c in self.columns:
            year, month, day, hour = (f"{part}({c.name})" for part in ("year", "month", "day", "hour"))
            match c.type:
                case "VARCHAR":
                    keys += [c.name, f"{c.name}, bucket(2, k)", f"bucket(2, {c.name})"]
                case "DATE":
                    keys += [c.name, year, month, f"{year}, {month}", f"{year}, {month}, {day}"]
                case "TIMESTAMP":
                    keys += [day, f"{year}, {month}, {day}", f"{year}, {month}, {day}, {hour}"]
                case "BOOLEAN":
                    keys.append(c.name)
                case _:
                    pass
        return keys

    def noted_by(self, snapshot_id: int) -> Rows | None:
        """As it was at the snapshot, or at the last that changed it before."""
        found = max((i for i in self.noted if i <= snapshot_id), default=None)
        return None if found is None else self.noted[found]
