"""SignRequest: one request to the S3 store, signed for a client that has no keys, if it is for the table's own files.

What must hold: nothing is signed that the client could not do with keys that were vended to it. Where a directory is
shared with tables that it may not read, it can read those very objects that are this table's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.catalog import delegation
from mergus.catalog.holdings import Grounds
from mergus.catalog.lake import Lake
from mergus.ducklake import directories
from mergus.errors import BadRequest, Forbidden
from mergus.iceberg.namespace import Namespace
from mergus.materialise.table import Materialised
from mergus.storage import signing
from mergus.storage.signing import Meant


@dataclass(frozen=True, slots=True)
class ToSign:
    """As a client asks for it."""

    method: str
    region: str
    uri: str
    headers: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """What a client has to send. Signatures of requests that only read may be used again, for as long as they last."""

    uri: str
    headers: Mapping[str, Sequence[str]]
    reads: bool


async def sign_request(
    lake: Lake, ctx: RequestContext, namespace: Namespace, name: str, request: ToSign
) -> SignedRequest:
    await authorise(ctx, namespace, name)
    table, head = await delegation.find(lake, ctx, namespace, name)
    proof = await lake.signing.proof((await lake.tables()).materialiser.place.root)
    if not proof.is_proven:
        raise Forbidden(f"Requests are not signed: {proof.reason}")
    if request.region != lake.settings.s3_region:
        raise BadRequest(f"The request to sign is for region {request.region}, and the store is in another")
    meant = signing.understand(lake.settings, request.method, request.uri, request.headers)
    grounds = await delegation.grounds_of(lake, ctx, table, head, (namespace, name))
    if not await _is_open(lake, table, grounds, meant):
        raise Forbidden(f"{meant.place} is not among the files of the table that you may {meant.access}")
    ctx.handed_out.append(f"signature to {meant.access} {meant.place}")
    return SignedRequest(meant.url, await lake.signing.sign(meant), meant.access == "read")


async def _is_open(lake: Lake, table: Materialised, grounds: Grounds, meant: Meant) -> bool:
    places = grounds.write if meant.access == "write" else grounds.read
    if any(place.contains(meant.place) for place in places):
        return True
    if meant.access != "read" or not any(place.contains(meant.place) for place in grounds.guarded):
        return False
    view = table.reading.view.table
    async with lake.read() as conn:
        return await directories.has(conn, view.id, view.paths.directory, str(meant.place))
