import subprocess
import sys
import types

import pytest
import torch

from tpuport import compat
from tpuport.compat import shim

SOURCE = {
    "packet": "torch.ops.aten.no_such_operator",
    "overload of a packet": "torch.ops.aten.no_such_operator.default",
    "overload": "torch.ops.aten.add.no_such_overload",
    "function": "torch.no_such_function",
}


def run_in_torchax(source: str, package: str = "torchax") -> dict:
    """The globals of a module of torchax that consists of these lines."""
    module = types.ModuleType(f"{package}.tables")
    module.torch = torch
    with shim.removed_operators():
        exec(compile(source, "tables.py", "exec"), vars(module))
    return vars(module)


@pytest.fixture(autouse=True)
def unrecorded(monkeypatch):
    monkeypatch.setattr(shim, "_answered", [])


@pytest.mark.parametrize("name", SOURCE.values(), ids=SOURCE)
def test_whatever_torchax_names_and_torch_lacks_is_answered(name):
    source = "names = " + ", ".join(f"torch.ops.aten.name_{number}" for number in range(300))
    module = run_in_torchax(f"{source}\ntable = {{{name}: 1, torch.ops.aten.add.Tensor: 2}}")
    missing, existing = module["table"]
    assert missing == shim.RemovedOperator(name.replace("torch.ops.", ""))
    assert existing is torch.ops.aten.add.Tensor
    assert compat.active_shims()["removed-operators"].startswith("torchax names 301 operators")


@pytest.mark.parametrize("name", SOURCE.values(), ids=SOURCE)
def test_who_asks_torch_what_it_has_gets_the_truth(name):
    owner, _, key = name.replace("no_such_operator.default", "no_such_operator").rpartition(".")
    asks = f"""
has = hasattr({owner}, {key!r})
value = getattr({owner}, {key!r}, None)
try:
    caught = {name}
except AttributeError:
    caught = None
"""
    module = run_in_torchax(asks)
    assert (module["has"], module["value"], module["caught"]) == (False, None, None)
    assert not compat.active_shims()


@pytest.mark.parametrize("name", SOURCE.values(), ids=SOURCE)
def test_only_torchax_is_answered(name):
    with pytest.raises(AttributeError, match="no_such"):
        run_in_torchax(name, package="torchaxis")


def test_a_placeholder_has_nothing_but_its_name():
    placeholder = shim.RemovedOperator("aten.qr")
    assert not hasattr(placeholder, "default")
    with pytest.raises(AttributeError, match=r"torch has no aten\.qr\.default"):
        _ = placeholder.default
    assert not callable(placeholder)


def test_nothing_is_left_behind():
    owners = (torch._ops.OpOverloadPacket, torch._ops._OpNamespace, torch)
    before = [owner.__getattr__ for owner in owners]
    with pytest.raises(RuntimeError, match="inside"), shim.removed_operators():
        raise RuntimeError("inside")
    assert [owner.__getattr__ for owner in owners] == before


@pytest.mark.slow  # the shims of test_doctor.py, which a process of its own lists
def test_applied_exactly_where_torchax_cannot_be_imported_without_it():
    def run(code):
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    needs_shim = "AttributeError" in run("import torchax; torchax.default_env()").stderr
    done = run("from tpuport import compat; compat.environment(); print(*compat.active_shims())")
    assert done.stdout.split() == (["removed-operators"] if needs_shim else [])


def test_tables_hold_no_other_overload_in_place_of_a_removed_one():
    compat.environment()
    from torchax import amp

    policies = [key for key in amp.autocast_policy if "prod" in str(key)]
    assert torch.ops.aten.prod.dim_int in policies
    assert all(isinstance(key, (torch._ops.OpOverload, shim.RemovedOperator)) for key in policies)
