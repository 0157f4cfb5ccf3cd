"""Grants as text: scopes of tokens, arguments of the command line, lines of a file.

    *                          everything
    catalog:<access>           the whole catalog
    ns:<namespace>:<access>    a namespace and what is in it; levels are parted by dots
    table:<namespace>.<name>:<access>

`<access>` is `r` (read), `w` (write, create, drop), `rw`, `*` (all of these, and admin), or names of privileges with
commas between them. Names are percent-encoded as in addresses, dots and colons in them as well: a table
called "a.b c" is `table:sales.a%2Eb%20c:r`. A star in a name is a star.
"""

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, unquote

from mergus.access.privileges import CATALOG, EVERY, EVERYTHING, Grant, Privilege, Privileges, Resource
from mergus.iceberg.namespace import LEVEL_SEPARATOR, Namespace

ANYTHING: Final = "*"
_WRITING: Final[Privileges] = frozenset({Privilege.WRITE, Privilege.CREATE, Privilege.DROP})
_READING: Final[Privileges] = frozenset({Privilege.READ})
_SHORT: Final[dict[str, Privileges]] = {
    "r": _READING,
    "w": _WRITING,
    "rw": _READING | _WRITING,
    ANYTHING: EVERY,
}
_KINDS: Final = ("catalog:", "ns:", "table:")
_ENCODED: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


def parse_grant(text: str) -> Grant:
    """Raises ValueError that says what is wrong."""
    if text == ANYTHING:
        return EVERYTHING
    kind, _, rest = text.partition(":")
    subject, _, access = rest.rpartition(":") if kind != "catalog" else ("", "", rest)
    privileges = _privileges(access, text)
    match kind:
        case "catalog":
            return Grant(CATALOG, privileges)
        case "ns":
            return Grant(Resource(_namespace(subject, text)), privileges)
        case "table":
            namespace, _, name = subject.rpartition(LEVEL_SEPARATOR)
            return Grant(Resource(_namespace(namespace, text), _decoded(name, text)), privileges)
        case _:
            raise ValueError(f"{text!r} is none of *, catalog:<access>, ns:<name>:<access>, table:<ns>.<name>:<access>")


def parse_scope(scope: str | None) -> list[Grant] | None:
    """The grants in a token's scope; None if it has none, and so says nothing. Other words are others' business, but
    what looks like a grant and is none must not be taken for no limit."""
    words = [word for word in (scope or "").split() if word == ANYTHING or word.startswith(_KINDS)]
    return [parse_grant(word) for word in words] if words else None


def grant_text(grant: Grant) -> str:
    resource = grant.resource
    if resource.namespace is None:
        return ANYTHING if grant.privileges == EVERY else f"catalog:{_access(grant.privileges)}"
    namespace = LEVEL_SEPARATOR.join(map(_encoded, resource.namespace.levels))
    if resource.name is None:
        return f"ns:{namespace}:{_access(grant.privileges)}"
    return f"table:{namespace}.{_encoded(resource.name)}:{_access(grant.privileges)}"


def scope_text(grants: Iterable[Grant]) -> str:
    return " ".join(sorted(map(grant_text, grants)))


def _privileges(access: str, text: str) -> Privileges:
    if access in _SHORT:
        return _SHORT[access]
    try:
        return frozenset(Privilege(name) for name in access.split(","))
    except ValueError:
        names = ", ".join(Privilege)
        raise ValueError(f"{text!r} must end in r, w, rw, * or some of {names} with commas between") from None


def _access(privileges: Privileges) -> str:
    for short, meant in _SHORT.items():
        if privileges == meant:
            return short
    return ",".join(sorted(privileges))


def _namespace(subject: str, text: str) -> Namespace:
    namespace = Namespace(tuple(_decoded(level, text) for level in subject.split(LEVEL_SEPARATOR)))
    if not namespace.can_exist:
        raise ValueError(f"{text!r} names no namespace that could be there")
    return namespace


def _decoded(part: str, text: str) -> str:
    if not part or _ENCODED.search(part):
        raise ValueError(f"{text!r} lacks a name, or has a percent sign in one that is not written as %25")
    try:
        name = unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"{text!r} has a name that is not UTF-8") from None
    if "\0" in name:
        raise ValueError(f"{text!r} has a NUL character in a name")
    return name


def _encoded(name: str) -> str:
    """A dot is one that parts levels; quote() leaves it as it is."""
    return quote(name, safe="").replace(".", "%2E")
