"""What may be done to what, without I/O: privileges, grants, and what a set of grants comes to.

A grant is on a name: the catalog, a namespace with all that is in it or below it, or one table or view. Names and not
ids, because a table that a DuckDB session replaces is another one under the same name, and whoever could read it goes
on reading it. So moving a table to another namespace moves it out of one set of grants into another.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mergus.iceberg.namespace import Namespace


class Privilege(StrEnum):
    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DROP = "drop"
    ADMIN = "admin"


Privileges = frozenset[Privilege]

NONE: Final[Privileges] = frozenset()
EVERY: Final[Privileges] = frozenset(Privilege)
# What an operation needs is any one of a set. Who has any privilege on something sees that it is there; who writes to a
# table has to load it.
SEE: Final = EVERY
LOAD: Final[Privileges] = frozenset({Privilege.READ, Privilege.WRITE})
READ: Final[Privileges] = frozenset({Privilege.READ})
WRITE: Final[Privileges] = frozenset({Privilege.WRITE})
CREATE: Final[Privileges] = frozenset({Privilege.CREATE})
DROP: Final[Privileges] = frozenset({Privilege.DROP})
ADMIN: Final[Privileges] = frozenset({Privilege.ADMIN})


def _implied(privileges: Privileges) -> Privileges:
    """Who administers something may do everything to it."""
    return EVERY if Privilege.ADMIN in privileges else privileges


@dataclass(frozen=True, slots=True)
class Resource:
    """The catalog; a namespace; or with a name what is called so in it, be it a table, a view or nothing yet."""

    namespace: Namespace | None = None
    name: str | None = None

    def covers(self, other: "Resource") -> bool:
        if self.namespace is None:
            return True
        if other.namespace is None:
            return False
        if self.name is not None:
            return self == other
        return other.namespace.levels[: len(self.namespace.levels)] == self.namespace.levels

    def __str__(self) -> str:
        if self.namespace is None:
            return "the catalog"
        return str(self.namespace) if self.name is None else f"{self.namespace}.{self.name}"


CATALOG: Final = Resource()


@dataclass(frozen=True, slots=True)
class Grant:
    resource: Resource
    privileges: Privileges

    def __and__(self, other: "Grant") -> "Grant | None":
        """What both allow."""
        if self.resource.covers(other.resource):
            narrower = other.resource
        elif other.resource.covers(self.resource):
            narrower = self.resource
        else:
            return None
        both = _implied(self.privileges) & _implied(other.privileges)
        return Grant(narrower, both) if both else None


EVERYTHING: Final = Grant(CATALOG, EVERY)


class Rights:
    """What a set of grants comes to."""

    def __init__(self, grants: Iterable[Grant]) -> None:
        self._held: dict[Resource, Privileges] = {}
        for grant in grants:
            self._held[grant.resource] = self._held.get(grant.resource, NONE) | _implied(grant.privileges)
        # what one has to go through to get to something
        self._on_the_way = {
            above
            for resource in self._held
            if resource.namespace is not None
            for above in (resource.namespace.lineage if resource.name else resource.namespace.lineage[:-1])
        }

    def on(self, resource: Resource) -> Privileges:
        """All that may be done to it."""
        found = self._held.get(CATALOG, NONE)
        if resource.namespace is not None:
            for above in resource.namespace.lineage:
                found |= self._held.get(Resource(above), NONE)
            if resource.name is not None:
                found |= self._held.get(resource, NONE)
        return found

    def allow(self, needs: Privileges, resource: Resource) -> bool:
        return not needs.isdisjoint(self.on(resource))

    def see(self, resource: Resource) -> bool:
        """Whether anything may be done to it, or to something within it."""
        return bool(self.on(resource)) or (resource.name is None and resource.namespace in self._on_the_way)

    def names_in(self, namespace: Namespace) -> list[str] | None:
        """The names of what is seen in a namespace; None for whatever there is."""
        if self.on(Resource(namespace)):
            return None
        return sorted(r.name for r in self._held if r.namespace == namespace and r.name is not None)

    @property
    def namespaces(self) -> "Seen | None":
        """None for whatever there is."""
        if self.on(CATALOG):
            return None
        whole = {r.namespace.schema_name for r in self._held if r.namespace is not None and r.name is None}
        return Seen(sorted(whole), sorted(n.schema_name for n in self._on_the_way))


@dataclass(frozen=True, slots=True)
class Seen:
    """Schemas that are seen with all below them, and those that are seen by themselves."""

    whole: list[str]
    single: list[str]


ALL: Final = Rights([EVERYTHING])
NOBODYS: Final = Rights([])


def limited(grants: Iterable[Grant], limits: Iterable[Grant] | None) -> list[Grant]:
    """What is left of grants within limits; None limits nothing."""
    if limits is None:
        return list(grants)
    bounds = list(limits)
    return [both for grant in grants for bound in bounds if (both := grant & bound) is not None]


def merged(grants: Iterable[Grant]) -> list[Grant]:
    """One for each resource."""
    found: dict[Resource, Privileges] = {}
    for grant in grants:
        found[grant.resource] = found.get(grant.resource, NONE) | grant.privileges
    return [Grant(resource, privileges) for resource, privileges in found.items()]
