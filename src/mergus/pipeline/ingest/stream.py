"""Files as they come: Spark's file source tells which are there, and its micro-batches are ingested as any files are.

The source is asked for names alone, never for content, so that a file is looked at for what it is when it comes: new
columns are added while the stream runs, and a corrupt file does not end it. The checkpoint is where Spark keeps what it
has told; whether a file is in is the ledger's to say, so a micro-batch that is told again changes nothing.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from mergus.errors import SetupError
from mergus.pipeline.canonical import SPARK
from mergus.pipeline.ingest import hadoop
from mergus.pipeline.ingest.hadoop import SourceFile, uri_of
from mergus.pipeline.ingest.job import Report, Wanted, ingest
from mergus.pipeline.job import Place, Run
from mergus.pipeline.session import message, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.streaming.query import StreamingQuery

# of the source of Spark's that opens no file if nobody asks for `content`
NAMES: Final = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"
# Spark forgets, and leaves out, what is older than the newest file by more than this: never
AGE: Final = "36500d"
LOOK_SECONDS: Final = 1


def stream(
    place: Place,
    wanted: Wanted,
    sources: Sequence[str],
    run: Run,
    report: Report,
    *,
    checkpoint: str,
    every: float | None,
    is_asked_to_end: Callable[[], bool],
) -> None:
    """All that is there, and then, if `every` so many seconds is given, what comes, until asked to end."""
    ingest(place, wanted, [], run, report)
    failures: list[Exception] = []

    def take(frame: "DataFrame", number: int) -> None:
        try:
            files = [_file(row) for row in frame.collect()]
            files = sorted(file for file in files if wanted.manner.format_of(file) is not None)
            run.say(f"micro-batch {number}: {len(files)} files")
            ingest(place, wanted, files, run, report)
        except Exception as e:
            failures.append(e)
            raise

    named = reduce(lambda a, b: a.union(b), [_names(place, wanted, source) for source in sources])
    trigger: dict[str, Any] = {"availableNow": True} if every is None else {"processingTime": f"{every} seconds"}
    writer = named.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint).trigger(**trigger)
    query = writer.start()
    try:
        _wait(query, is_asked_to_end)
    except spark_errors() as e:
        if failures:
            raise failures[0] from None
        raise SetupError(f"the stream has ended: {message(e)}") from None
    finally:
        query.stop()


def _names(place: Place, wanted: Wanted, source: str) -> "DataFrame":
    files = hadoop.listing(place.spark, source)
    bases = {file.base for file in files}
    is_directory = not hadoop.GLOB.search(source) and all(base is not None for base in bases)
    base = (
        f"CAST({SPARK.literal(next(iter(bases)) or '')} AS STRING)"
        if is_directory and bases
        else "CAST(NULL AS STRING)"
    )
    options = {"recursiveFileLookup": "true", "maxFileAge": AGE, "maxFilesPerTrigger": str(wanted.batch_files)}
    found = place.spark.readStream.format("binaryFile").schema(NAMES).options(**options).load(source)
    modified = "unix_millis(_metadata.file_modification_time)"
    return found.selectExpr("_metadata.file_path", "_metadata.file_size", f"{modified} modified", f"{base} base")


def _file(row: "Row") -> SourceFile:
    return SourceFile(row["modified"], uri_of(row["file_path"]), row["file_size"], row["base"])


def _wait(query: "StreamingQuery", is_asked_to_end: Callable[[], bool]) -> None:
    """Until it ends by itself; or, when asked to end, until what it is at is done."""
    while not query.awaitTermination(LOOK_SECONDS):
        if is_asked_to_end() and not query.status["isTriggerActive"]:
            return
