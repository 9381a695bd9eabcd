"""Operators that torch computes on the host, as no model needs them on a device.

A call takes its tensors to the host and brings the results back: at once where their
values are known, and by a callback of the program where they are not. Results and
errors are torch's own.
"""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax.custom_derivatives import SymbolicZero

from tpuport.compat.argument_checks import is_known
from tpuport.compat.convert import (
    is_ported,
    jax_dtype,
    to_device,
    to_numpy,
    to_torch,
    wrap,
)
from tpuport.compat.declarations import Lowering
from tpuport.compat.host_callbacks import call_host, require_callback
from tpuport.errors import PortError
from tpuport.internals.torch_internals import (
    OpOverload,
    outside_of_modes,
    schema_of,
    torch_pytree,
)

NAMES = (
    "special_airy_ai", "special_chebyshev_polynomial_t", "special_chebyshev_polynomial_u",
    "special_chebyshev_polynomial_v", "special_chebyshev_polynomial_w", "special_hermite_polynomial_h",
    "special_hermite_polynomial_he", "special_laguerre_polynomial_l", "special_legendre_polynomial_p",
    "special_shifted_chebyshev_polynomial_t", "special_shifted_chebyshev_polynomial_u",
    "special_shifted_chebyshev_polynomial_v", "special_shifted_chebyshev_polynomial_w", "special_erfcx",
    "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1", "special_spherical_bessel_j0",
    "special_zeta", "linalg_ldl_factor_ex", "linalg_ldl_solve", "linalg_lu", "lu_unpack", "geqrf", "ormqr",
    "linalg_eig", "segment_reduce", "histogram", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts",
    "_histogramdd_from_bin_tensors", "fractional_max_pool2d", "fractional_max_pool3d",
    "igamma", "igammac", "multi_margin_loss", "multilabel_margin_loss_forward", "_pdist_forward", "renorm", "polygamma",
    "embedding_renorm", "cholesky_inverse", "lu_solve",
)  # fmt: skip


# Whose kernels for tensors without values give other shapes.
_OTHERS_ON_META = {
    torch.ops.aten.multi_margin_loss.default,
    torch.ops.aten.multilabel_margin_loss_forward.default,
}


# Equal for equal calls, so that equal blocks of a model are equal programs.
@dataclasses.dataclass(frozen=True)
class HostCall:
    """An operator with its arguments, but for the tensors of the device.

    Attributes:
        leaves: of the arguments; `structure` puts them together.
        dtypes: of the tensors of the device in torch, which stand at `places` among the
            leaves.
    """

    operator: OpOverload
    leaves: tuple[Any, ...]
    structure: Any
    places: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]

    def __call__(self, *arrays: Any) -> list[np.ndarray]:
        """On the host. The results."""
        return list(map(to_numpy, torch_pytree.tree_leaves(self.on_tensors(arrays))))

    def on_tensors(self, arrays: Sequence[Any]) -> Any:
        """On the host. The results as torch returns them."""
        return _apart(self.compute, self.tensors(arrays))

    def tensors(self, arrays: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors of torch that arrays of the device stand for."""
        pairs = zip(arrays, self.dtypes, strict=True)
        with outside_of_modes():
            return [to_torch(array).to(dtype) for array, dtype in pairs]

    def compute(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The operator of torch, called with these tensors."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = torch_pytree.tree_unflatten(leaves, self.structure)
        return self.operator(*args, **kwargs)


@dataclasses.dataclass(frozen=True)
class HostGradients:
    """torch's gradients of a call, for those of its tensors at `places` among them."""

    call: HostCall
    places: tuple[int, ...]

    def __call__(
        self, arrays: Sequence[Any], gradients: Sequence[Any]
    ) -> list[np.ndarray]:
        """On the host.

        Args:
            arrays: of the call.
            gradients: of its results; None for zeros.
        """
        tensors = self.call.tensors(arrays)
        of_results = [
            None if gradient is None else to_torch(gradient) for gradient in gradients
        ]
        return list(map(to_numpy, _apart(self.compute, tensors, of_results)))

    def compute(
        self,
        tensors: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
    ) -> Sequence[torch.Tensor]:
        """The gradients as jax has them, those of torch."""
        inputs = [tensors[place].requires_grad_() for place in self.places]
        results = torch_pytree.tree_leaves(self.call.compute(tensors))
        # jax's gradients of complex numbers are the conjugates of torch's.
        pairs = [
            (result, gradient.to(result.dtype).conj())
            for result, gradient in zip(results, gradients, strict=True)
            if gradient is not None and result.requires_grad
        ]
        if not pairs:
            return [torch.zeros_like(tensor) for tensor in inputs]
        outputs, of_outputs = zip(*pairs, strict=True)
        found = torch.autograd.grad(
            outputs, inputs, of_outputs, allow_unused=True, materialize_grads=True
        )
        return [gradient.conj() for gradient in found]


def _apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives in a thread of its own.

    There torch has none of the modes of the caller; nor what torch does without in code
    that it calls for an operator, as this is: gradients, and conjugates.
    """
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(function, *arguments).result()


def on_host(operator: OpOverload) -> Callable[..., Any]:
    """The lowering of an operator by torch on the host.

    Raises:
        PortError: it is a part of a program for a described TPU, or for several
            processes.
    """

    @functools.wraps(operator)
    def lowering(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = torch_pytree.tree_flatten((args, kwargs))
        places = tuple(place for place, leaf in enumerate(leaves) if is_ported(leaf))
        tensors = [leaves[place] for place in places]
        others = tuple(None if is_ported(leaf) else leaf for leaf in leaves)
        dtypes = tuple(tensor.dtype for tensor in tensors)
        call = HostCall(operator, others, structure, places, dtypes)
        arrays = [tensor.jax() for tensor in tensors]
        if is_known(*arrays):
            results = call.on_tensors(arrays)
            return torch_pytree.tree_map_only(torch.Tensor, to_device, results)
        require_callback(str(operator))
        results = _trial(call, arrays)
        outputs = _differentiable(call, torch_pytree.tree_leaves(results))(*arrays)
        wrapped = [
            wrap(array, result.dtype)
            for array, result in zip(
                outputs, torch_pytree.tree_leaves(results), strict=True
            )
        ]
        return torch_pytree.tree_unflatten(
            wrapped, torch_pytree.tree_structure(results)
        )

    return lowering


def _trial(
    call: HostCall, arrays: Sequence[jax.Array], places: Sequence[int] = ()
) -> Any:
    """Results of the shapes and dtypes that a call gives.

    Args:
        places: among the arrays, of which the results know whether torch has gradients.

    Raises:
        Exception: torch's own, where it refuses the arguments.
    """

    def attempt(make: Callable[..., torch.Tensor]) -> Any:
        pairs = zip(arrays, call.dtypes, strict=True)
        tensors = [_some_tensor(make, array.shape, dtype) for array, dtype in pairs]
        for place in places:
            # A copy, as torch itself writes to some arguments.
            tensors[place] = tensors[place].requires_grad_().clone()
        return call.compute(tensors)

    attempts = [torch.empty] * (call.operator not in _OTHERS_ON_META)
    # Some operators have no kernel for tensors without values; and of integers, some
    # refuse a class 1, and others a weight 0.
    attempts += [torch.zeros, torch.ones]
    for make in attempts:
        try:
            return _apart(attempt, make)
        except RuntimeError:
            if make is torch.ones:
                raise
    return None


def _some_tensor(
    make: Callable[..., torch.Tensor], shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor without values if `make` is `torch.empty`; else integers that it makes,
    or numbers of which no matrix is singular.
    """
    if make is torch.empty:
        return make(shape, dtype=dtype, device="meta")
    if _is_inexact(dtype):
        generator = torch.Generator().manual_seed(0)
        return torch.rand(shape, dtype=dtype, generator=generator)
    return make(shape, dtype=dtype)


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _differentiable(
    call: HostCall, results: Sequence[torch.Tensor]
) -> Callable[..., list[jax.Array]]:
    """The call as a function of arrays, whose gradients are another call.

    Args:
        results: those of `_trial`.
    """
    shapes = [_shape(result.shape, jax_dtype(result.dtype)) for result in results]

    @jax.custom_vjp
    def compute(*arrays: jax.Array) -> list[jax.Array]:
        return call_host(call, shapes, *arrays)

    def forward(*primals: Any) -> tuple[list[jax.Array], Any]:
        arrays = [primal.value for primal in primals]
        # The tree of what is saved tells of which arrays there are gradients.
        varied = [
            primal.value if primal.perturbed and _is_inexact(dtype) else None
            for primal, dtype in zip(primals, call.dtypes, strict=True)
        ]
        return compute(*arrays), (arrays, varied)

    def backward(saved: Any, gradients: list[Any]) -> tuple[jax.Array | None, ...]:
        arrays, varied = saved
        places = tuple(place for place, array in enumerate(varied) if array is not None)
        _require_gradients(call, arrays, places)
        of_results = [
            None
            if not _is_inexact(result.dtype) or isinstance(gradient, SymbolicZero)
            else gradient
            for result, gradient in zip(results, gradients, strict=True)
        ]
        shapes = [_shape(varied[place].shape, varied[place].dtype) for place in places]
        found = call_host(HostGradients(call, places), shapes, arrays, of_results)
        by_place = dict(zip(places, found, strict=True))
        return tuple(by_place.get(place) for place in range(len(arrays)))

    compute.defvjp(forward, backward, symbolic_zeros=True)
    return compute


_shape = jax.ShapeDtypeStruct


def _require_gradients(
    call: HostCall, arrays: Sequence[jax.Array], places: Sequence[int]
) -> None:
    """PortError if torch has no gradient of an operator for the arrays at these
    places.
    """
    results = torch_pytree.tree_leaves(_trial(call, arrays, places))
    nodes = [result.grad_fn for result in results if result.grad_fn is not None]
    if not nodes or any(node.name() == "NotImplemented" for node in nodes):
        raise PortError(
            f"{call.operator} is computed by torch on the host, and torch has no gradient of it",
            fix="detach its result, or write it with other operators",
        )


def _overloads(name: str) -> list[OpOverload]:
    packet = getattr(torch.ops.aten, name)
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    return [overload for overload in overloads if not schema_of(overload).is_mutable]


LOWERINGS = tuple(
    Lowering(
        overload,
        on_host(overload),
        "lacks it, or gets it wrong; torch computes it on the host",
    )
    for name in NAMES
    for overload in _overloads(name)
)
METHODS = ()
