import logging
import subprocess
import sys
import warnings

import jax.numpy as jnp
import pytest
import torch

import tpuport
from tpuport import activation, compat


@pytest.fixture(autouse=True)
def apart():
    tpuport.disable()
    yield
    tpuport.disable()


def state():
    """Everything of the process that enabling touches."""
    env = compat.environment()
    compat.runtime.retract()
    from torchax import tensor

    return (
        dict(env._ops), dict(tensor.Tensor.__dict__), dict(tensor.View.__dict__), list(warnings.filters),
        torch.backends.mha.get_fastpath_enabled(), torch._ops.OpOverloadPacket.__getattr__,
        torch.utils._python_dispatch._len_torch_dispatch_stack(), torch._C._len_torch_function_stack(),
    )  # fmt: skip


def test_disable_restores_what_enable_changed():
    before = state()
    tpuport.enable()
    env = compat.environment()
    assert dict(env._ops) != before[0]
    tpuport.disable()
    assert state() == before


def test_both_are_idempotent():
    before = state()
    tpuport.enable()
    during = dict(compat.environment()._ops)
    tpuport.enable()
    assert dict(compat.environment()._ops) == during
    tpuport.disable()
    assert not activation.enabled()
    tpuport.disable()
    assert state() == before


def test_enabled_again_after_disabled():
    for _ in range(2):
        tpuport.enable()
        with compat.environment():
            assert torch.tensor([1, 2.5], device="jax").dtype == torch.float32
        tpuport.disable()


def test_the_fast_path_comes_back_whoever_switched_it_off():
    fast = torch.backends.mha.get_fastpath_enabled
    before = fast()
    torch.backends.mha.set_fastpath_enabled(True)
    try:
        model = tpuport.port(torch.nn.Linear(2, 2))
        assert not fast()
        tpuport.disable()
        assert fast(), "after port alone"
        tpuport.enable()
        compiled = tpuport.compile(model)
        tpuport.disable()
        compiled(torch.ones(1, 2))
        assert not fast()
        tpuport.disable()
        assert fast(), "after a call in between"
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def test_an_enable_that_fails_leaves_the_fast_path_and_importing_auto_enables():
    """In a process of its own, in which nothing is imported yet."""
    code = (
        "import sys, torch, tpuport\n"
        "sys.modules['torchax'] = None\n"
        "assert torch.backends.mha.get_fastpath_enabled()\n"
        "try:\n"
        "    tpuport.enable()\n"
        "except tpuport.PortError:\n"
        "    assert torch.backends.mha.get_fastpath_enabled()\n"
        "else:\n"
        "    raise SystemExit('enabled')\n"
        "tpuport.disable()\n"
        "del sys.modules['torchax']\n"
        "import tpuport.auto\n"
        "from tpuport import activation, compat\n"
        "assert activation.enabled() and tpuport.PortError\n"
        "print(type(torch.ones(2)).__name__)\n"
        "tpuport.disable()\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "Tensor", "")


def test_changes_are_logged(caplog):
    with caplog.at_level(logging.DEBUG, logger="tpuport"):
        tpuport.enable()
        tpuport.disable()
    assert {record.name for record in caplog.records} == {"tpuport"}
    for text in (
        "_grouped_mm",
        "Tensor.__setitem__",
        "Explicitly requested dtype int64",
        "enabled",
        "disabled",
    ):
        assert text in caplog.text


def test_tensors_on_the_cpu_behave_as_before():
    tpuport.enable()
    tensor = torch.tensor([1, 2**40])
    assert type(tensor) is torch.Tensor
    assert tensor.dtype == torch.int64
    assert type(tensor * 2) is torch.Tensor
    assert not tensor.requires_grad
    weight = torch.ones(3, requires_grad=True)
    (weight * 2).sum().backward()
    assert weight.grad is not None
    assert type(torch.ones(2)[torch.tensor([0])]) is torch.Tensor


def test_the_environment_is_one_and_completes_itself():
    env = compat.environment()
    assert compat.environment() is env
    with env:
        assert torch.tensor([1, 2.5], device="jax").dtype == torch.float32
        product = torch._grouped_mm(torch.ones(2, 2, 2, device="jax"), torch.ones(2, 2, 2, device="jax"))
    assert jnp.all(compat.as_jax(product) == 2)
