"""A namespace and the DuckLake schema that it is.

A namespace of several levels is one schema whose name joins the levels with dots, so a level itself never
holds a dot, and the two forms translate into each other without loss. What a *lookup* asks for is only
looked for; what a *create* asks for must also pass `check_creatable`: names that DuckDB could not address,
that no URL or directory could carry, or that a person could not type are refused there.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from mergus.errors import BadRequest

LEVEL_SEPARATOR = "."
UNIT_SEPARATOR = "\x1f"
DEFAULT_SCHEMA = "main"

# A schema directory is named like the schema, and a file system takes 255 bytes for one name.
MAX_NAME_BYTES = 255

# DuckDB lets these be created, but a query that names them means something else or is ambiguous.
RESERVED = frozenset({"information_schema", "pg_catalog", "system", "temp"})


_UNUSABLE = frozenset({LEVEL_SEPARATOR, UNIT_SEPARATOR, "\0"})


@dataclass(frozen=True, slots=True)
class Namespace:
    levels: tuple[str, ...]

    @classmethod
    def of_path(cls, segment: str) -> "Namespace":
        """From a decoded path segment or `parent` parameter, levels parted by the unit separator."""
        return cls(tuple(segment.split(UNIT_SEPARATOR)))

    @classmethod
    def of_schema(cls, name: str) -> "Namespace":
        return cls(tuple(name.split(LEVEL_SEPARATOR)))

    @property
    def schema_name(self) -> str:
        return LEVEL_SEPARATOR.join(self.levels)

    @property
    def can_exist(self) -> bool:
        """Whether any schema could be this namespace; ("a.b",) must not find the schema of ("a", "b")."""
        return bool(self.levels) and all(
            x and not {LEVEL_SEPARATOR, UNIT_SEPARATOR, "\0"} & set(x) for x in self.levels
        )

    @property
    def lineage(self) -> "list[Namespace]":
        """Its parents from the top down, and itself."""
        return [Namespace(self.levels[: i + 1]) for i in range(len(self.levels))]

    def child(self, level: str) -> "Namespace":
        return Namespace((*self.levels, level))

    def __str__(self) -> str:
        return self.schema_name


def check_creatable(levels: Sequence[str]) -> Namespace:
    """The namespace, or BadRequest with the rule that it breaks."""
    if not levels:
        raise BadRequest("A namespace needs at least one level")
    for level in levels:
        if not level or level.isspace():
            raise BadRequest(f"Namespace {list(levels)} has an empty level")
        if LEVEL_SEPARATOR in level:
            raise BadRequest(f"Namespace level {level!r} has a dot in it; give the parts as separate levels instead")
        if bad := next((c for c in level if unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"}), None):
            raise BadRequest(f"Namespace level {level!r} has a control character in it: U+{ord(bad):04X}")
        if level != level.strip():
            raise BadRequest(f"Namespace level {level!r} begins or ends with white space")
    namespace = Namespace(tuple(levels))
    if (size := len(namespace.schema_name.encode())) > MAX_NAME_BYTES:
        raise BadRequest(f"Namespace name is too long: {size} bytes, at most {MAX_NAME_BYTES} are possible")
    if namespace.schema_name.lower() in RESERVED:
        raise BadRequest(f"Namespace name is reserved by DuckDB: {namespace}")
    return namespace
