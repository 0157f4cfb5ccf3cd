"""A pipeline's file is checked before anything runs, and says what is wrong with it by place."""

from pathlib import Path

import pytest

from mergus.errors import SetupError
from mergus.pipeline.transform.definition import Pipeline, load, parse
from mergus.pipeline.transform.graph import in_order, mermaid

GOOD = """
name = "orders"

[[step]]
name = "gold"
output = "gold.sums"
inputs.orders = "silver.orders"
sql = "SELECT count(*) n FROM orders"

[[step]]
name = "silver"
output = "silver.orders"
mode = "merge"
keys = ["id"]
inputs.raw = { table = "bronze.orders", changes = true }
inputs.people = "bronze.people"
sql = "SELECT * FROM raw"

[[step.expect]]
check = "not_null"
columns = ["id"]
otherwise = "quarantine"

[[step.expect]]
check = "range"
columns = ["price"]
least = 0
"""


def made(text: str) -> Pipeline:
    return parse(text, "p.toml", Path())


def test_steps_run_after_the_steps_whose_outputs_they_read() -> None:
    pipeline = made(GOOD)
    assert [step.name for step in pipeline.steps] == ["gold", "silver"]
    assert [step.name for step in in_order(pipeline)] == ["silver", "gold"]
    assert [step.name for step in in_order(pipeline, ["silver"])] == ["silver"]
    assert [step.name for step in in_order(pipeline, ["gold"])] == ["silver", "gold"]
    silver = in_order(pipeline)[0]
    assert (silver.changes, silver.expect[1].title) == (["raw"], "range(price)")


def test_a_pipeline_can_be_defined_in_yaml(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        """
name: orders
step:
  - name: silver
    output: silver.orders
    inputs: {raw: bronze.orders}
    file: silver.sql
"""
    )
    (tmp_path / "silver.sql").write_text("SELECT 1")
    (step,) = load(file).steps
    assert (step.sql, step.inputs["raw"].table, step.mode) == ("SELECT 1", "bronze.orders", "replace")


def test_the_mermaid_diagram_contains_every_table_and_step() -> None:
    drawn = mermaid(made(GOOD))
    assert drawn.startswith("flowchart LR\n")
    assert all(f'"{table}"' in drawn for table in ("gold.sums", "silver.orders", "bronze.orders", "bronze.people"))
    assert "-.->|silver|" in drawn
    assert "-->|gold|" in drawn


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('keys = ["id"]', ""), "step.1: keys are for mode `merge`, which needs them"),
        (('mode = "merge"', 'mode = "upsert"'), "step.1.mode: Input should be 'append', 'merge' or 'replace'"),
        (('mode = "merge"\nkeys = ["id"]', ""), "step.1: what replaces a table cannot be made of changes alone"),
        (('output = "gold.sums"', 'output = "sums"'), "step.0.output: 'sums' is not a table: NAMESPACE.TABLE is"),
        (('name = "gold"', 'name = "go ld"'), "step.0.name: 'go ld' is not a name"),
        (('output = "gold.sums"', 'output = "silver.orders"'), "two steps have one output: silver.orders"),
        (('sql = "SELECT * FROM raw"', ""), "step.1: one of sql, file and function makes the rows"),
        (('columns = ["id"]', ""), "step.1.expect.0: a check `not_null` has `columns`, and no `sql`"),
        (("least = 0", ""), "step.1.expect.1: `least` and `most` are for a check `range`, which needs one of them"),
        (("least = 0", "leest = 0"), "step.1.expect.1.leest: Extra inputs are not permitted"),
        (("changes = true }", "changes = true, lookup = true }"), "read by its changes, or is a lookup"),
        (('"bronze.people"', '{ table = "b.p", keys = { id = "i" } }'), "are for an input with `changes`"),
        (("changes = true }", 'changes = true, keys = { x = "i" } }'), "step.1: input raw: x is no key of the step"),
        (("changes = true }", 'changes = true, deletes = "ignore" }'), "input raw: `deletes` is for mode append"),
        (('mode = "merge"\nkeys = ["id"]', 'mode = "append"\npartition_by = ["x(y"]'), "'x(y' is no partitioning"),
        (('output = "gold.sums"', 'output = "gold.sums"\nmode = "append"'), "comes of the changes of one input"),
    ],
)
def test_an_invalid_pipeline_definition_is_refused_with_its_location(change: tuple[str, str], told: str) -> None:
    assert GOOD.count(change[0]) == 1
    with pytest.raises(SetupError) as e:
        made(GOOD.replace(*change))
    assert told in str(e.value)


def test_a_cycle_of_steps_is_refused_with_the_step_names() -> None:
    with pytest.raises(SetupError, match=r"wait for each other: (gold → silver → gold|silver → gold → silver)"):
        in_order(made(GOOD.replace('"bronze.people"', '"gold.sums"')))


def test_an_unknown_step_is_refused_with_the_known_steps() -> None:
    with pytest.raises(SetupError, match="has no step bronze; it has gold, silver"):
        in_order(made(GOOD), ["bronze"])


def test_sql_files_outside_the_directory_of_the_pipeline_are_refused(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "secret.sql").write_text("SELECT 1")
    text = GOOD.replace('sql = "SELECT * FROM raw"', 'file = "../secret.sql"')
    with pytest.raises(SetupError, match="is not beside the pipeline"):
        parse(text, "p.toml", tmp_path / "inside")
    with pytest.raises(SetupError, match=r"step silver: nowhere\.sql cannot be read"):
        parse(text.replace("../secret.sql", "nowhere.sql"), "p.toml", tmp_path / "inside")


def test_a_pipeline_file_that_cannot_be_parsed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"p\.toml: "):
        made("name = ")
    with pytest.raises(SetupError, match="cannot be read"):
        load(tmp_path / "none.toml")
