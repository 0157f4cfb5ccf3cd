"""The same behaviour on the real S3 store and on a local disk."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from mergus.storage.location import Location
from mergus.storage.objects import Objects
from mergus.storage.place import ensure_bucket
from tests.support.lakes import backend_settings

pytestmark = pytest.mark.integration


@pytest.fixture(params=["s3", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    root = f"s3://mergus/{uuid4()}" if request.param == "s3" else str(tmp_path)
    return Location.parse(root)


@pytest.fixture
def objects() -> Objects:
    return Objects(backend_settings())


async def _listing(objects: Objects, place: Location) -> None:
    named = {place / f"some/{name}" for name in ("a b", "ü/c", "100%25", "d=1/e")}
    assert [found async for some in objects.list(place / "some") for found in some] == []
    for location in named:
        await objects.put(location, b"four")
    # what begins with the same letters lies beside it
    await objects.put(place / "someone", b"else's")
    found = [one async for some in objects.list(place / "some") for one in some]
    assert {one.location for one in found} == named
    assert {one.size for one in found} == {4}
    age = datetime.now(UTC) - found[0].modified
    assert timedelta(seconds=-5) < age < timedelta(minutes=5)
    await objects.delete_all([])
    await objects.delete_all([*named, place / "some/missing"])
    assert [one async for some in objects.list(place) for one in some if one.location in named] == []
    assert await objects.get(place / "someone") == b"else's"


def test_many_objects_are_listed_and_deleted(objects: Objects, place: Location) -> None:
    asyncio.run(_listing(objects, place))


async def _round_trip(objects: Objects, place: Location) -> None:
    here = place / "deep/er/object"
    assert await objects.get(here) is None
    await objects.put(here, b"one")
    assert await objects.get(here) == b"one"
    assert not await objects.put_new(here, b"two")
    assert await objects.get(here) == b"one"
    assert await objects.put_new(place / "other", b"two")
    await objects.put(here, b"three")
    assert await objects.get(here) == b"three"
    await objects.delete(here)
    await objects.delete(here)
    assert await objects.get(here) is None
    await objects.reachable(place)


def test_objects_are_written_read_and_deleted(objects: Objects, place: Location) -> None:
    import asyncio

    asyncio.run(_round_trip(objects, place))


def test_a_local_directory_is_reachable_if_it_is_there_or_can_be_made(objects: Objects, tmp_path: Path) -> None:
    there, new = Location.parse(str(tmp_path)), Location.parse(f"{tmp_path}/a/b")
    asyncio.run(objects.reachable(there))
    asyncio.run(objects.reachable(new, may_be_new=True))
    with pytest.raises(FileNotFoundError):
        asyncio.run(objects.reachable(new))
    (tmp_path / "a").write_text("a file")
    with pytest.raises(PermissionError):
        asyncio.run(objects.reachable(new, may_be_new=True))


async def _unreachable(objects: Objects) -> None:
    with pytest.raises(Exception, match=r"(?i)bucket"):
        await objects.reachable(Location.parse("s3://no-such-bucket-here/x"))


def test_a_missing_bucket_is_not_reachable(objects: Objects) -> None:
    import asyncio

    asyncio.run(_unreachable(objects))


def test_ensure_bucket_creates_a_bucket_once() -> None:
    settings = backend_settings()
    name = f"b-{uuid4().hex[:20]}"
    assert ensure_bucket(name, settings)
    assert not ensure_bucket(name, settings)
