"""The one gate: every operation passes here, after it has resolved what it is about and before it acts.

Open to all for now. The router refuses to send the answer of an operation that did not come by, so a new
operation cannot forget it.
"""

from mergus.access.context import RequestContext
from mergus.iceberg.namespace import Namespace


async def authorise(ctx: RequestContext, resource: Namespace | None) -> None:
    """Returns if the principal may do `ctx.operation` on the resource (None: the catalog as a whole)."""
    ctx.authorised = True
    if resource not in ctx.resources:
        ctx.resources.append(resource)
