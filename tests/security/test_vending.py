"""Vended keys, used on the real store: what they open, and what they do not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import keys as request_keys
from tests.support import lakes, servers, vended
from tests.support.commits import SCHEMA
from tests.support.lakes import TestLake
from tests.support.servers import Server
from tests.support.vended import ASK, DENIED, at, client, keys_of, load, status


@pytest.fixture(scope="module")
def lake() -> Iterator[TestLake]:
    with lakes.lake(**vended.settings()) as made:
        with made.duckdb() as db:
            for table in ("t", "t2", "other"):
                db.execute(f"CREATE TABLE main.{table} AS SELECT range AS i, '{table}' AS s FROM range(100)")
        yield made


def file_of(lake: TestLake, table: str) -> str:
    """A data file that DuckDB wrote."""
    query = """SELECT m.value || s.path || t.path || f.path
               FROM ducklake_data_file f JOIN ducklake_table t USING (table_id)
               JOIN ducklake_schema s USING (schema_id), ducklake_metadata m
               WHERE m.key = 'data_path' AND t.table_name = %s AND t.end_snapshot IS NULL"""
    return lake.sql(query, table)[0][0]


def directory(location: str) -> str:
    return location.rpartition("/")[0] + "/"


@pytest.fixture(scope="module")
def answer(server: Server) -> dict[str, Any]:
    return load(server, "t").json()


@pytest.fixture(scope="module")
def s3(answer: dict[str, Any]) -> Any:
    return client(answer["config"])


class TestWhatIsOpen:
    def test_vended_keys_read_the_files_of_ducklake_and_iceberg(
        self, lake: TestLake, answer: dict[str, Any], s3: Any
    ) -> None:
        metadata = answer["metadata"]
        for location in (file_of(lake, "t"), answer["metadata-location"], metadata["snapshots"][0]["manifest-list"]):
            assert status(s3.get_object, **at(location)) == 200, location

    def test_vended_keys_list_the_directories_of_the_table(
        self, lake: TestLake, answer: dict[str, Any], s3: Any
    ) -> None:
        for location in (directory(file_of(lake, "t")), answer["metadata"]["location"] + "/"):
            place = at(location)
            assert status(s3.list_objects_v2, Bucket=place["Bucket"], Prefix=place["Key"]) == 200

    def test_vended_keys_get_404_for_missing_objects_of_the_table(self, answer: dict[str, Any], s3: Any) -> None:
        assert status(s3.head_object, **at(answer["metadata"]["location"] + "/data/new.parquet")) == 404

    def test_vended_keys_write_to_the_location_of_the_table(self, answer: dict[str, Any], s3: Any) -> None:
        place = at(answer["metadata"]["location"] + "/data/written.parquet")
        assert status(s3.put_object, **place, Body=b"x") == 200
        upload = s3.create_multipart_upload(**place)["UploadId"]
        assert status(s3.upload_part, **place, UploadId=upload, PartNumber=1, Body=b"x") == 200
        assert status(s3.abort_multipart_upload, **place, UploadId=upload) == 204


class TestWhatIsNot:
    def test_vended_keys_do_not_open_other_tables(
        self, lake: TestLake, server: Server, answer: dict[str, Any], s3: Any
    ) -> None:
        """Be it one whose name goes on where ours ends."""
        mine = at(answer["metadata"]["location"] + "/data/copy.parquet")
        for table in ("t2", "other"):
            theirs = load(server, table).json()
            for location in (file_of(lake, table), theirs["metadata-location"]):
                place, above = at(location), at(directory(location))
                assert status(s3.get_object, **place) == DENIED
                assert status(s3.head_object, **place) == DENIED
                assert status(s3.put_object, **place, Body=b"") == DENIED
                assert status(s3.delete_object, **place) == DENIED
                assert status(s3.copy_object, **mine, CopySource=place) == DENIED
                assert status(s3.copy_object, **place, CopySource=at(answer["metadata-location"])) == DENIED
                assert status(s3.list_objects_v2, Bucket=above["Bucket"], Prefix=above["Key"]) == DENIED
            assert status(vended.own_client(lake.settings).get_object, **at(file_of(lake, table))) == 200

    def test_vended_keys_do_not_list_parent_directories(self, lake: TestLake, answer: dict[str, Any], s3: Any) -> None:
        place = at(directory(file_of(lake, "t")))
        bucket, key = place["Bucket"], place["Key"]
        for prefix in ("", key[:-1], directory(key[:-1]), directory(at(answer["metadata"]["location"])["Key"])):
            assert status(s3.list_objects_v2, Bucket=bucket, Prefix=prefix) == DENIED
        assert status(s3.list_object_versions, Bucket=bucket) == DENIED
        assert status(s3.get_bucket_policy, Bucket=bucket) == DENIED
        assert status(s3.delete_bucket, Bucket=bucket) == DENIED

    def test_vended_keys_do_not_write_to_the_ducklake_directory(self, lake: TestLake, s3: Any) -> None:
        assert status(s3.put_object, **at(directory(file_of(lake, "t")) + "x.parquet"), Body=b"") == DENIED
        assert status(s3.put_object, **at(file_of(lake, "t")), Body=b"") == DENIED

    def test_vended_keys_of_duckdbs_iceberg_extension_write_delete_files_beside_data_files(
        self, lake: TestLake, server: Server, s3: Any
    ) -> None:
        """It puts them where the data files are. Nothing of DuckLake's is called so."""
        beside = directory(file_of(lake, "t")) + "x=1/c0ffee-deletes."
        assert status(s3.put_object, **at(beside + "parquet"), Body=b"") == DENIED
        entries = load(server, "t", **{"User-Agent": "duckdb/v1.5.5"}).json()["storage-credentials"]
        extension = client(entries[0]["config"])
        for ending in ("parquet", "puffin"):
            assert status(extension.put_object, **at(beside + ending), Body=b"") == 200
        delete_file = file_of(lake, "t").replace(".parquet", "-delete.parquet")
        for location in (file_of(lake, "t"), delete_file, directory(file_of(lake, "t")) + "x.parquet"):
            assert status(extension.put_object, **at(location), Body=b"") == DENIED
        assert status(extension.put_object, **at(file_of(lake, "t2") + "-deletes.parquet"), Body=b"") == DENIED

    def test_vended_keys_cannot_delete(self, lake: TestLake, answer: dict[str, Any], s3: Any) -> None:
        """Not even what is the table's own: DuckLake's older snapshots may need it."""
        for location in (file_of(lake, "t"), answer["metadata-location"]):
            assert status(s3.delete_object, **at(location)) == DENIED
            objects = {"Objects": [{"Key": at(location)["Key"]}]}
            assert len(s3.delete_objects(Bucket="mergus", Delete=objects)["Errors"]) == 1
            assert status(s3.get_object, **at(location)) == 200

    def test_vended_keys_for_reading_cannot_write(self, lake: TestLake, server: Server) -> None:
        """The lake as it was can only be read."""
        ((head,),) = lake.sql("SELECT max(snapshot_id) FROM ducklake_snapshot")
        then = load(server, "t", prefix=f"lake@{head}")
        reader, location = client(keys_of(then)), then.json()["metadata"]["location"]
        assert status(reader.get_object, **at(file_of(lake, "t"))) == 200
        for name in ("new.parquet", "written.parquet"):
            assert status(reader.put_object, **at(f"{location}/data/{name}"), Body=b"") == DENIED
            assert status(reader.create_multipart_upload, **at(f"{location}/data/{name}")) == DENIED

    def test_vended_keys_are_not_the_keys_of_the_server(self, lake: TestLake, answer: dict[str, Any]) -> None:
        config, secret = answer["config"], lake.settings.s3_secret_access_key
        assert secret is not None
        assert config["s3.session-token"]
        assert config["s3.access-key-id"] not in ("", lake.settings.s3_access_key_id)
        assert secret.get_secret_value() not in str(answer)


class TestTheAnswer:
    def test_keys_are_vended_only_on_request(self, server: Server) -> None:
        plain = server.http.get(f"{server.path('main')}/tables/t")
        assert plain.json()["config"] == {}
        assert "storage-credentials" not in plain.json()
        for other in ("", "something-else", "remote-signing"):
            headers = {"X-Iceberg-Access-Delegation": other}
            answer = server.http.get(f"{server.path('main')}/tables/t", headers=headers)
            assert answer.content == plain.content

    def test_a_load_with_vended_keys_returns_the_same_metadata(self, server: Server) -> None:
        plain, opened = server.http.get(f"{server.path('main')}/tables/t").json(), load(server, "t").json()
        assert {k: v for k, v in opened.items() if k not in ("config", "storage-credentials")} == {
            k: v for k, v in plain.items() if k != "config"
        }

    def test_vended_keys_come_with_their_expiry_and_a_refresh_endpoint(self, server: Server) -> None:
        config = keys_of(load(server, "t"))
        assert config.items() <= load(server, "t").json()["config"].items()
        path = config["client.refresh-credentials-endpoint"]
        again = server.http.get(f"/{path}")
        assert again.headers["cache-control"] == "no-store"
        (entry,) = again.json()["storage-credentials"]
        assert entry["config"] == config
        (there,) = load(server, "t").json()["storage-credentials"]
        assert entry["prefix"] == there["prefix"]

    def test_java_clients_get_one_credential_entry_and_duckdb_one_for_each_directory(
        self, lake: TestLake, server: Server
    ) -> None:
        (entry,) = load(server, "t").json()["storage-credentials"]
        places = [directory(file_of(lake, "t")), load(server, "t").json()["metadata"]["location"] + "/"]
        assert all(place.startswith(entry["prefix"]) for place in places)
        entries = load(server, "t", **{"User-Agent": "duckdb/v1.5.5"}).json()["storage-credentials"]
        assert {e["prefix"] for e in entries} == set(places)

    def test_the_etag_of_a_load_depends_on_its_vended_keys(
        self, lake: TestLake, server: Server, tmp_path: Path
    ) -> None:
        plain, opened = server.http.get(f"{server.path('main')}/tables/t"), load(server, "t")
        assert plain.headers["etag"] != opened.headers["etag"]
        assert load(server, "t").content == opened.content
        path, tag = f"{server.path('main')}/tables/t", {"If-None-Match": opened.headers["etag"]}
        assert server.http.get(path, headers={**ASK, **tag}).status_code == 304
        assert server.http.get(path, headers=tag).status_code == 200
        tag = {"If-None-Match": plain.headers["etag"]}
        assert server.http.get(path, headers={**ASK, **tag}).status_code == 200
        vary = opened.headers["vary"].lower()
        assert "authorization" in vary
        assert "x-iceberg-access-delegation" in vary
        # another process has keys of its own
        with servers.server(lake.settings, tmp_path) as second:
            tag = {"If-None-Match": opened.headers["etag"]}
            assert second.http.get(path, headers={**ASK, **tag}).status_code == 200

    def test_create_table_vends_keys_for_the_new_table(self, server: Server) -> None:
        for stage in (False, True):
            body = {"name": f"made_{stage}".lower(), "schema": SCHEMA, "stage-create": stage}
            made = server.http.post(f"{server.path('main')}/tables", json=body, headers=ASK)
            location = made.json()["metadata"]["location"]
            assert status(client(keys_of(made)).put_object, **at(f"{location}/data/x.parquet"), Body=b"") == 200
            plain = server.http.post(f"{server.path('main')}/tables", json={**body, "name": f"plain_{stage}".lower()})
            assert plain.json()["config"] == {}

    def test_vended_keys_are_not_stored_in_postgres(self, lake: TestLake, server: Server) -> None:
        """What is kept for a request that comes again has none; it gets some all the same."""
        for stage in (False, True):
            headers = {**ASK, "Idempotency-Key": request_keys.new_key()}
            body = {"name": f"once_{stage}".lower(), "schema": SCHEMA, "stage-create": stage}
            first, again = (
                server.http.post(f"{server.path('main')}/tables", json=body, headers=headers) for _ in range(2)
            )
            assert first.status_code == again.status_code == 200
            assert first.json()["metadata"] == again.json()["metadata"]
            config = keys_of(again)
            assert status(client(config).put_object, **at(f"{again.json()['metadata']['location']}/x"), Body=b"") == 200
            for (kept,) in lake.sql("SELECT convert_from(body, 'UTF8') FROM request_key WHERE body IS NOT NULL"):
                assert config["s3.secret-access-key"] not in kept
                assert config["s3.session-token"] not in kept
                assert "storage-credentials" not in kept

    def test_vended_keys_are_not_logged(self, server: Server, answer: dict[str, Any]) -> None:
        log = server.log.read_text()
        for name in ("s3.secret-access-key", "s3.session-token", "s3.access-key-id"):
            assert answer["config"][name] not in log
