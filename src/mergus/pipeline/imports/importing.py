"""The job: a namespace at a time, several tables of it at once, and a row in the report for each.

A table that fails does not stop the others. What a run has done is seen in the lake itself (`standing`), so that one
that was cut short goes on where it was, and one that is repeated does nothing. After each table its rows are counted on
both sides.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal

from mergus.client import Levels
from mergus.errors import MergusError, SetupError
from mergus.pipeline.imports import take
from mergus.pipeline.imports.connector import Connector, Described
from mergus.pipeline.imports.jvm import activate
from mergus.pipeline.imports.secrets import Secrets
from mergus.pipeline.imports.standing import How, Standing, is_touched, remaining, standing, was_imported
from mergus.pipeline.imports.take import NotInPlace
from mergus.pipeline.job import Place, Run, Table
from mergus.pipeline.session import message

State = Literal["registered", "copied", "skipped", "planned", "failed"]


@dataclass(frozen=True)
class Asked:
    """`names` are namespaces and tables of the source; none are all that there are."""

    names: Sequence[str] = ()
    into: Levels | None = None
    how: Literal["auto", "register", "copy"] = "auto"
    history: Literal["latest", "all"] = "latest"
    parallel: int = 4
    again: bool = False
    plan: bool = False


@dataclass(frozen=True)
class Imported:
    """What became of a table. `rows` were counted here and there, and are the same."""

    source: str
    target: str | None
    state: State
    how: How | None = None
    snapshots: int | None = None
    rows: int | None = None
    reason: str | None = None

    def json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass
class Report:
    tables: list[Imported] = field(default_factory=list[Imported])

    def json(self) -> dict[str, Any]:
        return {"tables": [one.json() for one in self.tables]}


def import_tables(place: Place, run: Run, connector: Connector, asked: Asked, secrets: Secrets) -> Report:
    report = Report()

    def add(one: Imported) -> None:
        hidden = replace(one, reason=None if one.reason is None else secrets.hide(one.reason))
        run.say(f"{one.source}: {one.state}{f' ({hidden.reason})' if hidden.reason else ''}")
        run.counts[one.state] += 1
        run.counts["rows"] += one.rows or 0
        report.tables.append(hidden)

    with run.part("list"):
        chosen = dict(_chosen(connector, asked.names))
    taken: set[Table] = set()
    for namespace, found in chosen.items():
        with run.part("import"):
            if isinstance(found, Imported):
                add(found)
                continue
            for one in _namespace(place, connector, asked, namespace, found, taken):
                add(one)
    return report


def _chosen(connector: Connector, names: Sequence[str]) -> Iterator[tuple[Levels, list[str] | Imported]]:
    """Tables by namespace; what cannot be listed is said of the namespace."""
    known = connector.namespaces()
    asked: dict[Levels, set[str] | None] = dict.fromkeys(known) if not names else {}
    for name in names:
        levels = tuple(name.split("."))
        if levels in known:
            asked[levels] = None
        elif levels[:-1] in known and levels[-1] in connector.tables(levels[:-1]):
            if (others := asked.setdefault(levels[:-1], set())) is not None:
                others.add(levels[-1])
        else:
            raise SetupError(f"the source has no namespace or table {name}")
    for levels, tables in asked.items():
        try:
            yield levels, sorted(connector.tables(levels) if tables is None else tables)
        except Exception as e:  # whatever a catalog says of one namespace
            yield (
                levels,
                Imported(".".join(levels), None, "failed", reason=f"its tables cannot be listed: {message(e)}"),
            )


def _namespace(
    place: Place, connector: Connector, asked: Asked, namespace: Levels, names: Sequence[str], taken: set[Table]
) -> Iterator[Imported]:
    into = asked.into or namespace
    ready: list[tuple[Table, Table]] = []
    problem = _problem(place, asked, into) if names else None
    for name in names:
        source, target = Table(namespace, name), Table(into, name)
        if problem is not None:
            yield Imported(str(source), str(target), "failed", reason=problem)
        elif target in taken:
            yield Imported(str(source), str(target), "failed", reason="another table of the source has this name")
        else:
            taken.add(target)
            ready.append((source, target))
    with ThreadPoolExecutor(asked.parallel, "import", initializer=activate, initargs=(place.spark,)) as pool:
        yield from pool.map(partial(_guarded, place, connector, asked), ready)


def _problem(place: Place, asked: Asked, into: Levels) -> str | None:
    if not into:
        return "it has no namespace in the source: name one with --into"
    try:
        if not asked.plan:
            take.create_namespace(place, into)
    except MergusError as e:
        return e.message
    return None


def _guarded(place: Place, connector: Connector, asked: Asked, pair: tuple[Table, Table]) -> Imported:
    made = partial(Imported, *map(str, pair))
    try:
        return _one(place, connector, asked, *pair)
    except MergusError as e:
        return made("failed", reason=e.message)
    except NotInPlace as e:
        return made("failed", reason=f"cannot be registered: {e}")
    except Exception as e:  # of Spark, of the JVM, of whatever reads the table: it is this table's, and not the others'
        return made("failed", reason=message(e))


def _one(place: Place, connector: Connector, asked: Asked, table: Table, target: Table) -> Imported:
    made = partial(Imported, str(table), str(target))
    described = connector.describe(table)
    loaded = place.load(target)
    metadata: dict[str, Any] = {} if loaded is None else loaded["metadata"]
    stands = standing(metadata, described)
    if (left := _left(stands, metadata, asked)) is not None:
        state, reason = left
        return made(state, reason=reason)
    if asked.plan:
        return _planned(made, described, asked)
    how, reason = _take(place, connector, asked, (table, target), described, metadata, stands)
    here = take.count(place, target)
    there = connector.open(table, described.snapshot).count()
    after = place.metadata(target)
    imported = made("copied" if how == "copy" else "registered", how, len(after["snapshots"]), here, reason)
    if here != there:
        return replace(imported, state="failed", reason=f"{here} rows are here, and the source has {there}")
    return imported


def _left(stands: Standing, metadata: Mapping[str, Any], asked: Asked) -> tuple[State, str] | None:
    """Why a table is left as it is."""
    if stands == "foreign":
        return "failed", "exists already, and does not come from this table of the source"
    if stands == "done":
        return "skipped", "imported already"
    if stands != "changed":
        return None
    goes_on = asked.history == "all" and was_imported(metadata) == "copy"
    if not (asked.again or goes_on):
        return "skipped", "the source has changed since it was imported: --again replaces it"
    if is_touched(metadata):
        return "failed", "it has been written to since it was imported, which replacing it would undo"
    return None


def _planned(made: Any, described: Described, asked: Asked) -> Imported:  # noqa: ANN401
    may = asked.how != "copy" and (described.metadata_location or described.files)
    how: How = "copy" if not may else "register" if described.metadata_location else "files"
    reason = f"{described.format} in {described.location}, {len(described.columns)} columns"
    if may:
        reason += "; in place if the server allows this location (MERGUS_ALLOWED_LOCATIONS)"
    elif asked.how != "copy":
        reason += f"; copied since {described.not_in_place}"
    return made("planned", how=how, rows=described.rows, reason=reason)


def _take(
    place: Place,
    connector: Connector,
    asked: Asked,
    pair: tuple[Table, Table],
    described: Described,
    metadata: Mapping[str, Any],
    stands: Standing,
) -> tuple[How, str | None]:
    """How it was done, and why not in place."""
    table, target = pair
    if stands == "begun":
        take.mark(place, described, target)
        return "register", None
    reason = None
    if asked.how != "copy" and was_imported(metadata) != "copy":
        try:
            return _in_place(place, connector, pair, described, stands), None
        except NotInPlace as e:
            if asked.how == "register":
                raise
            reason = f"copied, since it cannot be registered: {e}"
    snapshots: Sequence[str | None] = [described.snapshot]
    if asked.history == "all":
        snapshots = remaining(metadata, connector.snapshots(table)) or snapshots
    take.copy(place, connector, table, described, target, snapshots)
    return "copy", reason


def _in_place(
    place: Place, connector: Connector, pair: tuple[Table, Table], described: Described, stands: Standing
) -> How:
    table, target = pair
    if described.metadata_location is not None:
        take.register(place, described, target, replace=stands == "changed")
        return "register"
    if stands == "changed":
        raise NotInPlace("a table whose files were taken is replaced by a copy")
    take.take_files(place, connector, table, described, target)
    return "files"
