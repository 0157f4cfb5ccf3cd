"""Where a client may have the files of a table: every location that it names is looked at here before anything is read.

A table has a directory of its own beside the data path, with everything that Iceberg's clients write unless they are
told otherwise, and DuckLake's directory. Other places are allowed by setting. Nothing of another table's may be named:
two tables that share a file would lose it when one of them does not need it any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mergus.errors import BadRequest
from mergus.storage.location import Location


class OthersMatter(Exception):
    """Whether a place may be used depends on where other tables have theirs."""


@dataclass(frozen=True, slots=True)
class Premises:
    """Of the lake: where all its tables have theirs, and what else is allowed."""

    data_path: Location
    root: Location
    allowed: tuple[Location, ...] = ()

    def __contains__(self, location: Location) -> bool:
        return any(place.contains(location) for place in (self.data_path, self.root, *self.allowed))


@dataclass(frozen=True, slots=True)
class TablePlaces:
    """`own` are directories of the table, the first where all tables have theirs; `others` those of all other tables.
    They are many, and mostly nobody asks for anything but the table's own: None while they are not known."""

    premises: Premises
    own: Sequence[Location]
    others: Sequence[Location] | None = None

    def check(self, text: str) -> Location:
        """The place that a client names for a file. Raises BadRequest."""
        location = parse(text)
        if any(place.contains(location) for place in self.own):
            return location
        if location not in self.premises:
            raise BadRequest(
                f"{text} lies outside of the table's locations ({', '.join(map(str, self.own))}) and of what the "
                "server allows (MERGUS_ALLOWED_LOCATIONS)"
            )
        if self.others is None:
            raise OthersMatter
        # all below the root belongs to some table
        if self.premises.root.contains(location) or any(place.contains(location) for place in self.others):
            raise BadRequest(f"{text} lies in the location of another table")
        return location

    def check_directory(self, text: str) -> Location:
        """A directory in which the table is to have files: neither above nor below another's."""
        location = self.check(text)
        if self.others is None:
            raise OthersMatter
        around = (self.premises.data_path, self.premises.root, *self.others)
        if any(location.contains(place) for place in around):
            raise BadRequest(f"{text} cannot be a table's location: it holds other tables'")
        return location


def parse(text: str) -> Location:
    try:
        return Location.parse(text.rstrip("/") if text.endswith("/") else text)
    except ValueError as e:
        raise BadRequest(f"Not a location that can be used: {e}") from None


def allowed(setting: str) -> tuple[Location, ...]:
    return tuple(map(parse, setting.split()))
