"""The one gate: every operation passes here, after it has resolved what it is about and before it acts.

The router refuses to send the answer of an operation that did not come by, so a new operation cannot forget it. What is
refused depends on names and grants alone, never on what is there: whoever may do nothing at all to a thing hears that
it does not exist, in the words of one that does not, and everybody else that they may not.
"""

from mergus.access.context import Kind, Passed, RequestContext
from mergus.access.privileges import CREATE, SEE, Privileges, Resource
from mergus.errors import ApiError, Forbidden, NoSuchFunction, NoSuchNamespace, NoSuchTable, NoSuchView
from mergus.iceberg.namespace import Namespace

_MISSING: dict[Kind, tuple[str, type[ApiError]]] = {
    "table": ("Table", NoSuchTable),
    "view": ("View", NoSuchView),
    "function": ("Function", NoSuchFunction),
}


async def authorise(
    ctx: RequestContext, namespace: Namespace | None, name: str | None = None, needs: Privileges | None = None
) -> None:
    """Returns if the principal may do what the operation needs to the namespace (None: the catalog as a whole), or to
    what has the name in it."""
    resource = Resource(namespace, name)
    wanted = ctx.needs if needs is None else needs
    if not ctx.rights.allow(wanted, resource) and not _is_passed_through(ctx, wanted, resource):
        ctx.refused = resource
        raise _refusal(ctx, wanted, resource)
    ctx.authorised = True
    passed = Passed(resource, wanted)
    if passed not in ctx.passed:
        ctx.passed.append(passed)


def may(ctx: RequestContext, needs: Privileges, namespace: Namespace | None, name: str | None = None) -> bool:
    """For what an answer depends on; it is no authorisation."""
    return ctx.rights.allow(needs, Resource(namespace, name))


def _is_passed_through(ctx: RequestContext, needs: Privileges, resource: Resource) -> bool:
    """To see a namespace, it is enough to have something within it; the catalog is what everybody is in."""
    return needs == SEE and (resource.namespace is None or ctx.rights.see(resource))


def _refusal(ctx: RequestContext, needs: Privileges, resource: Resource) -> ApiError:
    asked = _around(resource) if needs == CREATE else resource
    if asked.namespace is not None and not ctx.rights.see(asked):
        return missing(ctx, asked)
    wanted = " or ".join(sorted(needs))
    return Forbidden(f"{ctx.principal.name} may not {wanted} {resource}")


def _around(resource: Resource) -> Resource:
    """Who creates something asks about what it is to be in."""
    if resource.namespace is None or resource.name is not None:
        return Resource(resource.namespace)
    above = resource.namespace.lineage[:-1]
    return Resource(above[-1] if above else None)


def missing(ctx: RequestContext, resource: Resource) -> ApiError:
    """As it is said of what is not there."""
    if resource.name is None:
        return NoSuchNamespace(f"Namespace does not exist: {resource}")
    what, kind = _MISSING[ctx.kind]
    return kind(f"{what} does not exist: {resource}")
