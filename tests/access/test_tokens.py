"""Tokens of our own: what is accepted, and everything that is not."""

import hmac
import json
import time
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from mergus.access.clients import hash_secret, is_secret, new_secret, read_file
from mergus.access.privileges import Privilege
from mergus.access.tokens import ISSUER, Key, Tokens, keys_of
from mergus.config import Settings
from mergus.errors import NotAuthorized, SetupError

OLD, NEW = "old:" + "o" * 40, "new:" + "n" * 40
AUDIENCE = "mergus/lake"


def tokens(*keys: str, **settings: Any) -> Tokens:
    named = Settings(token_keys=SecretStr(" ".join(keys)) if keys else None, **settings)
    return Tokens(keys_of(named, b"l" * 48), AUDIENCE, 60)


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    fresh: dict[str, Any] = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "etl",
        "iat": now,
        "nbf": now,
        "exp": now + 60,
        "gen": 0,
    }
    return {k: v for k, v in {**fresh, **changes}.items() if v is not None}


def signed(content: dict[str, Any], secret: str = NEW, algorithm: str = "HS256", **header: Any) -> str:
    name, _, key = secret.partition(":")
    return jwt.encode(content, key, algorithm, headers={"kid": name, **header})


def by_hand(header: dict[str, Any], content: dict[str, Any], key: bytes | None) -> str:
    """What no library lets one do."""

    def text(data: bytes) -> str:
        return urlsafe_b64encode(data).rstrip(b"=").decode()

    said = f"{text(json.dumps(header).encode())}.{text(json.dumps(content).encode())}"
    return f"{said}.{'' if key is None else text(hmac.new(key, said.encode(), 'sha256').digest())}"


def test_a_token_carries_its_client_scope_and_generation() -> None:
    found = tokens(NEW).verify(tokens(NEW).issue("etl", "ns:sales:r", 7))
    assert (found.client_id, found.scope, found.generation) == ("etl", "ns:sales:r", 7)
    assert 0 < found.expires_at - time.time() <= 60


def test_a_token_is_verified_by_the_key_that_its_kid_names_until_that_key_is_removed() -> None:
    before = tokens(OLD).issue("etl", None, 0)
    assert tokens(NEW, OLD).verify(before).client_id == "etl"
    after = tokens(NEW, OLD).issue("etl", None, 0)
    assert jwt.get_unverified_header(after)["kid"] == "new"
    with pytest.raises(NotAuthorized, match="key"):
        tokens(NEW).verify(before)


def test_the_key_of_the_lake_is_used_only_if_no_key_is_configured() -> None:
    of_the_lake = tokens().issue("etl", None, 0)
    assert tokens().verify(of_the_lake)
    with pytest.raises(NotAuthorized):
        tokens(NEW).verify(of_the_lake)


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "other"},
        {"iss": None},
        {"aud": "mergus/other"},
        {"aud": [AUDIENCE, "more"]},
        {"aud": None},
        {"sub": None},
        {"sub": 7},
        {"exp": None},
        {"nbf": None},
        {"iat": None},
        {"exp": 1},
        {"exp": "soon"},
        {"nbf": 2**33},
        {"gen": None},
        {"gen": "x"},
        {"scope": "ns:sales:everything"},
        {"scope": 7},
    ],
)
def test_a_token_with_missing_or_wrong_claims_is_refused(changes: dict[str, Any]) -> None:
    assert tokens(NEW).verify(signed(claims()))
    with pytest.raises(NotAuthorized):
        tokens(NEW).verify(signed(claims(**changes)))


def test_an_unsigned_or_forged_token_is_refused() -> None:
    for made_up in (
        by_hand({"alg": "none", "kid": "new"}, claims(), None),
        signed(claims(), "new:" + "x" * 40),
        signed(claims(), "other:" + "n" * 40),
        by_hand({"alg": "HS512", "kid": "new"}, claims(), b"n" * 40),
        "",
        "x",
        "a.b.c",
        "." * 100_000,
    ):
        with pytest.raises(NotAuthorized):
            tokens(NEW).verify(made_up)


@given(st.integers(0, 10**6), st.integers(1, 127))
def test_a_token_that_was_changed_anywhere_is_refused(place: int, by: int) -> None:
    token = signed(claims())
    at = place % len(token)
    changed = token[:at] + chr((ord(token[at]) + by) % 128) + token[at + 1 :]
    try:
        found = tokens(NEW).verify(changed)
    except NotAuthorized:
        return
    # the last bits of the last character of a part say nothing
    assert found.client_id == "etl"
    assert at + 1 == len(token) or token[at + 1] == "."


def pem(private: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def test_a_key_file_signs_tokens_and_its_public_key_cannot_forge_them(tmp_path: Path) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "key.pem").write_bytes(pem(private))
    own = tokens(NEW, token_key_files=str(tmp_path / "key.pem"))
    token = own.issue("etl", None, 0)
    header = jwt.get_unverified_header(token)
    assert header["alg"] == "ES256"
    assert own.verify(token)
    public = private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(NotAuthorized):
        own.verify(by_hand({"alg": "HS256", "kid": header["kid"]}, claims(), public))


@pytest.mark.parametrize("curve", [ec.SECP384R1()])
def test_weak_or_unusable_signing_keys_are_refused_at_the_start(curve: ec.EllipticCurve, tmp_path: Path) -> None:
    (tmp_path / "weak.pem").write_bytes(pem(rsa.generate_private_key(65537, 1024)))
    (tmp_path / "other.pem").write_bytes(pem(ec.generate_private_key(curve)))
    (tmp_path / "none.pem").write_text("nothing")
    for name in ("weak", "other", "none", "missing"):
        with pytest.raises(SetupError, match=name):
            tokens(token_key_files=str(tmp_path / f"{name}.pem"))
    for text in ("short:abc", "x" * 40, ":" + "x" * 40, f"{NEW} {NEW}"):
        with pytest.raises(SetupError) as raised:
            tokens(text)
        assert "xxx" not in raised.value.message


def test_the_repr_of_a_key_does_not_contain_the_secret() -> None:
    assert "lll" not in repr(Key("k", "HS256", b"l" * 48, b"l" * 48))


# --- secrets of clients


def test_a_client_secret_is_checked_against_its_salted_hash() -> None:
    secret = new_secret()
    known = hash_secret(secret)
    assert secret not in known
    assert known != hash_secret(secret)
    assert is_secret(secret, known)
    assert is_secret(secret, hash_secret("other"), known)
    assert not is_secret(secret + "x", known)
    assert not is_secret("", known)
    assert not is_secret(secret)
    assert not is_secret(secret, None, None)


def test_clients_roles_and_grants_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "clients.toml"
    file.write_text(
        f'[clients.etl]\nsecret_hash = "{hash_secret("s")}"\ngrants = ["ns:sales:rw"]\n[roles.analysts]\n'
        'grants = ["catalog:r"]\n'
    )
    found = read_file(file)
    assert is_secret("s", found.clients["etl"].secret_hash)
    assert [grant.privileges for grant in found.grants("role:analysts")] == [{Privilege.READ}]
    assert len(found.grants("client:etl")) == 1
    assert found.grants("user:etl") == ()
    assert "scrypt" not in repr(found)
    assert read_file(None).clients == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[clients.etl]\n", "secret_hash"),
        ('[clients.etl]\nsecret_hash = "plain"\n', "secret_hash"),
        ('[clients.etl]\nsecret_hash = "scrypt$1073741824$8$1$AAAA$AAAA"\n', "secret_hash"),
        ('[clients."a:b"]\nsecret_hash = "x"\n', "name"),
        ('[roles.x]\ngrants = ["ns:a:everything"]\n', "ns:a:everything"),
        ("[roles.x]\ngrants = 7\n", "grants"),
        ("[roles.x]\ngrant = []\n", "grant"),
        ("[users.x]\n", "users"),
        ("clients = 3\n", "clients"),
        ("[[[", "clients.toml"),
    ],
)
def test_a_malformed_clients_file_is_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "clients.toml"
    file.write_text(text)
    with pytest.raises(SetupError, match=said):
        read_file(file)
