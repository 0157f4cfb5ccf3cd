"""Objects of a client: never more of them than is asked for, on the real S3 store and on a local disk."""

import asyncio

import pytest

from mergus.storage.location import Location
from mergus.storage.objects import Objects
from tests.storage.test_objects import objects, place

pytestmark = pytest.mark.integration

__all__ = ["objects", "place"]


async def _parts(objects: Objects, place: Location) -> None:
    here = place / "object"
    assert await objects.get_bounded(here, 10) is None
    assert await objects.get_range(here, 0, 1) is None
    await objects.put(here, b"0123456789")
    assert await objects.get_bounded(here, 10) == b"0123456789"
    with pytest.raises(ValueError, match="has 10 bytes, and 9 at most are read"):
        await objects.get_bounded(here, 9)
    assert await objects.get_range(here, 3, 4) == b"3456"
    assert await objects.get_range(here, 0, 10) == b"0123456789"


def test_objects_above_the_size_limit_are_not_read_whole(objects: Objects, place: Location) -> None:
    asyncio.run(_parts(objects, place))
