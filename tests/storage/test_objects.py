"""The same behaviour on the real S3 store and on a local disk."""

from pathlib import Path
from uuid import uuid4

import pytest

from mergus.storage.location import Location
from mergus.storage.objects import Objects
from mergus.storage.place import ensure_bucket
from tests.support.lakes import backend_settings


@pytest.fixture(params=["s3", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    root = f"s3://mergus/{uuid4()}" if request.param == "s3" else str(tmp_path)
    return Location.parse(root)


@pytest.fixture
def objects() -> Objects:
    return Objects(backend_settings())


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


async def _unreachable(objects: Objects) -> None:
    with pytest.raises(Exception, match=r"(?i)bucket"):
        await objects.reachable(Location.parse("s3://no-such-bucket-here/x"))


def test_a_missing_bucket_is_not_reachable(objects: Objects) -> None:
    import asyncio

    asyncio.run(_unreachable(objects))


def test_a_bucket_is_made_once() -> None:
    settings = backend_settings()
    name = f"b-{uuid4().hex[:20]}"
    assert ensure_bucket(name, settings)
    assert not ensure_bucket(name, settings)
