"""A real OIDC issuer on a port of its own: discovery, keys, and tokens for clients with a secret.

It also does what an issuer should not: rotate its keys under load, be away, hang, or answer with anything at all.
"""

import base64
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlsplit

import jwt
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.support.ports import free_port

DISCOVERY = "/.well-known/openid-configuration"
JWKS = "/keys"
TOKEN = "/token"
AUDIENCE = "mergus"

_CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


@cache
def private_key(alg: str, number: int = 0, bits: int = 2048) -> Any:
    """The same for the same arguments: making one of RSA takes long."""
    if alg == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    if alg in _CURVES:
        return ec.generate_private_key(_CURVES[alg])
    return rsa.generate_private_key(65537, bits)


@dataclass(frozen=True)
class SigningKey:
    kid: str | None
    alg: str
    private: Any
    # beside the key itself, in what is published; None takes a member away
    said: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def jwk(self) -> dict[str, Any]:
        plain: Any = jwt.get_algorithm_by_name(self.alg).to_jwk(self.private.public_key(), as_dict=True)
        plain.pop("key_ops", None)
        jwk = {**plain, "kid": self.kid, "alg": self.alg, "use": "sig", **self.said}
        return {name: value for name, value in jwk.items() if value is not None}


@dataclass
class Odd:
    """An answer in place of the right one."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    # seconds between the bytes of the body
    drip: float = 0


@dataclass
class Issuer:
    port: int
    path: str = ""
    keys: list[SigningKey] = field(default_factory=list[SigningKey])
    clients: dict[str, str] = field(default_factory=dict[str, str])
    # what every token of the token endpoint says beside the usual
    claims: dict[str, Any] = field(default_factory=dict[str, Any])
    seconds: int = 300
    odd: dict[str, Odd] = field(default_factory=dict[str, Odd])
    requests: Counter[str] = field(default_factory=Counter[str])
    answering: threading.Event = field(default_factory=threading.Event)
    # with it, it is https
    tls: ssl.SSLContext | None = None
    _server: ThreadingHTTPServer | None = None
    _rotations: int = 0

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}{self.path}"

    @property
    def fetches(self) -> int:
        return self.requests[JWKS]

    def start(self) -> None:
        self.answering.set()
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.answer(self)

            def do_POST(self) -> None:
                issuer.answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Nobody is there any more."""
        self.answering.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def pause(self) -> None:
        """It takes connections and says nothing."""
        self.answering.clear()

    def resume(self) -> None:
        self.answering.set()

    def rotate(self, alg: str = "RS256", *, keep: bool = False) -> SigningKey:
        """A new key; the others are withdrawn unless they are kept."""
        self._rotations += 1
        key = SigningKey(f"key-{self._rotations}", alg, private_key(alg, self._rotations))
        self.keys = [key, *(self.keys if keep else [])]
        return key

    def usual(self, **changes: Any) -> dict[str, Any]:
        """Claims of a token that is good; those that are None are left out."""
        now = int(time.time())
        claims = {"iss": self.url, "aud": AUDIENCE, "sub": "alice", "iat": now, "nbf": now, "exp": now + self.seconds}
        return {name: value for name, value in {**claims, **self.claims, **changes}.items() if value is not None}

    def token(self, key: SigningKey | None = None, headers: dict[str, Any] | None = None, **changes: Any) -> str:
        key = key or self.keys[0]
        named = {} if key.kid is None else {"kid": key.kid}
        return jwt.encode(self.usual(**changes), key.private, key.alg, headers={**named, **(headers or {})})

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = urlsplit(request.path).path.removeprefix(self.path)
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        # what it says is how things stood when it was asked, however late it says it
        answer = self.odd.get(path) or self._proper(path, request, body)
        self.requests[path] += 1
        self.answering.wait()
        try:
            request.send_response(answer.status)
            for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                request.send_header(name, value)
            request.end_headers()
            if answer.drip:
                for at in range(len(answer.body)):
                    request.wfile.write(answer.body[at : at + 1])
                    time.sleep(answer.drip)
            else:
                request.wfile.write(answer.body)
        except OSError:
            # it was not waited for
            request.close_connection = True

    def _proper(self, path: str, request: BaseHTTPRequestHandler, body: bytes) -> Odd:
        match request.command, path:
            case "GET", "/.well-known/openid-configuration":
                return as_json(self.discovery())
            case "GET", "/keys":
                return as_json({"keys": [key.jwk for key in self.keys]})
            case "POST", "/token":
                return self._grant(request.headers.get("Authorization", ""), body)
            case _:
                return as_json({"error": "not_found"}, 404)

    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "jwks_uri": self.url + JWKS,
            "token_endpoint": self.url + TOKEN,
            "grant_types_supported": ["client_credentials"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
            "id_token_signing_alg_values_supported": ["RS256", "ES256"],
        }

    def _grant(self, authorization: str, body: bytes) -> Odd:
        asked = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        name, secret = asked.get("client_id", ""), asked.get("client_secret", "")
        if authorization.startswith("Basic "):
            name, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
            name, secret = unquote_plus(name), unquote_plus(secret)
        if asked.get("grant_type") != "client_credentials":
            return as_json({"error": "unsupported_grant_type"}, 400)
        if name not in self.clients or self.clients[name] != secret:
            return as_json({"error": "invalid_client"}, 401)
        scope = asked.get("scope")
        token = self.token(sub=name, scope=scope)
        answer = {"access_token": token, "token_type": "Bearer", "expires_in": self.seconds}
        return as_json(answer if scope is None else {**answer, "scope": scope})


def as_json(content: Any, status: int = 200) -> Odd:
    return Odd(status, json.dumps(content).encode(), {"Content-Type": "application/json", "Cache-Control": "no-store"})


def certificate(file: Path) -> Path:
    """Its own authority, with its key, for 127.0.0.1."""
    key, now = private_key("RS256"), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(made.public_bytes(Encoding.PEM) + private)
    return file


@contextmanager
def issuer(path: str = "", alg: str = "RS256") -> Iterator[Issuer]:
    made = Issuer(free_port(), path, clients={"spark": "spark-secret"})
    made.keys = [SigningKey("first", alg, private_key(alg))]
    made.start()
    try:
        yield made
    finally:
        made.stop()
