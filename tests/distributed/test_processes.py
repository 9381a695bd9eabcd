"""Two processes form one mesh and compute what a single process computes; errors name their cause."""

import jax
import numpy as np
import pytest

import tpuport

COMPUTE = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

def compute(mesh):
    def place(shape, spec):
        whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 100
        return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), lambda index: whole[index])

    x, w = place((4, 8), P("dp", "tp")), place((8, 12), P("tp", None))
    product = jax.jit(jnp.matmul, out_shardings=NamedSharding(mesh, P()))(x, w)
    total = jax.shard_map(
        lambda x: jax.lax.psum(x.sum(), ("dp", "tp")), mesh=mesh, in_specs=P("dp", "tp"), out_specs=P()
    )(x)
    return [np.asarray(array.addressable_data(0)).tolist() for array in (product, total)]
"""
SHOW = """
mesh = tpuport.create_mesh(dp=2, tp=-1)
tpuport.initialize_distributed(*meeting)  # again: nothing happens
coordinator, processes, process = meeting
try:
    tpuport.initialize_distributed(coordinator, processes, 1 - process)
    contradiction = ""
except tpuport.PortError as error:
    contradiction = str(error)
answer({
    "contradiction": contradiction,
    "shape": dict(mesh.shape), "process": jax.process_index(), "local": len(mesh.local_devices),
    "owners": [[device.process_index for device in row] for row in mesh.devices[:, 0]], "result": compute(mesh),
})
"""


def test_a_mesh_over_two_processes_computes_what_one_computes(run_two):
    namespace = {}
    exec(COMPUTE, namespace)
    expected = namespace["compute"](tpuport.create_mesh(dp=2, tp=4))
    for process, answer in enumerate(run_two(COMPUTE + SHOW)):
        assert answer["process"] == process
        assert f"joined already, as number {process} of 2" in answer["contradiction"]
        assert answer["shape"] == {"dp": 2, "sp": 1, "tp": 4}
        assert answer["local"] == 4
        assert answer["owners"] == [[0] * 4, [1] * 4]  # tp stays inside a process
        for actual, reference in zip(answer["result"], expected, strict=True):
            np.testing.assert_allclose(actual, reference, rtol=1e-6)
    assert jax.process_count() == 1


LATE = """
import jax
jax.devices()
try:
    tpuport.initialize_distributed(*meeting)
except tpuport.PortError as error:
    answer(str(error))
"""


@pytest.mark.slow  # the processes that do not meet, which are told so as early
def test_a_process_that_has_started_its_devices(run_two):
    for message in run_two(LATE, join=False):
        assert "started its devices already" in message
        assert "before create_mesh" in message


ALONE = """
import socket
where, processes, process = meeting
try:
    if process == 0:
        busy = socket.create_server(("", 0))
        tpuport.initialize_distributed(f"127.0.0.1:{busy.getsockname()[1]}", 2, 0)
    else:
        tpuport.initialize_distributed(where, 2, 1, initialization_timeout=1)
except tpuport.PortError as error:
    answer(str(error))
"""


def test_processes_that_do_not_meet(run_two):
    listening, waiting = run_two(ALONE, join=False)
    assert "cannot listen for the others" in listening
    assert "process 0 did not answer in 1 seconds" in waiting


@pytest.mark.slow  # of the processes that these tests start; the others end by themselves
def test_what_fails_or_hangs_is_ended(run_processes):
    failing = "import time\nif meeting[2] == 0: raise SystemExit('no more')\ntime.sleep(600)"
    first, second = run_processes(failing, join=False)
    assert (first.returncode, second.returncode) == (1, -9)
    assert "no more" in first.stderr
    hanging = run_processes("print('here', flush=True)\nimport time\ntime.sleep(600)", join=False, timeout=3)
    assert [process.returncode for process in hanging] == [-9, -9]
    assert hanging[0].stdout == "here\n"
