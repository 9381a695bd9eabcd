"""Planted defects, and the models beside the tests, which `tpuport check` loads by their file."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tpuport import compat

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def replace_operator() -> Iterator[Callable[[Any, Callable], None]]:
    """`replace_operator(torch.cos, function)` plants a lowering, a function of jax arrays."""
    table = compat.environment()._ops
    planted: dict[Any, Any] = {}

    def replace(operator: Any, function: Callable) -> None:
        planted[operator] = table.get(operator)

        def run(*args: Any, **kwargs: Any) -> Any:
            return compat.as_torch(function(*compat.as_jax(args), **compat.as_jax(kwargs)))

        # A lowering's lines are not the model's.
        for planted_function in (run, function):
            file = str(Path(compat.__file__).with_name("planted.py"))
            planted_function.__code__ = planted_function.__code__.replace(co_filename=file)
        compat.environment().override_op_definition(operator, run)

    yield replace
    for operator, before in planted.items():
        if before is None:
            table.pop(operator, None)
        else:
            table[operator] = before
