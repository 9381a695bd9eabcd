"""Single kernels that others timed, as modules that `compile_for` takes."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tpuport import compat


class KernelModule(torch.nn.Module):
    """A function of jax arrays as a module of tensors."""

    def __init__(self, function: Callable[..., jax.Array]) -> None:
        super().__init__()
        self.function = function

    def forward(self, **tensors: torch.Tensor) -> torch.Tensor:
        """Traced. The function of the tensors by name."""
        arrays = {name: compat.as_jax(tensor) for name, tensor in tensors.items()}
        return compat.as_torch(self.function(**arrays))


def multiply(x: jax.Array, y: jax.Array, *, blocks: tuple[int, int, int] | None) -> jax.Array:
    """Traced. The product of two matrices by XLA, or by a kernel with blocks of rows, inner dimension and columns."""
    if blocks is None:
        return jnp.matmul(x, y)
    rows, inner, columns = blocks
    steps = x.shape[1] // inner
    return pl.pallas_call(
        functools.partial(_multiply_kernel, steps=steps),
        grid=(x.shape[0] // rows, y.shape[1] // columns, steps),
        in_specs=[
            pl.BlockSpec((rows, inner), lambda i, j, k: (i, k)),
            pl.BlockSpec((inner, columns), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((rows, columns), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype),
        scratch_shapes=[pltpu.VMEM((rows, columns), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        name="multiply",
    )(x, y)


def _multiply_kernel(x_ref: Any, y_ref: Any, out_ref: Any, sum_ref: Any, *, steps: int) -> None:
    """Traced. Products of blocks are added up in float32."""
    step = pl.program_id(2)

    @pl.when(step == 0)
    def _() -> None:
        sum_ref[...] = jnp.zeros(sum_ref.shape, jnp.float32)

    sum_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)

    @pl.when(step == steps - 1)
    def _() -> None:
        out_ref[...] = sum_ref[...].astype(out_ref.dtype)
