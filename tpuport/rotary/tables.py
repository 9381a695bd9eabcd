"""What a rotary module gave, kept on the device: an argument of programs, looked up inside of them."""

import dataclasses
import hashlib
import weakref
from collections.abc import Hashable
from typing import Any

import jax
import torch
from jax.core import Tracer
from jax.sharding import Mesh

from tpuport import compat
from tpuport.checkpoint.device_layout import replicated_sharding, scatter
from tpuport.patches.complex_rotary import pair_as_complex

# Tables of a batch of one and of two are often equal, and some are large. An array lives as long as a table has it.
_arrays: weakref.WeakValueDictionary[Hashable, jax.Array] = weakref.WeakValueDictionary()
# How the leaves of an output are kept.
_REAL, _COMPLEX, _PLAIN = "real", "complex", "plain"


@dataclasses.dataclass(frozen=True)
class Form:
    """Beside its arrays, what a table is: the structure of the output, and the calls that it serves.

    Attributes:
        leaves: for each leaf of the output how it is kept, with its value where it is no tensor.
        signature: of the calls that it serves.
        shapes_decide: whether any call with this signature gives this, or only the one that it was made for.
    """

    tree: Any
    leaves: tuple[tuple[str, Hashable], ...]
    signature: Hashable
    shapes_decide: bool


@dataclasses.dataclass(frozen=True)
class Table:
    """The output of one call. A pytree; its arrays are real, two of them for a complex tensor."""

    arrays: tuple[Any, ...]
    form: Form

    @property
    def nbytes(self) -> int:
        """Bytes on each device."""
        return sum(array.nbytes for array in self.arrays)

    def output(self) -> Any:
        """Traced. What the module would have returned, with tensors on the device."""
        arrays = iter(self.arrays)
        leaves = []
        for kind, value in self.form.leaves:
            if kind == _PLAIN:
                leaves.append(value)
            elif kind == _REAL:
                leaves.append(compat.wrap(next(arrays)))
            else:
                leaves.append(pair_as_complex(next(arrays), next(arrays)))
        return jax.tree_util.tree_unflatten(self.form.tree, leaves)


jax.tree_util.register_dataclass(Table, data_fields=["arrays"], meta_fields=["form"])


def put(tensor: torch.Tensor, mesh: Mesh) -> jax.Array:
    """A host tensor on every device of the mesh, whole; one array for equal tensors."""
    tensor = tensor.contiguous()
    bits: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    content = hashlib.sha256(bits).digest()
    key = (mesh, tuple(tensor.shape), tensor.dtype, content)
    array = _arrays.get(key)
    if array is None:
        _arrays[key] = array = scatter(tensor, tensor.dtype, replicated_sharding(mesh))
    return array


def put_again(table: Any, mesh: Any) -> Any:
    """A pytree of arrays on every device of a mesh: as it is where it is there already."""
    wanted = replicated_sharding(mesh)
    arrays = jax.tree.leaves(table)
    if all(isinstance(x, Tracer) or x.sharding == wanted for x in arrays):
        return table
    return jax.device_put(table, wanted)


def keep(output: Any, mesh: Mesh, signature: Hashable, shapes_decide: bool) -> Table:
    """The table of what a module returned on the host (any structure of tensors and plain values)."""
    leaves, tree = jax.tree_util.tree_flatten(output)
    arrays: list[jax.Array] = []
    kept: list[tuple[str, Hashable]] = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            kept.append((_PLAIN, leaf))
        elif leaf.is_complex():
            arrays += [put(leaf.real, mesh), put(leaf.imag, mesh)]
            kept.append((_COMPLEX, None))
        else:
            arrays.append(put(leaf, mesh))
            kept.append((_REAL, None))
    return Table(tuple(arrays), Form(tree, tuple(kept), signature, shapes_decide))
