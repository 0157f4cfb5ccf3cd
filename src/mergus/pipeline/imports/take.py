"""Brings one table in: by registering it, by taking its Parquet files as they are, or by copying its rows.

Each is one commit of the catalog, or one for each snapshot that is copied: killed at any moment, there is either
nothing of the table or all of a snapshot. What the server does not let in place raises `NotInPlace`, and nothing has
happened. What is in place is the lake's from then on: it deletes files that it does not need any more.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

from mergus.client import UNIT_SEPARATOR, Levels, Refused
from mergus.iceberg.name_mapping import MappedField, parse_name_mapping
from mergus.iceberg.schema import Schema
from mergus.iceberg.schema_parse import parse_schema
from mergus.pipeline.canonical import SPARK
from mergus.pipeline.imports import jvm
from mergus.pipeline.imports.connector import Connector, Described, Partition
from mergus.pipeline.imports.standing import MARKS, marks
from mergus.pipeline.imports.stored import columns, misfit
from mergus.pipeline.job import Place, Table
from mergus.pipeline.session import message, query, rows

NAME_MAPPING: Final = "schema.name-mapping.default"
# Where Iceberg's writers look for what a snapshot is to say of itself.
SUMMARY: Final = "spark.sql.iceberg.snapshot-property"
FOOTERS_AT_ONCE: Final = 8
# Refusals after which another way may be right: not that the name is taken, nor that one may not do this at all.
_ANOTHER_WAY: Final = {400, 404, 406, 413, 422}


class NotInPlace(Exception):
    """Why a table cannot be taken where it is."""


def register(place: Place, source: Described, target: Table, *, replace: bool) -> None:
    if source.metadata_location is None:
        raise NotInPlace(source.not_in_place)
    body = {"name": target.name, "metadata-location": source.metadata_location, "overwrite": replace}
    try:
        place.client.ask("POST", f"{_path(target.namespace)}/register", body)
    except Refused as e:
        if e.status in _ANOTHER_WAY:
            raise NotInPlace(e.message.partition(f"status {e.status}: ")[2] or e.message) from None
        raise
    mark(place, source, target)


def mark(place: Place, source: Described, target: Table) -> None:
    """A table that is registered, with what `standing` knows it by."""
    query(
        place.spark,
        f"ALTER TABLE {place.sql_name(target)} SET {_properties(marks(source, source.snapshot, 'register'))}",
    )


def take_files(place: Place, connector: Connector, table: Table, source: Described, target: Table) -> None:
    """As files of a new table, by a name mapping: they have no field ids of it. Only their footers are read."""
    from py4j.protocol import Py4JJavaError  # pyright: ignore[reportMissingTypeStubs]

    if not source.files:
        raise NotInPlace(source.not_in_place)
    java = jvm.jvm(place.spark)
    iceberg = java.org.apache.iceberg
    frame: Any = connector.open(table, source.snapshot)
    schema = iceberg.spark.SparkSchemaUtil.convert(frame._jdf.schema())
    unpartitioned = iceberg.PartitionSpec.unpartitioned()
    properties = java.java.util.HashMap()
    for key, value in marks(source, source.snapshot, "files").items():
        properties.put(key, value)
    catalog = jvm.iceberg_catalog(place.spark, place.catalog)
    try:
        made = catalog.newCreateTableTransaction(jvm.identifier(place.spark, target), schema, unpartitioned, properties)
        # by the field ids that the catalog gave
        mapping = iceberg.mapping.MappingUtil.create(made.table().schema())
        as_json = iceberg.mapping.NameMappingParser.toJson(mapping)
        made.updateProperties().set(NAME_MAPPING, as_json).commit()
        files = _data_files(place, source, mapping)
        told = iceberg.SchemaParser.toJson(made.table().schema())
        _check(place, files, parse_schema(json.loads(told)), parse_name_mapping(as_json))
        append = made.newAppend()
        append.set(MARKS[0], source.snapshot)
        for file in files.values():
            append.appendFile(file)
        append.commit()
        made.commitTransaction()
    except Py4JJavaError as e:
        kind = str(e.java_exception.getClass().getSimpleName())  # pyright: ignore
        if kind in {"BadRequestException", "RESTException", "UnsupportedOperationException", "ValidationException"}:
            raise NotInPlace(message(e)) from None
        raise


def _check(place: Place, files: Mapping[str, Any], schema: Schema, mapping: Sequence[MappedField]) -> None:
    for path, file in files.items():
        try:
            reason = misfit(columns(place.spark, path, file.fileSizeInBytes()), schema, mapping)
        except ValueError as e:
            reason = str(e)
        if reason is not None:
            raise NotInPlace(f"{path}: {reason}")


def _data_files(place: Place, source: Described, mapping: Any) -> dict[str, Any]:  # noqa: ANN401
    """By their paths."""
    java = jvm.jvm(place.spark)
    iceberg = java.org.apache.iceberg
    listed = iceberg.data.TableMigrationUtil.listPartition(
        java.java.util.HashMap(),
        source.location,
        "parquet",
        iceberg.PartitionSpec.unpartitioned(),
        jvm.hadoop_conf(place.spark),
        iceberg.MetricsConfig.getDefault(),
        mapping,
        FOOTERS_AT_ONCE,
    )
    wanted = set(source.files)
    found = {str(file.location()): file for file in listed}
    if missing := wanted - found.keys():
        raise NotInPlace(f"it has files outside of its directory: {min(missing)}")
    return {path: file for path, file in sorted(found.items()) if path in wanted}


def copy(
    place: Place, connector: Connector, table: Table, source: Described, target: Table, snapshots: Sequence[str | None]
) -> None:
    """The states of the table at these snapshots, one after the other; the first creates the table if there is none."""
    session = jvm.clone(place.spark)
    for snapshot in snapshots:
        frame = connector.open(table, snapshot)
        view = f"mergus_import_{uuid4().hex}"
        frame.createGlobalTempView(view)
        session.conf.set(f"{SUMMARY}.{MARKS[0]}", snapshot or "")
        verb = "CREATE" if place.load(target) is None else "REPLACE"
        try:
            query(
                session,
                f"{verb} TABLE {place.sql_name(target)} USING iceberg "
                f"{_partitioned(source.partitioning, frame.columns)} {_properties(marks(source, snapshot, 'copy'))} "
                f"AS SELECT * FROM global_temp.{view}",
            )
        finally:
            place.spark.catalog.dropGlobalTempView(view)


def count(place: Place, target: Table) -> int:
    # it was written from another session, and this one may have the table as it was
    query(place.spark, f"REFRESH TABLE {place.sql_name(target)}")
    return rows(place.spark, f"SELECT count(*) FROM {place.sql_name(target)}")[0][0]


def create_namespace(place: Place, levels: Levels) -> None:
    """And those above it."""
    for depth in range(1, len(levels) + 1):
        try:
            place.client.ask("POST", "namespaces", {"namespace": list(levels[:depth])})
        except Refused as e:
            if e.status != 409:
                raise


def _partitioned(by: Sequence[Partition], columns: Sequence[str]) -> str:
    """By what the columns of this snapshot allow."""
    kept = [one.sql for one in by if one.column in columns]
    return f"PARTITIONED BY ({', '.join(kept)})" if kept else ""


def _properties(given: dict[str, str]) -> str:
    pairs = ", ".join(f"{SPARK.literal(key)} = {SPARK.literal(value)}" for key, value in given.items())
    return f"TBLPROPERTIES ({pairs})"


def _path(namespace: Levels) -> str:
    return f"namespaces/{quote(UNIT_SEPARATOR.join(namespace), safe='')}"
