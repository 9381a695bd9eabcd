"""With `jax_enable_x64`, forms that ask for float64 are torch's: in a process of its own, as jax reads it once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tpuport

_CODE = """
import torch
import tpuport
from tpuport import compat

tpuport.enable()
x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
n = torch.tensor([[2**40 + 3, -5], [7, 1]])
double = torch.float64
calls = {
    "softmax": lambda x, n: torch.softmax(x, 0, dtype=double),
    "log_softmax": lambda x, n: x.log_softmax(1, dtype=double),
    "softmin": lambda x, n: torch.nn.functional.softmin(x, 0, dtype=double),
    "sum": lambda x, n: x.sum(0, dtype=double),
    "cumprod": lambda x, n: x.cumprod(1, dtype=double),
    "vector_norm": lambda x, n: torch.linalg.vector_norm(x, 3, dtype=double),
    "matmul": lambda x, n: x.double() @ x.double().T,
    "complex": lambda x, n: torch.view_as_real(torch.complex(x.double(), x.double()).exp()),
    "airy_ai": lambda x, n: torch.special.airy_ai(3 * x.double().abs()),
    "svdvals": lambda x, n: torch.linalg.svdvals(x.double()),
    "integers": lambda x, n: n * 3,
    "hash of integers": lambda x, n: torch.hash_tensor(n, 1, keepdim=True).long(),
    "hash of floats": lambda x, n: torch.hash_tensor(x).long(),
    "logspace": lambda x, n: torch.logspace(x[0, 0], x[0, 1], 3, dtype=double, device=x.device),
    "lstsq": lambda x, n: torch.linalg.lstsq(x.T.double(), torch.ones_like(x.T[:, :1], dtype=double)).solution,
}
# Each step of the others would be a program of its own.
eagerly = {"softmax", "log_softmax", "sum", "vector_norm", "matmul", "complex", "integers", "hash of integers"}
inputs = [compat.wrap(compat.to_jax(tensor)) for tensor in (x, n)]
# One program for all of them, which compiles in half of the time that theirs take.
compiled = tpuport.compile(lambda x, n: {name: call(x, n) for name, call in calls.items()})(*inputs)
results = [(name, "compiled", result) for name, result in compiled.items()]
results += [(name, "eager", calls[name](*inputs)) for name in calls if name in eagerly]
for name, form, result in results:
    with compat.environment():
        mine = compat.to_torch(result.jax())
    expected = calls[name](x, n)
    torch.testing.assert_close(mine, expected, rtol=1e-11, atol=1e-11, msg=lambda text: f"{name} {form}: {text}")
print("equal", len(compiled), len(results))
"""


@pytest.mark.slow  # operators/ has each form without that switch
def test_float64_is_torchs():
    environment = os.environ | {"JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = str(Path(tpuport.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", _CODE], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout.strip().endswith("equal 15 23"), done.stderr[-2000:]
