"""Described TPUs, with the real libtpu."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tpuport.errors import PortError
from tpuport.hardware import (
    GENERATIONS,
    SMALLEST_SLICES,
    compiled,
    compiler_options,
    described,
    generation_of,
)

NAMES = [*SMALLEST_SLICES.values(), "v5e:2x4", "v6e:2x4"]


@pytest.mark.parametrize("name", NAMES)
def test_each_slice_has_its_devices_and_generation(name: str) -> None:
    topology = described(name)
    assert {device.platform for device in topology.devices} == {"tpu"}
    assert generation_of(topology) == name.partition(":")[0]
    chips = 8 if name.endswith("2x4") else 4
    assert len(topology.devices) in (chips, 2 * chips), "a chip has one core or two"


@pytest.mark.parametrize("name", ["", "h100", "v6e:", "v6e:axb", "V6E", "v6e:2x2:3"])
def test_an_unknown_name_is_refused_with_examples(name: str) -> None:
    with pytest.raises(PortError) as raised:
        described(name)
    assert all(known in str(raised.value) for known in NAMES)


@pytest.mark.parametrize("name", ["v6e:2", "v5e:3x5", "v5p:2x2x3"])
def test_a_layout_that_does_not_exist_is_refused_with_the_nearest(name: str) -> None:
    with pytest.raises(PortError, match="no TPU slice is called") as raised:
        described(name)
    assert f"use {name.partition(':')[0]}:" in str(raised.value)


def test_one_chip() -> None:
    assert len(described("v6e:1x1").devices) == 1


def test_a_chip_of_v4_is_one_device() -> None:
    assert len(described("v4").devices) == 4


def test_a_larger_slice_than_the_listed_ones() -> None:
    assert len(described("v6e:16x16").devices) == 256


def test_a_program_for_a_tpu() -> None:
    x = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)
    program = compiled(lambda x, y: x @ y["w"], x, {"w": x}, topology=described("v5e"))
    assert "T(8,128)" in program.as_text(), "the layouts of a TPU"
    assert program.memory_analysis().output_size_in_bytes == 256 * 256 * 2


def test_arguments_that_are_sharded_stay_so() -> None:
    topology = described("v5e")
    mesh = jax.sharding.Mesh(topology.devices, ("tp",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("tp"))
    x = jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=split)
    program = compiled(lambda x: x.sum(0), x, topology=topology)
    assert "all-reduce" in program.as_text()
    assert program.memory_analysis().argument_size_in_bytes == 256 * 256 * 4 // 4


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment}
    for name in ("TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD"):
        if name not in environment:
            variables.pop(name, None)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables)


DESCRIBE = "from tpuport.hardware import described; print(len(described({!r}).devices))"


def test_the_terminal_stays_quiet_and_two_processes_share_libtpu() -> None:
    described("v6e")  # this process holds it
    done = run(DESCRIBE.format("v6e"))
    assert (done.stdout, done.stderr) == ("4\n", "")


@pytest.mark.slow  # the terminal that stays quiet above
def test_after_jax_has_started() -> None:
    done = run("import jax; jax.devices(); " + DESCRIBE.format("v5p"), JAX_PLATFORMS="cpu")
    assert (done.stdout, done.stderr) == ("4\n", "")


HOLD = "from tpuport.hardware import described; described('v6e'); print('loaded', flush=True); input()"


def test_the_error_says_that_another_process_holds_libtpu() -> None:
    alone = {**os.environ, "ALLOW_MULTIPLE_LIBTPU_LOAD": "0"}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=alone
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        try:
            done = run(DESCRIBE.format("v6e"), ALLOW_MULTIPLE_LIBTPU_LOAD="0")
        finally:
            holder.communicate("\n")
    assert done.returncode == 1
    assert "another process holds libtpu" in done.stderr
    assert "set ALLOW_MULTIPLE_LIBTPU_LOAD=1" in done.stderr


def test_without_libtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    with pytest.raises(PortError, match="libtpu is not installed") as raised:
        described("v6e")
    assert "pip install libtpu" in str(raised.value)


def test_what_libtpu_writes_is_shown_if_it_fails(tmp_path: Path) -> None:
    broken = tmp_path / "libtpu.so"
    broken.write_bytes(b"not a library")
    done = run(DESCRIBE.format("v6e"), TPU_LIBRARY_PATH=str(broken))
    assert done.returncode == 1
    assert "PortError" in done.stderr
    assert "file too short" in done.stderr or "invalid ELF" in done.stderr


@pytest.mark.slow  # what libtpu writes above, to a standard error that is open
def test_a_closed_standard_error_does_no_harm() -> None:
    done = run("import os; os.close(2); " + DESCRIBE.format("v6e"))
    assert done.stdout == "4\n"


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_compiler_knows_its_options(generation: str) -> None:
    topology = described(SMALLEST_SLICES[generation])
    options = compiler_options(generation, updates_cache=True)
    x = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    assert "negate" in compiled(jnp.negative, x, topology=topology, compiler_options=options).as_text()


def test_flags_of_the_user_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "xla_tpu_scoped_vmem_limit_kib"
    assert compiler_options("v6e")[name] == "49152"
    monkeypatch.setenv("LIBTPU_INIT_ARGS", f"--{name}=98304")
    assert name not in compiler_options("v6e")


def test_a_single_row_is_multiplied_by_the_matrix_units() -> None:
    def multiply(row: jax.Array, weight: jax.Array) -> jax.Array:
        return row @ weight.astype(jnp.bfloat16)

    row, weight = jax.ShapeDtypeStruct((1, 1024), jnp.bfloat16), jax.ShapeDtypeStruct((1024, 1024), jnp.int8)
    options = compiler_options("v6e")
    program = compiled(multiply, row, weight, topology=described("v6e:1x1"), compiler_options=options)
    assert " convolution(" in program.as_text()
    # Where the compiler's own choice is better.
    assert options.keys() - compiler_options("v5e").keys() >= {"xla_tpu_enable_dot_strength_reduction"}
