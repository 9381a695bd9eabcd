"""The installed torch, torchax and jax, made to agree: the one package that imports torchax.

torch tensors stand on the user's side of a door and `jax.Array` on ours; the crossing is here and nowhere else.
"""

from tpuport.compat.convert import (
    as_jax,
    as_torch,
    is_ported,
    jax_dtype,
    to_jax,
    to_torch,
    torch_dtype,
    wrap,
)
from tpuport.compat.runtime import environment
from tpuport.compat.shim import active_shims
from tpuport.compat.versions import checked_versions

__all__ = [
    "active_shims",
    "as_jax",
    "as_torch",
    "checked_versions",
    "environment",
    "is_ported",
    "jax_dtype",
    "to_jax",
    "to_torch",
    "torch_dtype",
    "wrap",
]
