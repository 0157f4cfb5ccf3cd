import duckdb
import pytest

from mergus.config import load_settings
from mergus.rest.operations import OPERATIONS
from tests.support.lakes import TestLake
from tests.support.servers import Server, error_of


def test_every_announced_operation_is_implemented_and_no_other(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE MACRO main.f(a) AS a; CREATE VIEW main.v AS SELECT 1 AS i")
    announced = server.http.get("/v1/config").json()["endpoints"]
    assert sorted(announced) == sorted(o.endpoint for o in OPERATIONS if o.is_offered(load_settings()))
    for endpoint in announced:
        method, path = endpoint.split()
        # some of them drop it
        db.execute("CREATE TABLE IF NOT EXISTS main.t(i INTEGER); CREATE VIEW IF NOT EXISTS main.v AS SELECT 1 AS i")
        filled = path.format(prefix="lake", namespace="main", table="t", view="v", function="f")
        answer = server.http.request(method, filled)
        assert answer.status_code not in {404, 405}, endpoint


def test_a_warehouse_is_found_by_its_name_and_by_its_location(server: Server, lake: TestLake) -> None:
    data_path = lake.settings.data_path
    assert data_path is not None
    for name in (None, "lake", data_path, data_path.rstrip("/")):
        answer = server.http.get("/v1/config", params={} if name is None else {"warehouse": name})
        assert answer.status_code == 200
        assert answer.json()["overrides"]["prefix"] == "lake"


@pytest.mark.parametrize("name", ["other", "s3://mergus", "lake2", "' OR 1=1 --", "s3://mergus/x/../y"])
def test_an_unknown_warehouse_is_not_found(name: str, server: Server) -> None:
    answer = server.http.get("/v1/config", params={"warehouse": name})
    assert error_of(answer) == (404, "NoSuchWarehouseException")


def test_the_config_contains_the_s3_endpoint_but_no_key(server: Server, lake: TestLake) -> None:
    answer = server.http.get("/v1/config")
    assert answer.json()["defaults"]["s3.endpoint"] == lake.settings.s3_endpoint
    secret = lake.settings.s3_secret_access_key
    assert secret is not None
    assert secret.get_secret_value() not in answer.text
    assert str(lake.settings.s3_access_key_id) not in answer.text
