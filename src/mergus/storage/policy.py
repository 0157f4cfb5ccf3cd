"""The session policy that narrows keys down to the files of one table. Pure: no store is asked.

What must hold: a policy never allows more than its scope says, whatever the names are.

- A directory ends in `/`, so that `t` is not `t2`.
- `*`, `?` and `$` mean something in a policy. AWS spells the characters themselves `${*}`, `${?}` and `${$}`. A store
  that does not know this spelling would deny the file that is meant and allow others (SeaweedFS takes the star in
  `a${*}b` for any text), so such names are refused unless the store was seen to understand.
- A store may compare without regard to case (SeaweedFS does). Who makes a scope takes care that no place of others
  differs from it in the case of ASCII letters alone; what other letters become is each store's own matter, so names
  with any are refused there.
- A policy has 2,048 characters at most. One that is longer is refused, never shortened by widening it.

Objects can be read and written, and uploads be aborted, but nothing is deleted: DuckLake's older snapshots need files
that Iceberg's clients think nobody needs. Listing is limited to the directories; without the right to list, AWS answers
403 and not 404 for an object that is not there, and clients look before they write.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

import orjson

from mergus.storage.location import Location

MOST_CHARACTERS: Final = 2048
# DuckDB's iceberg extension puts delete files where the data files are. None of DuckLake's own files ends so.
BESIDE: Final = ("-deletes.parquet", "-deletes.puffin")

_SPECIAL: Final = re.compile(r"[*?$]")


class Unspeakable(Exception):
    """No policy says just that; the text tells why."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What keys are good for: directories to read, directories to write (and read), single objects to read, and
    directories to read in which delete files may be written beside what is there."""

    read: tuple[Location, ...]
    write: tuple[Location, ...] = ()
    objects: tuple[Location, ...] = ()
    beside: tuple[Location, ...] = ()


@dataclass(frozen=True, slots=True)
class Terms:
    """What is known of the store that is to understand a policy."""

    partition: str = "aws"
    escapes: bool = False
    ignores_case: bool = True


def session_policy(scope: Scope, terms: Terms) -> str:
    """As compact JSON. Raises Unspeakable."""
    readable = outermost((*scope.read, *scope.write, *scope.beside))
    objects = [place for place in scope.objects if not any(d.contains(place) for d in readable)]
    if not readable and not objects:
        raise Unspeakable("there is nothing that it could allow")
    statements: list[dict[str, Any]] = [
        {
            "Effect": "Allow",
            "Action": "s3:GetObject",
            "Resource": [_resource(d, terms) + "/*" for d in readable] + [_resource(o, terms) for o in objects],
        }
    ]
    written = [_resource(d, terms) + "/*" for d in outermost(scope.write)]
    written += [_resource(d, terms) + f"/*{ending}" for d in outermost(scope.beside) for ending in BESIDE]
    if written:
        actions = ["s3:PutObject", "s3:AbortMultipartUpload"]
        statements.append({"Effect": "Allow", "Action": actions, "Resource": written})
    for bucket in sorted({d.bucket for d in readable}):
        prefixes = [_text(d.key, terms) + "/*" for d in readable if d.bucket == bucket]
        statements.append(
            {
                "Effect": "Allow",
                "Action": "s3:ListBucket",
                "Resource": f"arn:{terms.partition}:s3:::{_text(bucket, terms)}",
                "Condition": {"StringLike": {"s3:prefix": prefixes}},
            }
        )
    policy = _ascii(orjson.dumps({"Version": "2012-10-17", "Statement": statements}).decode())
    if len(policy) > MOST_CHARACTERS:
        raise Unspeakable(f"it would take {len(policy)} characters, and stores take {MOST_CHARACTERS}")
    return policy


def outermost(directories: tuple[Location, ...]) -> list[Location]:
    """Without those that lie in others of them, in one order."""
    found = sorted(set(directories), key=str)
    return [d for d in found if not any(other != d and other.contains(d) for other in found)]


def _resource(place: Location, terms: Terms) -> str:
    if place.scheme != "s3":
        raise Unspeakable(f"{place} is not on S3")
    if not place.parts:
        raise Unspeakable(f"{place} is a whole bucket")
    return f"arn:{terms.partition}:s3:::{_text(place.bucket, terms)}/{_text(place.key, terms)}"


def _text(name: str, terms: Terms) -> str:
    if terms.ignores_case and not name.isascii():
        raise Unspeakable(f"the store compares names without regard to case, and {name!r} is not plain ASCII")
    if not terms.escapes and _SPECIAL.search(name):
        raise Unspeakable(f"the store does not understand policies about {name!r}")
    return _SPECIAL.sub(lambda found: f"${{{found[0]}}}", name)


def _ascii(text: str) -> str:
    """AWS takes no other characters in a policy than those of Latin 1."""
    return "".join(c if c.isascii() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
