"""Nothing is vended, and nothing signed, before the store has been seen to check it."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from mergus.doctor import examine
from mergus.storage.location import Location
from mergus.storage.policy import Scope, Terms, Unspeakable, session_policy
from mergus.storage.proof import prove
from mergus.storage.signing import Signing
from mergus.storage.vending import Vending
from tests.support import lakes, servers, vended
from tests.support.lakes import TestLake, backend_settings

ASK = vended.ASK


@pytest.fixture
def root() -> Location:
    return Location.parse(f"s3://mergus/{uuid4().hex}/data-iceberg")


def vending(**changes: Any) -> Vending:
    return Vending(backend_settings().model_copy(update={**vended.settings(), **changes}))


class TestProof:
    def test_a_store_that_enforces_session_policies_is_proven(self, root: Location) -> None:
        found = asyncio.run(vending().proof(root))
        assert found.is_proven, found.reason
        # what SeaweedFS is known for: see storage/policy.py
        assert found.terms == Terms("aws", escapes=False, ignores_case=True)

    def test_proving_a_store_leaves_no_objects_behind(self, root: Location) -> None:
        asyncio.run(vending().proof(root))
        assert vended.keys_below(backend_settings(), f"{root}/") == []

    def test_a_store_that_ignores_session_policies_is_detected(self, root: Location) -> None:
        """As stores do that hand out keys for show: the role's own, whatever the policy says."""
        settings = backend_settings().model_copy(update=vended.settings())
        everything = {"Effect": "Allow", "Action": "s3:*", "Resource": ["arn:aws:s3:::*", "arn:aws:s3:::*/*"]}
        ignoring = Vending(settings)
        policy = json.dumps({"Version": "2012-10-17", "Statement": [everything]})
        found = prove(settings, root, lambda _: ignoring._assume(policy))  # pyright: ignore[reportPrivateUsage]
        assert found.outcome == "refuted"
        assert "neighbour" in found.reason
        assert vended.keys_below(settings, f"{root}/") == []

    @pytest.mark.parametrize(
        "changes",
        [
            {"sts_role_arn": "arn:aws:iam::role/nobody"},
            {"sts_endpoint": "http://127.0.0.1:9"},
            {"vended_seconds": 1},
        ],
    )
    def test_nothing_is_vended_if_the_proof_fails(self, changes: dict[str, Any], root: Location) -> None:
        async def ask() -> None:
            asked = vending(**changes)
            found = await asked.proof(root)
            assert found.outcome == "failed"
            assert found.reason
            with pytest.raises(Unspeakable):
                await asked.vend(Scope((root,)), found)

        asyncio.run(ask())

    def test_vending_is_off_without_a_role_or_without_s3(self, root: Location) -> None:
        assert asyncio.run(vending(sts_role_arn=None).proof(root)).outcome == "off"
        assert asyncio.run(vending().proof(Location.parse("file:///tmp/x"))).outcome == "off"


class TestKeys:
    def test_concurrent_requests_share_one_sts_call_and_later_ones_its_keys(self, root: Location) -> None:
        async def ask() -> None:
            asked = vending()
            proof = await asked.proof(root)
            scope = Scope((root / "t",))
            found = await asyncio.gather(*(asked.vend(scope, proof) for _ in range(20)))
            assert len({keys.access_key_id for keys in found}) == 1
            assert (await asked.vend(scope, proof)) is found[0]
            other = await asked.vend(Scope((root / "t",), (root / "t",)), proof)
            assert other.access_key_id != found[0].access_key_id

        asyncio.run(ask())

    def test_the_repr_of_vended_keys_contains_no_secrets(self, root: Location) -> None:
        async def ask() -> None:
            asked = vending()
            keys = await asked.vend(Scope((root / "t",)), await asked.proof(root))
            for secret in (keys.secret_access_key, keys.session_token):
                assert secret.get_secret_value() not in f"{keys!r} {keys}"

        asyncio.run(ask())

    def test_no_keys_are_vended_for_names_that_a_policy_cannot_express(self, root: Location) -> None:
        """Here the star would have been any text."""

        async def ask() -> None:
            asked = vending()
            proof = await asked.proof(root)
            for name in ("a*b", "a?b", "a$b", "ä"):
                with pytest.raises(Unspeakable):
                    await asked.vend(Scope((root / name,)), proof)

        asyncio.run(ask())
        assert "${*}" in session_policy(Scope((root / "a*b",)), Terms(escapes=True))


class TestSigning:
    def test_a_store_that_checks_signatures_is_proven(self, root: Location) -> None:
        signing = Signing(backend_settings().model_copy(update={"remote_signing": True}))
        assert asyncio.run(signing.proof(root)).is_proven
        assert vended.keys_below(backend_settings(), f"{root}/") == []

    def test_nothing_is_signed_for_a_store_that_is_down(self, root: Location) -> None:
        changes = {"remote_signing": True, "s3_endpoint": "http://127.0.0.1:9"}
        found = asyncio.run(Signing(backend_settings().model_copy(update=changes)).proof(root))
        assert not found.is_proven
        assert found.reason


@pytest.fixture(scope="module")
def lake() -> Iterator[TestLake]:
    with lakes.lake() as made:
        with made.duckdb() as db:
            db.execute("CREATE TABLE main.t AS SELECT 1 AS i")
        yield made


def told(lake: TestLake, **changes: Any) -> tuple[bool, str]:
    settings = lake.settings.model_copy(update=changes)
    # those after it are not asked for
    found = next(finding for finding in examine(settings) if finding.name == "credentials")
    return found.ok, found.detail


def test_a_server_without_proof_vends_nothing_and_doctor_says_why(lake: TestLake, tmp_path: Path) -> None:
    wrong = {**vended.settings(), "sts_role_arn": "arn:aws:iam::role/nobody"}
    with servers.server(lake.settings, tmp_path, **wrong) as server:
        path = f"{server.path('main')}/tables/t"
        answer = server.http.get(path, headers=ASK)
        assert (answer.status_code, answer.json()["config"]) == (200, {})
        assert server.http.get(f"{path}/credentials").json() == {"storage-credentials": []}
    ok, detail = told(lake, **wrong)
    assert not ok
    assert "AccessDenied" in detail
    ok, detail = told(lake, **vended.settings())
    assert ok
    assert "enforce" in detail
    ok, detail = told(lake)
    assert ok
    assert "MERGUS_STS_ROLE_ARN" in detail
