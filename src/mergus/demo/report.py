"""What happened, to look at: tables, the commits of both engines on one line of time, and how tables grew.

As text for a terminal, and as a page of HTML that needs nothing else.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from mergus.ducklake.told import LEAST_CLIENT_ID

ENGINES: Final = ("DuckDB", "Spark")
COLOURS: Final = {"DuckDB": "#d9a400", "Spark": "#d1492e"}
LINES: Final = ("#2b6cb0", "#718096", "#2f855a", "#805ad5", "#b83280", "#4a5568")
WIDTH, HEIGHT, LEFT, ROOM = 900, 260, 90, 40
BLOCKS: Final = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Commit:
    """A snapshot of a table."""

    table: str
    engine: str
    at_ms: int
    operation: str
    rows: int


@dataclass(frozen=True)
class Told:
    title: str
    is_good: bool
    commits: Sequence[Commit]
    gold: Sequence[tuple[Any, ...]]
    gold_columns: Sequence[str]
    facts: Mapping[str, str]


def commits_of(table: str, metadata: Mapping[str, Any]) -> Iterable[Commit]:
    """Of a table's metadata, as REST gives it: DuckLake numbers its snapshots from 1, clients have large numbers."""
    for one in metadata.get("snapshots", []):
        engine = "Spark" if one["snapshot-id"] >= LEAST_CLIENT_ID else "DuckDB"
        summary = one["summary"]
        rows = int(summary.get("total-records", 0)) - int(summary.get("total-position-deletes", 0))
        yield Commit(table, engine, one["timestamp-ms"], summary["operation"], rows)


def text(told: Told) -> str:
    start, seconds = _span(told.commits)
    lines = [told.title, ""]
    lines += [f"{'table':28}{'rows':>10}{'DuckDB':>9}{'Spark':>7}  commits; rows over time"]
    for table, commits in _by_table(told.commits).items():
        by = [sum(one.engine == engine for one in commits) for engine in ENGINES]
        lines.append(f"{table:28}{commits[-1].rows:>10,}{by[0]:>9}{by[1]:>7}  {_sparkline(commits, start, seconds)}")
    lines += ["", f"commits on one line of time, {seconds:.0f} seconds from left to right"]
    lines += [f"{engine:8}{_ticks(told.commits, engine, start, seconds)}" for engine in ENGINES]
    lines += ["", "  ".join(f"{name:>12}" for name in told.gold_columns)]
    lines += ["  ".join(f"{value!s:>12}" for value in row) for row in told.gold]
    lines += ["", *(f"{name}: {fact}" for name, fact in told.facts.items())]
    return "\n".join(lines) + "\n"


def html(told: Told) -> str:
    rows = "".join(
        f"<tr><td>{escape(table)}</td><td>{commits[-1].rows:,}</td>"
        + "".join(f"<td>{sum(one.engine == engine for one in commits)}</td>" for engine in ENGINES)
        + "</tr>"
        for table, commits in _by_table(told.commits).items()
    )
    gold = "".join("<tr>" + "".join(f"<td>{escape(str(v))}</td>" for v in row) + "</tr>" for row in told.gold)
    heads = "".join(f"<th>{escape(name)}</th>" for name in told.gold_columns)
    facts = "".join(f"<li><b>{escape(name)}</b>: {escape(fact)}</li>" for name, fact in told.facts.items())
    return f"""<!doctype html><meta charset="utf-8"><title>{escape(told.title)}</title>
<style>body{{font:15px/1.5 system-ui;margin:2em auto;max-width:60em;color:#222}}
table{{border-collapse:collapse;margin:1em 0}}td,th{{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}}
td:first-child,th:first-child{{text-align:left}}svg{{width:100%;height:auto}}</style>
<h1>{escape(told.title)}</h1><ul>{facts}</ul>
<h2>Commits of both engines on one line of time</h2>{_timeline(told.commits)}
<h2>Rows of each table</h2>{_plot(told.commits)}
<h2>Tables</h2><table><tr><th>table<th>rows<th>commits of DuckDB<th>of Spark</tr>{rows}</table>
<h2>What DuckDB reads of what Spark made</h2><table><tr>{heads}</tr>{gold}</table>
"""


def _by_table(commits: Sequence[Commit]) -> dict[str, list[Commit]]:
    found: dict[str, list[Commit]] = {}
    for one in sorted(commits, key=lambda c: c.at_ms):
        found.setdefault(one.table, []).append(one)
    return found


def _span(commits: Sequence[Commit]) -> tuple[int, float]:
    times = [one.at_ms for one in commits] or [0]
    return min(times), max((max(times) - min(times)) / 1000, 0.001)


def _place(at_ms: int, start: int, seconds: float, width: int) -> int:
    return min(width - 1, int((at_ms - start) / 1000 / seconds * width))


def _ticks(commits: Sequence[Commit], engine: str, start: int, seconds: float, width: int = 72) -> str:
    places = {_place(one.at_ms, start, seconds, width) for one in commits if one.engine == engine}
    return "".join("|" if i in places else "·" for i in range(width))


def _sparkline(commits: Sequence[Commit], start: int, seconds: float, width: int = 24) -> str:
    rows = [0] * width
    for one in commits:
        place = _place(one.at_ms, start, seconds, width)
        rows[place:] = [one.rows] * (width - place)
    most = max(*rows, 1)
    return "".join(BLOCKS[round(n / most * (len(BLOCKS) - 1))] for n in rows)


def _x(at_ms: int, start: int, seconds: float) -> float:
    return round(LEFT + (at_ms - start) / 1000 / seconds * (WIDTH - LEFT - ROOM), 1)


def _timeline(commits: Sequence[Commit]) -> str:
    start, seconds = _span(commits)
    marks: list[str] = []
    for row, engine in enumerate(ENGINES):
        y = 30 + row * 40
        marks.append(f'<text x="0" y="{y + 5}">{engine}</text>')
        marks.append(f'<line x1="{LEFT}" x2="{WIDTH - ROOM}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        marks += [
            f'<circle cx="{_x(one.at_ms, start, seconds)}" cy="{y}" r="5" fill="{COLOURS[engine]}" opacity=".6">'
            f"<title>{escape(one.table)}: {escape(one.operation)}, {one.rows:,} rows</title></circle>"
            for one in commits
            if one.engine == engine
        ]
    marks.append(f'<text x="{LEFT}" y="110" font-size="12">0 s</text>')
    marks.append(f'<text x="{WIDTH - ROOM}" y="110" font-size="12" text-anchor="end">{seconds:.0f} s</text>')
    return f'<svg viewBox="0 0 {WIDTH} 115">{"".join(marks)}</svg>'


def _plot(commits: Sequence[Commit]) -> str:
    """Steps: a table has as many rows until its next commit."""
    start, seconds = _span(commits)
    most = max([one.rows for one in commits] or [1]) or 1
    parts: list[str] = []
    for index, (table, own) in enumerate(_by_table(commits).items()):
        points: list[str] = []
        y = float(HEIGHT - ROOM)
        for one in own:
            x = _x(one.at_ms, start, seconds)
            points.append(f"{x},{y}")
            y = round((HEIGHT - ROOM) - one.rows / most * (HEIGHT - ROOM - 20), 1)
            points.append(f"{x},{y}")
        points.append(f"{WIDTH - ROOM},{y}")
        colour = LINES[index % len(LINES)]
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(
            f'<text x="{LEFT + 10}" y="{30 + index * 16}" fill="{colour}" font-size="13">{escape(table)}</text>'
        )
    parts.append(f'<text x="{LEFT - 8}" y="25" text-anchor="end" font-size="12">{most:,}</text>')
    parts.append(f'<text x="{LEFT - 8}" y="{HEIGHT - ROOM}" text-anchor="end" font-size="12">0</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}">{"".join(parts)}</svg>'
