"""Tokens of an outside issuer: a real one, refused in every way of being wrong, and not for being silent."""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from mergus.access.oidc import LEEWAY, MAX_TOKEN_LENGTH, Claims, Oidc, issuer_of
from mergus.access.oidc_fetch import MAX_DOCUMENT_BYTES, MAX_KEYS
from mergus.access.oidc_keys import Pace
from mergus.clock import MACHINE_CLOCK, Clock
from mergus.config import Settings
from mergus.errors import NotAuthorized, ServiceUnavailable, SetupError
from tests.support.clocks import HandClock
from tests.support.oidc_issuer import (
    AUDIENCE,
    DISCOVERY,
    JWKS,
    Issuer,
    Odd,
    SigningKey,
    as_json,
    certificate,
    issuer,
    private_key,
)

T = TypeVar("T")

# Refusals wait for the next fetch: here that is soon.
QUICK = Pace(between=0.05, timeout=10)
# As it is in earnest, where the test turns the clock.
PACE = Pace(timeout=20)
BETWEEN = PACE.between


@pytest.fixture
def idp() -> Iterator[Issuer]:
    with issuer() as running:
        yield running


def settings_of(idp: Issuer, **changes: Any) -> Settings:
    values = {"auth": "oidc", "oidc_issuer": idp.url, "oidc_audience": AUDIENCE, **changes}
    return Settings(**values)


def run(
    idp: Issuer,
    body: Callable[[Oidc], Awaitable[T]],
    pace: Pace = QUICK,
    clock: Clock = MACHINE_CLOCK,
    **changes: Any,
) -> T:
    async def main() -> T:
        oidc = Oidc(settings_of(idp, **changes), pace, clock)
        try:
            return await body(oidc)
        finally:
            await oidc.close()

    return asyncio.run(main())


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  (nobody would set an event)
            await asyncio.sleep(0.005)


def is_fetching() -> bool:
    """Whether a thread asks the issuer. It is there as soon as the event loop has had its turn."""
    return any(thread.name == "oidc-keys" for thread in threading.enumerate())


def verified(idp: Issuer, token: str, **changes: Any) -> Claims:
    return run(idp, lambda oidc: oidc.verify(token), **changes)


def refusal(idp: Issuer, token: str, **changes: Any) -> str:
    """Why the token is refused, after making sure that the answer has nothing of it."""
    with pytest.raises(NotAuthorized) as caught:
        verified(idp, token, **changes)
    assert all(part not in caught.value.message for part in token.split(".") if len(part) > 6)
    return caught.value.message


def part(content: Any) -> str:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def signed_with_secret(idp: Issuer, secret: bytes, **header: Any) -> str:
    text = f"{part({'alg': 'HS256', 'typ': 'JWT', **header})}.{part(idp.usual())}"
    return f"{text}.{part(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"


class Later(datetime):
    """What PyJWT takes for the time, moved on by a token's life and the leeway after it."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return super().now(tz) + timedelta(seconds=60 + LEEWAY)


class TestAGoodToken:
    @pytest.mark.parametrize("alg", ["RS256", "PS512", "ES256", "ES384", "ES512", "EdDSA"])
    def test_a_valid_token_gives_its_principal_roles_scope_and_expiry(self, alg: str, idp: Issuer) -> None:
        idp.keys = [SigningKey("k", alg, private_key(alg))]
        token = idp.token(roles=["reader", "writer"], scope="ns:sales:r x")
        claims = verified(idp, token, oidc_algorithms=alg)
        assert claims.principal == "alice"
        assert claims.roles == {"reader", "writer"}
        assert claims.scope == "ns:sales:r x"
        assert abs(claims.expires_at - time.time() - idp.seconds) < 5

    def test_tokens_from_the_issuers_token_endpoint_are_accepted(self, idp: Issuer) -> None:
        form = {"grant_type": "client_credentials", "scope": "a b"}
        found = [
            httpx.post(f"{idp.url}/token", data=form, auth=("spark", "spark-secret")),
            httpx.post(f"{idp.url}/token", data={**form, "client_id": "spark", "client_secret": "spark-secret"}),
        ]
        for answer in found:
            claims = verified(idp, answer.json()["access_token"])
            assert (claims.principal, claims.scope) == ("spark", "a b")
        wrong = [
            httpx.post(f"{idp.url}/token", data=form, auth=("spark", "other")),
            httpx.post(f"{idp.url}/token", data={**form, "client_id": "spark"}),
            httpx.post(f"{idp.url}/token", data={"grant_type": "password"}, auth=("spark", "spark-secret")),
        ]
        assert [answer.status_code for answer in wrong] == [401, 401, 400]

    def test_tokens_of_an_issuer_whose_url_has_a_path_are_accepted(self) -> None:
        for path in ("/realms/lake", "/realms/lake/"):
            with issuer() as idp:
                idp.path = path.rstrip("/")
                idp.odd[DISCOVERY] = as_json({**idp.discovery(), "issuer": idp.url.rstrip("/") + path[12:]})
                named = idp.url + path[12:]
                assert verified(idp, idp.token(iss=named), oidc_issuer=named).principal == "alice"

    def test_a_token_that_lists_several_audiences_is_accepted_if_mergus_is_among_them(self, idp: Issuer) -> None:
        assert verified(idp, idp.token(aud=["other", AUDIENCE])).principal == "alice"

    @pytest.mark.parametrize("typ", [None, "JWT", "at+jwt", "application/at+jwt", "AT+JWT"])
    def test_a_token_may_have_the_typ_header_of_a_jwt_or_of_an_access_token(self, typ: str | None, idp: Issuer) -> None:
        assert verified(idp, idp.token(headers={"typ": typ})).principal == "alice"

    def test_exp_and_nbf_of_a_token_are_checked_with_a_leeway(self, idp: Issuer) -> None:
        now = int(time.time())
        assert verified(idp, idp.token(exp=now - LEEWAY + 10, nbf=now - 100))
        assert verified(idp, idp.token(nbf=now + LEEWAY - 10, iat=None))

    def test_a_token_can_be_used_repeatedly_until_it_expires(
        self, idp: Issuer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def body(oidc: Oidc) -> None:
            token = idp.token(exp=int(time.time()) + 60)
            assert [(await oidc.verify(token)).principal for _ in range(3)] == ["alice"] * 3
            monkeypatch.setattr("jwt.api_jwt.datetime", Later)
            with pytest.raises(NotAuthorized, match="expired"):
                await oidc.verify(token)

        run(idp, body)
        assert idp.fetches == 1

    def test_the_issuer_of_a_token_is_read_before_its_signature_is_checked(self, idp: Issuer) -> None:
        assert issuer_of(idp.token()) == idp.url
        assert issuer_of(idp.token(iss="other") + "A") == "other"
        deep = b"[" * 10_000
        for wrong in ("", "a.b", "a.b.c", f"a.{part([1])}.c", f"a.{part({'iss': 1})}.c", f"a.{part(deep)}.c"):
            assert issuer_of(wrong) is None
        assert issuer_of(idp.token(more="x" * MAX_TOKEN_LENGTH)) is None


class TestClaimsThatAreRefused:
    @pytest.mark.parametrize("iss", ["https://example.com", "", 1, ["x"]])
    def test_a_token_of_another_issuer_is_refused(self, iss: Any, idp: Issuer) -> None:
        key = idp.keys[0]
        claims = json.dumps(idp.usual(iss=iss)).encode()
        token = jwt.api_jws.encode(claims, key.private, key.alg, headers={"kid": key.kid})
        assert "of another issuer" in refusal(idp, token)

    def test_a_token_whose_issuer_has_an_additional_trailing_slash_is_refused(self, idp: Issuer) -> None:
        assert "of another issuer" in refusal(idp, idp.token(iss=f"{idp.url}/"))

    @pytest.mark.parametrize("name", ["iss", "aud", "exp", "nbf"])
    def test_a_token_without_a_required_claim_is_refused(self, name: str, idp: Issuer) -> None:
        assert refusal(idp, idp.token(**{name: None})) == f"The token has no {name}"

    @pytest.mark.parametrize("aud", ["other", ["other", "another"], "mergus2", {"mergus": 1}, 1, [AUDIENCE, 1]])
    def test_a_token_for_another_audience_is_refused(self, aud: Any, idp: Issuer) -> None:
        assert "for another audience" in refusal(idp, idp.token(aud=aud))

    @pytest.mark.parametrize("aud", [[], ""])
    def test_a_token_with_an_empty_audience_is_refused(self, aud: Any, idp: Issuer) -> None:
        assert refusal(idp, idp.token(aud=aud)) == "The token has no aud"

    def test_an_expired_token_is_refused_without_a_request_to_the_issuer(self, idp: Issuer) -> None:
        now = int(time.time())
        assert "expired" in refusal(idp, idp.token(exp=now - LEEWAY - 1))
        # nor need its issuer be asked
        assert idp.requests.total() == 0

    @pytest.mark.parametrize("name", ["nbf", "iat"])
    def test_a_token_that_is_not_valid_yet_is_refused(self, name: str, idp: Issuer) -> None:
        later: dict[str, Any] = {name: int(time.time()) + LEEWAY + 10}
        assert "not good yet" in refusal(idp, idp.token(**later))

    @pytest.mark.parametrize("name", ["exp", "nbf"])
    @pytest.mark.parametrize("value", [True, "text", [], {}, float("inf"), float("nan"), 10**15, "4000000000"])
    def test_a_token_whose_exp_or_nbf_is_no_time_is_refused(self, name: str, value: Any, idp: Issuer) -> None:
        assert refusal(idp, idp.token(**{name: value}))

    @pytest.mark.parametrize("sub", [None, "", " ", " alice", "a\nb", "a\0b", "\u202eecila", "\ud800", "x" * 257])
    def test_a_token_without_a_usable_sub_claim_is_refused(self, sub: Any, idp: Issuer) -> None:
        assert "has no sub" in refusal(idp, idp.token(sub=sub))

    @pytest.mark.parametrize("found", [1, True, ["alice"], {"name": "alice"}])
    def test_a_token_whose_principal_claim_is_not_a_string_is_refused(self, found: Any, idp: Issuer) -> None:
        assert "has no who" in refusal(idp, idp.token(who=found), oidc_principal_claim="who")

    @pytest.mark.parametrize("typ", ["logout+jwt", "dpop+jwt", "secevent+jwt", 1])
    def test_a_token_whose_typ_header_is_for_another_purpose_is_refused(self, typ: Any, idp: Issuer) -> None:
        assert "another purpose" in refusal(idp, idp.token(headers={"typ": typ}))


class TestSignaturesThatAreRefused:
    def test_an_unsigned_token_is_refused_even_if_the_settings_allow_alg_none(self, idp: Issuer) -> None:
        for alg in ("none", "None", "NONE", ""):
            head, claims = part({"alg": alg, "kid": "first"}), part(idp.usual())
            for signature in ("", part(b"x")):
                assert refusal(idp, f"{head}.{claims}.{signature}")
        # not even if settings should ask for it
        wrong = settings_of(idp).model_copy(update={"oidc_algorithms": "none HS256"})
        token = f"{part({'alg': 'none'})}.{part(idp.usual())}.{part(b'x')}"
        for sent in (token, signed_with_secret(idp, b"")):
            with pytest.raises(NotAuthorized, match="algorithm"):
                asyncio.run(Oidc(wrong).verify(sent))

    def test_a_token_signed_with_the_public_key_as_hmac_secret_is_refused(self, idp: Issuer) -> None:
        public = idp.keys[0].private.public_key()
        pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        jwk = json.dumps(idp.keys[0].jwk).encode()
        for secret in (pem, pem.strip(), der, jwk, b""):
            assert "algorithm" in refusal(idp, signed_with_secret(idp, secret, kid="first"))
            # nor under the name of another algorithm
            assert refusal(idp, signed_with_secret(idp, secret, kid="first", alg="RS256"))

    def test_a_token_with_an_algorithm_that_is_not_configured_is_refused(self, idp: Issuer) -> None:
        token = idp.token(SigningKey("first", "PS256", idp.keys[0].private))
        idp.keys = [SigningKey("first", "RS256", idp.keys[0].private, {"alg": None})]
        assert "algorithm" in refusal(idp, token)
        assert idp.requests.total() == 0
        assert verified(idp, token, oidc_algorithms="PS256").principal == "alice"

    def test_a_token_with_an_algorithm_that_its_key_is_not_for_is_refused(self, idp: Issuer) -> None:
        idp.keys = [SigningKey("first", "RS256", idp.keys[0].private)]
        token = idp.token(SigningKey("first", "RS512", idp.keys[0].private))
        assert "does not have" in refusal(idp, token, oidc_algorithms="RS256 RS512")

    @pytest.mark.parametrize(("published", "used"), [("RS256", "ES256"), ("ES256", "RS256"), ("ES384", "ES256")])
    def test_a_token_whose_algorithm_does_not_fit_the_type_of_the_published_key_is_refused(
        self, published: str, used: str, idp: Issuer
    ) -> None:
        idp.keys = [SigningKey("k", published, private_key(published), {"alg": None})]
        token = idp.token(SigningKey("k", used, private_key(used)))
        assert "does not have" in refusal(idp, token, oidc_algorithms=f"{published} {used}")

    @pytest.mark.parametrize(
        "said",
        [
            {"use": "enc"},
            {"use": ["sig"]},
            {"key_ops": ["encrypt"]},
            {"key_ops": "verify"},
            {"alg": "RSA-OAEP"},
            {"kty": "oct", "k": "AAAA"},
            {"d": "AQAB"},
            {"n": "!"},
            {"n": 1},
            {"e": None},
            {"kid": 1},
            {"crv": [], "kty": "EC"},
        ],
    )
    def test_published_keys_that_are_broken_or_not_for_signatures_are_not_used(
        self, said: dict[str, Any], idp: Issuer
    ) -> None:
        idp.keys = [
            SigningKey("first", "RS256", private_key("RS256"), said),
            SigningKey("e", "ES256", private_key("ES256")),
        ]
        assert "does not have" in refusal(idp, idp.token(idp.keys[0]))
        assert verified(idp, idp.token(idp.keys[1])).principal == "alice"

    def test_a_token_signed_with_a_short_rsa_key_is_refused(self, idp: Issuer) -> None:
        idp.keys = [SigningKey("first", "RS256", private_key("RS256", bits=1024))]
        with pytest.warns(jwt.InsecureKeyLengthWarning):
            token = idp.token()
        assert "does not have" in refusal(idp, token)

    def test_a_token_is_not_verified_with_a_key_that_its_own_headers_name(self, idp: Issuer) -> None:
        own = SigningKey("mine", "RS256", private_key("RS256", 99))
        for headers in ({"jwk": own.jwk}, {"jku": "http://127.0.0.1:1/keys"}, {"x5u": "http://127.0.0.1:1/"}):
            assert "does not have" in refusal(idp, idp.token(own, headers=headers))

    def test_a_token_with_a_changed_signature_or_changed_claims_is_refused(self, idp: Issuer) -> None:
        head, claims, signature = idp.token().split(".")
        other = idp.token(sub="bob").split(".")[1]
        turned = ("A" if signature[0] != "A" else "B") + signature[1:]
        cut = part(base64.urlsafe_b64decode(signature + "==")[:-1])
        for token in (f"{head}.{claims}.{turned}", f"{head}.{other}.{signature}", f"{head}.{claims}.{cut}"):
            assert "signature" in refusal(idp, token)

    def test_a_token_with_critical_headers_is_refused(self, idp: Issuer) -> None:
        for crit in (["exp"], [], ["b64"], "x", [1]):
            assert refusal(idp, idp.token(headers={"crit": crit}))
        detached = part({"alg": "RS256", "kid": "first", "b64": False, "crit": ["b64"]})
        _, claims, signature = idp.token().split(".")
        assert refusal(idp, f"{detached}.{claims}.{signature}")

    @pytest.mark.parametrize(
        "token",
        [
            "",
            ".",
            "..",
            "...",
            "x",
            "Bearer x",
            "a.b",
            "a.b.c",
            "a.b.c.d",
            "ä.b.c",
            "\ud800.b.c",
            "a b.c.d",
            f"{part([1])}.{part({})}.{part(b'x')}",
            f"{part(b'{')}.{part({})}.{part(b'x')}",
            f"{part(b'[' * 9000)}.{part({})}.{part(b'x')}",
            f"{part({'alg': 'RS256'})}.{part(b'[' * 9000)}.{part(b'x')}",
            f"{part({'alg': 'RS256'})}.{part([])}.{part(b'x')}",
            f"{part({'alg': ['RS256']})}.{part({})}.{part(b'x')}",
            f"{part({'alg': 'RS256', 'kid': 1})}.{part({})}.{part(b'x')}",
            f"{part({'alg': 'RS256'})}.{part(b'x' * 10)}.{part(b'x')}",
        ],
    )
    def test_text_that_is_no_token_is_refused_without_a_request_to_the_issuer(self, token: str, idp: Issuer) -> None:
        assert refusal(idp, token)
        assert idp.requests.total() == 0

    def test_a_token_that_is_too_long_is_refused_quickly(self, idp: Issuer) -> None:
        started = time.monotonic()
        assert "too long" in refusal(idp, idp.token(filler="x" * 1024 * 1024))
        assert "too long" in refusal(idp, "." * 1024 * 1024)
        assert time.monotonic() - started < 2
        assert verified(idp, idp.token(filler="x" * (MAX_TOKEN_LENGTH // 2))).principal == "alice"

    def test_nothing_of_a_token_is_logged(self, idp: Issuer, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        tokens = [
            idp.token(sub="secret-subject"),
            idp.token(SigningKey("secret-kid", "RS256", private_key("RS256", 7))),
        ]
        verified(idp, tokens[0])
        refusal(idp, tokens[1])
        idp.stop()
        with pytest.raises(ServiceUnavailable):
            verified(idp, tokens[0])
        assert "could not be fetched" in caplog.text
        for text in [*tokens[0].split("."), *tokens[1].split("."), "secret-subject", "secret-kid"]:
            assert text not in caplog.text


class TestKeyNames:
    def test_a_token_without_a_kid_is_verified_with_the_only_suitable_key(self, idp: Issuer) -> None:
        key = idp.keys[0]
        token = idp.token(SigningKey(None, "RS256", key.private))
        assert verified(idp, token).principal == "alice"
        # keys of other kinds leave no choice, either
        idp.keys = [
            key,
            SigningKey("e", "ES256", private_key("ES256")),
            SigningKey("x", "RS256", key.private, {"use": "enc"}),
        ]
        assert verified(idp, token).principal == "alice"

    def test_a_token_without_a_kid_is_refused_if_several_keys_are_suitable(self, idp: Issuer) -> None:
        idp.rotate(keep=True)
        token = idp.token(SigningKey(None, "RS256", idp.keys[0].private))
        assert "does not name its key" in refusal(idp, token)

    def test_a_token_without_a_kid_is_verified_with_the_new_key_after_a_rotation(self, idp: Issuer) -> None:
        async def body(oidc: Oidc) -> None:
            old = idp.token(SigningKey(None, "RS256", idp.keys[0].private))
            await oidc.verify(old)
            idp.rotate()
            assert (await oidc.verify(idp.token(SigningKey(None, "RS256", idp.keys[0].private)))).principal == "alice"
            with pytest.raises(NotAuthorized, match="signature"):
                await oidc.verify(old)

        run(idp, body)

    def test_keys_that_share_a_kid_are_all_tried(self, idp: Issuer) -> None:
        idp.keys = [SigningKey("k", "RS256", private_key("RS256", n)) for n in (1, 2)]
        idp.keys.append(SigningKey("k", "ES256", private_key("ES256")))
        for key in idp.keys:
            assert verified(idp, idp.token(key)).principal == "alice"
        assert "signature" in refusal(idp, idp.token(SigningKey("k", "RS256", private_key("RS256", 3))))

    def test_a_token_with_an_unknown_kid_is_refused_after_the_keys_are_fetched_again(self, idp: Issuer) -> None:
        async def body(oidc: Oidc) -> None:
            await oidc.verify(idp.token())
            with pytest.raises(NotAuthorized, match="does not have"):
                await oidc.verify(idp.token(SigningKey("unknown", "RS256", private_key("RS256"))))

        run(idp, body)
        assert idp.fetches == 2
        assert idp.requests[DISCOVERY] == 1

    def test_a_token_of_a_key_that_was_rotated_out_is_refused(self, idp: Issuer) -> None:
        async def body(oidc: Oidc) -> None:
            old = idp.token()
            await oidc.verify(old)
            idp.rotate()
            assert (await oidc.verify(idp.token())).principal == "alice"
            # also as one that was good before
            with pytest.raises(NotAuthorized, match="does not have"):
                await oidc.verify(old)

        run(idp, body)


class TestFetching:
    def test_a_key_rotation_under_load_causes_one_fetch(self, idp: Issuer) -> None:
        clock = HandClock()

        async def answered_late(oidc: Oidc, tokens: list[str]) -> list[Claims]:
            """All ask before the issuer answers."""
            idp.pause()
            before = idp.requests.total()
            asking = asyncio.gather(*(oidc.verify(token) for token in tokens))
            await wait_until(lambda: idp.requests.total() > before)
            idp.resume()
            return await asking

        async def body(oidc: Oidc) -> None:
            old = [idp.token(n=n) for n in range(50)]
            await answered_late(oidc, old)
            assert idp.fetches == 1
            idp.rotate(keep=True)
            new = [idp.token(n=n) for n in range(50)]
            clock.advance(BETWEEN)
            found = await answered_late(oidc, [*new, *old])
            assert len(found) == 100
            assert idp.fetches == 2

        run(idp, body, PACE, clock)

    def test_many_tokens_with_unknown_kids_cause_one_fetch_at_a_time(self, idp: Issuer) -> None:
        clock = HandClock()

        async def body(oidc: Oidc) -> None:
            await oidc.verify(idp.token())
            for number in range(4):
                made_up = [SigningKey(f"u{number}-{n}", "RS256", private_key("RS256")) for n in range(30)]
                clock.advance(1)
                # they come after the last fetch, and wait for the rest of the time between two
                asking = asyncio.gather(*(oidc.verify(idp.token(k)) for k in made_up), return_exceptions=True)
                await clock.wait_for_sleepers(30)
                clock.advance(BETWEEN - 2)
                await clock.wait_for_sleepers(30)
                assert idp.fetches == 1 + number
                clock.advance(1)
                assert {type(a) for a in await asking} == {NotAuthorized}
                assert idp.fetches == 2 + number
            # and a token that is good has not waited for any of it
            clock.advance(1)
            waiting = asyncio.create_task(oidc.verify(idp.token(SigningKey("u", "RS256", private_key("RS256")))))
            await clock.wait_for_sleepers(1)
            await oidc.verify(idp.token(n=1))
            assert not waiting.done()
            clock.advance(BETWEEN)
            with pytest.raises(NotAuthorized):
                await waiting

        run(idp, body, PACE, clock)

    def test_a_key_that_is_published_while_a_fetch_is_under_way_is_found(self, idp: Issuer) -> None:
        """The fetch has looked before the key was there: the token has to wait for another."""
        clock = HandClock()

        async def body(oidc: Oidc) -> None:
            unknown = SigningKey("unknown", "RS256", private_key("RS256"))
            await oidc.verify(idp.token())
            clock.advance(BETWEEN)
            idp.pause()
            first = asyncio.create_task(oidc.verify(idp.token(unknown)))
            await wait_until(lambda: idp.fetches == 2)
            clock.advance(1)
            second = asyncio.create_task(oidc.verify(idp.token(idp.rotate())))
            await asyncio.sleep(0)
            idp.resume()
            with pytest.raises(NotAuthorized, match="does not have"):
                await first
            await clock.wait_for_sleepers(1)
            assert not second.done()
            clock.advance(BETWEEN)
            assert (await second).principal == "alice"
            assert idp.fetches == 3

        run(idp, body, PACE, clock)

    def test_stale_keys_are_fetched_again_in_the_background(self, idp: Issuer) -> None:
        clock = HandClock()

        async def body(oidc: Oidc) -> None:
            token = idp.token()
            await oidc.verify(token)
            await wait_until(lambda: not is_fetching())
            idp.pause()
            for seconds, is_old in ((PACE.fresh - 1, False), (1, True)):
                clock.advance(seconds)
                # it does not answer, and is not waited for
                for _ in range(3):
                    assert (await oidc.verify(token)).principal == "alice"
                    await asyncio.sleep(0)
                assert is_fetching() == is_old
            await wait_until(lambda: idp.fetches == 2)

        run(idp, body, PACE, clock)

    def test_keys_that_were_not_used_for_a_while_are_fetched_again_before_use(self, idp: Issuer) -> None:
        clock = HandClock()

        async def body(oidc: Oidc) -> None:
            token = idp.token()
            await oidc.verify(token)
            idp.rotate()
            clock.advance(2 * PACE.fresh)
            with pytest.raises(NotAuthorized, match="does not have"):
                await oidc.verify(token)

        run(idp, body, PACE, clock)

    def test_a_cancelled_request_does_not_cancel_the_fetch_that_others_wait_for(self, idp: Issuer) -> None:
        async def body(oidc: Oidc) -> None:
            idp.pause()
            first, second = (asyncio.create_task(oidc.verify(idp.token(n=n))) for n in range(2))
            await wait_until(lambda: idp.requests[DISCOVERY] == 1)
            first.cancel()
            await asyncio.wait([first])
            idp.resume()
            assert (await second).principal == "alice"
            assert idp.fetches == 1

        run(idp, body)


class TestAnIssuerThatIsAway:
    def test_an_issuer_that_is_down_at_the_start_causes_503_until_it_is_up(self, idp: Issuer) -> None:
        clock, token = HandClock(), idp.token()

        async def body(oidc: Oidc) -> None:
            idp.stop()
            for _ in range(3):
                with pytest.raises(ServiceUnavailable) as caught:
                    await oidc.verify(token)
                assert caught.value.headers["Retry-After"]
            # a token that is bad whatever its key is not kept waiting
            with pytest.raises(NotAuthorized):
                await oidc.verify(idp.token(aud="other"))
            idp.start()
            clock.advance(BETWEEN)
            assert (await oidc.verify(token)).principal == "alice"

        run(idp, body, PACE, clock)

    @pytest.mark.parametrize("silence", ["stopped", "paused"])
    def test_tokens_of_cached_keys_are_accepted_while_the_issuer_is_down(self, silence: str, idp: Issuer) -> None:
        # of a fetch that gets no answer: that is waited for in earnest
        clock, pace = HandClock(), Pace(timeout=0.5)

        async def body(oidc: Oidc) -> None:
            token, fresh = idp.token(), idp.token(n=1)
            unknown = idp.token(SigningKey("new", "RS256", private_key("RS256", 1)))
            await oidc.verify(token)
            if silence == "stopped":
                idp.stop()
            else:
                idp.pause()
            clock.advance(2 * pace.fresh)
            # the first waits for it, the others do not
            await oidc.verify(token)
            asked = time.monotonic()
            for n in range(5):
                clock.advance(pace.between)
                assert (await oidc.verify(token)).principal == "alice"
                assert (await oidc.verify(idp.token(m=n))).principal == "alice"
            assert time.monotonic() - asked < 5 * pace.timeout
            # what the known keys do not tell is not known
            with pytest.raises(ServiceUnavailable):
                await oidc.verify(unknown)
            clock.advance(pace.kept - 2 * pace.fresh - 5 * pace.between - 1)
            assert (await oidc.verify(token)).principal == "alice"
            clock.advance(1)
            for one in (token, fresh):
                with pytest.raises(ServiceUnavailable):
                    await oidc.verify(one)
            if silence == "stopped":
                idp.start()
            else:
                idp.resume()
            await wait_until(lambda: not is_fetching())
            clock.advance(pace.between)
            assert (await oidc.verify(token)).principal == "alice"

        run(idp, body, pace, clock)

    @pytest.mark.parametrize("path", [DISCOVERY, JWKS])
    @pytest.mark.parametrize(
        "odd",
        [
            Odd(body=b""),
            Odd(body=b"<html>login</html>"),
            Odd(body=b"[]"),
            Odd(body=b"null"),
            Odd(body=b"[" * 100_000),
            Odd(body=b'{"keys": {}}'),
            Odd(500),
            Odd(404),
            Odd(204),
            Odd(body=b'{"keys": [], "filler": "' + b"x" * MAX_DOCUMENT_BYTES + b'"}'),
            as_json({"keys": [{}] * (MAX_KEYS + 1)}),
            Odd(body=b"{}", headers={"Content-Length": "1000000"}),
        ],
        ids=lambda o: f"{o.status}-{o.body[:12]!r}" if isinstance(o, Odd) else str(o),
    )
    def test_an_issuer_that_sends_malformed_documents_causes_503(self, path: str, odd: Odd, idp: Issuer) -> None:
        idp.odd[path] = odd
        with pytest.raises(ServiceUnavailable):
            verified(idp, idp.token(), pace=Pace(between=0.05, timeout=0.5))
        idp.odd.clear()
        assert verified(idp, idp.token()).principal == "alice"

    @pytest.mark.parametrize("path", [DISCOVERY, JWKS])
    def test_an_issuer_whose_answer_never_ends_causes_503_after_a_timeout(self, path: str, idp: Issuer) -> None:
        clock = HandClock()

        async def body(oidc: Oidc) -> None:
            idp.odd[path] = Odd(body=b" " * 1000, drip=0.05)
            began = time.monotonic()
            with pytest.raises(ServiceUnavailable):
                await oidc.verify(idp.token())
            # and it is not listened to any longer, which would stand in the way of the next attempt
            idp.odd.clear()
            await wait_until(lambda: not is_fetching())
            clock.advance(BETWEEN)
            assert (await oidc.verify(idp.token())).principal == "alice"
            assert time.monotonic() - began < 20

        run(idp, body, Pace(timeout=0.5), clock)

    @pytest.mark.parametrize("path", [DISCOVERY, JWKS])
    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_redirects_of_the_issuer_are_not_followed(self, path: str, status: int, idp: Issuer) -> None:
        with issuer() as other:
            other.odd[path] = as_json({**idp.discovery(), "keys": [key.jwk for key in other.keys]})
            idp.odd[path] = Odd(status, headers={"Location": other.url + path})
            with pytest.raises(ServiceUnavailable):
                verified(idp, idp.token())
            assert other.requests.total() == 0

    def test_a_discovery_document_of_another_issuer_is_refused(self, idp: Issuer) -> None:
        for name in (f"{idp.url}/", idp.url.upper(), "https://example.com", None, 1):
            idp.odd[DISCOVERY] = as_json({**idp.discovery(), "issuer": name})
            with pytest.raises(ServiceUnavailable):
                verified(idp, idp.token())
        assert idp.fetches == 0

    @pytest.mark.parametrize(
        "uri",
        [
            None,
            1,
            "",
            "/keys",
            "file:///etc/passwd",
            "ftp://127.0.0.1/keys",
            "http://example.com/keys",
            "http://169.254.169.254/latest/meta-data",
            "data:application/json,{}",
            "http://127.0.0.1:1@example.com/",
            "http://[::1",
            "http://127.0.0.1:1/a b",
            "http://127.0.0.1:1/a\r\nb",
        ],
    )
    def test_keys_are_not_fetched_from_a_jwks_uri_that_is_not_allowed(
        self, uri: Any, idp: Issuer, caplog: pytest.LogCaptureFixture
    ) -> None:
        idp.odd[DISCOVERY] = as_json({**idp.discovery(), "jwks_uri": uri})
        with pytest.raises(ServiceUnavailable):
            verified(idp, idp.token())
        assert "its discovery document" in caplog.text

    def test_an_issuer_with_an_unknown_tls_certificate_is_not_trusted(
        self, idp: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = certificate(tmp_path / "issuer.pem")
        idp.stop()
        idp.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        idp.tls.load_cert_chain(file)
        idp.start()
        with pytest.raises(ServiceUnavailable):
            verified(idp, idp.token())
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        assert verified(idp, idp.token()).principal == "alice"
        # nor are its keys taken from where anybody on the way could change them
        with issuer() as plain:
            assert [key.kid for key in plain.keys] == [key.kid for key in idp.keys]
            idp.odd[DISCOVERY] = as_json({**idp.discovery(), "jwks_uri": plain.url + JWKS})
            with pytest.raises(ServiceUnavailable):
                verified(idp, idp.token())
            assert plain.requests.total() == 0

    def test_every_token_is_refused_if_the_issuer_publishes_no_keys(self, idp: Issuer) -> None:
        token, idp.keys = idp.token(), []
        assert "does not have" in refusal(idp, token)

    def test_a_loopback_issuer_is_fetched_without_the_http_proxy(
        self, idp: Issuer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        monkeypatch.setenv("no_proxy", "")
        assert verified(idp, idp.token()).principal == "alice"


class TestClaims:
    @pytest.mark.parametrize(
        ("name", "claims"),
        [
            ("realm_access.roles", {"realm_access": {"roles": ["a", "b"]}}),
            ("https://example.com/roles", {"https://example.com/roles": ["a", "b"]}),
            ("realm_access.roles", {"realm_access.roles": ["a", "b"], "realm_access": {"roles": ["c"]}}),
            ("resource_access.my.client.roles", {"resource_access": {"my.client": {"roles": ["a", "b"]}}}),
            ("https://example.com/x.roles", {"https://example.com/x": {"roles": ["a", "b"]}}),
            ("a.b.c", {"a": {"b": {"c": ["a", "b"]}}}),
            ("a.b.c", {"a": "text", "a.b": {"c": ["a", "b"]}}),
            ("groups", {"groups": "a b"}),
            ("groups", {"groups": "  a   b a "}),
            ("groups", {"groups": ["a", "b", "a"]}),
            ("groups", {"groups": ["a", "b", "", " ", "c\n", "\ud800", "x" * 257]}),
        ],
    )
    def test_the_roles_claim_is_found_by_its_name_or_by_a_dotted_path(
        self, name: str, claims: dict[str, Any], idp: Issuer
    ) -> None:
        assert verified(idp, idp.token(**claims), oidc_roles_claim=name).roles == {"a", "b"}

    @pytest.mark.parametrize(
        ("name", "claims"),
        [
            ("roles", {}),
            ("roles", {"roles": []}),
            ("roles", {"roles": ""}),
            ("a.roles", {"a": {"roles": None}}),
            ("a.roles", {"a": {}}),
            ("a.roles", {"a": ["roles"]}),
            ("a.roles", {"a": "roles"}),
            ("a..b", {"a": {"b": ["x"]}}),
            ("b", {"a": {"b": ["x"]}}),
        ],
    )
    def test_a_token_without_roles_has_an_empty_set_of_roles(
        self, name: str, claims: dict[str, Any], idp: Issuer
    ) -> None:
        assert verified(idp, idp.token(**claims), oidc_roles_claim=name).roles == frozenset()

    @pytest.mark.parametrize("roles", [1, True, {"a": 1}, [1], ["a", None], [["a"]]])
    def test_a_token_whose_roles_claim_is_not_a_list_of_strings_is_refused(self, roles: Any, idp: Issuer) -> None:
        assert "roles" in refusal(idp, idp.token(roles=roles))

    def test_a_role_name_with_a_space_in_a_list_is_one_role(self, idp: Issuer) -> None:
        assert verified(idp, idp.token(roles=["Data Engineers"])).roles == {"Data Engineers"}

    @pytest.mark.parametrize(
        ("name", "claims"),
        [
            ("preferred_username", {"preferred_username": "bob"}),
            ("https://example.com/name", {"https://example.com/name": "bob"}),
            ("act.sub", {"act": {"sub": "bob"}}),
        ],
    )
    def test_the_principal_claim_is_found_by_its_name_or_by_a_dotted_path(
        self, name: str, claims: dict[str, Any], idp: Issuer
    ) -> None:
        assert verified(idp, idp.token(**claims), oidc_principal_claim=name).principal == "bob"
        assert name in refusal(idp, idp.token(), oidc_principal_claim=name)

    @pytest.mark.parametrize(
        ("claims", "scope"),
        [
            ({}, None),
            ({"scope": ""}, ""),
            ({"scope": "a  b"}, "a b"),
            ({"scope": ["a", "b"]}, "a b"),
            ({"scp": "a"}, "a"),
            ({"scp": ["a", "b"]}, "a b"),
            ({"scope": "a", "scp": "b"}, "a"),
        ],
    )
    def test_the_scope_is_read_from_the_scope_or_scp_claim(
        self, claims: dict[str, Any], scope: str | None, idp: Issuer
    ) -> None:
        assert verified(idp, idp.token(**claims)).scope == scope

    @pytest.mark.parametrize("scope", [1, {}, [1], True, "a\0b", ["a\nb"]])
    def test_a_token_whose_scope_claim_is_malformed_is_refused(self, scope: Any, idp: Issuer) -> None:
        assert "scope" in refusal(idp, idp.token(scope=scope))


def test_oidc_is_refused_unless_issuer_and_audience_are_configured(idp: Issuer) -> None:
    for missing in ("oidc_issuer", "oidc_audience"):
        with pytest.raises(SetupError, match="MERGUS_OIDC_ISSUER and MERGUS_OIDC_AUDIENCE"):
            Oidc(settings_of(idp, **{missing: None}))
    with pytest.raises(SetupError):
        Oidc(settings_of(idp).model_copy(update={"oidc_audience": ""}))


class TestNoChangeOfATokenIsGood:
    """A token has exactly one spelling here: base64 with padding, with stray low bits in its last letter or from the
    other alphabet is refused, although it would say the same. (ES256 has two signatures for each, of which anybody can
    make one from the other; they prove the same content by the same key.)"""

    def refused(self, checked: "Checked", changed: str) -> None:
        with pytest.raises(NotAuthorized):
            checked.verify(changed)

    @given(st.data())
    @settings(max_examples=150)
    def test_a_token_with_any_change_of_its_text_is_refused(self, checked: "Checked", data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(checked.tokens))
        at = data.draw(st.integers(0, len(token) - 1))
        until = data.draw(st.integers(at, min(at + 3, len(token))))
        new = data.draw(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=3))
        changed = token[:at] + new + token[until:]
        if changed != token:
            self.refused(checked, changed)

    @given(st.data())
    @settings(max_examples=150)
    def test_a_token_with_any_changed_byte_in_its_decoded_parts_is_refused(
        self, checked: "Checked", data: st.DataObject
    ) -> None:
        token = data.draw(st.sampled_from(checked.tokens))
        parts = [bytearray(base64.urlsafe_b64decode(p + "=" * (-len(p) % 4))) for p in token.split(".")]
        changed = data.draw(st.sampled_from(parts))
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] ^= data.draw(st.integers(1, 255))
        self.refused(checked, ".".join(part(bytes(p)) for p in parts))

    def test_another_base64_spelling_of_a_valid_token_is_refused(self, checked: "Checked") -> None:
        token = checked.tokens[1]
        head, claims, signature = token.split(".")
        letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
        # 64 bytes leave four low bits of the last letter unused
        assert len(signature) % 4 == 2
        last = letters[letters.index(signature[-1]) + 1]
        same = [
            f"{head}.{claims}.{signature}==",
            f"{head}.{claims}.{signature[:-1]}{last}",
            f" {token}",
            f"{token}\n",
            f"{head}.{claims}.{signature}.",
            f"{head}..{claims}.{signature}",
        ]
        for changed in same:
            self.refused(checked, changed)


@dataclass
class Checked:
    """A verifier, and tokens that it has found good."""

    verify: Callable[[str], Claims]
    tokens: list[str]


@pytest.fixture(scope="module")
def checked() -> Iterator[Checked]:
    with issuer() as idp, asyncio.Runner() as runner:
        idp.keys.append(SigningKey("e", "ES256", private_key("ES256")))
        idp.seconds = 3600
        oidc = Oidc(settings_of(idp), Pace(between=0, timeout=10))
        tokens = [idp.token(key, roles=["a"]) for key in idp.keys]
        made = Checked(lambda token: runner.run(oidc.verify(token)), tokens)
        assert {made.verify(token).principal for token in tokens} == {"alice"}
        yield made
        assert {made.verify(token).principal for token in tokens} == {"alice"}
        runner.run(oidc.close())
