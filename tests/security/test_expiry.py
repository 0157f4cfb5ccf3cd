"""Keys that expire while somebody reads, on a store whose keys live for seconds."""

import asyncio
import re
import time
from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError

from mergus.storage.location import Location
from mergus.storage.signing import Signing
from tests.support import lakes, ministack, spark, vended
from tests.support.lakes import TestLake
from tests.support.servers import Server
from tests.support.vended import at, client, keys_of, load

SECONDS = 4
FILES = 14
ROWS = 20


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


def test_expired_keys_are_good_for_nothing_and_new_ones_are_to_be_had(server: Server) -> None:
    first = load(server, "t")
    old = keys_of(first)
    s3, target = client(old), at(first.json()["metadata-location"])
    assert s3.get_object(**target)["Body"].read()
    assert int(old["s3.session-token-expires-at-ms"]) <= (time.time() + SECONDS + 1) * 1000
    time.sleep(SECONDS + 1)
    with pytest.raises(ClientError, match="ExpiredToken"):
        s3.get_object(**target)
    # a client that holds them is not told that nothing has changed
    again = load(server, "t", **{"If-None-Match": first.headers["etag"]})
    assert keys_of(again)["s3.access-key-id"] != old["s3.access-key-id"]
    (entry,) = server.http.get("/" + old["client.refresh-credentials-endpoint"]).json()["storage-credentials"]
    assert client(entry["config"]).get_object(**target)["Body"].read()


def test_keys_have_half_of_their_life_left_when_they_are_given_out(server: Server) -> None:
    seen: set[str] = set()
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        config = keys_of(load(server, "t"))
        seen.add(config["s3.access-key-id"])
        # the store counts in whole seconds
        assert int(config["s3.session-token-expires-at-ms"]) > (time.time() + SECONDS / 2 - 1.5) * 1000
        time.sleep(0.2)
    assert 2 <= len(seen) <= 4


def test_a_long_read_by_spark_goes_on(lake: TestLake, server: Server) -> None:
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
            SELECT i, reflect('java.lang.Thread', 'sleep', CAST(25 AS BIGINT)) AS slept FROM (
                SELECT /*+ COALESCE(1) */ i FROM {name}.main.t))
    """
    began = time.monotonic()
    (row,) = spark.session().sql(query).collect()
    assert (row[0], row[1]) == (FILES * ROWS, FILES)
    assert time.monotonic() - began > SECONDS + 1
    assert re.search(r'"operation": ?"loadCredentials"', server.log.read_text())


def test_a_store_that_does_not_look_at_added_headers_gets_no_signatures(lake: TestLake) -> None:
    """This one takes a signed PUT for a copy if one says so later."""
    settings = lake.settings.model_copy(update={"remote_signing": True})
    found = asyncio.run(Signing(settings).proof(Location.parse(f"s3://{ministack.BUCKET}/probed")))
    assert not found.is_proven
    assert "added" in found.reason
    assert vended.keys_below(settings, f"s3://{ministack.BUCKET}/probed/") == []
