"""Which objects of ours manifest lists lead to: manifests, and by them files of rows and of deletes.

Objects are known by the last part of their names, which are hashes of their content: they are many, and nothing of a
table's directory is called like anything else of it. DuckLake's data files are not asked for: nothing here deletes any.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from mergus.iceberg.manifest import DELETED
from mergus.iceberg.manifest_list import ManifestFile
from mergus.materialise.at_once import each
from mergus.materialise.layout import ManifestName, is_chained
from mergus.materialise.manifests import Damaged, Manifests

READS_AT_ONCE: Final = 16


@dataclass(slots=True)
class Reach:
    """What is needed: all that lists lead to, as far as they have been added."""

    manifests: Manifests
    lists: set[str] = field(default_factory=set[str])
    _names: set[str] = field(default_factory=set[str])

    async def add(self, lists: Collection[str], live: Collection[str]) -> None:
        """Raises Damaged if a part of one that is live is missing: what it leads to is not known then. Who reads by
        another, which was replaced, finds no more than there is."""
        new = [path for path in lists if path not in self.lists]

        async def one(path: str) -> None:
            try:
                for file in await self.manifests.read_list(path):
                    await self._manifest(file)
            except Damaged:
                if path in live:
                    raise

        await each(one, new, READS_AT_ONCE)
        self.lists |= set(new)
        self._names |= {_name(path) for path in new}

    async def _manifest(self, file: ManifestFile) -> None:
        if _name(file.manifest_path) in self._names:
            return
        if _leads_to_ours(file):
            entries = await self.manifests.read(file)
            self._names |= {_name(e.data_file.file_path) for e in entries if e.status != DELETED}
        # not before: one that waits for this very manifest must not take it for known
        self._names.add(_name(file.manifest_path))

    def holds(self, path: str) -> bool:
        return _name(path) in self._names


@dataclass(slots=True)
class Refuse:
    """What lists lead to that is not needed, each with whatever it leads to: what comes first is deleted first, so that
    the rest is found again by one who was not allowed to finish."""

    files: list[str]
    manifests: list[str]
    lists: list[str]


async def refuse(manifests: Manifests, lists: Collection[str], needed: Reach) -> Refuse:
    found: dict[str, ManifestFile] = {}
    files: set[str] = set()

    async def opened(path: str) -> None:
        try:
            listed = await manifests.read_list(path)
        except Damaged:
            return
        found.update({f.manifest_path: f for f in listed if not needed.holds(f.manifest_path)})

    async def read(file: ManifestFile) -> None:
        try:
            entries = await manifests.read(file) if _leads_to_ours(file) else []
        except Damaged:
            return
        paths = (e.data_file.file_path for e in entries)
        files.update(path for path in paths if is_chained(path) and not needed.holds(path))

    await each(opened, lists, READS_AT_ONCE)
    await each(read, found.values(), READS_AT_ONCE)
    own = [path for path in found if ManifestName.of(path) is not None]
    return Refuse(sorted(files), sorted(own), sorted(path for path in lists if not needed.holds(path)))


def _leads_to_ours(file: ManifestFile) -> bool:
    name = ManifestName.of(file.manifest_path)
    return name is not None and (name.kind, name.content) != ("files", "data")


def _name(path: str) -> str:
    return path.rpartition("/")[2]
