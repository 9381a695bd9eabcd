"""Recorders of runs: in torch, in float64, and on the device, answered what a trace
cannot know.
"""

import functools
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

import jax
import jax.numpy as jnp
import torch
from jax.core import Tracer
from jax.extend.core import get_opaque_trace_state
from torch.overrides import TorchFunctionMode

from tpuport import compat
from tpuport.internals.torch_internals import TorchDispatchMode, torch_pytree
from tpuport.verification.host_draws import HostDraws
from tpuport.verification.recording import Answer, CallKey, ModuleCall, Recorder

# Methods of torch that read values and that no operator shows.
_READERS: Final = ("tolist", "numpy", "__array__")
# Methods that read values and that torchax's tensors answer without a mode.
_OWN_READERS: Final = ("tolist", "numpy", "__format__")
# torch marks attention as random, because it has dropout, even where that is zero.
_NOT_RANDOM: Final = "scaled_dot_product"
_VALUE_TAGS: Final = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_LOW_PRECISION: Final = {
    torch.float32: torch.float64, torch.bfloat16: torch.float64, torch.float16: torch.float64,
    torch.complex64: torch.complex128,
}  # fmt: skip


class _Watcher(TorchDispatchMode):
    """Notes whether operators read values or draw random numbers.

    By the tags of aten's operators: a function of torch may consist of many, and its
    name does not tell.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads = self.draws = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        self.reads |= any(tag in func.tags for tag in _VALUE_TAGS)
        self.draws |= (
            torch.Tag.nondeterministic_seeded in func.tags
            and _NOT_RANDOM not in str(func)
        )
        return func(*args, **(kwargs or {}))


def _is_clone(kept: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether nothing was written to a tensor since it was cloned; not by its version,
    which `.data` bypasses.
    """
    return kept.dtype == tensor.dtype and torch.equal(kept, tensor)


class TorchRecorder(Recorder):
    """Records a run in torch on the host, and the answers for the other runs."""

    activity = "in torch,"

    def __init__(self, model: torch.nn.Module, focus: ModuleCall | None = None) -> None:
        super().__init__(model, focus, torch.clone, _is_clone)
        self._watcher = _Watcher()
        self._host_draws = HostDraws()

    def __enter__(self) -> Any:
        self._watcher.__enter__()
        self._host_draws.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._host_draws.__exit__(*error)
        self.recording.host_draws += self._host_draws.lines
        self._watcher.__exit__(*error)

    def call(self, func: Any, args: tuple, kwargs: dict[str, Any], key: CallKey) -> Any:
        """Note the result if the call reads values or draws."""
        self._watcher.reads = key.function in _READERS
        self._watcher.draws = False
        result = func(*args, **kwargs)
        reads, draws = self._watcher.reads, self._watcher.draws
        if reads or draws:
            # The model may write to the result afterwards.
            copied = torch_pytree.tree_map_only(torch.Tensor, torch.clone, result)
            self.recording.answers[key] = Answer(copied, is_draw=draws)
        return result


class _Widener(TorchDispatchMode):
    """Lets operators that are asked for a floating dtype compute in float64."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = torch_pytree.tree_map_only(
            torch.dtype, _widen, (args, kwargs or {})
        )
        # torch has no kernel for float64.
        if (
            func is torch.ops.aten._grouped_mm.default
            and args[0].dtype == torch.float64
        ):
            return _grouped_product(*args, **kwargs)
        return func(*args, **kwargs)


def _grouped_product(
    rows: torch.Tensor, matrices: torch.Tensor, ends: Any = None, *others: Any
) -> torch.Tensor:
    """The product of each group of rows with the group's matrix.

    Args:
        rows: [row, in].
        matrices: [group, in, out].
        ends: [group], the row after the last one of each group.
    """
    bounds = [0, *ends.tolist()]
    parts = [
        rows[start:end] @ matrix
        for start, end, matrix in zip(bounds, bounds[1:], matrices, strict=False)
    ]
    # Rows after the last group belong to none.
    rest = rows.new_zeros(len(rows) - bounds[-1], matrices.shape[-1])
    return torch.cat([*parts, rest])


def _widen(dtype: torch.dtype) -> torch.dtype:
    return _LOW_PRECISION.get(dtype, dtype)


def widen_tensor(value: Any) -> Any:
    """A floating-point or complex tensor in 64 bits a number; anything else as it
    is.
    """
    if isinstance(value, torch.Tensor):
        return value.to(_widen(value.dtype))
    return value


class ExactRecorder(Recorder):
    """Records a run in float64, whose random numbers and Python values are those of a
    run in torch.
    """

    activity = "in float64,"

    def __init__(
        self,
        model: torch.nn.Module,
        answers: dict[CallKey, Answer],
        focus: ModuleCall | None = None,
    ) -> None:
        super().__init__(model, focus, torch.clone, _is_clone)
        self._answers = answers
        self._widener = _Widener()
        self._default = torch.get_default_dtype()

    def __enter__(self) -> Any:
        self._default = torch.get_default_dtype()
        # For constants that the model makes without a dtype.
        torch.set_default_dtype(torch.float64)
        self._widener.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._widener.__exit__(*error)
        torch.set_default_dtype(self._default)

    def call(self, func: Any, args: tuple, kwargs: dict[str, Any], key: CallKey) -> Any:
        """Answer a call or compute it, and note the whole numbers that it gives."""
        result = self.answered(func, args, kwargs, key)
        numbers = tuple(map(_whole_numbers, torch_pytree.tree_leaves(result)))
        has_numbers = any(number is not None for number in numbers)
        if has_numbers and not shares_memory(result, (args, kwargs)):
            self.recording.choices[key] = Answer(None, False, numbers)
        return result

    def answered(
        self, func: Any, args: tuple, kwargs: dict[str, Any], key: CallKey
    ) -> Any:
        """Take random numbers and what Python saw from the answers, and compute
        everything else.
        """
        answer = self._answers.get(key)
        if answer is not None and answer.indices is not None:
            return _with_indices(func(*args, **kwargs), answer.indices)
        # Tensors whose shape depends on values, such as those of `nonzero`, are
        # computed: their values are compared.
        if answer is None or not (answer.is_draw or _is_plain(answer.result)):
            return func(*args, **kwargs)
        result = torch_pytree.tree_map_only(torch.Tensor, widen_tensor, answer.result)
        return _return(key.function, args, result)


def _whole_numbers(leaf: Any) -> torch.Tensor | None:
    if not isinstance(leaf, torch.Tensor) or is_fraction(leaf):
        return None
    return leaf.clone()


def is_fraction(leaf: Any) -> bool:
    """Whether a value is a tensor of floating-point or complex numbers."""
    if not isinstance(leaf, torch.Tensor):
        return False
    return leaf.is_floating_point() or leaf.is_complex()


def shares_memory(result: Any, arguments: Any) -> bool:
    """Whether a call has returned an argument, or a view of one."""
    return not _memories(result).isdisjoint(_memories(arguments))


def _memories(tree: Any) -> set[int]:
    return {
        leaf.untyped_storage().data_ptr()
        for leaf in torch_pytree.tree_leaves(tree)
        if isinstance(leaf, torch.Tensor)
    }


class Refusals(TorchFunctionMode):
    """Watches a model that fails.

    Attributes:
        error: with which torch has refused the last operator that it has refused.
        gets_inputs: whether that was given the model's own arguments.
    """

    def __init__(self, inputs: Any) -> None:
        super().__init__()
        self._inputs = inputs
        self.error: Exception | None = None
        self.gets_inputs = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except Exception as error:
            self.error = error
            self.gets_inputs = shares_memory((args, kwargs), self._inputs)
            raise


def _is_plain(result: Any) -> bool:
    """Whether Python alone sees the result: another number there could take another
    branch than torch.
    """
    return not any(
        isinstance(leaf, torch.Tensor) for leaf in torch_pytree.tree_leaves(result)
    )


def _return(function: str, args: tuple, result: Any) -> Any:
    """The result of a call, written to its first argument if the function works in
    place.
    """
    is_in_place = function.endswith("_") and not function.endswith("__")
    if is_in_place and args and isinstance(args[0], torch.Tensor):
        return args[0].copy_(result)
    return result


class DeviceRecorder(Recorder):
    """Traced. Records a run on the device; calls that cannot be traced are noted, and
    answered as in torch.
    """

    activity = "tracing"

    def __init__(
        self,
        model: torch.nn.Module,
        answers: dict[CallKey, Answer],
        focus: ModuleCall | None = None,
    ) -> None:
        super().__init__(model, focus, self._keep_array, self._is_array)
        self._answers = answers
        self._replaced: dict[str, Any] = {}
        self._trace: Any = None

    def _keep_array(self, tensor: torch.Tensor) -> Any:
        """The tensor's array; None inside of a loop or a nested trace, whose values do
        not leave it.
        """
        array = compat.as_jax(tensor)
        if isinstance(array, Tracer) and get_opaque_trace_state() != self._trace:
            return None
        return array

    def _is_array(self, kept: Any, tensor: torch.Tensor) -> bool:
        return kept is compat.as_jax(tensor)

    def __enter__(self) -> Any:
        self._trace = get_opaque_trace_state()
        super().__enter__()
        device_class = _device_class()
        # torchax's class answers them itself, and torch then does not call this mode.
        for name in _OWN_READERS:
            self._replaced[name] = vars(device_class)[name]
            setattr(device_class, name, self._ask_mode(name, self._replaced[name]))
        return self

    def __exit__(self, *error: Any) -> None:
        for name, method in self._replaced.items():
            setattr(_device_class(), name, method)
        self._replaced.clear()
        super().__exit__(*error)

    def _ask_mode(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        # A partial, so that it has the name that torch knows, as answers do.
        read = functools.partial(method)
        read.__name__ = name  # type: ignore[attr-defined]

        def ask(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return self.__torch_function__(read, (), (tensor, *args), kwargs)

        return ask

    def call(self, func: Any, args: tuple, kwargs: dict[str, Any], key: CallKey) -> Any:
        """Give the random numbers that torch has drawn, and answer what tracing
        refuses.
        """
        answer = self._answers.get(key)
        if answer is None:
            return func(*args, **kwargs)
        if answer.indices is not None:
            return _with_indices(func(*args, **kwargs), _on_device(answer.indices))
        if not answer.is_draw:
            try:
                return func(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  torch has read a value here, so that any error is about that
                self.recording.unanswerable[key] = _with_callers(error, self._caller)
        return _return(key.function, args, _on_device(answer.result))


class DrawRecorder(DeviceRecorder):
    """Traced. Records a run on the device that draws its own random numbers; keeps
    those, and nothing else.
    """

    def __init__(self, model: torch.nn.Module, answers: dict[CallKey, Answer]) -> None:
        # No call of a module has this name, so that the values of modules are not kept.
        super().__init__(model, answers, ModuleCall("", -1))

    def keeps_operator(self, call: ModuleCall, key: CallKey) -> bool:
        """Whether torch draws here."""
        answer = self._answers.get(key)
        return answer is not None and answer.is_draw

    def call(self, func: Any, args: tuple, kwargs: dict[str, Any], key: CallKey) -> Any:
        """Draw on the device, and answer what tracing refuses."""
        if self.keeps_operator(ModuleCall("", 0), key):
            return func(*args, **kwargs)
        return super().call(func, args, kwargs, key)


def _with_indices(result: Any, indices: tuple[torch.Tensor | None, ...]) -> Any:
    """What a call has chosen, with torch's choice in the place of its own."""
    leaves, structure = torch_pytree.tree_flatten(result)
    chosen = [
        leaf if index is None else index.to(leaf.dtype)
        for leaf, index in zip(leaves, indices, strict=True)
    ]
    return torch_pytree.tree_unflatten(chosen, structure)


def _device_class() -> Any:
    """torchax's class of tensors."""
    # Otherwise the zero would become a part of the program.
    with jax.ensure_compile_time_eval():
        return type(compat.wrap(jnp.zeros(())))


def _on_device(result: Any) -> Any:
    """The result with tensors of the device in it, whose values a trace does not
    know.
    """

    def move(tensor: torch.Tensor) -> torch.Tensor:
        # A constant would be known to what follows, unlike the result of an operator.
        return compat.wrap(jax.lax.optimization_barrier(compat.to_jax(tensor)))

    return torch_pytree.tree_map_only(torch.Tensor, move, result)


def _with_callers(error: Exception, outermost: Any) -> Exception:
    """The error with the calls that are still under way in its traceback, as if nothing
    had caught it.
    """
    trace = error.__traceback__
    # The frame of the caller is the first in the traceback already.
    frame = sys._getframe(1).f_back
    while frame is not None and frame is not outermost:
        trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return error.with_traceback(trace)
