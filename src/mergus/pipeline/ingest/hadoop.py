"""Files as Spark's own file systems see them: local ones, and whatever is on its class path (s3a, abfss, gs, hdfs).

A file is known by its URI, as Spark writes it in `_metadata.file_path`.
"""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from mergus.errors import SetupError
from mergus.pipeline.session import jvm, message, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Requests to a store, for what is small.
AT_ONCE: Final = 8

GLOB: Final = re.compile(r"[\\*?\[\]{}]")


@dataclass(frozen=True, order=True)
class SourceFile:
    """`modified` is in milliseconds since 1970. Below `base`, folders called key=value are columns, as in Spark."""

    modified: int
    uri: str
    size: int
    base: str | None = None

    @property
    def identity(self) -> tuple[str, int, int]:
        return self.uri, self.size, self.modified

    @property
    def pattern(self) -> str:
        """For Spark's readers, which take every path for a glob."""
        return escaped(unquote(self.uri))


def escaped(path: str) -> str:
    return GLOB.sub(r"\\\g<0>", path)


def uri_of(text: str) -> str:
    """The JVM has two ways to write a URI without a host."""
    return re.sub(r"^(\w+):///", r"\1:/", text)


def listing(spark: "SparkSession", source: str) -> list[SourceFile]:
    """All files of a directory and of those below it, of a glob, or the one that is named. Names that begin with `_` or
    `.` are those of files that are not finished, to everything that writes for Hadoop, and are left out."""
    try:
        system, path = _system(spark, source)
        found = system.globStatus(path)
    except spark_errors() as e:
        raise SetupError(f"{source}: {message(e)}") from None
    if not found:
        raise SetupError(f"there is nothing at {source}")
    if len(found) == 1 and not GLOB.search(source) and found[0].isFile():
        return [_file(found[0], None)]
    files: list[SourceFile] = []
    for status in found:
        base = str(status.getPath().toString()) if status.isDirectory() else None
        files += [_file(one, base) for one in _below(system, status) if _is_shown(one, status)]
    return sorted(files)


def look(spark: "SparkSession", file: SourceFile) -> SourceFile | None:
    """What is there under that name now."""
    system, path = _system(spark, unquote(file.uri))
    return _file(system.getFileStatus(path), file.base) if system.exists(path) else None


def first_line(spark: "SparkSession", file: SourceFile, encoding: str, comment: str | None) -> str | None:
    """The first that is neither empty nor a comment; None if there is none."""
    java = jvm(spark)
    system, path = _system(spark, unquote(file.uri))
    codec = java.org.apache.hadoop.io.compress.CompressionCodecFactory(_conf(spark)).getCodec(path)
    stream = system.open(path)
    try:
        plain = stream if codec is None else codec.createInputStream(stream)
        lines = java.java.io.BufferedReader(java.java.io.InputStreamReader(plain, encoding))
        while (line := lines.readLine()) is not None:
            if (text := str(line).strip("\ufeff")).strip() and not (comment and text.startswith(comment)):
                return text
    finally:
        stream.close()
    return None


def is_charset(spark: "SparkSession", name: str) -> bool:
    try:
        return bool(jvm(spark).java.nio.charset.Charset.isSupported(name))
    except spark_errors():
        return False


def drain(spark: "SparkSession", file: SourceFile) -> None:
    """Reads every byte. Where this works and Spark's reader does not, it is the file's own fault, not the store's."""
    java = jvm(spark)
    try:
        system, path = _system(spark, unquote(file.uri))
        stream = system.open(path)
        try:
            java.org.apache.hadoop.io.IOUtils.copyBytes(stream, java.java.io.OutputStream.nullOutputStream(), 1 << 20)
        finally:
            stream.close()
        now = system.getFileStatus(path).getLen()
    except spark_errors() as e:
        raise SetupError(f"{file.uri} cannot be reached: {message(e)}") from None
    if now != file.size:
        raise SetupError(f"{file.uri} is being written: it had {file.size} bytes and has {now}; run this again")


def parquet_rows(spark: "SparkSession", files: Sequence[SourceFile]) -> dict[str, int]:
    """By their footers, many at a time: no row is read."""
    hadoop = jvm(spark).org.apache.parquet.hadoop

    def count(file: SourceFile) -> int:
        _, path = _system(spark, unquote(file.uri))
        reader = hadoop.ParquetFileReader.open(hadoop.util.HadoopInputFile.fromPath(path, _conf(spark)))
        try:
            return int(reader.getRecordCount())
        finally:
            reader.close()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip((file.uri for file in files), pool.map(count, files), strict=True))


def _below(system: Any, status: Any) -> Iterator[Any]:  # noqa: ANN401
    if status.isFile():
        yield status
        return
    found = system.listFiles(status.getPath(), True)
    while found.hasNext():
        yield found.next()


def _is_shown(status: Any, top: Any) -> bool:  # noqa: ANN401
    """A partition of a column whose name begins with `_` is no hidden folder."""
    below = status.getPath().toString().removeprefix(top.getPath().toString()) or status.getPath().getName()
    names = [name for name in below.split("/") if name]
    return not any(name.startswith(".") or (name.startswith("_") and "=" not in name) for name in names)


def _file(status: Any, base: str | None) -> SourceFile:  # noqa: ANN401
    uri = uri_of(str(status.getPath().toUri().toString()))
    return SourceFile(int(status.getModificationTime()), uri, int(status.getLen()), base)


def _system(spark: "SparkSession", path: str) -> tuple[Any, Any]:
    found = jvm(spark).org.apache.hadoop.fs.Path(path)
    system = found.getFileSystem(_conf(spark))
    return system, system.makeQualified(found)


def _conf(spark: "SparkSession") -> Any:  # noqa: ANN401
    context: Any = spark._jsc  # pyright: ignore[reportPrivateUsage]
    return context.hadoopConfiguration()
