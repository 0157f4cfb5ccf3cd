"""Which rows fail which expectation, as Spark finds it."""

from typing import Any

import pytest
from pydantic import ValidationError

from mergus.pipeline.session import query, rows
from mergus.pipeline.transform.definition import Expectation
from mergus.pipeline.transform.expectations import Verdict, is_quarantined, judged
from tests.support import spark as sparks

ROWS = """VALUES (1, 'a', 1.5D, DATE '2024-01-01'), (2, 'a', -1D, NULL), (2, NULL, NULL, DATE '2030-01-01'),
                 (NULL, 'it''s', 200D, DATE '2024-06-01') AS t(i, s, f, d)"""


def failing(**expectation: Any) -> list[int]:
    """The numbers of the rows that fail."""
    spark = sparks.session()
    query(spark, f"SELECT row_number() OVER (ORDER BY 1) AS nth, * FROM {ROWS}").createOrReplaceTempView("to_judge")
    told = rows(spark, f"SELECT nth, _reasons FROM ({judged('to_judge', [Expectation(**expectation)])}) ORDER BY nth")
    return [nth for nth, reasons in told if reasons]


@pytest.mark.parametrize(
    ("expectation", "found"),
    [
        ({"check": "not_null", "columns": ["i"]}, [4]),
        ({"check": "not_null", "columns": ["i", "s", "f", "d"]}, [2, 3, 4]),
        ({"check": "unique", "columns": ["i"]}, [2, 3]),
        ({"check": "unique", "columns": ["i", "s"]}, []),
        ({"check": "range", "columns": ["f"], "least": 0}, [2]),
        ({"check": "range", "columns": ["f"], "least": 0, "most": 100.5}, [2, 4]),
        ({"check": "range", "columns": ["d"], "most": "2025-01-01"}, [3]),
        # one that is neither true nor false is met
        ({"check": "sql", "sql": "i < f OR s = 'it''s'"}, [2]),
        ({"check": "sql", "sql": "true"}, []),
    ],
)
def test_each_check_finds_the_rows_that_violate_it(expectation: dict[str, Any], found: list[int]) -> None:
    assert failing(**expectation) == found


def test_only_rows_that_fail_a_quarantine_expectation_are_quarantined() -> None:
    warn = Expectation(check="not_null", columns=("i",), otherwise="warn")
    apart = Expectation(check="not_null", columns=("s",), otherwise="quarantine", name="it's a name")
    spark = sparks.session()
    query(spark, f"SELECT * FROM {ROWS}").createOrReplaceTempView("to_judge")
    query(spark, judged("to_judge", [warn, apart])).createOrReplaceTempView("was_judged")
    verdict = Verdict((warn, apart), {warn.title: 1, apart.title: 1})
    told = rows(spark, f"SELECT f, _reasons FROM was_judged WHERE {is_quarantined(verdict)}")
    assert told == [(None, ["it's a name"])]
    assert (verdict.failing("warn"), verdict.failing("fail")) == ({"not_null(i)": 1}, {})
    assert rows(spark, f"SELECT count(*) FROM was_judged WHERE {is_quarantined(Verdict((warn,)))}") == [(0,)]


def test_column_names_in_expectations_are_not_interpreted_as_sql() -> None:
    with pytest.raises(Exception, match="UNRESOLVED_COLUMN"):
        failing(check="not_null", columns=["i` IS NULL OR true --"])
    with pytest.raises(ValidationError):
        Expectation(check="range", columns=("i",))
