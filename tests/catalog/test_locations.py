"""Where a client may have files of a table: every trick with a location ends outside or in another's."""

import pytest

from mergus.catalog.locations import Premises, TablePlaces, allowed, parse
from mergus.errors import BadRequest
from mergus.storage.location import Location

ROOT = "s3://b/lake/data-iceberg"
PREMISES = Premises(parse("s3://b/lake/data/"), parse(ROOT), allowed("s3://b/more s3://c"))
PLACES = TablePlaces(
    PREMISES,
    [parse(f"{ROOT}/t"), parse("s3://b/lake/data/main/t/"), parse("s3://b/more/t")],
    [parse("s3://b/lake/data/main/u/"), parse("s3://b/more/u"), parse("s3://c/u/deep")],
)


@pytest.mark.parametrize(
    "text",
    [
        f"{ROOT}/t/data/x.parquet",
        f"{ROOT}/t",
        "s3://b/lake/data/main/t/x.parquet",
        "s3://b/more/t/x",
        # of nobody, and allowed
        "s3://b/more/v/x",
        "s3://b/more/ux",
        "s3://c/x",
        "s3://c/u/x",
        "s3://b/lake/data/main/v/x",
    ],
)
def test_places_that_may_be_named(text: str) -> None:
    assert PLACES.check(text) == Location.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        # another table's
        f"{ROOT}/u/data/x",
        f"{ROOT}/x",
        "s3://b/lake/data/main/u/x",
        "s3://b/more/u/x",
        "s3://c/u/deep/x",
        # nobody's
        "s3://b/x",
        "s3://b/lake/x",
        "s3://b/lake/data-iceberg-more/t/x",
        "s3://b/lake/database/x",
        "s3://b/moreover/x",
        "s3://d/x",
        "file:///s3/b/more/t/x",
        # ways round
        f"{ROOT}/t/../u/x",
        f"{ROOT}/t/./x",
        f"{ROOT}/t//x",
        f"{ROOT}/t/x\n",
        "s3://b/more/t/\0",
        "S3://b/more/t/x",
        "s3a://b/more/t/x",
        "s3:/b/more/t/x",
        "s3://b@evil/more/t/x",
        "s3://b:80/more/t/x",
        "//b/more/t/x",
        "https://b/more/t/x",
        "more/t/x",
        "",
        "/",
        "s3://",
    ],
)
def test_places_that_may_not(text: str) -> None:
    with pytest.raises(BadRequest) as raised:
        PLACES.check(text)
    assert raised.value.message


def test_what_looks_like_a_way_up_and_is_a_name() -> None:
    """Keys are never percent-decoded."""
    assert PLACES.check(f"{ROOT}/t/%2e%2e/u/x").parts[-3] == "%2e%2e"
    with pytest.raises(BadRequest, match="another table"):
        PLACES.check(f"{ROOT}/%74/x")


@pytest.mark.parametrize("text", [f"{ROOT}/t/below/", "s3://b/more/v", "s3://c/u/other", "s3://b/lake/data/main/v"])
def test_directories_that_a_table_may_have(text: str) -> None:
    assert PLACES.check_directory(text) == Location.parse(text.rstrip("/"))


@pytest.mark.parametrize(
    "text",
    [
        # above others, or everybody's
        *("s3://b/more", "s3://c", "s3://c/u", "s3://b/lake/data", "s3://b/lake/data/", "s3://b/lake/data/main"),
        *("s3://b/lake", ROOT, f"{ROOT}/u", "s3://b", "s3://b/more/u", "s3://b/more/u/below"),
    ],
)
def test_directories_that_it_may_not(text: str) -> None:
    with pytest.raises(BadRequest):
        PLACES.check_directory(text)


def test_allowed_places_are_a_list_with_spaces() -> None:
    assert allowed("") == ()
    assert allowed("  s3://a/b/   file:///c ") == (Location.parse("s3://a/b"), Location.parse("file:///c"))
    with pytest.raises(BadRequest):
        allowed("s3://a ../b")


def test_files_of_a_lake_on_disk() -> None:
    premises = Premises(parse("file:///lake/data/"), parse("file:///lake/data-iceberg"))
    places = TablePlaces(premises, [parse("file:///lake/data-iceberg/t")])
    for text in ("file:///lake/data-iceberg/t/x", "file:/lake/data-iceberg/t/x", "/lake/data-iceberg/t/x"):
        assert str(places.check(text)) == "file:///lake/data-iceberg/t/x"
    for text in ("file:///etc/passwd", "/lake/data-iceberg/t/../../x", "s3://lake/data-iceberg/t/x", "file://lake/t/x"):
        with pytest.raises(BadRequest):
            places.check(text)
