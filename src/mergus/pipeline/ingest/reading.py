"""How files are read: format, options, and the schema that was decided on. It is written down with the batch, so that
whoever reads the files again, later or beside us, takes the same records for good and the same for bad.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote

from pyspark.sql.types import StringType, StructField, StructType

from mergus.errors import SetupError
from mergus.pipeline.canonical import SPARK
from mergus.pipeline.ingest.evolution import OURS
from mergus.pipeline.ingest.hadoop import SourceFile, drain, is_charset
from mergus.pipeline.session import message, rows, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

Files = Sequence[SourceFile]
T = TypeVar("T")

CORRUPT: Final = f"{OURS}corrupt"
# Spark does not parse records if it is asked for no column of theirs
NOTHING: Final = f"{OURS}nothing"
FORMATS: Final = {
    "parquet": (".parquet", ".parq", ".pq"),
    "csv": (".csv",),
    "json": (".json", ".jsonl", ".ndjson"),
}
COMPRESSED: Final = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate")
DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "parquet": {"mergeSchema": "true"},
    "csv": {"header": "true", "inferSchema": "true"},
    # a type that no value speaks for is not decided yet
    "json": {"dropFieldIfAllNull": "true"},
}
ALWAYS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": CORRUPT,
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
}
# samplingRatio: a column that was not looked at would be lost
NOT_OURS_TO_TAKE: Final = frozenset(
    map(str.lower, [*ALWAYS, "samplingRatio", "path", "basePath", "recursiveFileLookup"])
)


# what is wrong with a cluster or a store, and may be right the next time
NOT_THE_FILE: Final = re.compile(
    "OutOfMemory|NoClassDefFound|ClassNotFound|AccessDenied|AccessControl|Forbidden|[Cc]redential|UnknownHost"
    "|ConnectException|SocketException|Timeout|InterruptedException|ExecutorLost|SparkContext was shut down"
    "|was cancelled|cancelled because|No space left|FileNotFoundException|FILE_NOT_EXIST|PATH_NOT_FOUND"
)


class NotFit(Exception):
    """Files that cannot go into the table as it is, or as it may become."""


@dataclass(frozen=True)
class LeftOut:
    """A file that is no part of the data, and why."""

    reason: str


@dataclass(frozen=True)
class Reading:
    format: str
    options: tuple[tuple[str, str], ...]
    base: str | None
    schema: StructType

    @property
    def is_text(self) -> bool:
        return self.format != "parquet"

    def json(self) -> str:
        kept = {"format": self.format, "options": dict(self.options), "base": self.base}
        return json.dumps({**kept, "schema": self.schema.jsonValue()}, sort_keys=True)


def parse(text: str) -> Reading:
    kept: dict[str, Any] = json.loads(text)
    options = tuple(sorted(kept["options"].items()))
    return Reading(kept["format"], options, kept["base"], StructType.fromJson(kept["schema"]))


def format_of(uri: str) -> str | None:
    name = uri.rpartition("/")[2].lower()
    for ending in COMPRESSED:
        name = name.removesuffix(ending)
    return next((kind for kind, endings in FORMATS.items() if name.endswith(endings)), None)


def options_of(spark: "SparkSession", kind: str, given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """All that makes a difference to what is read. The time zone is the session's, which may be another next time."""
    zone = {"timeZone": spark.conf.get("spark.sql.session.timeZone") or "UTC"}
    # names of options have no case
    asked = {name.lower() for name in given}
    ours = {**zone, **DEFAULTS[kind]}
    return tuple(sorted({**{k: v for k, v in ours.items() if k.lower() not in asked}, **given}.items()))


def check_options(spark: "SparkSession", given: Mapping[str, str]) -> None:
    """An option that is wrong must not look like files that are."""
    for name, value in given.items():
        if name.lower() in NOT_OURS_TO_TAKE:
            raise SetupError(f"ingest itself says what the reader's option {name} is")
        if name.lower().startswith("fs."):
            raise SetupError(f"{name} is a setting of a file system: --conf spark.hadoop.{name}=… (options are kept)")
        if name.lower() in {"encoding", "charset"} and not is_charset(spark, value):
            raise SetupError(f"{value} is no encoding that Java knows")
    entries = ", ".join(f"{SPARK.literal(key)}, {SPARK.literal(value)}" for key, value in given.items())
    for parse in ("from_csv", "from_json") if given else ():
        try:
            rows(spark, f"SELECT {parse}('x', 'a STRING', map({entries}))")
        except spark_errors() as e:
            raise SetupError(f"Spark's reader does not take the options {', '.join(given)}: {message(e)}") from None


def inferred(
    spark: "SparkSession", kind: str, options: Mapping[str, str], base: str | None, files: Files
) -> StructType:
    """What Spark makes of them, all records looked at."""
    found = _reader(spark, kind, options, base).load([file.pattern for file in files]).schema
    return StructType([field for field in found.fields if field.name != CORRUPT])


def frame(spark: "SparkSession", reading: Reading, files: Files) -> "DataFrame":
    """Columns of the reading; of text also the record, where it is corrupt."""
    ours = [StructField(CORRUPT, StringType())]
    if reading.format == "json":
        ours.append(StructField(NOTHING, StringType()))
    schema = StructType([*reading.schema.fields, *ours]) if reading.is_text else reading.schema
    reader = _reader(spark, reading.format, dict(reading.options), reading.base).schema(schema)
    return reader.load([file.pattern for file in files])


def in_halves(spark: "SparkSession", files: Files, work: Callable[[Files], T]) -> Iterator[tuple[Files, T | LeftOut]]:
    """What is made of all files at once; where that fails, of each half of them. A file that fails alone is left out,
    if its bytes can be read: what is wrong is in it, then. A store that does not answer is not held against a file."""
    try:
        made = work(files)
    except (NotFit, *spark_errors()) as e:
        if len(files) > 1:
            middle = len(files) // 2
            yield from in_halves(spark, files[:middle], work)
            yield from in_halves(spark, files[middle:], work)
            return
        if not isinstance(e, NotFit):
            if not is_of_the_file(str(e), files[0]):
                raise SetupError(f"{files[0].uri} could not be read: {message(e)}") from None
            drain(spark, files[0])
        yield files, LeftOut(str(e) if isinstance(e, NotFit) else f"cannot be read: {message(e)}")
    else:
        yield files, made


def is_of_the_file(said: str, file: SourceFile) -> bool:
    """Whether an error may be of what is in a file; its name, whatever words are in that, says nothing."""
    for name in {file.uri, unquote(file.uri)}:
        said = said.replace(name.partition(":")[2].lstrip("/"), "")
    return NOT_THE_FILE.search(said) is None


def _reader(spark: "SparkSession", kind: str, options: Mapping[str, str], base: str | None) -> "DataFrameReader":
    reader = spark.read.format(kind).options(**options).options(**ALWAYS)
    return reader if base is None else reader.option("basePath", base)
