"""Steps that are a Python function: `function = "module:name"`, of a module beside the pipeline or an installed one."""

import importlib
import inspect
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mergus.errors import SetupError
from mergus.pipeline.transform.definition import Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Function = Callable[["SparkSession", Mapping[str, "DataFrame"]], "DataFrame"]


@contextmanager
def beside(folder: Path) -> Generator[None]:
    """Modules of the pipeline's own folder can be found."""
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    finally:
        sys.path.remove(str(folder.resolve()))


def function_of(step: Step) -> Function:
    module, _, name = (step.function or "").partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as e:
        raise SetupError(f"step {step.name}: there is no function {step.function} ({e})") from None
    return found


def source_of(step: Step) -> str | None:
    """A function's text, so that a step whose function has changed is a changed step."""
    if step.function is None:
        return None
    try:
        return inspect.getsource(function_of(step))
    except (OSError, TypeError):
        return None
