"""Session policies allow what their scope says and nothing else: asked of an evaluator that knows nothing of how they
are made."""

import json
import re
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.storage.location import Location
from mergus.storage.policy import MOST_CHARACTERS, Scope, Terms, Unspeakable, session_policy

EXACT = Terms(escapes=True, ignores_case=False)

_VARIABLE = re.compile(r"\$\{([*?$])\}")


def matches(pattern: str, text: str) -> bool:
    """As AWS does: `*` is any text, `?` any character, `${*}` the star itself; nothing else means anything."""
    literal = {"*": "\ue000", "?": "\ue001", "$": "\ue002"}
    hidden = _VARIABLE.sub(lambda found: literal[found[1]], pattern)
    assert "${" not in hidden, f"a variable that AWS does not know in {pattern!r}"
    # fnmatch gives brackets a meaning, too
    quoted = re.sub(r"[\[\]]", lambda found: {"[": "\ue003", "]": "\ue004"}[found[0]], hidden)
    swapped = text.translate({ord(k): v for k, v in {**literal, "[": "\ue003", "]": "\ue004"}.items()})
    return fnmatchcase(swapped, quoted)


def listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else value


def allows(policy: str, action: str, bucket: str, key: str = "", prefix: str | None = None) -> bool:
    document = json.loads(policy)
    assert document["Version"] == "2012-10-17"
    resource = f"arn:aws:s3:::{bucket}" + (f"/{key}" if key else "")
    for statement in document["Statement"]:
        assert statement["Effect"] == "Allow"
        if action not in listed(statement["Action"]):
            continue
        if not any(matches(r, resource) for r in listed(statement["Resource"])):
            continue
        wanted = statement.get("Condition", {}).get("StringLike", {}).get("s3:prefix")
        if wanted is None or (prefix is not None and any(matches(w, prefix) for w in listed(wanted))):
            return True
    return False


parts = st.text(st.sampled_from("ab*?$[]{}%~ Aé𝄞\\\"'"), min_size=1, max_size=5).filter(lambda p: p not in (".", ".."))
keys = st.lists(parts, min_size=1, max_size=4).map(tuple)


@given(st.lists(keys, min_size=1, max_size=3), keys, st.booleans())
def test_a_policy_allows_its_directories_only(
    directories: list[tuple[str, ...]], other: tuple[str, ...], may_write: bool
) -> None:
    scope = tuple(Location("s3", "bkt", d) for d in directories)
    policy = session_policy(Scope(scope, scope if may_write else ()), EXACT)
    asked = Location("s3", "bkt", other)
    inside = any(d.contains(asked) and d != asked for d in scope)
    assert allows(policy, "s3:GetObject", "bkt", asked.key) == inside
    assert allows(policy, "s3:PutObject", "bkt", asked.key) == (inside and may_write)
    assert allows(policy, "s3:AbortMultipartUpload", "bkt", asked.key) == (inside and may_write)
    assert allows(policy, "s3:ListBucket", "bkt", prefix=asked.key) == inside
    assert not allows(policy, "s3:DeleteObject", "bkt", asked.key)
    assert not allows(policy, "s3:GetObject", "bkt2", asked.key)
    for d in scope:
        assert allows(policy, "s3:GetObject", "bkt", f"{d.key}/x/y")
        assert allows(policy, "s3:ListBucket", "bkt", prefix=f"{d.key}/")
        # neither a name that goes on where it ends, nor what is above
        if not any(o.contains(Location("s3", "bkt", (*d.parts[:-1], d.parts[-1] + "2", "x"))) for o in scope):
            assert not allows(policy, "s3:GetObject", "bkt", f"{d.key}2/x")
    assert not allows(policy, "s3:ListBucket", "bkt", prefix="")
    assert not allows(policy, "s3:ListBucket", "bkt")
    assert policy.isascii()


@given(keys, keys)
def test_a_policy_for_a_single_object_allows_that_object_only(key: tuple[str, ...], other: tuple[str, ...]) -> None:
    policy = session_policy(Scope((), (), (Location("s3", "bkt", key),)), EXACT)
    for asked in (key, other, (*key, "x")):
        assert allows(policy, "s3:GetObject", "bkt", "/".join(asked)) == (asked == key)
    assert not allows(policy, "s3:ListBucket", "bkt", prefix="/".join(key))


@given(st.lists(keys, min_size=1, max_size=3))
def test_a_policy_for_a_store_without_escapes_allows_plain_names_only(directories: list[tuple[str, ...]]) -> None:
    scope = Scope(tuple(Location("s3", "bkt", d) for d in directories))
    try:
        policy = session_policy(scope, Terms())
    except Unspeakable:
        text = str(directories)
        assert not text.isascii() or any(c in text for c in "*?$")
    else:
        assert "$" not in policy
        assert "?" not in policy
        assert "\\u" not in policy


@given(keys, keys)
def test_a_policy_may_allow_writing_only_delete_files_beside_data_files(
    directory: tuple[str, ...], other: tuple[str, ...]
) -> None:
    place, asked = Location("s3", "bkt", directory), "/".join(other)
    policy = session_policy(Scope((), beside=(place,)), EXACT)
    inside = asked.startswith(f"{place.key}/")
    assert allows(policy, "s3:GetObject", "bkt", asked) == inside
    assert not allows(policy, "s3:PutObject", "bkt", asked)
    for ending in ("-deletes.parquet", "-deletes.puffin"):
        assert allows(policy, "s3:PutObject", "bkt", asked + ending) == inside
    assert not allows(policy, "s3:PutObject", "bkt", f"{place.key}/ducklake-x-delete.parquet")


def many(count: int) -> Scope:
    return Scope(tuple(Location.parse(f"s3://bucket/some/long/way/to/a/directory/{i:04}") for i in range(count)))


def test_a_scope_too_large_for_a_policy_is_refused_and_never_widened() -> None:
    fits = max(n for n in range(1, 60) if _speaks(many(n)))
    policy = session_policy(many(fits), Terms())
    assert fits > 10
    assert len(policy) <= MOST_CHARACTERS
    assert not allows(policy, "s3:GetObject", "bucket", f"some/long/way/to/a/directory/{fits:04}/x")
    with pytest.raises(Unspeakable, match=str(MOST_CHARACTERS)):
        session_policy(many(fits + 1), Terms())


def _speaks(scope: Scope) -> bool:
    try:
        session_policy(scope, Terms())
    except Unspeakable:
        return False
    return True


@pytest.mark.parametrize("place", ["s3://bucket", "s3://bucket/", "file:///data/t"])
def test_a_policy_for_a_whole_bucket_or_a_local_disk_is_refused(place: str) -> None:
    with pytest.raises(Unspeakable):
        session_policy(Scope((Location.parse(place),)), EXACT)


def test_a_policy_for_an_empty_scope_is_refused() -> None:
    with pytest.raises(Unspeakable):
        session_policy(Scope(()), EXACT)


def test_a_policy_omits_directories_within_other_directories() -> None:
    inner, outer = Location.parse("s3://b-1/a/b/c"), Location.parse("s3://b-1/a/b")
    policy = session_policy(Scope((inner, outer), (inner,), (inner / "x", outer / "y")), Terms("aws-cn"))
    document = json.loads(policy)
    assert [s["Resource"] for s in document["Statement"]] == [
        ["arn:aws-cn:s3:::b-1/a/b/*"],
        ["arn:aws-cn:s3:::b-1/a/b/c/*"],
        "arn:aws-cn:s3:::b-1",
    ]
