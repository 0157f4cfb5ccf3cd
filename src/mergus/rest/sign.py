"""`POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/sign`."""

from typing import Literal

from fastapi import Response
from pydantic import BaseModel, ConfigDict

from mergus.catalog.sign_request import ToSign
from mergus.catalog.sign_request import sign_request as sign
from mergus.rest.request import Context, PathNamespace, PathTable, PrefixLake, Text, json_response


class RemoteSignRequest(BaseModel):
    """What a client says of the content (`body`) is for deleting many objects at once, which is not signed."""

    model_config = ConfigDict(strict=True)
    region: Text
    uri: Text
    method: Literal["PUT", "GET", "HEAD", "POST", "DELETE", "PATCH", "OPTIONS"]
    headers: dict[Text, list[Text]]
    body: Text | None = None
    properties: dict[Text, Text] | None = None
    provider: Literal["s3"] | None = None


async def sign_request(
    lake: PrefixLake, ctx: Context, namespace: PathNamespace, table: PathTable, body: RemoteSignRequest
) -> Response:
    request = ToSign(body.method, body.region, body.uri, body.headers)
    signed = await sign(lake, ctx, namespace, table, request)
    response = json_response({"uri": signed.uri, "headers": signed.headers})
    # Java's client uses a signature again for the same address only if told so by this very word
    response.headers["Cache-Control"] = "private" if signed.reads else "no-store"
    return response
