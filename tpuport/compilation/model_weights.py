"""A model's weights as arguments of its programs: collected before a call, used in
their places while it is traced.
"""

import contextlib
import itertools
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

from tpuport import attention, compat
from tpuport.base.plurals import count_noun, is_or_are
from tpuport.checkpoint import model_mesh, port_count, ported_models
from tpuport.compat import aliasing, randomness
from tpuport.compat.tracing import exclusive_trace, trace_lock
from tpuport.compilation import layers, rotary
from tpuport.errors import PortError
from tpuport.internals.torch_internals import with_tensors
from tpuport.internals.torchax_internals import set_array
from tpuport.objects.state.python_state import PythonState
from tpuport.objects.state.remembered_results import traced_results_forgotten
from tpuport.objects.static_values import Identity
from tpuport.patches import cached_methods, transformers_experts, transformers_rotary
from tpuport.sharding.sequence import sequence_sharded

logger = logging.getLogger("tpuport")

# An array of this many bytes or more does not belong in a program.
_LARGE_CONSTANT = 1 << 20
_NAMES_SHOWN = 5
_ARRAYS_SHOWN = 4


def is_on_host(model: torch.nn.Module) -> bool:
    """Whether `model.cpu()` has moved all weights to the host, where the model is
    torch's again.
    """
    tensors = itertools.chain(model.parameters(), model.buffers())
    # Most calls end with the first weight.
    return not any(map(compat.is_ported, tensors)) and any(
        True for _ in model.parameters()
    )


def collect_weights(model: torch.nn.Module) -> dict[str, jax.Array]:
    """Every parameter and buffer of a ported model by name; an array with several names
    has the first of them only.

    Weights that `layers.stack_layers` has stacked are one array, under the name that
    `layers.stack_weights` gives it.

    Raises:
        PortError: a tensor of the model is not on the device.
    """
    with trace_lock:
        transformers_rotary.prepare(model)
        return collect_arrays(_named_tensors(model))


def collect_arrays(named_tensors: dict[str, torch.Tensor]) -> dict[str, jax.Array]:
    """As `collect_weights`, from the tensors of the model; called under
    `trace_lock`.
    """
    stacked, tensors = layers.split_stacked(named_tensors)
    # Such a buffer stays on the host, and whatever reads it is refused.
    tensors = {
        name: tensor
        for name, tensor in tensors.items()
        if compat.has_array_form(tensor)
    }
    on_host = [name for name, tensor in tensors.items() if not compat.is_ported(tensor)]
    if on_host:
        raise PortError(
            f"{count_noun(len(on_host), 'tensor')} of the model {is_or_are(len(on_host))} not on the device",
            where=", ".join(on_host[:_NAMES_SHOWN]),
            fix="model = tpuport.port(model, mesh=mesh), or load it with tpuport.load",
        )
    # Not `as_jax`, which walks trees: this runs for every weight in every call.
    weights = {name: compat.to_jax(tensor) for name, tensor in tensors.items()}
    return weights | stacked


def narrow_weights(
    named_tensors: Mapping[str, torch.Tensor], arrays: Mapping[str, Any]
) -> tuple[str, ...]:
    """The names of the weights of torch's int32, which their arrays do not tell from
    int64.
    """
    # The arrays first: a tensor takes longer to tell its dtype.
    return tuple(
        name
        for name, array in arrays.items()
        if getattr(array, "dtype", None) == jnp.int32
        and name in named_tensors
        and named_tensors[name].dtype is torch.int32
    )


def _named_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


class WeightsInUse(NamedTuple):
    """The weights of a model while it is traced.

    Attributes:
        model: with tensors of these arrays in place of its own.
        arrays: as they are arguments of the program.
        unstacked: the same, each block's weights by themselves.
        tensors: of these, which the model starts with.
    """

    model: torch.nn.Module
    arrays: dict[str, jax.Array]
    unstacked: dict[str, jax.Array]
    tensors: dict[str, torch.Tensor]

    def find_writes(self) -> dict[str, jax.Array]:
        """Traced. The new arrays of the weights that the model has written to in place,
        by name.

        Running statistics are such weights. Those that the model replaces by others are
        `StateTrace`'s.

        Raises:
            PortError: a weight of a block that runs in a loop was written to, or
                replaced.
        """
        arrays = {name: compat.as_jax(tensor) for name, tensor in self.tensors.items()}
        writes = {
            name: array
            for name, array in arrays.items()
            if array is not self.unstacked[name]
        }
        stacked = [
            name for name in (*writes, *self.find_replaced()) if name not in self.arrays
        ]
        if stacked:
            raise PortError(
                "blocks whose weights are stacked, to run in a loop, write to their weights in place or replace them",
                where=", ".join(stacked[:_NAMES_SHOWN]),
                fix="compile with scan_layers=False",
            )
        return writes

    def find_replaced(self) -> list[str]:
        """Traced. The names of the weights in whose place the model has put another
        tensor.
        """
        current = dict(self.model.named_parameters(remove_duplicate=False))
        current |= dict(self.model.named_buffers(remove_duplicate=False))
        return [
            name
            for name, tensor in self.tensors.items()
            if current.get(name, tensor) is not tensor
        ]


@contextlib.contextmanager
def use_weights(
    models: Sequence[torch.nn.Module], weights: Sequence[dict[str, jax.Array]]
) -> Iterator[list[WeightsInUse]]:
    """Traced. Let the models compute with these arrays in place of their own, and with
    tpuport's attention.

    Args:
        models: ported models.
        weights: for each of them what `collect_weights` returned, or the same with
            traced values. Arrays may be stacked (`layers.stack_weights`): each block
            then has a slice.

    Yields:
        For each model its weights, which know afterwards what the model wrote to.
    """
    with contextlib.ExitStack() as stack:
        # The models are changed while they are traced, so one thread traces at a time;
        # compiled programs run at once.
        stack.enter_context(exclusive_trace())
        # torch's operators become jax's.
        stack.enter_context(compat.environment())
        # Programs give keys to what is drawn; where code is only looked at, any will
        # do.
        stack.enter_context(randomness.any_stream())
        stack.enter_context(cached_methods.without_caches(models))
        stack.enter_context(traced_results_forgotten(models))
        # Attention is tpuport's, unless the user has registered another.
        meshes = list(map(model_mesh, models))
        stack.enter_context(attention.use_on_meshes(meshes))
        stack.enter_context(compat.operators_on_mesh(meshes[0] if meshes else None))
        yield [
            stack.enter_context(_use_model_weights(model, arrays))
            for model, arrays in zip(models, weights, strict=True)
        ]


@contextlib.contextmanager
def _use_model_weights(
    model: torch.nn.Module, arrays: dict[str, jax.Array]
) -> Iterator[WeightsInUse]:
    mesh = model_mesh(model)
    arrays, rotary_tables = rotary.split_tables(arrays)
    with contextlib.ExitStack() as stack:
        # transformers looks up the attention that the config names.
        stack.enter_context(attention.use_in_model(model))
        # Blocks leave marks in the trace, by which `layers.loop_blocks` finds them;
        # first, so that what other hooks do before a block is marked too: without it,
        # the first block would differ from those that follow another.
        stack.enter_context(layers.mark_blocks(model, arrays))
        # Hidden states of diffusion transformers are divided over dp and sp.
        stack.enter_context(sequence_sharded(model, mesh))
        # Experts are computed in groups, each device its own, rather than in a Python
        # loop over all of them.
        stack.enter_context(transformers_experts.use(model, mesh))
        # Rotary frequencies that depend on the length follow the positions of this
        # call, not of an earlier one.
        stack.enter_context(transformers_rotary.by_length(model))
        # Rotary modules return their tables.
        stack.enter_context(rotary.use_tables(model, rotary_tables))
        # Last: what comes before looks at the model's own tensors.
        unstacked = layers.unstack_weights(arrays)
        dtypes = {name: buffer.dtype for name, buffer in model.named_buffers()}
        tensors = {
            name: compat.wrap(array, dtypes.get(name))
            for name, array in unstacked.items()
        }
        for name in tensors.keys() - dtypes.keys():
            # For `isinstance(self.weight, torch.nn.Parameter)`.
            tensors[name]._is_param = True  # type: ignore[attr-defined]
        # torch puts what the model has at the end into the dictionary that it is given.
        # In reverse order it gives back its own weights to a module that the model has
        # under two names.
        stack.enter_context(
            with_tensors(model, dict(tensors), tie_weights=True, stack_weights=True)
        )
        yield WeightsInUse(model, arrays, unstacked, tensors)


def write_weights(model: torch.nn.Module, arrays: dict[str, jax.Array]) -> None:
    """Give weights of a ported model, by name, the arrays that a program returned for
    them.
    """
    tensors = _named_tensors(model)
    for name, array in arrays.items():
        overwrite(tensors[name], array)


def overwrite(tensor: Any, array: jax.Array) -> None:
    """Write an array into a tensor on the host or the device, and all that views it."""
    if compat.is_ported(tensor):
        # As sharded as it was: another sharding would compile the next call again.
        set_array(tensor, sharded_as(tensor, array))
        aliasing.propagate(tensor)
    elif isinstance(tensor, torch.Tensor):
        with torch.no_grad():
            tensor.copy_(compat.to_torch(array))


def sharded_as(tensor: Any, array: jax.Array) -> jax.Array:
    """The array on the devices of a tensor, divided among them as the tensor is."""
    return jax.device_put(array, compat.as_jax(tensor).sharding)


class _ModelState:
    """The Python state of a model, kept by the model, so that both are freed
    together.
    """

    def __init__(self) -> None:
        self.current: PythonState | None = None

    def __reduce__(self) -> tuple[type, tuple]:
        # A copy of a model starts anew.
        return _ModelState, ()


def settings_key(model: torch.nn.Module) -> Hashable:
    """A key of what a program takes from a model beside its weights.

    It has the number of times that the model was ported, its whole Python state
    (`python_state`) with the tensors in it, and the attention that the user registered.
    """
    with trace_lock:
        holder = vars(model).setdefault("tpuport_state", _ModelState())
        holder.current = state = current_state(
            holder.current, lambda: PythonState(model, [model])
        )
        arrays = tuple(Identity(compat.as_jax(tensor)) for tensor in state.tensors)
    return port_count(model), state.key, arrays, attention.registered_settings()


def current_state(
    known: PythonState | None, make: Callable[[], PythonState]
) -> PythonState:
    """The known state if nothing has changed, or else a new one; called under
    `trace_lock`.
    """
    if known is not None and known.is_current():
        return known
    if known is not None and (renewed := known.renewed()) is not None:
        return renewed
    state = make()
    for module in state.modules:
        transformers_rotary.prepare(module)
    # Rarely: what libraries put into a model when it is first used is there now.
    return state if state.is_current() else make()


def check_constants(program_name: str, constants: list[Any]) -> None:
    """Look for weights among the constants of a program, which would stay when the
    model gets other weights.

    Any other array that is large is warned about.

    Raises:
        PortError: a weight of a ported model is a constant of the program.
    """
    arrays = {
        id(constant): constant
        for constant in constants
        if isinstance(constant, jax.Array)
    }
    if not arrays:
        return
    for model in ported_models():
        _check_weights_are_arguments(program_name, model, arrays)
    large = [array for array in arrays.values() if array.nbytes >= _LARGE_CONSTANT]
    if large:
        shown = ", ".join(
            f"{array.dtype}{array.shape}" for array in large[:_ARRAYS_SHOWN]
        )
        logger.warning(
            "%s holds %s as constants, and goes on with what is in them now (%s). Pass them as arguments.",
            program_name, count_noun(len(large), "large array"), shown,
        )  # fmt: skip


def _check_weights_are_arguments(
    program_name: str, model: torch.nn.Module, constants: dict[int, jax.Array]
) -> None:
    with trace_lock:
        tensors = _named_tensors(model)
    ported = {
        name: tensor for name, tensor in tensors.items() if compat.is_ported(tensor)
    }
    captured = [
        name
        for name, tensor in ported.items()
        if id(compat.as_jax(tensor)) in constants
    ]
    if captured:
        raise PortError(
            f"{count_noun(len(captured), 'weight')} of a {type(model).__name__} would be constants of {program_name}: "
            "the function reaches the model in a way that is not seen from outside",
            where=", ".join(captured[:_NAMES_SHOWN]),
            fix="name the model in the function, or pass it as an argument, function(model, x)",
        )
