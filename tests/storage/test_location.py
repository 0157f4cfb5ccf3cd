import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.storage.location import Location

part = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="/\x7f"), min_size=1, max_size=8
).filter(lambda s: s not in {".", ".."})
locations = st.builds(
    lambda scheme, parts: Location(scheme, "bucket" if scheme == "s3" else "", tuple(parts)),
    st.sampled_from(["s3", "file"]),
    st.lists(part, max_size=5),
)


@given(locations)
def test_a_location_is_parsed_back_from_its_text(location: Location) -> None:
    assert Location.parse(str(location)) == location
    assert Location.parse(location.directory) == location


@given(locations, part)
def test_a_location_contains_what_lies_below_it_and_nothing_beside_it(location: Location, name: str) -> None:
    below = location / name
    assert location.contains(below)
    assert location.contains(location)
    assert not below.contains(location)
    assert not below.contains(location / (name + "x"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "relative/path",
        "s3://",
        "s3:///key",
        "s3://bucket//key",
        "s3://bucket/../other",
        "s3://bucket/a/./b",
        "s3://user@bucket/a",
        "s3://bucket:80/a",
        "s3://bucket?x/a",
        "s3://bucket/a\nb",
        "file://host/path",
        "file:///a/../b",
        "//host/path",
        "http://127.0.0.1/x",
        "gs://bucket/x",
        "S3://bucket/x",
    ],
)
def test_a_malformed_location_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="location"):
        Location.parse(text)


def test_a_percent_sign_is_a_name_not_an_escape() -> None:
    data = Location.parse("s3://b/data")
    assert data.contains(Location.parse("s3://b/data/%2e%2e/x"))
    assert not data.contains(Location.parse("s3://b/data%2Fx"))
    assert not data.contains(Location.parse("s3://b/database/x"))
    assert not data.contains(Location.parse("file:///data/x"))


@pytest.mark.parametrize("text", ["/a/b", "file:/a/b", "file:///a/b", "file:///a/b/"])
def test_all_spellings_of_a_local_path_are_the_same_location(text: str) -> None:
    assert str(Location.parse(text)) == "file:///a/b"
