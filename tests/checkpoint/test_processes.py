"""Two processes share a model: each reads only the slices of its own devices."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import json, os, sys
import jax
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
import numpy as np
from transformers import AutoModelForCausalLM
import tpuport
from tpuport import compat
from tpuport.checkpoint import lazy_tensors

lazy_tensors.PAGE_BYTES = 1  # rows this short would be read whole: they come from one page in any case
read, preadv = [], os.preadv
os.preadv = lambda *arguments: read.append(preadv(*arguments)) or read[-1]
mesh = jax.sharding.Mesh(
    np.array(jax.devices()).reshape(1, 1, 4), ("dp", "sp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 3
)
model = tpuport.load(AutoModelForCausalLM, sys.argv[3], mesh=mesh)
total = sum(float(jax.jit(lambda a: abs(a).sum())(compat.as_jax(weight))) for weight in model.parameters())
held = 0
for weight in model.parameters():
    shards = {str(shard.index): shard.data.nbytes for shard in compat.as_jax(weight).addressable_shards}
    held += sum(shards.values())
print(json.dumps({"read": sum(read), "held": held, "total": total}))
"""


@pytest.mark.slow
def test_each_process_reads_its_own_slices(saved):
    original, directory = saved("llama", num_key_value_heads=4)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {
        "PATH": "", "HOME": str(directory), "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
    }  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, address, str(rank), str(directory)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    results = [json.loads(output.splitlines()[-1]) for output, _ in outputs]
    stored = sum(weight.numel() * 4 for weight in original.parameters())
    for result in results:
        assert result["read"] == result["held"]
        assert result["read"] < 0.55 * stored
    total = sum(float(weight.detach().abs().sum()) for weight in original.parameters())
    assert all(abs(result["total"] - total) < 1e-3 * total for result in results)
