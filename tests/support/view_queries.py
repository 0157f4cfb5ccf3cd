"""Queries of views over two tables: such as every engine must read alike, and such as it may not."""

from hypothesis import strategies as st

TABLES = """
    CREATE TABLE s.t (id INTEGER, name VARCHAR, d DATE, ts TIMESTAMP, p DECIMAL(10, 2), x DOUBLE, b BOOLEAN, l BIGINT,
                      f FLOAT, a INTEGER[], tz TIMESTAMPTZ);
    CREATE TABLE s.u (id INTEGER, "Mixed ""Case" VARCHAR, "order" VARCHAR)
"""
ROWS = r"""
    INSERT INTO s.t VALUES
        (1, 'a', '2024-01-01', '2024-01-01 10:00:00', 1.50, 2.5, true, 7, 1.5, [1, 2], '2024-01-01 10:00:00+00'),
        (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
        (3, 'it''s \n "q"', '1969-12-31', '1969-12-31 23:59:59.999999', -1.50, 'nan', false, 7, 'nan', [], NULL),
        (4, 'Ünïcode 🦆', '9999-12-31', '2024-02-29 00:00:00', 99999999.99, '-inf', true, 9223372036854775807, 0, NULL, NULL),
        (5, '', '2024-01-01', '2024-01-01 00:00:00', 0.00, -0.0, false, -9223372036854775808, 0, NULL, NULL),
        (NULL, 'A%_', '2024-12-31', NULL, 0.01, 1e300, true, 0, 0, NULL, NULL);
    INSERT INTO s.u VALUES (1, 'x', 'o'), (3, 'y', NULL), (3, 'z', 'p'), (9, NULL, 'q'), (NULL, 'n', 'r')
"""  # noqa: E501

CERTAIN = (
    # words that DuckDB quotes, names in other cases, names that others would quote
    "SELECT id, name FROM s.t",
    'SELECT ID AS "select", t.NAME AS "a`b.c" FROM S.T',
    'SELECT "Mixed ""Case", "order" FROM s.u WHERE "order" IS NOT NULL',
    "SELECT * FROM s.t",
    "SELECT t.*, z.id AS other FROM s.t JOIN s.u AS z ON t.id = z.id",
    # texts
    r"SELECT 'a\b\n' AS x, 'it''s' AS y, '\\' AS z, '\"' AS q, 'a' || chr AS c FROM (SELECT name AS chr FROM s.t) AS v",
    r"SELECT id FROM s.t WHERE name = 'it''s \n " + '"q"' + "'",
    "SELECT id FROM s.t WHERE name LIKE 'A%' OR name LIKE '_' OR name NOT LIKE '%s%'",
    "SELECT id, length(name) AS n FROM s.t WHERE name < 'b' AND name >= ''",
    # numbers, dates and truths
    "SELECT id FROM s.t WHERE id IN (1, 2, NULL) OR id BETWEEN 3 AND 4 OR NOT (l > 3000000000)",
    "SELECT id FROM s.t WHERE p > 1 AND p <= 100000000 OR p = 0.01 OR p < -1.495 OR id < 2.5",
    "SELECT id, x FROM s.t WHERE x > 1.5 OR x < 0 OR x = 0",
    "SELECT x * 2 AS a, x + p AS b, p - 1.5 AS c, p * 0.25 AS d, p + p AS e FROM s.t",
    "SELECT id FROM s.t WHERE d >= '2024-01-01' AND d < DATE '2024-12-31' OR ts > '2024-01-01'",
    "SELECT id FROM s.t WHERE ts BETWEEN TIMESTAMP '2024-01-01 00:00:00' AND TIMESTAMP '2024-01-01 10:00:00.5'",
    "SELECT year(d) AS y, month(ts) AS m, day(d) AS n FROM s.t",
    "SELECT DATE '2024-02-29' AS d, TIMESTAMP '2024-01-01 10:00:00' AS ts, -1 AS i, 1.5 AS p, 0.05 AS q, true AS b, "
    "NULL AS n, 3000000000 AS l",
    "SELECT b, NOT b AS nb, b AND id > 1 AS c, b OR NULL AS o, id IS NULL AS isn FROM s.t WHERE b OR b IS NULL",
    "SELECT CAST(id AS BIGINT) AS l, CAST(l AS VARCHAR) AS s, CAST(id AS DOUBLE) AS x, CAST(p AS DECIMAL(20, 4)) AS p "
    "FROM s.t",
    "SELECT CASE WHEN id = 1 THEN 'one' WHEN id > 3 THEN name ELSE NULL END AS c, "
    "CASE id WHEN 1 THEN 1.5 ELSE p END AS p, coalesce(p, 0) AS q, "
    "coalesce(name, 'none') AS name, coalesce(x, 0) AS x, coalesce(id, l) AS l FROM s.t",
    "SELECT f, a, tz FROM s.t WHERE f IS NOT NULL OR a IS NULL",
    # rows together
    "SELECT count(*) AS n, count(name) AS names, count(DISTINCT d) AS days, sum(id) AS ids, sum(l) AS l, sum(p) AS p, "
    "min(name) AS low, max(d) AS high, max(ts) AS late FROM s.t",
    "SELECT count(*), sum(p) FROM s.t WHERE id > 100",
    "SELECT d, count(*) AS n FROM s.t GROUP BY d HAVING count(*) > 1",
    "SELECT d, name IS NULL AS unknown, sum(p) AS total FROM s.t GROUP BY ALL",
    "SELECT b, max(p) - 1 AS top FROM s.t GROUP BY 1 ORDER BY 1",
    "SELECT DISTINCT d, b FROM s.t",
    # joins
    'SELECT t.id, name, "Mixed ""Case" FROM s.t LEFT JOIN s.u ON t.id = u.id AND u."order" IS NOT NULL',
    "SELECT * FROM s.t RIGHT JOIN s.u USE_ ON t.id = USE_.id",
    "SELECT t.id AS one, u.id AS other FROM s.t FULL JOIN s.u ON t.id = u.id",
    "SELECT * FROM s.t JOIN s.u USING (id)",
    'SELECT id, u.id AS right_id, "order" FROM s.t LEFT JOIN s.u USING (id)',
    "SELECT one.id, two.id AS other FROM s.t AS one, s.t AS two WHERE one.id < two.id",
    "SELECT one.id, two.id AS other FROM s.u AS one CROSS JOIN s.u AS two",
    # queries in queries
    "WITH c AS (SELECT id, p FROM s.t WHERE p > 0), d(k, total) AS (SELECT id, sum(p) FROM c GROUP BY id) "
    "SELECT c.id, total FROM c JOIN d ON c.id = d.k",
    "WITH t AS (SELECT id AS k FROM s.t) SELECT k, name FROM t JOIN s.t AS base ON base.id = t.k",
    "SELECT v.k + 0.5 AS k FROM (SELECT DISTINCT id FROM s.t) AS v(k)",
    "SELECT id, name FROM s.t WHERE id < 3 UNION ALL SELECT id, \"order\" FROM s.u UNION ALL SELECT 7, 'seven'",
    # order
    "SELECT id, d FROM s.t ORDER BY d DESC, id LIMIT 4",
    "SELECT id, p FROM s.t ORDER BY p, id LIMIT 5",
    "SELECT id FROM s.t ORDER BY name NULLS FIRST LIMIT 2",
    "SELECT name FROM s.t ORDER BY x DESC NULLS FIRST, id LIMIT 3",
    "SELECT d, count(*) AS n FROM s.t GROUP BY d ORDER BY n DESC, d LIMIT 2",
)

# Of these: NaN has no place among other numbers in Trino.
NOT_IN_TRINO = (
    "SELECT id, x FROM s.t WHERE x > 1.5 OR x < 0 OR x = 0",
    "SELECT name FROM s.t ORDER BY x DESC NULLS FIRST, id LIMIT 3",
)

UNCERTAIN = {
    "SELECT upper(name) AS big FROM s.t": r"the function upper\(\)",
    "SELECT * EXCLUDE (name) FROM s.t": "star with except",
    "SELECT id + 1 AS next FROM s.t": "add with int and int",
    "SELECT id / 2 AS half FROM s.t": "it has div",
    "SELECT p * id AS total FROM s.t": "more than 18 digits",
    "SELECT sum(x) AS total FROM s.t": "order of rows",
    "SELECT avg(id) AS mean FROM s.t": r"the function avg\(\)",
    "SELECT x, count(*) AS n FROM s.t GROUP BY x": "tells values of double apart",
    "SELECT id FROM s.t WHERE f > 1": "computes with FLOAT",
    "SELECT id FROM s.t WHERE id = '1'": "implicit cast",
    "SELECT id FROM s.t WHERE d = '1.1.2024'::DATE": "a text for a value of type date",
    "SELECT id FROM s.t WHERE name LIKE 'a\\%'": "LIKE with something other",
    "SELECT id FROM s.t WHERE name ILIKE 'a%'": "it has i?like",
    "SELECT id FROM s.t LIMIT 2": "LIMIT without ORDER BY",
    "SELECT id FROM s.t ORDER BY id LIMIT 50%": "LIMIT|limit",
    "SELECT id FROM s.t ORDER BY id LIMIT 2 OFFSET 1": "offset",
    "SELECT 'a${x}b' AS x": "which Spark replaces",
    'SELECT 1 AS "${x}"': "which Spark replaces",
    "SELECT row_number() OVER (ORDER BY id) AS n FROM s.t": "it has window",
    "SELECT id FROM s.t WHERE id = (SELECT max(id) FROM s.u)": "it has subquery",
    "SELECT id FROM s.t WHERE EXISTS (SELECT 1 FROM s.u)": "exists",
    "SELECT id FROM s.t UNION SELECT id FROM s.u": "UNION without ALL",
    "SELECT id FROM s.t UNION ALL BY NAME SELECT id FROM s.u": "union with by name|by_name",
    "SELECT id FROM s.t INTERSECT SELECT id FROM s.u": "no SELECT",
    "SELECT k FROM (SELECT id AS k FROM s.t UNION ALL SELECT l FROM s.t) AS v": "different types",
    "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n FROM r WHERE n < 1) SELECT n FROM r": "recursive",
    "SELECT id FROM s.t NATURAL JOIN s.u": "natural|method",
    "SELECT t.id FROM s.t SEMI JOIN s.u ON t.id = u.id": "a join of the kind",
    "SELECT id FROM s.t RIGHT JOIN s.u USING (id)": "RIGHT JOIN with USING",
    "SELECT a[1] AS first FROM s.t": "it has",
    "SELECT i FROM range(3) AS r(i)": "in the place of a table",
    "SELECT x FROM (VALUES (1), (2)) AS v(x)": "other words",
    "SELECT coalesce(name, '') AS name FROM s.t WHERE name = 'a'": "for a column and for a result",
    "SELECT count(*) FILTER (WHERE b) AS n FROM s.t": "filter",
    "SELECT DISTINCT ON (d) id FROM s.t ORDER BY id": "distinct with on",
    "SELECT min(a) AS m FROM s.t": "min",
    "SELECT TRY_CAST(name AS INTEGER) AS i FROM s.t": "try",
    "SELECT CAST(name AS INTEGER) AS i FROM s.t": "cast from string to int",
    "SELECT s.t.id FROM s.t": "column with db",
}


def in_q(text: str) -> str:
    """The same in another schema."""
    return text.replace(" s.", " q.").replace(" S.", " Q.")


def _numbers() -> st.SearchStrategy[str]:
    return st.sampled_from(["id", "l", "p", "1", "-3", "0.5", "99999999.99", "NULL", "length(name)", "year(d)"])


def _values() -> st.SearchStrategy[tuple[str, str]]:
    """Pairs that are compared."""
    texts = st.sampled_from(
        ["name", "'a'", "''", r"'it''s \n'", "name || 'x'", "coalesce(name, '')", "CAST(id AS VARCHAR)"]
    )
    dates = st.sampled_from(["d", "DATE '2024-01-01'", "'1969-12-31'", "NULL"])
    times = st.sampled_from(["ts", "TIMESTAMP '2024-01-01 10:00:00'", "'2024-01-01'"])
    doubles = st.sampled_from(["x", "x * 2", "1.5", "0", "x + p", "id"])
    return st.one_of(
        st.tuples(_numbers(), _numbers()),
        st.tuples(texts, texts),
        st.tuples(st.just("d"), dates),
        st.tuples(st.just("ts"), times),
        st.tuples(st.just("x"), doubles),
    )


def conditions() -> st.SearchStrategy[str]:
    compared = st.builds(
        lambda pair, sign: f"({pair[0]} {sign} {pair[1]})",
        _values(),
        st.sampled_from(["=", "<>", "<", "<=", ">", ">="]),
    )
    others = st.sampled_from(
        [
            "b",
            "(name LIKE '%s%')",
            "(id IN (1, 3, NULL))",
            "(p BETWEEN 0 AND 2)",
            "(tz IS NULL)",
            "(d IS NOT NULL)",
            "NULL",
        ]
    )
    return st.recursive(
        st.one_of(compared, others),
        lambda below: st.one_of(
            st.builds(lambda a, b, word: f"({a} {word} {b})", below, below, st.sampled_from(["AND", "OR"])),
            below.map(lambda one: f"(NOT {one})"),
        ),
        max_leaves=6,
    )


def queries() -> st.SearchStrategy[str]:
    """Of one table, with or without groups."""

    def of_rows(shown: str, first: str, second: str, where: str) -> str:
        return (
            f"SELECT id AS k, {shown} AS is_so, CASE WHEN {first} THEN p WHEN {second} THEN 1 ELSE 0.5 END AS c "
            f"FROM s.t WHERE {where}"
        )

    def of_groups(key: str, where: str, having: str) -> str:
        return (
            f"SELECT {key} AS k, count(*) AS n, sum(p) AS total, sum(l) AS ls, min(name) AS low, max(ts) AS late "
            f"FROM s.t WHERE {where} GROUP BY {key} HAVING {having}"
        )

    keys = st.sampled_from(["d", "b", "name", "l", "coalesce(p, 0)", "(id > 2)", "year(d)"])
    havings = st.sampled_from(
        ["count(*) > 0", "sum(p) > 1", "max(d) IS NULL", "count(DISTINCT name) < 2 OR min(l) < 0"]
    )
    return st.one_of(
        st.builds(of_rows, conditions(), conditions(), conditions(), conditions()),
        st.builds(of_groups, keys, conditions(), havings),
    )
