"""Programs for TPUs are compiled with the least effort, in half of the time.

Tests that hold a program to the bytes that it moves ask for what users have: `compile_for(..., effort=0.0)`, or the
fixture `usual_effort` where they call jax's compiler themselves.
"""

import os
from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="package", autouse=True)
def least_effort() -> Iterator[None]:
    before = jax.config.jax_optimization_level
    if not os.environ.get("TPUPORT_THOROUGH"):
        jax.config.update("jax_optimization_level", "O0")
    yield
    jax.config.update("jax_optimization_level", before)


@pytest.fixture
def usual_effort() -> Iterator[None]:
    before = jax.config.jax_optimization_level
    jax.config.update("jax_optimization_level", "O2")
    yield
    jax.config.update("jax_optimization_level", before)
