import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.access.privileges import CATALOG, EVERY, EVERYTHING, Grant, Privilege, Resource
from mergus.access.scopes import grant_text, parse_grant, parse_scope, scope_text
from mergus.iceberg.namespace import Namespace

R = frozenset({Privilege.READ})
W = frozenset({Privilege.WRITE, Privilege.CREATE, Privilege.DROP})

names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
levels = names.filter(lambda name: not set(".\x1f") & set(name))
namespaces = st.lists(levels, min_size=1, max_size=3).map(lambda found: Namespace(tuple(found)))
resources = st.one_of(st.just(CATALOG), namespaces.map(Resource), st.builds(Resource, namespaces, names))
grants = st.builds(Grant, resources, st.frozensets(st.sampled_from(Privilege), min_size=1))


@pytest.mark.parametrize(
    ("text", "grant"),
    [
        ("*", EVERYTHING),
        ("catalog:r", Grant(CATALOG, R)),
        ("ns:sales:r", Grant(Resource(Namespace(("sales",))), R)),
        ("ns:sales.eu:rw", Grant(Resource(Namespace(("sales", "eu"))), R | W)),
        ("ns:sales:*", Grant(Resource(Namespace(("sales",))), EVERY)),
        ("ns:*:r", Grant(Resource(Namespace(("*",))), R)),
        ("ns:a%3Ab:w", Grant(Resource(Namespace(("a:b",))), W)),
        ("ns:a:b:w", Grant(Resource(Namespace(("a:b",))), W)),
        ("table:sales.orders:w", Grant(Resource(Namespace(("sales",)), "orders"), W)),
        ("table:sales.eu.orders:r", Grant(Resource(Namespace(("sales", "eu")), "orders"), R)),
        ("table:sales.a%2Eb%20c:r", Grant(Resource(Namespace(("sales",)), "a.b c"), R)),
        ("table:sales.*:r", Grant(Resource(Namespace(("sales",)), "*"), R)),
        ("ns:s:read,create", Grant(Resource(Namespace(("s",))), R | {Privilege.CREATE})),
    ],
)
def test_the_text_of_a_grant_is_parsed(text: str, grant: Grant) -> None:
    assert parse_grant(text) == grant


@given(grants)
def test_a_grant_is_written_and_read_without_loss(grant: Grant) -> None:
    text = grant_text(grant)
    assert parse_grant(text) == grant
    assert not set(text) & set(" \t\n\"'")
    assert parse_scope(f"openid {text} catalog") == [grant]


@given(st.lists(grants, min_size=1, max_size=4))
def test_several_grants_are_written_and_read_without_loss(found: list[Grant]) -> None:
    assert {*(parse_scope(scope_text(found)) or [])} == {*found}


@pytest.mark.parametrize(
    "text",
    [
        *("", "ns", "ns:", "ns:a", "ns:a:", "ns::r", "ns:a:x", "ns:a:rwx", "ns:a:R", "ns:a..b:r", "ns:.a:r"),
        *("table:a:r", "table:.t:r", "table:a.:r", "table:a.t", "catalog", "catalog:", "catalog:x", "**", "nss:a:r"),
        *("ns:a%:r", "ns:a%zz:r", "ns:a%00:r", "ns:%ff:r", "ns:a%2Eb:r", "ns:a:read,", "ns:a:read write"),
    ],
)
def test_a_malformed_grant_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_grant(text)


def test_scopes_that_are_not_grants_of_mergus_are_ignored() -> None:
    assert parse_scope(None) is None
    assert parse_scope("") is None
    assert parse_scope("catalog PRINCIPAL_ROLE:ALL openid profile") is None
    assert parse_scope("openid *") == [EVERYTHING]


def test_a_scope_that_looks_like_a_grant_but_is_malformed_is_refused() -> None:
    with pytest.raises(ValueError):
        parse_scope("openid ns:sales:readonly")
