"""Modules that define Triton kernels, under a GPU shim that allows it: imported, but no kernel of theirs is called."""

import importlib
import re
import sys
import textwrap

import pytest
import torch
from torch.utils import _triton

import tpuport
from tpuport import PortError

KERNELS = """
    import torch
    import triton
    import triton.language as tl
    from triton import Config

    @triton.autotune(configs=[Config({"BLOCK": 64}, num_warps=4)], key=["size"])
    @triton.heuristics({"EVEN": lambda arguments: arguments["size"] % 2 == 0})
    @triton.jit
    def add(x, size, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        "Adds."
        tl.store(x, tl.load(x) + 1)

    @triton.jit(do_not_specialize=["size"])
    def scale(x, size):
        tl.store(x, tl.load(x) * 2)

    @torch.library.triton_op("tpuport_test_kernels::added", mutates_args={})
    def added(x: torch.Tensor) -> torch.Tensor:
        add[(1,)](x, 3)
        return x.clone()

    def call(kernel, x):
        return kernel[lambda meta: (1,)](x, 3)

    def branch(x):
        return x + 1
"""


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    (tmp_path / "kernels_of_a_test.py").write_text(textwrap.dedent(KERNELS))
    monkeypatch.syspath_prepend(tmp_path)
    # Whatever other tests have asked.
    _triton.has_triton_package.cache_clear()
    with tpuport.gpu_shim(allow=["triton"]):
        yield importlib.import_module("kernels_of_a_test")
    del sys.modules["kernels_of_a_test"]


def test_kernels_can_be_defined_and_not_called(kernels):
    assert (kernels.add.__name__, kernels.add.__doc__) == ("add", "Adds.")
    x = torch.ones(2)
    assert torch.equal(kernels.branch(x), x + 1)
    lines = textwrap.dedent(KERNELS).splitlines()
    place = re.escape(f"kernels_of_a_test.py:{lines.index('    return kernel[lambda meta: (1,)](x, 3)') + 1}")
    for kernel in (kernels.add, kernels.scale):
        with pytest.raises(PortError, match=rf"{kernel.__name__} is a Triton kernel(.|\n)*{place}"):
            kernels.call(kernel, x)
    with pytest.raises(PortError, match=r"add is a Triton kernel"):
        kernels.added(x)


def test_torch_does_not_take_the_stand_in_for_a_compiler(kernels):
    assert "triton" in sys.modules
    assert not _triton.has_triton_package()


def test_code_that_can_do_without_triton_does():
    with tpuport.gpu_shim(), pytest.raises(ModuleNotFoundError, match="triton"):
        importlib.import_module("triton")
