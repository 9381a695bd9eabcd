"""What jaxlib's compiler for CPUs gets wrong is avoided, and nothing else is touched."""

import os
import subprocess
import sys
from importlib import metadata

import pytest

from tpuport.hardware import cpu_compiler
from tpuport.internals import jax_internals

# Rotated points and their squared lengths, around the sizes that jaxlib 0.10.2 gets wrong; the largest relative error.
_PROGRAM = """
import os
import jax, jax.numpy as jnp, numpy as np
from tpuport.hardware import start_backends
start_backends()
draw = np.random.default_rng(0)
errors = []
for count in (32768, 32769, 38001, 43679, 43681):
    for rows in (2, 3, 4):
        points, turn = draw.standard_normal((count, 3)), draw.standard_normal((rows, 3))
        squares = jax.jit(lambda x, m: (jnp.einsum("ij,nj->in", m, x) ** 2).sum(0))(points, turn)
        exact = ((turn @ points.T) ** 2).sum(0)
        errors.append(np.abs(squares - exact).max() / exact.max())
print(max(errors), os.environ["XLA_FLAGS"])
"""


def _run(flags):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    error, _, flags_after = done.stdout.strip().partition(" ")
    return float(error), flags_after


def test_sums_over_products_are_right():
    error, flags_after = _run("--xla_backend_optimization_level=0")
    assert error < 1e-5
    # A child process may have another release, which would not know the flag.
    assert flags_after == "--xla_backend_optimization_level=0"


@pytest.mark.slow  # that it is needed does not change
@pytest.mark.skipif(metadata.version("jaxlib") != "0.10.2", reason="this release is right")
def test_the_users_own_flag_is_left_alone():
    error, _ = _run(f"{cpu_compiler._NAME}=LIBRARY_FUSION_TYPE_REDUCE")
    assert error > 0.01


def _forbid(monkeypatch):
    def read():
        raise AssertionError("the flags were changed")

    monkeypatch.setattr(jax_internals, "read_xla_flags", read)


def test_a_release_that_is_right_has_no_flag(monkeypatch):
    _forbid(monkeypatch)
    monkeypatch.setattr(cpu_compiler.metadata, "version", lambda name: "0.11.0")
    cpu_compiler.avoid_faults()


def test_where_jax_has_read_its_flags_a_warning_says_what_to_do(monkeypatch, caplog):
    _forbid(monkeypatch)
    monkeypatch.setattr(cpu_compiler.metadata, "version", lambda name: "0.10.2")
    monkeypatch.setattr(jax_internals, "has_started_devices", lambda: True)
    cpu_compiler.avoid_faults()
    [record] = caplog.records
    assert "import tpuport.auto" in record.message
    assert f"XLA_FLAGS={cpu_compiler._NAME}=" in record.message
