"""Code that catches an error about values while it is traced."""

import contextlib
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
import torch

import tpuport
from tpuport import PortError
from tpuport.compat.caught_errors import CaughtErrors

X = torch.tensor([1.0, -2.0, 3.0])


def selects(x: torch.Tensor) -> torch.Tensor:
    try:
        return x[x > 0]  # selects
    except Exception:  # noqa: BLE001  as people write it
        return 0 * x


def counts(x: torch.Tensor) -> torch.Tensor:
    count = 0
    with contextlib.suppress(Exception):
        count = int(x.sum())  # counts
    return x * count


def branches(x: torch.Tensor) -> torch.Tensor:
    try:
        return x if x.sum() > 0 else -x  # branches
    except (TypeError, RuntimeError):
        return x


@pytest.mark.parametrize("function", [selects, counts, branches])
def test_the_error_is_raised_after_all(function: Callable) -> None:
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.endswith(f"# {function.__name__}"))
    with pytest.raises(PortError, match=rf"cannot be traced(.|\n)*line {line}, in {function.__name__}"):
        tpuport.compile(function)(X)


def test_the_trace_of_another_thread_may_end_before() -> None:
    has_begun, may_go_on = threading.Event(), threading.Event()
    raised: list[Exception] = []

    def number(x: jax.Array) -> jax.Array:
        with contextlib.suppress(Exception):
            return x * float(x)
        return x

    def trace() -> None:
        try:
            with CaughtErrors():
                has_begun.set()
                assert may_go_on.wait(60)
                jax.make_jaxpr(number)(1.0)
        except jax.errors.ConcretizationTypeError as error:
            raised.append(error)

    thread = threading.Thread(target=trace)
    with CaughtErrors():
        thread.start()
        assert has_begun.wait(60)
    may_go_on.set()
    thread.join()
    assert len(raised) == 1


def test_what_a_library_catches_is_its_own_affair() -> None:
    names: dict[str, Any] = {"__name__": "some_package"}
    source = "def known(x):\n    try:\n        return float(x)\n    except Exception:\n        return None\n"
    file = Path(sysconfig.get_path("purelib")) / "some_package.py"
    exec(compile(source, str(file), "exec"), names)
    known = names["known"]
    doubled = tpuport.compile(lambda x: 2 * x if known(x.sum()) is None else x)(X)
    assert torch.equal(tpuport.to_cpu(doubled), 2 * X)
