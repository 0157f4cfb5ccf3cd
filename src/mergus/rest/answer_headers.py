"""Headers of every answer that tell a browser to make nothing of it but what it is.

Answers are JSON for programs; but an address of ours can be opened in a browser, framed by another page or named as a
script by it. An operation that answers with a page says its own.
"""

from typing import Final

Header = tuple[bytes, bytes]

_ALWAYS: Final[tuple[Header, ...]] = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)
# For a year. Not for other names below ours, which are others' to say.
_OVER_TLS: Final[tuple[Header, ...]] = (*_ALWAYS, (b"strict-transport-security", b"max-age=31536000"))


def security(scheme: str) -> tuple[Header, ...]:
    """By how the request came: over TLS that ends here, or at a proxy that the server trusts to say so (uvicorn trusts
    this machine, and what FORWARDED_ALLOW_IPS names). Without TLS, HSTS means nothing to who gets it, and it would take
    a plain port from whoever serves two."""
    return _OVER_TLS if scheme == "https" else _ALWAYS
