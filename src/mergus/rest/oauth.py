"""`POST /v1/oauth/tokens`: form in, JSON out, errors as OAuth2 has them (RFC 6749, RFC 8693).

Iceberg's clients send `client_credentials` with the secret in the form or in a Basic header, and, to renew a token,
a token exchange with the old one as the subject, authorised by itself or, once it has expired, by the secret again.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from typing import Final
from urllib.parse import parse_qsl, unquote

from fastapi import Request, Response

from mergus.access.secret_checks import SecretChecks
from mergus.catalog import tokens
from mergus.catalog.tokens import Issued, OAuthError, ShownSecret
from mergus.rest.request import AnyLake, Context, json_response

LARGEST: Final = 64 * 1024
MOST_FIELDS: Final = 32
CREDENTIALS: Final = "client_credentials"
EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105
JWT: Final = "urn:ietf:params:oauth:token-type:jwt"


async def get_token(request: Request, lake: AnyLake, ctx: Context) -> Response:
    ctx.handed_out.append("token")
    try:
        form = await _form(request)
        return _sent(await _issued(request, lake, ctx, form))
    except OAuthError as e:
        ctx.authorised = True
        response = json_response({"error": e.error, "error_description": e.description}, e.status)
        if e.status == 401:
            response.headers["WWW-Authenticate"] = "Basic"
        return response


async def _issued(request: Request, lake: AnyLake, ctx: Context, form: dict[str, str]) -> Issued:
    scope = form.get("scope")
    checks: SecretChecks = request.app.state.secret_checks
    address = request.client.host if request.client else ""
    basic = _basic(request.headers.get("authorization"))
    grant_type = form.get("grant_type")
    if grant_type == CREDENTIALS:
        client_id, secret = basic or (form.get("client_id", ""), form.get("client_secret", ""))
        if not secret:
            raise OAuthError("invalid_client", "client_id and client_secret are needed", 401)
        return await tokens.by_secret(lake, ctx, checks, ShownSecret(address, client_id, secret), scope)
    if grant_type != EXCHANGE:
        raise OAuthError("unsupported_grant_type", f"grant_type is {CREDENTIALS} or {EXCHANGE}")
    if form.get("subject_token_type", ACCESS_TOKEN) not in {ACCESS_TOKEN, JWT}:
        raise OAuthError("invalid_request", "Only access tokens are exchanged")
    if "actor_token" in form:
        raise OAuthError("invalid_request", "Nobody can act for another here")
    if basic is not None:
        # whose token has expired shows its secret again
        return await tokens.by_secret(lake, ctx, checks, ShownSecret(address, *basic), scope)
    if not (subject := form.get("subject_token")):
        raise OAuthError("invalid_request", "subject_token is needed")
    return await tokens.by_token(lake, ctx, subject, scope)


async def _form(request: Request) -> dict[str, str]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise OAuthError("invalid_request", "A form is needed (application/x-www-form-urlencoded)")
    body = await request.body()
    if len(body) > LARGEST:
        raise OAuthError("invalid_request", "The form is too large")
    try:
        fields = parse_qsl(
            body.decode(),
            keep_blank_values=True,
            strict_parsing=bool(body),
            max_num_fields=MOST_FIELDS,
            errors="strict",
        )
    except ValueError:
        raise OAuthError("invalid_request", "The form cannot be read") from None
    if len(dict(fields)) < len(fields):
        raise OAuthError("invalid_request", "The form has a field twice")
    return dict(fields)


def _basic(authorization: str | None) -> tuple[str, str] | None:
    """Client and secret, each form-encoded, as RFC 6749 has it; our own names and secrets need no encoding."""
    kind, _, given = (authorization or "").partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        client_id, secret = b64decode(given.strip(), validate=True).decode().split(":", 1)
        return unquote(client_id, errors="strict"), unquote(secret, errors="strict")
    except (Base64Error, ValueError):
        raise OAuthError("invalid_client", "The Basic credentials cannot be read", 401) from None


def _sent(issued: Issued) -> Response:
    answer: dict[str, object] = {
        "access_token": issued.token,
        "token_type": "bearer",
        "expires_in": issued.seconds,
        "issued_token_type": ACCESS_TOKEN,
    }
    if issued.scope is not None:
        answer["scope"] = issued.scope
    response = json_response(answer)
    response.headers["Cache-Control"] = "no-store"
    return response
