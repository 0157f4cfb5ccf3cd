"""Keys that expire while somebody reads, on a store whose keys live for seconds."""

import asyncio
import re
import time
from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError

from mergus.storage.location import Location
from mergus.storage.policy import Scope
from mergus.storage.signing import Signing
from mergus.storage.vending import Keys, Vending
from tests.support import lakes, ministack, spark, vended
from tests.support.clocks import HandClock
from tests.support.lakes import TestLake
from tests.support.listeners import eventually
from tests.support.servers import Server
from tests.support.vended import at, client, keys_of, load

SECONDS = 4
FILES = 14
ROWS = 20
# Milliseconds after each row: as few as make the last file be opened later than the keys of the first expire.
PAUSE = 16


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLake]:
    with (
        ministack.running(tmp_path_factory.mktemp("ministack"), SECONDS) as store,
        lakes.lake(**store) as made,
    ):
        with made.duckdb() as db:
            db.execute("CREATE TABLE main.t(i BIGINT)")
            for n in range(FILES):
                db.execute(f"INSERT INTO main.t SELECT {n} FROM range({ROWS})")
        yield made


def test_expired_vended_keys_are_refused_and_new_ones_can_be_fetched(server: Server) -> None:
    before = time.time()
    first = load(server, "t")
    after = time.time()
    old = keys_of(first)
    expires = int(old["s3.session-token-expires-at-ms"]) / 1000
    # they have half of their life at least; the store says it in whole seconds
    assert before + SECONDS / 2 - 1 < expires <= after + SECONDS
    s3, target = client(old), at(first.json()["metadata-location"])

    def read() -> bool:
        return s3.get_object(**target)["Body"].read() != b""

    assert read()
    with pytest.raises(ClientError, match="ExpiredToken"):
        eventually(lambda: not read(), SECONDS + 10)
    assert time.time() >= expires
    # a client that holds them is not told that nothing has changed
    again = load(server, "t", **{"If-None-Match": first.headers["etag"]})
    assert keys_of(again)["s3.access-key-id"] != old["s3.access-key-id"]
    (entry,) = server.http.get("/" + old["client.refresh-credentials-endpoint"]).json()["storage-credentials"]
    assert client(entry["config"]).get_object(**target)["Body"].read()


def test_vended_keys_have_at_least_half_of_their_lifetime_left(lake: TestLake) -> None:
    """As the server gives them, at a clock of the test's own."""
    clock = HandClock()
    vending = Vending(lake.settings, clock)
    place = Location.parse(f"s3://{ministack.BUCKET}/half")

    async def body() -> None:
        proof = await vending.proof(place)
        scope = Scope((place / "t",))
        known: list[Keys] = []
        for _ in range(3):
            before = time.time()
            given = await vending.vend(scope, proof)
            # the store says it in whole seconds
            assert given.expires_ms > (before + SECONDS - 1) * 1000
            clock.advance(SECONDS / 2 - 0.25)
            assert await vending.vend(scope, proof) == given
            clock.advance(0.25)
            known.append(given)
        assert len({keys.access_key_id for keys in known}) == 3

    asyncio.run(body())


def test_a_spark_read_longer_than_the_lifetime_of_its_keys_succeeds(lake: TestLake, server: Server) -> None:
    """One task reads all files for longer than a key lives, so that it fetches new keys on the way."""
    name = spark.catalog(lake.settings, server.uri)
    conf = {
        "header.X-Iceberg-Access-Delegation": "vended-credentials",
        "s3.access-key-id": "nobody",
        "s3.secret-access-key": "nothing",
    }
    for key, value in conf.items():
        spark.session().conf.set(f"spark.sql.catalog.{name}.{key}", value)
    # The hint makes one task read all files, however many splits Spark plans. The task opens a file when it has read
    # the one before it.
    query = f"""
        SELECT count(*), count(DISTINCT i), max(slept) FROM (
            SELECT i, reflect('java.lang.Thread', 'sleep', CAST({PAUSE} AS BIGINT)) AS slept FROM (
                SELECT /*+ COALESCE(1) */ i FROM {name}.main.t))
    """
    began = time.monotonic()
    (row,) = spark.session().sql(query).collect()
    assert (row[0], row[1]) == (FILES * ROWS, FILES)
    # the last file is opened when the others are read, and no key lives for so long
    assert time.monotonic() - began > SECONDS * FILES / (FILES - 1)
    assert re.search(r'"operation": ?"loadCredentials"', server.log.read_text())


def test_requests_are_not_signed_for_a_store_that_ignores_added_headers(lake: TestLake) -> None:
    """This one takes a signed PUT for a copy if one says so later."""
    settings = lake.settings.model_copy(update={"remote_signing": True})
    found = asyncio.run(Signing(settings).proof(Location.parse(f"s3://{ministack.BUCKET}/probed")))
    assert not found.is_proven
    assert "added" in found.reason
    assert vended.keys_below(settings, f"s3://{ministack.BUCKET}/probed/") == []
