import subprocess
import sys

import pytest
import torch
from packaging.version import Version

from tpuport import compat
from tpuport.compat import shim

REMOVED = not hasattr(torch.ops.aten.prod, "dim_Dimname")
OLD = Version(compat.checked_versions()["torchax"]) < Version("0.0.14.dev0")


def test_only_removed_overloads_are_answered():
    with shim.removed_overloads():
        assert torch.ops.aten.add.Tensor is not None
        with pytest.raises(AttributeError):
            _ = torch.ops.aten.add.no_such_overload
        if REMOVED:
            assert isinstance(torch.ops.aten.prod.dim_Dimname, shim.RemovedOverload)


def test_nothing_is_left_behind():
    before = torch._ops.OpOverloadPacket.__getattr__
    with pytest.raises(RuntimeError, match="inside"), shim.removed_overloads():
        raise RuntimeError("inside")
    assert torch._ops.OpOverloadPacket.__getattr__ is before
    assert hasattr(torch.ops.aten.prod, "dim_Dimname") is not REMOVED


@pytest.mark.slow  # the shims of test_doctor.py, which a process of its own lists
def test_applied_exactly_where_it_is_needed():
    code = "from tpuport import compat; compat.environment(); print(*compat.active_shims())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == (["removed-overloads"] if REMOVED and OLD else [])


@pytest.mark.slow  # of the releases of torch and torchax alone; the doctor lists the shim
def test_torchax_cannot_be_imported_without_it_where_it_is_needed():
    done = subprocess.run(
        [sys.executable, "-c", "import torchax"], capture_output=True, text=True, check=False
    )
    assert ("has no overload name" in done.stderr) is (REMOVED and OLD)


def test_tables_hold_no_other_overload_in_place_of_a_removed_one():
    compat.environment()
    from torchax import amp

    policies = [key for key in amp.autocast_policy if "prod" in str(key)]
    assert torch.ops.aten.prod.dim_int in policies
    assert all(isinstance(key, (torch._ops.OpOverload, shim.RemovedOverload)) for key in policies)
