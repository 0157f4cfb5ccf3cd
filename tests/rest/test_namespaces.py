"""Each namespace operation through HTTP, each looked at from an attached DuckDB session too."""

from urllib.parse import quote

import duckdb
import pytest

from tests.support.lakes import TestLake, schemas
from tests.support.servers import Server, error_of


def test_a_created_namespace_is_a_schema_that_an_open_duckdb_session_sees(
    server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    assert "made_here" not in schemas(db)
    answer = server.create("made_here", owner="me")
    assert answer.status_code == 200
    assert answer.json()["namespace"] == ["made_here"]
    assert answer.json()["properties"]["owner"] == "me"
    assert "made_here" in schemas(db)
    db.execute("CREATE TABLE made_here.t(i INTEGER); INSERT INTO made_here.t VALUES (1)")
    assert db.execute("SELECT i FROM made_here.t").fetchall() == [(1,)]


def test_a_schema_made_by_duckdb_is_a_namespace_at_once(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE SCHEMA made_there")
    assert server.http.head(server.path("made_there")).status_code == 204
    assert ["made_there"] in server.list()
    loaded = server.http.get(server.path("made_there")).json()
    assert loaded["namespace"] == ["made_there"]
    db.execute("DROP SCHEMA made_there")
    assert server.http.head(server.path("made_there")).status_code == 404
    assert ["made_there"] not in server.list()


def test_the_default_schema_is_a_namespace_that_cannot_be_dropped(server: Server) -> None:
    assert ["main"] in server.list()
    answer = server.http.delete(server.path("main"))
    assert error_of(answer) == (403, "ForbiddenException")
    assert server.http.head(server.path("main")).status_code == 204


def test_creating_an_existing_namespace_is_refused(server: Server) -> None:
    server.create("twice", kept="yes")
    assert error_of(server.create("twice", kept="no")) == (409, "AlreadyExistsException")
    assert server.http.get(server.path("twice")).json()["properties"]["kept"] == "yes"


@pytest.mark.parametrize("first", ["REST", "DuckDB"])
def test_h40_namespaces_that_differ_only_by_case_are_refused_by_rest_and_duckdb(
    first: str, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    lower, upper = f"case_{first}".lower(), f"CASE_{first}".upper()
    if first == "REST":
        assert server.create(lower).status_code == 200
        with pytest.raises(duckdb.CatalogException, match="already exists"):
            db.execute(f'CREATE SCHEMA "{upper}"')
    else:
        db.execute(f'CREATE SCHEMA "{lower}"')
    answer = server.create(upper)
    assert error_of(answer) == (409, "AlreadyExistsException")
    assert "case" in answer.json()["error"]["message"]
    assert server.http.head(server.path(upper)).status_code == 404


def test_a_dropped_namespace_is_gone_in_duckdb_and_can_be_created_again(
    server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    server.create("comes_again", colour="blue")
    assert server.http.delete(server.path("comes_again")).status_code == 204
    assert "comes_again" not in schemas(db)
    assert error_of(server.http.get(server.path("comes_again"))) == (404, "NoSuchNamespaceException")
    assert error_of(server.http.delete(server.path("comes_again"))) == (404, "NoSuchNamespaceException")
    server.create("comes_again")
    assert "colour" not in server.http.get(server.path("comes_again")).json()["properties"]


def test_a_recreated_schema_does_not_inherit_properties_of_the_dropped_one(
    server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    server.create("ghost", colour="white")
    db.execute("DROP SCHEMA ghost; CREATE SCHEMA ghost")
    assert "colour" not in server.http.get(server.path("ghost")).json()["properties"]


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("table", "CREATE TABLE {}.thing(i INTEGER)"),
        ("view", "CREATE VIEW {}.thing AS SELECT 1 AS i"),
        ("macro", "CREATE MACRO {}.thing(x) AS x + 1"),
    ],
)
def test_a_namespace_that_is_not_empty_is_not_dropped(
    kind: str, make: str, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    name = f"holds_{kind}"
    server.create(name)
    db.execute(make.format(name))
    answer = server.http.delete(server.path(name))
    assert error_of(answer) == (409, "NamespaceNotEmptyException")
    assert f"{kind} thing" in answer.json()["error"]["message"]
    db.execute(f"DROP {kind} {name}.thing")
    assert server.http.delete(server.path(name)).status_code == 204


def test_namespace_properties_are_updated_and_removed(server: Server) -> None:
    server.create("props", a="1", b="2")
    body = {"updates": {"a": "one", "c": "3"}, "removals": ["b", "nope", "b"]}
    answer = server.http.post(f"{server.path('props')}/properties", json=body)
    assert answer.json() == {"updated": ["a", "c"], "removed": ["b"], "missing": ["nope"]}
    kept = server.http.get(server.path("props")).json()["properties"]
    assert {k: v for k, v in kept.items() if k != "location"} == {"a": "one", "c": "3"}


def test_a_namespace_property_cannot_be_set_and_removed_in_one_request(server: Server) -> None:
    server.create("both", a="1")
    body = {"updates": {"a": "2"}, "removals": ["a"]}
    answer = server.http.post(f"{server.path('both')}/properties", json=body)
    assert error_of(answer) == (422, "UnprocessableEntityException")
    assert server.http.get(server.path("both")).json()["properties"]["a"] == "1"


def test_updating_properties_of_a_missing_namespace_is_not_found(server: Server) -> None:
    answer = server.http.post(f"{server.path('absent')}/properties", json={"updates": {"a": "1"}})
    assert error_of(answer) == (404, "NoSuchNamespaceException")


def test_a_namespace_property_change_makes_no_snapshot(server: Server, lake: TestLake) -> None:
    server.create("quiet")
    before = lake.snapshots()
    server.http.post(f"{server.path('quiet')}/properties", json={"updates": {"a": "1"}})
    assert lake.snapshots() == before


def test_the_location_of_a_namespace_is_shown_and_cannot_be_set(server: Server, lake: TestLake) -> None:
    location = server.create("placed").json()["properties"]["location"]
    (uuid,) = lake.sql("SELECT schema_uuid FROM ducklake_schema WHERE schema_name = 'placed'")[0]
    assert location == f"{str(lake.settings.data_path).rstrip('/')}-iceberg/schemas/{uuid}/"
    assert server.create("same", location=location).status_code == 400
    assert server.http.get(server.path("placed")).json()["properties"]["location"] == location
    assert error_of(server.create("elsewhere", location="s3://other/x")) == (400, "BadRequestException")
    assert server.http.head(server.path("elsewhere")).status_code == 404
    update = {"updates": {"location": "s3://other/x"}}
    answer = server.http.post(f"{server.path('placed')}/properties", json=update)
    assert error_of(answer) == (400, "BadRequestException")


class TestLevels:
    def test_a_nested_namespace_is_one_schema_whose_name_joins_the_levels_with_dots(
        self, server: Server, db: duckdb.DuckDBPyConnection
    ) -> None:
        server.create("deep")
        server.create("deep", "er")
        server.create("deep", "er", "est")
        assert {"deep", "deep.er", "deep.er.est"} <= schemas(db)
        assert server.list(parent="deep") == [["deep", "er"]]
        assert server.list(parent="deep\x1fer") == [["deep", "er", "est"]]
        assert server.list(parent="deep\x1fer\x1fest") == []
        assert ["deep"] in server.list()
        assert ["deep", "er"] not in server.list()

    def test_a_parent_is_not_dropped_before_its_children(self, server: Server) -> None:
        server.create("family")
        server.create("family", "child")
        assert error_of(server.http.delete(server.path("family"))) == (409, "NamespaceNotEmptyException")
        assert server.http.delete(server.path("family", "child")).status_code == 204
        assert server.http.delete(server.path("family")).status_code == 204

    def test_a_parent_without_a_schema_of_its_own_can_be_listed_and_loaded(
        self, server: Server, db: duckdb.DuckDBPyConnection
    ) -> None:
        db.execute('CREATE SCHEMA "implied.child"')
        assert ["implied"] in server.list()
        assert server.list(parent="implied") == [["implied", "child"]]
        assert server.http.head(server.path("implied")).status_code == 204
        assert server.http.get(server.path("implied")).json() == {"namespace": ["implied"], "properties": {}}
        assert error_of(server.http.delete(server.path("implied"))) == (409, "NamespaceNotEmptyException")
        answer = server.http.post(f"{server.path('implied')}/properties", json={"updates": {"a": "1"}})
        assert error_of(answer) == (404, "NoSuchNamespaceException")
        assert server.create("implied").status_code == 200

    def test_a_namespace_name_with_a_dot_does_not_match_a_nested_namespace(self, server: Server) -> None:
        server.create("dotted", "name")
        assert server.http.head(server.path("dotted.name")).status_code == 404
        assert error_of(server.http.delete(server.path("dotted.name"))) == (404, "NoSuchNamespaceException")
        assert error_of(server.create("dotted.name")) == (400, "BadRequestException")
        assert error_of(server.http.get(server.namespaces, params={"parent": "dotted.name"}))[0] == 404

    def test_h40_a_parent_that_differs_only_by_case_is_refused(self, server: Server) -> None:
        server.create("cased")
        server.create("Under", "child")
        assert error_of(server.create("CASED", "x")) == (409, "AlreadyExistsException")
        assert error_of(server.create("under")) == (409, "AlreadyExistsException")
        assert error_of(server.create("UNDER", "other")) == (409, "AlreadyExistsException")
        assert server.create("Under", "other").status_code == 200
        assert server.create("Under").status_code == 200
        assert server.create("underneath").status_code == 200

    def test_schemas_whose_names_no_path_can_express_are_not_listed(
        self, server: Server, db: duckdb.DuckDBPyConnection
    ) -> None:
        """Their listing would lead to another: the one with the separator in it to the namespace below."""
        server.create("spelt", "out")
        for name in ("spelt\x1fout", ".front", "back.", "mid..dle"):
            db.execute(f'CREATE SCHEMA "{name}"')
        assert not [n for n in server.list() if n[0] in {"", "spelt\x1fout", "back", "mid"}]
        assert server.list(parent="spelt") == [["spelt", "out"]]
        assert server.http.delete(server.path("spelt", "out")).status_code == 204
        assert "spelt\x1fout" in schemas(db)

    def test_listing_namespaces_below_an_unknown_parent_is_not_found(self, server: Server) -> None:
        answer = server.http.get(server.namespaces, params={"parent": "no_parent"})
        assert error_of(answer) == (404, "NoSuchNamespaceException")


HOSTILE = [
    '"; DROP TABLE ducklake_schema; --',
    "' OR '1'='1",
    "a/b",
    "a\\b",
    "back`tick",
    "%2F",
    "a%1Fb",
    "plus+sign",
    "with space",
    "ünïcödé",
    "日本語",
    "emoji🦆",
    "percent%d%s",
    "{curly}",
    "$dollar$$",
    "star*?[x]",
    "*",
    "#hash",
    "semi;colon",
    "a" * 255,
]


class TestHostileNames:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_a_namespace_may_have_a_name_with_special_characters(
        self, name: str, server: Server, db: duckdb.DuckDBPyConnection
    ) -> None:
        created = server.create(name, tricky=name)
        assert created.status_code == 200, created.text
        assert name in schemas(db)
        loaded = server.http.get(server.path(name))
        assert loaded.json()["namespace"] == [name]
        assert loaded.json()["properties"]["tricky"] == name
        assert [name] in server.list()
        quoted = name.replace('"', '""')
        db.execute(f'CREATE TABLE "{quoted}".t AS SELECT 42 AS i')
        assert db.execute(f'SELECT i FROM "{quoted}".t').fetchall() == [(42,)]
        db.execute(f'DROP TABLE "{quoted}".t')
        assert db.execute("SELECT changes FROM lake.snapshots()").fetchall()
        assert server.http.delete(server.path(name)).status_code == 204
        assert name not in schemas(db)

    @pytest.mark.parametrize("name", ["/etc/passwd", "a/b/c", "C:\\x", "~root"])
    def test_a_namespace_name_that_looks_like_a_path_is_not_used_as_a_path(
        self, name: str, server: Server, lake: TestLake
    ) -> None:
        assert server.create(name).status_code == 200
        ((path, uuid),) = lake.sql("SELECT path, schema_uuid FROM ducklake_schema WHERE schema_name = %s", name)
        assert path == f"{uuid}/"

    @pytest.mark.parametrize("name", ["../../etc", "..", ".", "a/../b"])
    def test_a_namespace_name_with_parent_directories_is_refused(self, name: str, server: Server) -> None:
        assert error_of(server.create(name)) == (400, "BadRequestException")

    def test_a_plus_sign_in_a_path_is_read_as_a_space(self, server: Server) -> None:
        server.create("java space")
        assert server.http.get(f"{server.namespaces}/java+space").json()["namespace"] == ["java space"]

    def test_an_encoded_slash_is_part_of_the_namespace_name_and_decoded_once(self, server: Server) -> None:
        server.create("once%2Ftwice")
        assert server.http.head(f"{server.namespaces}/{quote('once%2Ftwice', safe='')}").status_code == 204
        assert server.http.head(f"{server.namespaces}/once%2Ftwice").status_code == 404

    @pytest.mark.parametrize(
        "levels",
        [
            [],
            [""],
            ["a", ""],
            ["a.b"],
            ["x\u0000y"],
            ["x\u001fy"],
            ["tab\t"],
            ["a" * 256],
            ["information_schema"],
            ["Temp"],
        ],
    )
    def test_invalid_namespace_names_are_refused_without_a_snapshot(
        self, levels: list[str], server: Server, lake: TestLake
    ) -> None:
        before = lake.snapshots()
        answer = server.http.post(server.namespaces, json={"namespace": levels})
        assert error_of(answer) == (400, "BadRequestException")
        assert lake.snapshots() == before


class TestPages:
    @pytest.fixture(scope="class")
    @staticmethod
    def parent(server: Server) -> str:
        """200 namespaces, made in an order that is not that of their names."""
        server.create("many")
        for i in range(200):
            assert server.create("many", f"ns_{(i * 37) % 200:03}").status_code == 200
        return "many"

    def test_paging_through_200_namespaces_returns_each_once(self, parent: str, server: Server) -> None:
        everything = server.list(parent=parent)
        assert everything == [[parent, f"ns_{i:03}"] for i in range(200)]
        for size in (1, 7, 100, 199, 200, 201, 5000):
            seen: list[list[str]] = []
            params = {"parent": parent, "pageSize": size, "pageToken": ""}
            pages = 0
            while True:
                answer = server.http.get(server.namespaces, params=params).json()
                assert len(answer["namespaces"]) <= size
                seen += answer["namespaces"]
                pages += 1
                if not (token := answer["next-page-token"]):
                    break
                params["pageToken"] = token
            assert seen == everything
            assert pages == -(-200 // size)

    def test_namespaces_created_while_paging_do_not_shift_pages(self, parent: str, server: Server) -> None:
        first = server.http.get(server.namespaces, params={"parent": parent, "pageSize": 100}).json()
        server.create(parent, "aaa_before")
        try:
            rest = server.http.get(
                server.namespaces, params={"parent": parent, "pageSize": 100, "pageToken": first["next-page-token"]}
            ).json()
            assert first["namespaces"] + rest["namespaces"] == [[parent, f"ns_{i:03}"] for i in range(200)]
        finally:
            server.http.delete(server.path(parent, "aaa_before"))

    def test_a_listing_without_paging_parameters_returns_everything(self, parent: str, server: Server) -> None:
        answer = server.http.get(server.namespaces, params={"parent": parent}).json()
        assert len(answer["namespaces"]) == 200
        assert answer.get("next-page-token") is None

    @pytest.mark.parametrize("bad", ["garbage", "!!!", "AAAA", "x" * 5000])
    def test_a_forged_page_token_is_refused(self, bad: str, server: Server) -> None:
        assert error_of(server.http.get(server.namespaces, params={"pageToken": bad})) == (400, "BadRequestException")

    def test_a_page_token_of_another_listing_is_refused(self, parent: str, server: Server) -> None:
        token = server.http.get(server.namespaces, params={"parent": parent, "pageSize": 5}).json()["next-page-token"]
        answer = server.http.get(server.namespaces, params={"pageToken": token})
        assert error_of(answer) == (400, "BadRequestException")

    @pytest.mark.parametrize("bad", ["0", "-1", "x", "1.5", ""])
    def test_an_invalid_page_size_is_refused(self, bad: str, server: Server) -> None:
        assert error_of(server.http.get(server.namespaces, params={"pageSize": bad})) == (400, "BadRequestException")
