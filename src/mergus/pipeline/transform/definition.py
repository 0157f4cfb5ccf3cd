"""A pipeline as its file says it: TOML or YAML, checked before anything runs.

    name = "orders"

    [[step]]
    name = "silver"
    output = "silver.orders"
    mode = "merge"                                  # or append, replace
    keys = ["order_id"]
    inputs.orders = { table = "bronze.orders", changes = true }
    inputs.people = { table = "bronze.people", lookup = true }
    sql = "SELECT o.*, p.name FROM orders o JOIN people p USING (person_id)"

    [[step.expect]]
    check = "not_null"                              # or unique, range, sql
    columns = ["order_id"]
    otherwise = "quarantine"                        # or fail, warn

Inputs are views of their names, each of one snapshot that is chosen when the step begins. What a run makes of those:

    replace   the output is what the SQL gives, made anew whenever an input has changed
    merge     the same, but of an input with `changes` only those keys are looked at of which rows came or went since
              the last run: the view has all rows of such keys, and what the SQL gives for a key stands for it
    append    the output gets what the SQL gives of the rows that came since the last run, and keeps what it has

An input is whole unless it has `changes`: when it has changed, a merge is made anew. One that is a `lookup` is read as
it is, and its changes are nobody's reason to run; neither are those of whole inputs where a step appends.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from mergus.errors import SetupError
from mergus.extras import install_command
from mergus.pipeline.partitioning import partition

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a name: letters, digits and _, with a letter first")
    return text


def _table(text: str) -> str:
    parts = text.split(".")
    if len(parts) < 2 or not all(parts):
        raise ValueError(f"{text!r} is not a table: NAMESPACE.TABLE is")
    return text


Name = Annotated[str, BeforeValidator(_name)]
Table = Annotated[str, BeforeValidator(_table)]
Otherwise = Literal["fail", "warn", "quarantine"]


class Input(_Part):
    """`keys` are the columns that the output's keys are here, where they are called otherwise. `deletes` is about
    rows that went, or changed, where a step appends: it can take nothing back."""

    table: Table
    changes: bool = False
    lookup: bool = False
    keys: dict[str, str] = Field(default_factory=dict)
    deletes: Literal["refuse", "ignore"] = "refuse"

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.changes and self.lookup:
            raise ValueError("an input is read by its changes, or is a lookup")
        if not self.changes and (self.keys or self.deletes != "refuse"):
            raise ValueError("`keys` and `deletes` are for an input with `changes`")
        return self


class Expectation(_Part):
    """`sql` is a condition of a row, which must not be false; `unique` is about all of the rows that are written."""

    check: Literal["not_null", "unique", "range", "sql"]
    columns: tuple[str, ...] = ()
    least: float | str | None = None
    most: float | str | None = None
    sql: str | None = None
    otherwise: Otherwise = "fail"
    name: str = ""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.check == "sql" and (self.sql is None or self.columns):
            raise ValueError("a check `sql` has a condition `sql` and no columns")
        if self.check != "sql" and (self.sql is not None or not self.columns):
            raise ValueError(f"a check `{self.check}` has `columns`, and no `sql`")
        if (self.check == "range") != (self.least is not None or self.most is not None):
            raise ValueError("`least` and `most` are for a check `range`, which needs one of them")
        return self

    @property
    def title(self) -> str:
        return self.name or f"{self.check}({self.sql or ', '.join(self.columns)})"


class Step(_Part):
    """Exactly one of `sql`, `file` (of SQL, beside the pipeline's) and `function` makes the rows: "module:name" of a
    function of the Spark session and the inputs, frames by name, that gives a frame."""

    name: Name
    output: Table
    inputs: dict[Name, Input]
    mode: Literal["append", "merge", "replace"] = "replace"
    keys: tuple[str, ...] = ()
    sql: str | None = None
    file: Path | None = None
    function: str | None = None
    expect: tuple[Expectation, ...] = ()
    partition_by: tuple[str, ...] = ()
    properties: dict[str, str] = Field(default_factory=dict)
    quarantine: Table | None = None

    @field_validator("inputs", mode="before")
    @classmethod
    def _short(cls, value: object) -> object:
        """A table alone stands for all of it."""
        if not isinstance(value, dict):
            return value
        given: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return {name: {"table": one} if isinstance(one, str) else one for name, one in given.items()}

    @field_validator("function")
    @classmethod
    def _is_function(cls, value: str | None) -> str | None:
        if value is not None and not _FUNCTION.fullmatch(value):
            raise ValueError(f"{value!r} is not a function: MODULE:NAME is")
        return value

    @field_validator("partition_by")
    @classmethod
    def _are_transforms(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            try:
                partition(one)
            except SetupError as e:
                raise ValueError(e.message) from None
        return value

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if sum(one is not None for one in (self.sql, self.file, self.function)) != 1:
            raise ValueError("one of sql, file and function makes the rows")
        if (self.mode == "merge") != bool(self.keys):
            raise ValueError("keys are for mode `merge`, which needs them")
        if not self.inputs:
            raise ValueError("a step has inputs")
        if self.mode == "replace" and self.changes:
            raise ValueError("what replaces a table cannot be made of changes alone: mode append or merge can")
        if self.mode == "append" and len(self.changes) != 1:
            raise ValueError("what is appended comes of the changes of one input")
        for name in self.changes:
            if unknown := set(self.inputs[name].keys) - set(self.keys):
                raise ValueError(f"input {name}: {', '.join(sorted(unknown))} is no key of the step")
            if self.mode != "append" and self.inputs[name].deletes != "refuse":
                raise ValueError(f"input {name}: `deletes` is for mode append")
        return self

    @property
    def changes(self) -> list[str]:
        return [name for name, one in self.inputs.items() if one.changes]

    @property
    def tables(self) -> set[str]:
        return {one.table for one in self.inputs.values()}

    @property
    def quarantine_table(self) -> str:
        return self.quarantine or f"{self.output}_quarantine"

    @property
    def quarantines(self) -> bool:
        return any(one.otherwise == "quarantine" for one in self.expect)


class Pipeline(_Part):
    name: Name
    steps: tuple[Step, ...] = Field(alias="step", min_length=1)

    @model_validator(mode="after")
    def _once(self) -> Self:
        for what, names in (("name", [s.name for s in self.steps]), ("output", [s.output for s in self.steps])):
            if twice := {name for name in names if names.count(name) > 1}:
                raise ValueError(f"two steps have one {what}: {', '.join(sorted(twice))}")
        return self


def load(path: Path) -> Pipeline:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise SetupError(f"{path} cannot be read: {e}") from None
    return parse(text, path.name, path.parent)


def parse(text: str, name: str, folder: Path) -> Pipeline:
    """Files of SQL are read from the folder, and nowhere else."""
    try:
        found = Pipeline.model_validate(_yaml(text) if name.endswith((".yaml", ".yml")) else tomllib.loads(text))
    except tomllib.TOMLDecodeError as e:
        raise SetupError(f"{name}: {e}") from None
    except ValidationError as e:
        raise SetupError(f"{name} is not a pipeline:\n" + "\n".join(_lines(e))) from None
    return found.model_copy(update={"steps": tuple(_with_sql(step, folder) for step in found.steps)})


def _yaml(text: str) -> object:
    try:
        import yaml
    except ImportError:
        raise SetupError(f"YAML is not installed; write TOML, or install it with: {install_command('spark')}") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise SetupError(f"not YAML: {e}") from None


def _with_sql(step: Step, folder: Path) -> Step:
    if step.file is None:
        return step
    path = (folder / step.file).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise SetupError(f"step {step.name}: {step.file} is not beside the pipeline")
    try:
        return step.model_copy(update={"sql": path.read_text(), "file": None})
    except (OSError, UnicodeDecodeError) as e:
        raise SetupError(f"step {step.name}: {step.file} cannot be read: {e}") from None


def _lines(error: ValidationError) -> Iterator[str]:
    for one in error.errors(include_input=False, include_url=False):
        place = ".".join(str(part) for part in one["loc"]) or "pipeline"
        yield f"  {place}: {one['msg'].removeprefix('Value error, ')}"
