"""Delete files that are written before the lock is taken, and what becomes of them under it."""

import asyncio
from pathlib import Path

import pytest
from pyroaring import BitMap64

from mergus.catalog.delete_files import Drawer
from mergus.config import Settings
from mergus.iceberg import position_deletes
from mergus.materialise.deletes import DatedPositions
from mergus.storage.location import Location
from mergus.storage.objects import Objects


def read(path: str) -> dict[int, int]:
    found = position_deletes.read(Path(path.removeprefix("file://")).read_bytes())
    assert found.snapshot_ids is not None
    return dict(zip(found.positions, found.snapshot_ids, strict=True))


@pytest.mark.parametrize("later", [0, 5])
@pytest.mark.parametrize("first", [None, 11, 10], ids=["older commits", "both", "the same commit"])
def test_a_prepared_delete_file_is_renumbered_if_its_commit_gets_a_later_snapshot_id(
    tmp_path: Path, later: int, first: int | None
) -> None:
    """Somebody else has committed meanwhile; what was deleted before that stays where it was."""
    objects = Objects(Settings())  # pyright: ignore[reportCallIssue]
    drawer = Drawer(objects, Location.parse(str(tmp_path)), [])
    before, new = DatedPositions([4, 1], [10, 11]), BitMap64([7])

    async def settled() -> tuple[str, int, int | None]:
        prepared = await drawer.prepare("s3://b/data.parquet", before, new, 12, first=first)
        made = await drawer.settle(prepared, 1, (), 12 + later)
        return made.path, made.begin_snapshot, made.partial_max

    path, begin, newest = asyncio.run(settled())
    at = {i: i + later if first is not None and i >= first else i for i in (10, 11)}
    assert read(path) == {1: at[11], 4: at[10], 7: 12 + later}
    assert (begin, newest) == (min(at.values()), 12 + later)
    assert len(drawer.litter) == (2 if later else 1)
