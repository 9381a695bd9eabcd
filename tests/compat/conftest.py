"""The oracle: torch on the CPU computes it, torchax computes it eagerly and under jit, and they agree."""

import os
from pathlib import Path

import jax
import pytest
import torch

import tpuport
from tpuport import compat

_NARROWED = {torch.float64: torch.float32, torch.uint64: torch.uint32}


_ROOM = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def enabled_for_fixtures():
    tpuport.enable()


@pytest.fixture(autouse=True)
def enabled():
    tpuport.enable()  # which does nothing but after a test that disabled


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem):
    """Disable it once for all tests of the room: to enable it again takes a third of a second."""
    if nextitem is None or _ROOM not in nextitem.path.parents:
        tpuport.disable()


_FIRST = pytest.StashKey[bool]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Notes which test is the first of its function, of those that run."""
    functions = set()
    for item in items:
        function = item.path, getattr(item, "originalname", item.name)
        item.stash[_FIRST] = function not in functions
        functions.add(function)


def _outputs(result):
    return list(result) if isinstance(result, (list, tuple)) else [result]


def _run_ported(function, tensors, jit):
    """What the function gives for copies on the device, back on the host."""
    dtypes = []

    def call(*arrays):
        with compat.environment():
            arguments = [compat.wrap(array, of.dtype) for array, of in zip(arrays, tensors, strict=True)]
            outputs = _outputs(function(*arguments))
        dtypes.extend(output.dtype for output in outputs)
        return list(map(compat.as_jax, outputs))

    arrays = (jax.jit(call) if jit else call)(*map(compat.to_jax, tensors))
    return [compat.to_torch(compat.wrap(array, dtype)) for array, dtype in zip(arrays, dtypes, strict=True)]


def _compare(mine, reference, tolerance):
    assert mine.dtype == _NARROWED.get(reference.dtype, reference.dtype)
    assert mine.shape == reference.shape
    torch.testing.assert_close(mine, reference.to(mine.dtype), rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.fixture
def agree(request):
    """Run `function` on host tensors in torch, and on their copies through torchax; compare every output.

    Eagerly, each step is a program of its own, and all of them take longer to compile than the one under jit. The same
    lowerings run in both forms, so the first test of each function shows that eagerly it is no other. `long` is for
    those of which not even the first is worth it. `make test-all` runs all of them eagerly.
    """
    is_thorough = bool(os.environ.get("TPUPORT_THOROUGH"))

    def check(function, *tensors, tolerance=1e-5, eager=True, jit=True, long=False):
        is_sample = request.node.stash[_FIRST] and not long
        eager = eager and (is_sample or is_thorough or not jit)
        reference = _outputs(function(*(tensor.clone() for tensor in tensors)))
        for traced in [False] * eager + [True] * jit:
            mine = _run_ported(function, tensors, traced)
            assert len(mine) == len(reference)
            for one, other in zip(mine, reference, strict=True):
                _compare(one, other, tolerance)

    return check
