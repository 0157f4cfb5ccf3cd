"""What grants come to: compared with the plainest way to ask, for any grants and any resource."""

from hypothesis import given
from hypothesis import strategies as st

from mergus.access.privileges import (
    ALL,
    CATALOG,
    EVERY,
    SEE,
    Grant,
    Privilege,
    Resource,
    Rights,
    limited,
    merged,
)
from mergus.iceberg.namespace import Namespace

levels = st.sampled_from(["a", "b", "ab", "*", "%"])
namespaces = st.lists(levels, min_size=1, max_size=3).map(lambda found: Namespace(tuple(found)))
resources = st.one_of(
    st.just(CATALOG), namespaces.map(Resource), st.builds(Resource, namespaces, st.sampled_from(["t", "u", "a"]))
)
privileges = st.frozensets(st.sampled_from(Privilege), min_size=1)
grants = st.lists(st.builds(Grant, resources, privileges), max_size=6)


def plainly(held: list[Grant], privilege: Privilege, resource: Resource) -> bool:
    """Word for word: a grant on the thing, on a namespace that it is in, or on the catalog."""
    for grant in held:
        of = grant.resource
        within = of.namespace is None or (
            resource.namespace is not None
            and ".".join([*resource.namespace.levels, ""]).startswith(".".join([*of.namespace.levels, ""]))
            and (of.name is None or (of.namespace == resource.namespace and of.name == resource.name))
        )
        if within and (privilege in grant.privileges or Privilege.ADMIN in grant.privileges):
            return True
    return False


@given(grants, resources)
def test_rights_on_a_resource_are_the_union_of_all_grants_on_it_and_above_it(
    held: list[Grant], resource: Resource
) -> None:
    rights = Rights(held)
    assert rights.on(resource) == {p for p in Privilege if plainly(held, p, resource)}


@given(grants, grants, resources)
def test_limited_grants_allow_only_what_both_sets_of_grants_allow(
    held: list[Grant], limits: list[Grant], resource: Resource
) -> None:
    both = Rights(limited(held, limits))
    assert both.on(resource) == Rights(held).on(resource) & Rights(limits).on(resource)
    assert Rights(limited(held, None)).on(resource) == Rights(held).on(resource)


@given(grants, resources)
def test_merging_grants_does_not_change_rights(held: list[Grant], resource: Resource) -> None:
    assert Rights(merged(held)).on(resource) == Rights(held).on(resource)


@given(grants, st.lists(st.builds(Resource, namespaces, st.sampled_from(["t", "u", "a"])), max_size=8))
def test_a_namespace_is_visible_to_a_principal_with_any_grant_on_it_or_within_it(
    held: list[Grant], things: list[Resource]
) -> None:
    rights = Rights(held)
    for grant in held:
        thing = grant.resource
        assert rights.see(thing)
        for above in thing.namespace.lineage if thing.namespace else ():
            assert rights.see(Resource(above))
    for thing in things:
        assert thing.namespace is not None
        names = rights.names_in(thing.namespace)
        assert (names is None or thing.name in names) == bool(rights.on(thing))
        if rights.on(thing):
            assert rights.see(Resource(thing.namespace))
        else:
            assert not rights.see(thing)


@given(grants, namespaces)
def test_the_namespaces_listed_are_exactly_the_visible_ones(held: list[Grant], namespace: Namespace) -> None:
    rights = Rights(held)
    seen = rights.namespaces
    name = namespace.schema_name
    listed = seen is None or name in seen.single or any(f"{name}.".startswith(f"{whole}.") for whole in seen.whole)
    assert listed == rights.see(Resource(namespace))


def test_a_principal_without_grants_has_no_rights() -> None:
    nobody = Rights([])
    assert nobody.on(CATALOG) == frozenset()
    assert not nobody.allow(SEE, Resource(Namespace(("a",))))
    assert ALL.on(Resource(Namespace(("a",)), "t")) == EVERY


def test_a_grant_on_a_namespace_does_not_cover_namespaces_with_the_same_prefix() -> None:
    rights = Rights([Grant(Resource(Namespace(("a",))), EVERY)])
    assert not rights.on(Resource(Namespace(("ab",))))
    assert not rights.on(Resource(Namespace(("a.b",))))
    assert rights.on(Resource(Namespace(("a", "b"))))
