"""Views as a server shows them: what DuckLake and the annex say of one, put together.

DuckLake's row is the truth. What we keep of a view counts if the row has the uuid and the text that we know; then its
comment is the row's. A row that we know nothing of is a view of DuckDB's: one version, with the columns that a DuckDB
session finds. What that found is remembered for as long as no schema of the lake changes. All of this holds at an older
snapshot as it does now.

A version that DuckDB has made is shown with texts for other engines beside DuckDB's (view_dialects.py). We do not keep
those texts: they follow what the view reads. A version that a client has made is shown as the client wrote it.

Every state of a view is also a file, named by its content in the view's location, as Iceberg's clients expect. It is
written after the change, and by the first in each process that shows it: it can be made again at any time.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import orjson

from mergus.annex import views as annex
from mergus.catalog.find import find_namespace
from mergus.catalog.newest import keep_newest
from mergus.catalog.view_dialects import parse_view, refusal, text_for_spark, texts_for_trino, translate_view
from mergus.config import Settings
from mergus.ducklake import views
from mergus.ducklake.columns import Unrepresentable
from mergus.ducklake.connect import Conn, Pool, one_state
from mergus.ducklake.schemas import Schema as LakeSchema
from mergus.ducklake.view_columns import BrokenView, Describer
from mergus.ducklake.view_kinds import Uncertain
from mergus.ducklake.view_reach import reason_against
from mergus.ducklake.view_sources import Found, find_macro, find_relations
from mergus.ducklake.view_translate import Tree
from mergus.errors import NoSuchNamespace, NoSuchView, ServiceUnavailable, Unsupported
from mergus.iceberg.namespace import Namespace
from mergus.iceberg.schema import Schema, schema_json
from mergus.iceberg.view_metadata import (
    LogEntry,
    Representation,
    ViewMetadata,
    ViewVersion,
    parse_view_metadata,
)
from mergus.iceberg.view_update import FIRST_VERSION
from mergus.materialise.layout import digest
from mergus.storage.location import Location
from mergus.storage.objects import Objects

COMMENT: Final = "comment"
SUMMARY: Final[Mapping[str, str]] = {"engine-name": "duckdb"}
METADATA_PATH: Final = "write.metadata.path"
DESCRIBE_SECONDS: Final = 30
REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class FoundView:
    """`row` is DuckLake's, None of a view that is ours alone; `kept` is None of a view that is DuckDB's alone. `at` is
    the snapshot that it was found at, None for now."""

    namespace: Namespace
    schema: LakeSchema
    name: str
    row: views.View | None
    kept: ViewMetadata | None
    at: int | None = None


@dataclass(frozen=True, slots=True)
class ShownView:
    """One state of a view: its file, and the answer that shows it."""

    metadata_location: str
    file: bytes

    def answer(self) -> bytes:
        content = {
            "metadata-location": self.metadata_location,
            "metadata": orjson.Fragment(self.file),
            "config": dict[str, str](),
        }
        return orjson.dumps(content)


async def find_view(conn: Conn, namespace: Namespace, name: str, at: int | None = None) -> FoundView:
    """Call where several queries see one state of the lake."""
    try:
        schema = await find_namespace(conn, namespace, at)
    except NoSuchNamespace as e:
        raise NoSuchView(f"View does not exist: {namespace}.{name}") from e
    if schema is not None and "\0" not in name:
        if (row := await views.find(conn, schema.schema_id, name, at)) is not None:
            return FoundView(namespace, schema, name, row, _known(row, await annex.read(conn, row.uuid, at)), at)
        if (text := await annex.find(conn, schema.schema_id, name, at)) is not None:
            return FoundView(namespace, schema, name, None, parse_view_metadata(orjson.loads(text)), at)
    raise NoSuchView(f"View does not exist: {namespace}.{name}")


def _known(row: views.View, text: str | None) -> ViewMetadata | None:
    if text is None:
        return None
    kept = parse_view_metadata(orjson.loads(text))
    if kept.current.sql(views.DIALECT) not in {row.sql, row.shown_sql}:
        return None
    others = {k: v for k, v in kept.properties.items() if k != COMMENT}
    return replace(kept, properties=others if row.comment is None else {**others, COMMENT: row.comment})


def shown(metadata: ViewMetadata) -> ShownView:
    file = orjson.dumps(metadata.json())
    directory = metadata.properties.get(METADATA_PATH, "").rstrip("/") or f"{metadata.location}/metadata"
    return ShownView(f"{directory}/{metadata.current_version_id:05}-{digest(file)}.metadata.json", file)


@dataclass(frozen=True, slots=True)
class _Described:
    """What DuckDB finds in a view of its own, and the texts for other engines."""

    schema: Schema
    texts: tuple[Representation, ...]


class ServedViews:
    """Of one process."""

    def __init__(self, settings: Settings, objects: Objects, pool: Pool) -> None:
        self._trino_catalog = settings.trino_catalog
        self._objects = objects
        self._pool = pool
        # one for the past: who travels does not take the other's session away
        self._now, self._then = Describer(settings), Describer(settings)
        self._described: dict[tuple[int, int, int, bool], _Described | Exception] = {}
        self._written: dict[str, None] = {}

    async def metadata(self, found: FoundView, root: Location) -> ViewMetadata:
        """Raises Unsupported for a view of DuckDB's that cannot be described. `root` is where views have their
        files."""
        if found.kept is not None:
            return found.kept
        assert found.row is not None  # noqa: S101  (one of the two is there)
        return _of_duckdb(found, found.row, (await self._of_row(found, found.row)).schema, root)

    async def shown(self, found: FoundView, metadata: ViewMetadata) -> ShownView:
        """What `metadata` says of the view, with texts for other engines if its current version is of DuckDB's making.
        Raises Unsupported for a view of DuckDB's alone that cannot be described."""
        if found.row is None or not _is_of_duckdb(metadata.current, found.row):
            return shown(metadata)
        try:
            described = await self._of_row(found, found.row)
            texts = described.texts
            if not _is_same(described.schema, metadata.schemas[metadata.current.schema_id]):
                reason = "its columns are not those that a client has seen"
                texts = (refusal(f"{found.namespace}.{found.name}", reason),)
        except Unsupported as e:
            if found.kept is None:
                raise
            texts = (refusal(f"{found.namespace}.{found.name}", e.message),)
        return shown(_with_texts(metadata, texts))

    async def publish(self, view: ShownView) -> None:
        """Puts its file where it says, unless this process has."""
        if view.metadata_location not in self._written:
            await self._objects.put(Location.parse(view.metadata_location), view.file)
            keep_newest(self._written, view.metadata_location, None, REMEMBERED)

    async def close(self) -> None:
        for describer in (self._now, self._then):
            await asyncio.to_thread(describer.close)

    async def _of_row(self, found: FoundView, row: views.View) -> _Described:
        # apart from the past: what is described now may be of a later schema_version already
        key = (row.id, row.begin, row.schema_version, found.at is None)
        if key not in self._described:
            try:
                async with asyncio.timeout(DESCRIBE_SECONDS):
                    result = await self._described_safely(found, row)
            except (BrokenView, Unrepresentable) as e:
                result = e
            except TimeoutError:
                self._describer(found).interrupt()
                raise ServiceUnavailable("DuckDB takes too long to describe the view; try again") from None
            keep_newest(self._described, key, result, REMEMBERED)
        match self._described[key]:
            case _Described() as described:
                return described
            case problem:
                raise Unsupported(f"View {found.namespace}.{found.name} cannot be shown: {problem}")

    async def _described_safely(self, found: FoundView, row: views.View) -> _Described:
        """The view is parsed, described and translated in threads; a text that has no certain translation says so."""
        tree: Tree | None = None
        named, relations, reason = list[tuple[str, str]](), Found(), ""
        async with one_state(self._pool) as conn:
            against = await reason_against(conn, row.sql, found.at)
            if against is not None:
                raise BrokenView(against)
            try:
                tree, named = await asyncio.to_thread(parse_view, row.shown_sql)
                relations = await find_relations(conn, named, found.schema.name, found.at)
                if (macro := await find_macro(conn, found.at)) is not None:
                    tree, reason = None, f"the lake has a macro {macro}()"
            except Uncertain as e:
                reason = str(e)
        return await asyncio.to_thread(self._describe, found, tree, relations, reason)

    def _describe(self, found: FoundView, tree: Tree | None, relations: Found, reason: str) -> _Described:
        describer, own = self._describer(found), found.schema.name
        others = list(relations.values()) if tree is not None else []
        description = describer.describe(own, found.name, found.at, others)
        if tree is not None:
            try:
                query = translate_view(tree, relations, description, describer, found.at)
                # Trino's catalog by that name has the lake as it is now
                catalog = self._trino_catalog if found.at is None else None
                texts = (text_for_spark(query, own), *texts_for_trino(query, catalog))
                return _Described(description.schema, texts)
            except (Uncertain, BrokenView) as e:
                reason = str(e)
        return _Described(description.schema, (refusal(f"{found.namespace}.{found.name}", reason),))

    def _describer(self, found: FoundView) -> Describer:
        return self._now if found.at is None else self._then


def _is_of_duckdb(version: ViewVersion, row: views.View) -> bool:
    """Whether it is the version that we show of a row, and not one that a client has written."""
    return version.summary == SUMMARY and version.representations == (Representation(views.DIALECT, row.shown_sql),)


def _is_same(schema: Schema, other: Schema) -> bool:
    return schema_json(schema, 0)["fields"] == schema_json(other, 0)["fields"]


def _with_texts(metadata: ViewMetadata, texts: tuple[Representation, ...]) -> ViewMetadata:
    """The current version has them first: who knows no dialect of them takes the first."""
    current = metadata.current
    wider = replace(current, representations=(*texts, *current.representations))
    return replace(metadata, versions=tuple(wider if v is current else v for v in metadata.versions))


def _of_duckdb(found: FoundView, row: views.View, schema: Schema, root: Location) -> ViewMetadata:
    made_ms = int(row.made_at.timestamp() * 1000)
    version = ViewVersion(
        version_id=FIRST_VERSION,
        timestamp_ms=made_ms,
        schema_id=0,
        summary=SUMMARY,
        representations=(Representation(views.DIALECT, row.shown_sql),),
        default_namespace=found.namespace.levels,
    )
    return ViewMetadata(
        uuid=str(row.uuid),
        location=str(root / str(row.uuid)),
        schemas={0: schema},
        versions=(version,),
        current_version_id=FIRST_VERSION,
        log=(LogEntry(made_ms, FIRST_VERSION),),
        properties={} if row.comment is None else {COMMENT: row.comment},
    )
