"""Where a client may have files of a table: every trick with a location ends outside or in another's."""

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from mergus.catalog.locations import Premises, TablePlaces, allowed, parse
from mergus.errors import BadRequest
from mergus.storage.location import Location

ROOT = "s3://b/lake/data-iceberg"
PREMISES = Premises(parse("s3://b/lake/data/"), parse(ROOT), allowed("s3://b/more s3://c"))
PLACES = TablePlaces(
    PREMISES,
    [parse(f"{ROOT}/t"), parse("s3://b/more/t")],
    [parse("s3://b/lake/data/main/u/"), parse("s3://b/more/u"), parse("s3://c/u/deep")],
)


@pytest.mark.parametrize(
    "text",
    [
        f"{ROOT}/t/data/x.parquet",
        f"{ROOT}/t",
        "s3://b/more/t/x",
        # a partition's value, as writers put it into paths
        f"{ROOT}/t/s=a%2Fb%252F/x.parquet",
        f"{ROOT}/t/s=100%/ünï",
        # of nobody, and allowed
        "s3://b/more/v/x",
        "s3://b/more/ux",
        "s3://c/x",
        "s3://c/u/x",
    ],
)
def test_a_table_may_name_files_at_its_own_and_at_allowed_locations(text: str) -> None:
    assert PLACES.check(text) == Location.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        # another table's
        f"{ROOT}/u/data/x",
        f"{ROOT}/x",
        "s3://b/more/u/x",
        # DuckLake's
        "s3://b/lake/data/main/u/x",
        "s3://b/lake/data/main/t/x.parquet",
        "s3://b/lake/data/main/v/x",
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
        # a directory
        f"{ROOT}/t/x/",
        f"{ROOT}/t/x//",
        # a way up to those who unpack it
        f"{ROOT}/t/%2e%2e/u/x",
        f"{ROOT}/t/%252E%252e/u/x",
        f"{ROOT}/t/..%2Fu%2Fx",
        f"{ROOT}/t/a%2f..%2f..%2fu",
        f"{ROOT}/t/..\\u\\x",
        f"{ROOT}/t/.%2e",
        # what looks like something else
        f"{ROOT}/t/\uff0e\uff0e/u",
        f"{ROOT}/t\uff0f..\uff0fu/x",
        f"{ROOT}/t/\u2024\u2024/u",
        f"{ROOT}/t/\u2025/u",
        f"{ROOT}/t/\u2215x",
        f"{ROOT}/t/\u2044x",
        f"{ROOT}/t/\uff052e",
        f"{ROOT}/t/x\u202exslc.parquet",
        f"{ROOT}/t/\u200bx",
        f"{ROOT}/\u0442/x",
        "s3://\u0432/more/t/x",
    ],
)
def test_a_table_may_not_name_files_at_other_locations(text: str) -> None:
    with pytest.raises(BadRequest) as raised:
        PLACES.check(text)
    assert raised.value.message


def test_percent_escapes_in_a_location_are_not_decoded() -> None:
    assert PLACES.check(f"{ROOT}/t/%74/x").parts[-2] == "%74"
    with pytest.raises(BadRequest, match="other tables have theirs"):
        PLACES.check(f"{ROOT}/%74/x")


HOME = PREMISES.home_of(UUID(int=7))


@pytest.mark.parametrize("name", ["t", "t-0123abcd", "a/b", "a%2Fb", "größe", "t'; --"])
def test_a_directory_may_be_chosen_below_the_location_of_the_namespace(name: str) -> None:
    places = replace(PLACES, home=HOME)
    assert places.check_directory(f"{HOME}/{name}") == HOME / name
    # but no single file, which would be nobody's
    with pytest.raises(BadRequest):
        places.check(f"{HOME}/{name}")


@pytest.mark.parametrize(
    "text",
    [
        str(HOME),
        f"{HOME}/",
        f"{HOME}/..",
        f"{HOME}/%2e%2e/x",
        f"{HOME}/taken",
        f"{HOME}/taken/below",
        f"{HOME}/above",
        # another namespace's, or nobody's
        f"{PREMISES.home_of(UUID(int=8))}/t",
        f"{ROOT}/schemas/t",
        f"{ROOT}/schemas",
        f"{ROOT}/ducklake/{UUID(int=9)}",
        f"{ROOT}/ducklake/x",
        f"{ROOT}/new",
    ],
)
def test_no_other_directory_below_the_root_may_be_chosen(text: str) -> None:
    places = replace(PLACES, home=HOME, others=[HOME / "taken", HOME / "above/taken"])
    with pytest.raises(BadRequest):
        places.check_directory(text)


def test_the_refusal_of_a_directory_names_the_location_to_choose_below() -> None:
    with pytest.raises(BadRequest) as raised:
        replace(PLACES, home=HOME).check_directory(f"{ROOT}/new")
    assert "another table" not in raised.value.message
    assert f"choose one below the namespace's location {HOME}" in raised.value.message


def test_directories_of_the_lake_stay_closed_if_the_allowed_locations_contain_them() -> None:
    places = TablePlaces(Premises(PREMISES.data_path, PREMISES.root, allowed("s3://b")), [parse(f"{ROOT}/t")], [])
    for text in ("s3://b/lake/data/main/t/x", f"{ROOT}/u/x"):
        with pytest.raises(BadRequest):
            places.check(text)
    assert places.check("s3://b/lake/x")
    for text in ("s3://b/lake/data/main/t", "s3://b/lake/data", ROOT, "s3://b/lake", "s3://b"):
        with pytest.raises(BadRequest):
            places.check_directory(text)


def test_a_symbolic_link_does_not_lead_out_of_a_tables_location(tmp_path: Path) -> None:
    lake, outside = tmp_path / "lake", tmp_path / "outside"
    for folder in (lake / "root/t", lake / "root/u", lake / "more", outside):
        folder.mkdir(parents=True)
    (lake / "root/t/away").symlink_to(outside)
    (lake / "root/t/theirs").symlink_to(lake / "root/u")
    (lake / "root/t/here").symlink_to(lake / "root/t")
    (lake / "more/away").symlink_to(outside)
    (tmp_path / "link").symlink_to(lake)
    for at in (lake, tmp_path / "link"):
        premises = Premises(parse(f"{at}/data"), parse(f"{at}/root"), allowed(f"{at}/more"))
        places = TablePlaces(premises, [parse(f"{at}/root/t")], [])
        for name in ("root/t/x", "root/t/here/x", "more/x"):
            assert places.check(f"{at}/{name}")
        for name in ("root/t/away/x", "root/t/theirs/x", "root/t/away", "more/away/x"):
            with pytest.raises(BadRequest):
                places.check(f"{at}/{name}")


@pytest.mark.parametrize("text", [f"{ROOT}/t/below/", "s3://b/more/v", "s3://c/u/other"])
def test_a_table_may_choose_a_directory_below_its_own_or_an_allowed_location(text: str) -> None:
    assert PLACES.check_directory(text) == Location.parse(text.rstrip("/"))


@pytest.mark.parametrize(
    "text",
    [
        # above others, or everybody's
        *("s3://b/more", "s3://c", "s3://c/u", "s3://b/lake/data", "s3://b/lake/data/", "s3://b/lake/data/main"),
        *("s3://b/lake/data/main/v", "s3://b/lake/data/main/t", "s3://b/more/v//", "s3://b/more/%2e%2e/v"),
        *("s3://b/lake", ROOT, f"{ROOT}/u", "s3://b", "s3://b/more/u", "s3://b/more/u/below"),
    ],
)
def test_a_table_may_not_choose_a_directory_elsewhere_or_of_another_table(text: str) -> None:
    with pytest.raises(BadRequest):
        PLACES.check_directory(text)


def test_the_allowed_locations_setting_is_a_list_separated_by_spaces() -> None:
    assert allowed("") == ()
    assert allowed("  s3://a/b/   file:///c ") == (Location.parse("s3://a/b"), Location.parse("file:///c"))
    with pytest.raises(BadRequest):
        allowed("s3://a ../b")


def test_file_urls_and_paths_of_a_lake_on_disk_are_checked_alike() -> None:
    premises = Premises(parse("file:///lake/data/"), parse("file:///lake/data-iceberg"))
    places = TablePlaces(premises, [parse("file:///lake/data-iceberg/t")])
    for text in ("file:///lake/data-iceberg/t/x", "file:/lake/data-iceberg/t/x", "/lake/data-iceberg/t/x"):
        assert str(places.check(text)) == "file:///lake/data-iceberg/t/x"
    for text in ("file:///etc/passwd", "/lake/data-iceberg/t/../../x", "s3://lake/data-iceberg/t/x", "file://lake/t/x"):
        with pytest.raises(BadRequest):
            places.check(text)


def test_only_delete_files_of_duckdbs_iceberg_extension_may_lie_beside_data_files() -> None:
    mine, shared = parse("s3://b/lake/data/main/t/"), parse("s3://b/lake/data/main/u/")
    found = "s3://b/lake/data/main/t/01-deletes.parquet"
    assert replace(PLACES, beside=mine).check(found, deletes=True) == Location.parse(found)
    for places, text, deletes in (
        (PLACES, found, True),
        (replace(PLACES, beside=mine), found, False),
        (replace(PLACES, beside=mine), found.replace("-deletes", ""), True),
        (replace(PLACES, beside=mine), found.replace("/t/", "/t2/"), True),
        (replace(PLACES, beside=mine), found.replace("/t/", "/t/../u/"), True),
        # a directory that another table has as well
        (replace(PLACES, beside=shared), found.replace("/t/", "/u/"), True),
    ):
        with pytest.raises(BadRequest):
            places.check(text, deletes=deletes)
