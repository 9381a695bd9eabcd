"""Arrays made of the slices of a lazy tensor that this process's devices hold."""

import jax
import numpy as np
from jax.sharding import NamedSharding

from tpuport.checkpoint.lazy_tensors import Index, LazyTensor, Reader, fill_bounds


def make_sharded_array(
    reader: Reader, source: LazyTensor, dtype: np.dtype, sharding: NamedSharding
) -> jax.Array:
    """A sharded array of `source`, cast to `dtype`; only the slices of local devices
    are read, each once.
    """
    shape = source.shape
    blocks: dict[tuple, np.ndarray] = {}

    def read(index: Index | None) -> np.ndarray:
        bounds = fill_bounds(index, shape)
        key = bounds_key(bounds)
        # Devices that hold the same slice ask for it one by one.
        if key not in blocks:
            blocks[key] = source.read(reader, bounds, dtype)
        return blocks[key]

    return jax.make_array_from_callback(shape, sharding, read, dtype=dtype)


def bounds_key(index: Index) -> tuple:
    """An index as something that can be hashed, which slices cannot before Python
    3.12.
    """
    return tuple((part.start, part.stop) for part in index)
