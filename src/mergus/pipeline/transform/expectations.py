"""What a step's rows must be, as SQL: which rows are bad, and for which reasons.

A row that fails an expectation with `quarantine` goes to the quarantine table instead of the output, with its reasons;
one that fails with `fail` stops the step before anything is written; `warn` is counted and said. A condition that is
neither true nor false (a null in it) is met, as in SQL's own CHECK; `not_null` is how to ask for more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from mergus.pipeline.canonical import SPARK
from mergus.pipeline.transform.definition import Expectation

REASONS: Final = "_reasons"


def broken(expectation: Expectation) -> str:
    """A condition that is true of bad rows and false of all others; `unique` is about the rows of a view together."""
    columns = [SPARK.identifier(name) for name in expectation.columns]
    match expectation.check:
        case "not_null":
            return _any([f"{column} IS NULL" for column in columns])
        case "range":
            return _any([_outside(column, expectation) for column in columns])
        case "unique":
            # nulls are unlike everything, as in a key of SQL's
            known = " AND ".join(f"{column} IS NOT NULL" for column in columns)
            return f"({known} AND count(*) OVER (PARTITION BY {', '.join(columns)}) > 1)"
        case "sql":
            return f"NOT coalesce(({expectation.sql}), true)"


def _outside(column: str, expectation: Expectation) -> str:
    bounds: list[str] = []
    if expectation.least is not None:
        bounds.append(f"{column} < {_value(expectation.least)}")
    if expectation.most is not None:
        bounds.append(f"{column} > {_value(expectation.most)}")
    return f"coalesce({' OR '.join(bounds)}, false)"


def _value(bound: float | str) -> str:
    return SPARK.literal(bound) if isinstance(bound, str) else repr(bound)


def _any(conditions: Sequence[str]) -> str:
    return f"({' OR '.join(conditions)})"


def judged(view: str, expectations: Sequence[Expectation]) -> str:
    """A query of a view's rows with one more column: the titles of what each fails, in order."""
    each = [f"CASE WHEN {broken(one)} THEN {SPARK.literal(one.title)} END" for one in expectations]
    reasons = f"filter(array({', '.join(each)}), r -> r IS NOT NULL)" if each else "CAST(array() AS ARRAY<STRING>)"
    return f"SELECT *, {reasons} AS {SPARK.identifier(REASONS)} FROM {SPARK.identifier(view)}"


@dataclass(frozen=True)
class Verdict:
    """How many rows fail each expectation, by title."""

    expectations: tuple[Expectation, ...]
    counts: dict[str, int] = field(default_factory=dict[str, int])

    def failing(self, otherwise: str) -> dict[str, int]:
        titles = {one.title for one in self.expectations if one.otherwise == otherwise}
        return {title: count for title, count in self.counts.items() if count and title in titles}

    @property
    def quarantining(self) -> list[str]:
        return [one.title for one in self.expectations if one.otherwise == "quarantine"]


def is_quarantined(verdict: Verdict) -> str:
    """A condition on judged rows."""
    titles = ", ".join(SPARK.literal(title) for title in verdict.quarantining)
    return f"arrays_overlap({SPARK.identifier(REASONS)}, array({titles}))" if titles else "false"
