"""Small programs, compiled by the real compiler for four devices of v6e that are not there."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tpuport.hardware.mesh import create_mesh
from tpuport.topology import compiled, described
from tpuport.topology import hlo as hlo_package
from tpuport.topology.hlo import Program

WHOLE = P()


@pytest.fixture(scope="session")
def topology() -> Any:
    return described("v6e")


@pytest.fixture(scope="session")
def mesh(topology) -> Mesh:
    """The second device of tp is the first, and the fourth of all the third: ids are not places in a mesh."""
    made = create_mesh(1, 2, 2, devices=topology.devices)
    assert [device.id for device in made.devices.flat] == [0, 1, 3, 2]
    return made


@pytest.fixture(scope="session")
def array(mesh) -> Callable[..., jax.ShapeDtypeStruct]:
    def described_array(*shape: int, spec: P = WHOLE, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    return described_array


@pytest.fixture(scope="session")
def compile_program(topology) -> Callable[..., tuple[Program, float]]:
    """(the program of a function, the FLOPs that the compiler counts)."""

    def made(function: Callable, *arguments: Any, **options: Any) -> tuple[Program, float]:
        program = compiled(function, *arguments, topology=topology, **options)
        return hlo_package.parse(program.as_text()), (program.cost_analysis() or {}).get("flops", 0.0)

    return made
