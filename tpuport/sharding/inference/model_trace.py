"""A model traced for its structure: weights and inputs are shapes, nothing is allocated
or computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import torch
from jax.extend.core import ClosedJaxpr

from tpuport import attention, compat, trace_errors
from tpuport.attention import attention_settings
from tpuport.compat import randomness
from tpuport.compat.tracing import exclusive_trace, trace_lock
from tpuport.errors import PortError
from tpuport.internals.torch_internals import with_tensors
from tpuport.objects import object_graph, pytrees
from tpuport.objects.state import left_as_it_was
from tpuport.objects.state.remembered_results import traced_results_forgotten
from tpuport.patches import (
    cached_methods,
    transformers_experts,
    transformers_rotary,
)


class ModelTrace(NamedTuple):
    """A traced call of a model.

    Attributes:
        jaxpr: its first arguments are the parameters, in the order of `names`.
        names: of the parameters; of tied ones, the first name.
        inputs: how many of its last arguments are inputs of the call.
    """

    jaxpr: ClosedJaxpr
    names: tuple[str, ...]
    inputs: int


def trace_model(model: torch.nn.Module, inputs: Any) -> ModelTrace:
    """Trace one call.

    Args:
        model: its weights may be on any device, also meta, and are not read.
        inputs: arguments by name, or a tuple of arguments, or the only argument.
            Tensors and jax.ShapeDtypeStruct are traced, also in objects of any class,
            of which the model gets copies; anything else is static.

    Raises:
        CannotTrace: the model's code cannot be traced.
        PortError: an object cannot be taken apart, and has tensors.
    """
    pytrees.register()
    args, kwargs = _arguments(inputs)
    flattener = object_graph.Flattener(caches_are_leaves=False)
    flattener.add_root("inputs", (args, kwargs))
    graph = flattener.graph()
    leaves, structure = graph.leaves, graph.structure
    traced = [index for index, leaf in enumerate(leaves) if _is_array(leaf)]
    # Parameters first, as `read_program` expects it. Buffers are arguments too, or they
    # would be constants.
    parameters = dict(model.named_parameters())
    tensors = parameters | dict(model.named_buffers())

    def call(weights: list[jax.Array], arrays: list[jax.Array]) -> Any:
        values = list(leaves)
        for index, array in zip(traced, arrays, strict=True):
            values[index] = compat.as_torch(array)
        with _in_place_of_weights(model, dict(zip(tensors, weights, strict=True))):
            ((call_args, call_kwargs),), _ = object_graph.unflatten(structure, values)
            out = model(*call_args, **call_kwargs)
            # Classes of outputs are known only now, and jax has to take them apart.
            pytrees.register_used(out)
            # Strings, shapes and tensors of the host may be among the results, and
            # divide nothing.
            results = jax.tree_util.tree_leaves(compat.as_jax(out))
            return [result for result in results if isinstance(result, jax.Array)]

    abstract_weights = list(map(_abstract, tensors.values()))
    abstract_inputs = [_abstract(leaves[index]) for index in traced]
    with (
        trace_lock,
        left_as_it_was(model),
        trace_errors.explained(model, catch=trace_errors.is_explicable),
    ):
        jaxpr = jax.make_jaxpr(call)(abstract_weights, abstract_inputs)
    return ModelTrace(jaxpr, tuple(parameters), len(traced))


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    match inputs:
        case Mapping():
            return (), dict(inputs)
        case tuple() | list():
            return tuple(inputs), {}
        case _ if _is_array(inputs):
            # Any other object is refused below: a string or a number is hardly the
            # whole input of a model.
            return (inputs,), {}
    raise PortError(
        f"inputs is a {type(inputs).__name__}",
        where="inputs",
        fix="give the arguments of a call by name, such as {'input_ids': torch.zeros(1, 128, dtype=torch.long)}",
    )


def _is_array(value: Any) -> bool:
    return isinstance(value, torch.Tensor | jax.ShapeDtypeStruct | jax.Array)


def _abstract(tensor: Any) -> jax.ShapeDtypeStruct:
    dtype = tensor.dtype
    if isinstance(dtype, torch.dtype):
        dtype = compat.jax_dtype(dtype)
    # Without x64 mode, jax has no 64-bit types: int64 tokens are int32.
    return jax.ShapeDtypeStruct(
        tuple(tensor.shape), jax.dtypes.canonicalize_dtype(dtype)
    )


@contextlib.contextmanager
def _in_place_of_weights(
    model: torch.nn.Module, weights: Mapping[str, jax.Array]
) -> Iterator[None]:
    """Traced. Let the model compute with these arrays, and with products in place of
    kernels.
    """
    # Entered in this order: the environment has to exist before tensors are put in
    # place of weights, which comes last.
    contexts: tuple[Callable[[], Any], ...] = (
        exclusive_trace,
        compat.environment,
        torch.no_grad,
        randomness.any_stream,
        lambda: cached_methods.without_caches([model]),
        lambda: traced_results_forgotten([model]),
        _plain_attention,
        lambda: attention.use_on_meshes([None]),
        lambda: attention.use_in_model(model),
        # Without a mesh, experts are plain products.
        lambda: transformers_experts.use(model, None),
        lambda: transformers_rotary.by_length(model),
        # On a stack, as a weight may have several names.
        lambda: with_tensors(
            model, compat.as_torch(dict(weights)), tie_weights=True, stack_weights=True
        ),
    )
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context())
        yield


@contextlib.contextmanager
def _plain_attention() -> Iterator[None]:
    """Compute attention by products, whose dimensions can be followed; a kernel's
    cannot.
    """
    # Settings belong to an owner, so that those of other callers stay when these are
    # removed.
    owner = object()
    attention_settings.add_settings(
        owner, attention_settings.Settings(implementation="xla")
    )
    try:
        yield
    finally:
        attention_settings.remove_settings(owner)
