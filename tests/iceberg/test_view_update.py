"""What updates make of a view: the rules of Iceberg's own ViewMetadata."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from mergus.errors import BadRequest, CommitFailed
from mergus.iceberg.schema_parse import parse_schema
from mergus.iceberg.view_metadata import LogEntry, ViewMetadata, parse_version
from mergus.iceberg.view_update import apply, check, created, parse_requirements, parse_updates
from tests.iceberg.test_view_metadata import SCHEMA, Json, sql, version

UUID = "0195b0f6-6f7d-4b6c-8c5e-0123456789ab"
NOW = 1_800_000_000_000
OTHER: Json = {
    "type": "struct",
    "schema-id": 7,
    "fields": [{"id": 1, "name": "n", "type": "long", "required": False}],
}
TO_LAST: Json = {"action": "set-current-view-version", "view-version-id": -1}
ALLOWED: Json = {"action": "set-properties", "updates": {"replace.drop-dialect.allowed": "true"}}


def new(**properties: str) -> ViewMetadata:
    first = parse_version(version(version_id=9, schema_id=5))
    named = {name.replace("_", "-"): value for name, value in properties.items()}
    return created(UUID, "s3://lake/v", first, parse_schema(SCHEMA), named)


def add(text: str, number: int = 2, schema_id: int = 0, at: int = NOW - 5, dialect: str = "spark") -> Json:
    told = version(version_id=number, schema_id=schema_id, timestamp_ms=at, representations=[sql(text, dialect)])
    return {"action": "add-view-version", "view-version": told}


def add_schema(schema: Json) -> Json:
    return {"action": "add-schema", "schema": schema}


def after(view: ViewMetadata, *updates: Json) -> ViewMetadata:
    return apply(view, parse_updates(list(updates)), NOW)


def texts(view: ViewMetadata) -> dict[int, str | None]:
    return {v.version_id: v.sql("spark") for v in view.versions}


def logged(view: ViewMetadata) -> list[int]:
    return [entry.version_id for entry in view.log]


def test_a_new_view_has_version_1_and_schema_0() -> None:
    view = new(a="1")
    assert (view.current_version_id, view.current.schema_id, list(view.schemas)) == (1, 0, [0])
    assert view.log == (LogEntry(view.current.timestamp_ms, 1),)
    assert view.properties == {"a": "1"}


def test_a_view_version_can_be_added_and_made_current() -> None:
    view = after(new(), add("SELECT 2"), TO_LAST)
    assert texts(view) == {1: "SELECT 1", 2: "SELECT 2"}
    assert view.current_version_id == 2
    assert view.log[1:] == (LogEntry(NOW - 5, 2),)


def test_a_view_version_that_is_only_added_is_not_current() -> None:
    view = after(new(), add("SELECT 2"))
    assert (view.current_version_id, list(texts(view)), logged(view)) == (1, [1, 2], [1])


def test_a_view_version_id_that_a_concurrent_commit_took_is_renumbered() -> None:
    theirs = after(new(), add("SELECT theirs"), TO_LAST)
    ours = after(theirs, add("SELECT ours"), TO_LAST)
    assert texts(ours) == {1: "SELECT 1", 2: "SELECT theirs", 3: "SELECT ours"}
    assert (ours.current_version_id, logged(ours)) == (3, [1, 2, 3])
    # by the number that the request gave it
    named = after(theirs, add("SELECT ours"), {"action": "set-current-view-version", "view-version-id": 2})
    assert named == ours


def test_a_view_version_id_that_is_free_is_kept() -> None:
    assert list(texts(after(new(), add("SELECT 2", number=7)))) == [1, 7]
    with pytest.raises(BadRequest, match="2147483647"):
        after(new(), add("SELECT 2", number=2**31 - 1), add("SELECT 3"))


def test_an_equal_view_version_is_not_added_again() -> None:
    view = after(new(), add("SELECT 2"), TO_LAST)
    again = after(view, add("SELECT 1", number=3), TO_LAST)
    assert texts(again) == texts(view)
    assert (again.current_version_id, logged(again)) == (1, [1, 2, 1])
    # it has been current before: that it is again, it is since now
    assert again.log[-1].timestamp_ms == NOW


@pytest.mark.parametrize(
    "other",
    [
        {"summary": {"engine-name": "trino"}},
        {"default_catalog": None},
        {"default_namespace": ["a"]},
        {"representations": [sql("SELECT 1", "spark"), sql("SELECT 1", "trino")]},
    ],
)
def test_a_view_version_with_any_difference_is_added(other: Json) -> None:
    told = {"action": "add-view-version", "view-version": version(version_id=1, **other)}
    assert len(after(new(), told).versions) == 2


def test_updates_that_repeat_the_state_of_a_view_change_nothing() -> None:
    view = after(new(a="1"), add("SELECT 2"), TO_LAST)
    repeated = [
        {"action": "assign-uuid", "uuid": UUID.upper()},
        {"action": "upgrade-format-version", "format-version": 1},
        {"action": "set-location", "location": "s3://lake/v/"},
        {"action": "set-properties", "updates": {"a": "1"}},
        {"action": "remove-properties", "removals": ["nothing"]},
        add_schema({**SCHEMA, "schema-id": 3}),
        add("SELECT 2", number=5, schema_id=-1),
        TO_LAST,
    ]
    assert after(view, *repeated) == view


def test_a_view_numbers_its_schemas_and_stores_equal_schemas_once() -> None:
    view = after(new(), add_schema(OTHER), add("SELECT 2", schema_id=-1), TO_LAST)
    assert list(view.schemas) == [0, 1]
    assert view.current.schema_id == 1
    # by the number that the request gave it
    assert after(new(), add_schema(OTHER), add("SELECT 2", schema_id=7), TO_LAST) == view
    back = after(view, add_schema({**SCHEMA, "schema-id": 9}), add("SELECT 3", schema_id=-1), TO_LAST)
    assert (list(back.schemas), back.current.schema_id) == ([0, 1], 0)


def test_the_location_and_the_properties_of_a_view_can_be_changed() -> None:
    view = after(
        new(a="1", b="2"),
        {"action": "set-location", "location": "s3://lake/w"},
        {"action": "set-properties", "updates": {"a": "3", "c": "4"}},
        {"action": "remove-properties", "removals": ["b"]},
    )
    assert (view.location, view.properties) == ("s3://lake/w", {"a": "3", "c": "4"})
    assert view.versions == new().versions


def test_a_view_keeps_ten_versions_unless_a_property_sets_another_number() -> None:
    view = new()
    for number in range(2, 15):
        view = after(view, add(f"SELECT {number}", number), TO_LAST)
    assert (list(texts(view)), logged(view)) == ([*range(5, 15)], [*range(5, 15)])
    fewer = after(view, {"action": "set-properties", "updates": {"version.history.num-entries": "3"}})
    assert (list(texts(fewer)), logged(fewer)) == ([12, 13, 14], [12, 13, 14])


def test_version_expiry_keeps_the_current_view_version_and_a_log_without_gaps() -> None:
    view = new(**{"version.history.num-entries": "2"})
    view = after(view, add("SELECT 2"), TO_LAST)
    back = after(view, {"action": "set-current-view-version", "view-version-id": 1})
    assert (list(texts(back)), logged(back)) == ([1, 2], [1, 2, 1])
    more = after(back, add("SELECT 3", 3))
    assert (list(texts(more)), more.current_version_id, logged(more)) == ([1, 3], 1, [1])


def test_all_view_versions_that_one_request_adds_are_kept() -> None:
    view = new(**{"version.history.num-entries": "1"})
    several = after(view, add("SELECT 2", 2), add("SELECT 3", 3), TO_LAST)
    assert list(texts(several)) == [2, 3]


@pytest.mark.parametrize("size", ["0", "-1", "ten", "", "1.5", "٣", "9" * 40])
def test_an_invalid_view_history_size_is_refused(size: str) -> None:
    wanted = {"version.history.num-entries": size}
    with pytest.raises(BadRequest, match=r"version\.history\.num-entries"):
        new(**wanted)
    with pytest.raises(BadRequest, match=r"version\.history\.num-entries"):
        after(new(), {"action": "set-properties", "updates": wanted})


def test_a_view_replacement_that_loses_a_dialect_is_refused_unless_allowed() -> None:
    replaced = [add("SELECT 2", dialect="trino"), TO_LAST]
    with pytest.raises(BadRequest, match="loss of view dialects"):
        after(new(), *replaced)
    assert after(new(), ALLOWED, *replaced).current.dialects == ["trino"]
    # one that is not current loses nothing
    assert after(new(), replaced[0]).current.dialects == ["spark"]


@pytest.mark.parametrize(
    ("updates", "reason"),
    [
        ([{"action": "assign-uuid", "uuid": UUID.replace("0195", "0196")}], "Cannot reassign uuid"),
        ([{"action": "upgrade-format-version", "format-version": 2}], "format version"),
        ([TO_LAST], "no current version id has been set"),
        ([{"action": "set-current-view-version", "view-version-id": 5}], "unknown version: 5"),
        ([add("SELECT 2", schema_id=4)], "unknown schema: 4"),
        ([add("SELECT 2", schema_id=-1)], "no schema has been added"),
    ],
)
def test_view_updates_that_cannot_be_applied_are_refused_with_the_reason(updates: Sequence[Json], reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        after(new(), *updates)


@pytest.mark.parametrize(
    "update",
    [
        {"action": "add-snapshot", "snapshot": {}},
        {"action": "set-current-schema", "schema-id": 0},
        {"action": "make-coffee"},
        {"action": None},
        {"action": "add-view-version"},
        {"action": "set-current-view-version", "view-version-id": -2},
        {"action": "set-properties", "updates": {"a": None}},
        {"action": "add-schema", "schema": {"type": "list"}},
        "drop",
    ],
)
def test_a_malformed_or_unknown_view_update_is_refused(update: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_updates([update])


def test_assert_view_uuid_fails_the_commit_if_the_uuid_differs() -> None:
    check(parse_requirements([{"type": "assert-view-uuid", "uuid": UUID}]), new())
    other = parse_requirements([{"type": "assert-view-uuid", "uuid": UUID}])
    with pytest.raises(CommitFailed, match="view UUID does not match"):
        check(other, replace(new(), uuid=UUID.replace("0195", "0196")))


@pytest.mark.parametrize(
    "requirement",
    [{"type": "assert-create"}, {"type": "assert-view-uuid"}, {"type": "assert-view-uuid", "uuid": "x"}, {}],
)
def test_a_malformed_or_unknown_view_requirement_is_refused(requirement: Json) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_requirements([requirement])
