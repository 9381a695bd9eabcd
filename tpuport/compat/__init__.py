"""The installed torch, torchax and jax, made to agree: the one package that imports
torchax.

torch tensors stand on the user's side of a door and `jax.Array` on ours; the crossing
is here and nowhere else. Names resolve on first use, so that versions can be checked
before torch or jax is imported.
"""

from typing import TYPE_CHECKING, Any

from tpuport.base.lazy_names import lazy_name

if TYPE_CHECKING:
    from tpuport.compat.convert import (
        as_jax,
        as_torch,
        device_dtype,
        has_array_form,
        is_ported,
        jax_dtype,
        to_device,
        to_jax,
        to_numpy,
        to_torch,
        to_torch_unwritten,
        torch_dtype,
        wrap,
    )
    from tpuport.compat.operators.convolution import operators_on_mesh
    from tpuport.compat.operators.masked_selection import lazy_masked_selections
    from tpuport.compat.operators.outside import (
        host_tensors_as_constants,
        takes_host_tensors,
    )
    from tpuport.compat.operators.trusted_checks import checks_trusted
    from tpuport.compat.runtime import environment, on_device
    from tpuport.compat.shim import active_shims
    from tpuport.compat.versions import checked_versions

_PUBLIC = {
    "active_shims": "shim",
    "as_jax": "convert",
    "as_torch": "convert",
    "checked_versions": "versions",
    "checks_trusted": "operators.trusted_checks",
    "device_class": "convert",
    "device_dtype": "convert",
    "operators_on_mesh": "operators.convolution",
    "environment": "runtime",
    "host_tensors_as_constants": "operators.outside",
    "has_array_form": "convert",
    "is_ported": "convert",
    "jax_dtype": "convert",
    "lazy_masked_selections": "operators.masked_selection",
    "on_device": "runtime",
    "takes_host_tensors": "operators.outside",
    "to_device": "convert",
    "to_jax": "convert",
    "to_numpy": "convert",
    "to_torch": "convert",
    "to_torch_unwritten": "convert",
    "torch_dtype": "convert",
    "wrap": "convert",
    "wrap_all": "convert",
}

__all__ = [
    "active_shims",
    "as_jax",
    "as_torch",
    "checked_versions",
    "checks_trusted",
    "device_dtype",
    "environment",
    "has_array_form",
    "host_tensors_as_constants",
    "is_ported",
    "jax_dtype",
    "lazy_masked_selections",
    "on_device",
    "operators_on_mesh",
    "takes_host_tensors",
    "to_device",
    "to_jax",
    "to_numpy",
    "to_torch",
    "to_torch_unwritten",
    "torch_dtype",
    "wrap",
]


def __getattr__(name: str) -> Any:
    return lazy_name(__name__, _PUBLIC, name)
