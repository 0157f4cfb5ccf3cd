"""Where the files of a table are.

A path is relative to the table's directory, that to the schema's, that to the lake's data path; whatever stands left of
the first absolute part does not count. A directory is not a table: dropped and re-created tables share one (H22).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Path:
    text: str
    relative: bool

    def below(self, directory: str) -> str:
        return directory + self.text if self.relative else self.text


@dataclass(frozen=True, slots=True)
class TablePaths:
    data_path: str
    schema: Path
    table: Path

    @property
    def directory(self) -> str:
        return self.table.below(self.schema.below(self.data_path))

    def resolve(self, path: str, relative: bool) -> str:
        return Path(path, relative).below(self.directory)
