"""What a client's request makes of a view: its updates, one after another, as Iceberg's own catalogs apply them.

A version that is there already, but for its number and its time, is not added again, nor is a schema. Numbers that
clients give are a wish: the next free one is taken, and what the rest of the request says of the wished one is meant of
that. So two clients that replace a view at once both get their version, and the later one is current.

What is not as it must be is a BadRequest, and CommitFailed is what another attempt can mend. Nothing is read or
written.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mergus.errors import BadRequest, CommitFailed
from mergus.iceberg.json_object import MAX_INT32, JsonObject, shown
from mergus.iceberg.layout_update import same_schema
from mergus.iceberg.schema import Schema
from mergus.iceberg.updates import (
    MOST,
    SHARED,
    AddSchema,
    AssignUuid,
    RemoveProperties,
    SetLocation,
    SetProperties,
    UpgradeFormatVersion,
)
from mergus.iceberg.view_metadata import (
    LAST_ADDED,
    LogEntry,
    ViewMetadata,
    ViewVersion,
    check_format,
    parse_version,
)

HISTORY_SIZE: Final = "version.history.num-entries"
DEFAULT_HISTORY_SIZE: Final = 10
MOST_DIGITS: Final = 9
DROP_DIALECT: Final = "replace.drop-dialect.allowed"
FIRST_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class AddViewVersion:
    version: ViewVersion


@dataclass(frozen=True, slots=True)
class SetCurrentViewVersion:
    version_id: int


Update = (
    AssignUuid
    | UpgradeFormatVersion
    | AddSchema
    | SetLocation
    | SetProperties
    | RemoveProperties
    | AddViewVersion
    | SetCurrentViewVersion
)


@dataclass(frozen=True, slots=True)
class AssertViewUuid:
    uuid: str


def parse_requirements(json: object) -> list[AssertViewUuid]:
    """Raises ValueError for what is no requirement on a view."""
    return [_parse_requirement(one) for one in _bounded(json, "requirements")]


def parse_updates(json: object) -> list[Update]:
    """Raises ValueError for what is none of a view's updates."""
    return [_parse_update(one) for one in _bounded(json, "updates")]


def check(requirements: Iterable[AssertViewUuid], view: ViewMetadata) -> None:
    for requirement in requirements:
        if requirement.uuid != view.uuid:
            raise CommitFailed(
                f"Requirement failed: view UUID does not match: expected {view.uuid} != {requirement.uuid}"
            )


def created(
    uuid: str, location: str, version: ViewVersion, schema: Schema, properties: Mapping[str, str]
) -> ViewMetadata:
    """A new view. Its version and its schema get the first numbers, whatever the client calls them."""
    first = replace(version, version_id=FIRST_VERSION, schema_id=0)
    log = (LogEntry(first.timestamp_ms, FIRST_VERSION),)
    view = ViewMetadata(uuid, location, {0: schema}, (first,), FIRST_VERSION, log, dict(properties))
    _history_size(view.properties)
    return view


def apply(view: ViewMetadata, updates: Iterable[Update], now_ms: int) -> ViewMetadata:
    """The view afterwards; equal to what it was if nothing changes."""
    work = _Work(view, now_ms)
    for update in updates:
        work.apply(update)
    return work.finish()


class _Work:
    def __init__(self, view: ViewMetadata, now_ms: int) -> None:
        self.was = view
        self.now_ms = now_ms
        self.location = view.location
        self.properties = dict(view.properties)
        self.schemas = dict(view.schemas)
        self.versions = {v.version_id: v for v in view.versions}
        self.current_id = view.current_version_id
        self.added: set[int] = set()
        # by the numbers of the request, and LAST_ADDED
        self.named_schemas: dict[int, int] = {}
        self.named_versions: dict[int, int] = {}
        self.entry: LogEntry | None = None

    def apply(self, update: Update) -> None:
        match update:
            case AssignUuid(uuid):
                if uuid != self.was.uuid:
                    raise BadRequest("Cannot reassign uuid")
            case UpgradeFormatVersion(version):
                try:
                    check_format(version)
                except ValueError as e:
                    raise BadRequest(str(e)) from None
            case AddSchema(schema, number):
                self._add_schema(schema, number)
            case SetLocation(location):
                self.location = location
            case SetProperties(properties):
                self.properties.update(properties)
            case RemoveProperties(names):
                for name in names:
                    self.properties.pop(name, None)
            case AddViewVersion(version):
                self._add_version(version)
            case SetCurrentViewVersion(version_id):
                self._set_current(version_id)

    def _add_schema(self, schema: Schema, given: int | None) -> None:
        same = next((number for number, known in self.schemas.items() if same_schema(known, schema)), None)
        number = max(self.schemas, default=-1) + 1 if same is None else same
        self.schemas.setdefault(number, schema)
        self.named_schemas[LAST_ADDED] = number
        if given is not None:
            self.named_schemas[given] = number

    def _add_version(self, version: ViewVersion) -> None:
        schema_id = self.named_schemas.get(version.schema_id, version.schema_id)
        if schema_id == LAST_ADDED:
            raise BadRequest("Cannot set last added schema: no schema has been added")
        if schema_id not in self.schemas:
            raise BadRequest(f"Cannot add version with unknown schema: {schema_id}")
        given = replace(version, schema_id=schema_id)
        same = next((v.version_id for v in self.versions.values() if _meaning(v) == _meaning(given)), None)
        number = max(version.version_id, max(self.versions) + 1) if same is None else same
        if number > MAX_INT32:
            raise BadRequest(f"A view has versions up to {MAX_INT32}, not {number}")
        if same is None:
            self.versions[number] = replace(given, version_id=number)
            self.added.add(number)
        self.named_versions |= {version.version_id: number, LAST_ADDED: number}

    def _set_current(self, wanted: int) -> None:
        number = self.named_versions.get(wanted, wanted)
        if number == LAST_ADDED:
            raise BadRequest("Cannot set last version id: no current version id has been set")
        if number == self.current_id:
            return
        if number not in self.versions:
            raise BadRequest(f"Cannot set current version to unknown version: {number}")
        self.current_id = number
        # one that was current before is current again from now on
        since = self.versions[number].timestamp_ms if number in self.added else self.now_ms
        self.entry = LogEntry(since, number)

    def finish(self) -> ViewMetadata:
        current = self.versions[self.current_id]
        lost = sorted(set(self.was.current.dialects) - set(current.dialects))
        if lost and self.properties.get(DROP_DIALECT, "false").lower() != "true":
            raise BadRequest(
                f"Cannot replace view due to loss of view dialects ({DROP_DIALECT}=false):\n"
                f"Previous dialects: {self.was.current.dialects}\nNew dialects: {current.dialects}"
            )
        log = self.was.log if self.entry is None else (*self.was.log, self.entry)
        kept = self._kept(_history_size(self.properties))
        return ViewMetadata(
            uuid=self.was.uuid,
            location=self.location,
            schemas=self.schemas,
            versions=tuple(v for number, v in self.versions.items() if number in kept),
            current_version_id=self.current_id,
            log=_known(log, kept),
            properties=self.properties,
        )

    def _kept(self, size: int) -> set[int]:
        """The newest versions, but always the current one and those that were just added."""
        many = max(size, len(self.added | {self.current_id}))
        others = sorted((number for number in self.versions if number != self.current_id), reverse=True)
        return {self.current_id, *others[: many - 1]}


def _known(log: tuple[LogEntry, ...], kept: set[int]) -> tuple[LogEntry, ...]:
    """What follows the last entry of a version that is not kept: a log has no gaps."""
    gaps = [i for i, entry in enumerate(log) if entry.version_id not in kept]
    return log[gaps[-1] + 1 :] if gaps else log


def _meaning(version: ViewVersion) -> tuple[object, ...]:
    """By which two versions are the same."""
    return (
        dict(version.summary),
        version.representations,
        version.default_catalog,
        version.default_namespace,
        version.schema_id,
    )


def _history_size(properties: Mapping[str, str]) -> int:
    text = properties.get(HISTORY_SIZE, str(DEFAULT_HISTORY_SIZE))
    size = int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else 0
    if size == 0:
        raise BadRequest(f"{HISTORY_SIZE} must be positive but was {shown(text)}")
    return size


def _bounded(json: object, name: str) -> list[JsonObject]:
    found = JsonObject({name: json}, "The commit").parts(name)
    if len(found) > MOST:
        raise ValueError(f"A commit can have {MOST} {name}, not {len(found)}")
    return found


def _parse_requirement(json: JsonObject) -> AssertViewUuid:
    if (kind := json.text("type")) != "assert-view-uuid":
        raise ValueError(f"Not a requirement on a view: {shown(kind)}")
    return AssertViewUuid(json.named(kind).uuid("uuid"))


def _parse_update(json: JsonObject) -> Update:
    action = json.text("action")
    if action not in _PARSED:
        raise ValueError(f"Not an update of a view: {shown(action)}")
    return _PARSED[action](json.named(action))


_PARSED: Final[dict[str, Callable[[JsonObject], Any]]] = {
    **SHARED,
    "add-view-version": lambda json: AddViewVersion(parse_version(json.value("view-version"))),
    "set-current-view-version": lambda json: SetCurrentViewVersion(json.int32("view-version-id", LAST_ADDED)),
}
