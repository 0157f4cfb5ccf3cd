"""Where a client may have the files of a table: every location that it names is looked at here before anything is read.

A table has a directory of its own beside the data path, with everything that Iceberg's clients write unless they are
told otherwise. A client may choose one below the location of the namespace instead; other places are allowed by
setting. What must hold:

- Nothing of another table's may be named: two tables that share a file would lose it when one of them does not need it
  any more, and what is another's may be nothing for the eyes of who writes this one.
- Nothing new in DuckLake's data path may be named, be it in the directory that DuckLake has for this very table, but
  for deletes that DuckDB's iceberg extension puts there. A directory is not a table there (H22): it may hold files of
  one that was dropped, or renamed; and what DuckLake does not know there, its cleaner deletes (H42).
- A name is what it is to everybody. What some reader would unpack to a way up, or what only looks like a slash or a
  dot, is refused; and on a local disk a link leads nowhere else.
"""

import os
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote
from uuid import UUID

from mergus.errors import BadRequest
from mergus.materialise.layout import is_in_namespace, namespace_directory
from mergus.storage.location import Location
from mergus.storage.policy import BESIDE

# Those that Unicode does not take for the plain ones, too: fraction slash, division slash, big solidus, set minus.
_LOOK_ALIKES: Final = frozenset("\u2044\u2215\u29f8\u2216\u29f5")
# Marks of direction, joiners, surrogates and the like: two names that look the same may differ in them.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_SEPARATOR: Final = re.compile(r"[/\\]")


class OthersMatter(Exception):
    """Whether a place may be used depends on where other tables have theirs."""


@dataclass(frozen=True, slots=True)
class Premises:
    """Of the lake: where all its tables have theirs, and what else is allowed."""

    data_path: Location
    root: Location
    allowed: tuple[Location, ...] = ()

    def allows(self, location: Location) -> bool:
        """Whether it is a place where tables may have theirs by setting, and not one where the lake keeps them."""
        kept = self.data_path.contains(location) or self.root.contains(location)
        return not kept and any(place.contains(location) and _stays(place, location) for place in self.allowed)

    def home_of(self, schema_uuid: UUID) -> Location:
        """The location of a namespace: clients may choose locations of tables and views below it."""
        return namespace_directory(self.root, schema_uuid)

    def may_have_chosen(self, location: Location) -> bool:
        """Whether a table may have files in a place that was chosen for it. Who chose it was asked then."""
        return self.allows(location) or (is_in_namespace(self.root, location) and _stays(self.root, location))


@dataclass(frozen=True, slots=True)
class TablePlaces:
    """`own` are directories of the table, the first where all tables have theirs; `others` those of all other tables.
    They are many, and mostly nobody asks for anything but the table's own: None while they are not known. So with
    `home`, the location of the namespace that is called `schema_name`."""

    premises: Premises
    own: Sequence[Location]
    others: Sequence[Location] | None = None
    beside: Location | None = None
    schema_name: str | None = None
    home: Location | None = None

    def check(self, text: str, *, deletes: bool = False) -> Location:
        """The place that a client names for a file, be it one of deletes. Raises BadRequest."""
        if text.endswith("/"):
            raise BadRequest(f"{text} is a directory, and no file")
        if deletes and (found := self._beside(text)) is not None:
            return found
        return self._check(text)

    def _beside(self, text: str) -> Location | None:
        """DuckDB's iceberg extension writes deletes where the data file is. They are read once, and DuckLake gets files
        of its own for them. No file of DuckLake's is called so."""
        if self.beside is None or not text.endswith(BESIDE):
            return None
        location = given(text)
        if not self.beside.contains(location):
            return None
        if self.others is None:
            raise OthersMatter
        return None if any(place.contains(location) for place in self.others) else location

    def check_directory(self, text: str) -> Location:
        """A directory in which the table is to have files: neither above nor below another's."""
        location = self._check(text, is_directory=True)
        if self.others is None:
            raise OthersMatter
        around = (self.premises.data_path, self.premises.root, *self.others)
        if any(location.contains(place) for place in around):
            raise BadRequest(f"{text} cannot be a table's location: it holds other tables'")
        return location

    def _check(self, text: str, *, is_directory: bool = False) -> Location:
        location = given(text)
        if any(place.contains(location) and _stays(place, location) for place in self.own):
            return location
        if self.premises.data_path.contains(location):
            raise BadRequest(f"{text} lies in DuckLake's data path: only DuckDB puts files there")
        # all below the root belongs to some table, or is for one to choose
        if self.premises.root.contains(location):
            self._check_below_root(text, location, is_directory=is_directory)
        elif not self.premises.allows(location):
            raise BadRequest(
                f"{text} lies outside of the table's locations ({', '.join(map(str, self.own))}) and of what the "
                "server allows (MERGUS_ALLOWED_LOCATIONS)"
            )
        if self.others is None:
            raise OthersMatter
        if any(place.contains(location) for place in self.others):
            raise BadRequest(f"{text} lies in the location of another table")
        return location

    def _check_below_root(self, text: str, location: Location, *, is_directory: bool) -> None:
        if not is_directory:
            raise BadRequest(
                f"{text} lies outside of the table's locations ({', '.join(map(str, self.own))}), where other tables "
                "have theirs"
            )
        if self.others is None:
            raise OthersMatter
        if self.home is None or not self.home.contains(location) or location == self.home:
            below = "" if self.home is None else f", or choose one below the namespace's location {self.home}"
            raise BadRequest(
                f"{text} lies in {self.premises.root}, where the server gives tables and views their locations: leave "
                f"the location out{below}"
            )
        if not _stays(self.home, location):
            raise BadRequest(f"{text} leads out of the namespace's location {self.home}")


def parse(text: str) -> Location:
    """One of the lake's own, or of its settings."""
    try:
        return Location.parse(text)
    except ValueError as e:
        raise BadRequest(f"Not a location that can be used: {e}") from None


def given(text: str) -> Location:
    """One that a client gave. Raises BadRequest if it is not plain."""
    location = parse(text)
    if not text.isascii() and any(map(_is_disguise, text)):
        raise BadRequest(f"Not a location that can be used: it has characters that look like others: {text!r}")
    if any(map(_leads_up, location.parts)):
        raise BadRequest(f"Not a location that can be used: it has an encoded '.' or '..' part: {text!r}")
    return location


def _is_disguise(character: str) -> bool:
    if character.isascii():
        return False
    plain = unicodedata.normalize("NFKC", character)
    return character in _LOOK_ALIKES or not set("/\\.%:").isdisjoint(plain) or unicodedata.category(plain[0]) in _UNSEEN


def _leads_up(part: str) -> bool:
    """Whether it does to those who unpack it, as often as they like. A slash that is encoded is part of a name: writers
    put values of partitions into paths so."""
    if "%" not in part and "\\" not in part:
        return False
    while (plain := unquote(part)) != part:
        part = plain
    return not {".", ".."}.isdisjoint(_SEPARATOR.split(part))


def _stays(place: Location, location: Location) -> bool:
    """Whether links on the way lead out of the place."""
    if location.scheme != "file":
        return True
    real, within = (os.path.realpath(f"/{one.key}") for one in (place, location))
    return Location.parse(real).contains(Location.parse(within))


def allowed(setting: str) -> tuple[Location, ...]:
    return tuple(map(parse, setting.split()))
