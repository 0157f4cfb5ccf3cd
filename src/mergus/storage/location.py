"""Where an object or a directory of objects is.

A Location is in normal form: no empty, `.` or `..` part, no query, fragment or user info, so that "is this
inside that" is a comparison of parts and cannot be talked round. Keys are taken as they are, never
percent-decoded: `%2e%2e` is a name, not a way up.
"""

from dataclasses import dataclass, replace
from typing import Literal

_FORBIDDEN_PARTS = {"", ".", ".."}


@dataclass(frozen=True, slots=True)
class Location:
    scheme: Literal["s3", "file"]
    bucket: str  # empty for file
    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Location":
        """From `s3://bucket/key`, `file:///path`, `file:/path` or an absolute path; else ValueError."""
        if any(ord(c) < 0x20 or ord(c) == 0x7F for c in text):
            raise ValueError(f"location has a control character in it: {text!r}")
        if text.startswith("s3://"):
            bucket, _, key = text.removeprefix("s3://").partition("/")
            if not bucket or any(c in "@:?#%\\" for c in bucket):
                raise ValueError(f"location has no proper bucket: {text!r}")
            return cls("s3", bucket, _parts(key, text))
        for start in ("file:///", "file:/", "/"):
            if text.startswith(start) and not text.startswith("//"):
                return cls("file", "", _parts(text.removeprefix(start), text))
        raise ValueError(f"location is neither s3:// nor file:// with an absolute path: {text!r}")

    @property
    def key(self) -> str:
        return "/".join(self.parts)

    @property
    def root(self) -> str:
        """What must be there before anything else: the bucket, or the directory itself."""
        return f"s3://{self.bucket}" if self.scheme == "s3" else str(self)

    def __truediv__(self, relative: str) -> "Location":
        return replace(self, parts=self.parts + _parts(relative, relative))

    def contains(self, other: "Location") -> bool:
        """Whether `other` is this place or lies below it."""
        same_root = (self.scheme, self.bucket) == (other.scheme, other.bucket)
        return same_root and other.parts[: len(self.parts)] == self.parts

    def overlaps(self, other: "Location") -> bool:
        """Whether one of the two is, or lies below, the other."""
        return self.contains(other) or other.contains(self)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}" if self.scheme == "s3" else f"file:///{self.key}"

    @property
    def directory(self) -> str:
        """As text, with the slash at the end that DuckLake wants on directories."""
        return f"{self}/" if self.parts else str(self)


def _parts(key: str, text: str) -> tuple[str, ...]:
    trimmed = key[:-1] if key.endswith("/") else key
    if not trimmed:
        return ()
    parts = tuple(trimmed.split("/"))
    if any(p in _FORBIDDEN_PARTS for p in parts):
        raise ValueError(f"location has an empty, '.' or '..' part: {text!r}")
    return parts
