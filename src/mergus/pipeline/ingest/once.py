"""An append that happens once: its snapshot's summary has a key that the table takes one commit of.

The server refuses a second commit of a key under the lock of its commit, and remembers keys longer than snapshots. So a
writer need not know whether it, or another one, has been here before.
"""

from typing import TYPE_CHECKING, Any

from mergus.annex.once import PROPERTY
from mergus.pipeline.job import Place, Table
from mergus.pipeline.session import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def append(place: Place, frame: "DataFrame", to: Table, key: str, **summary: Any) -> bool:  # noqa: ANN401
    """Whether this was the first time. `summary` goes into the snapshot's, under `ingest.`."""
    writer = frame.writeTo(place.sql_name(to)).option(f"snapshot-property.{PROPERTY}", key)
    for name, value in summary.items():
        writer = writer.option(f"snapshot-property.ingest.{name}", str(value))
    try:
        writer.append()
    except spark_errors() as e:
        if f"{PROPERTY}: {key} is in the table already" in str(e):
            return False
        raise
    return True


def is_in(place: Place, table: Table, key: str) -> bool:
    """Whether a snapshot of the table has it. One that is expired has not, and then `append` finds out."""
    return any(one["summary"].get(PROPERTY) == key for one in place.metadata(table).get("snapshots", []))
