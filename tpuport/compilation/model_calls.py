"""A ported model is called as before: its own call runs its compiled program.

`model.forward` is replaced on the instance, so that the module, its class and whatever
it is a part of stay the user's.
"""

import functools
import inspect
import itertools
import types
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import torch
from jax.core import Tracer

from tpuport import compat
from tpuport.compat.tracing import is_tracing, trace_lock
from tpuport.compilation import torch_transforms
from tpuport.compilation.compiled_function import CompiledFunction
from tpuport.compilation.model_weights import is_on_host
from tpuport.compilation.replaced_forward import ReplacedForward
from tpuport.trace_errors import CannotTrace


@runtime_checkable
class CallOnHost(Protocol):
    """Calls of a model that no program can compute, as code of the host."""

    def knows(self, args: tuple, kwargs: dict[str, Any]) -> bool:
        """Whether a call of this form is one of them."""
        ...

    def leave_to_host(
        self, args: tuple, kwargs: dict[str, Any], error: CannotTrace
    ) -> None:
        """Know calls of this form from now on; the error if the host cannot help."""

    def run(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run a call of this form; its result is on the device."""


MakeCallOnHost = Callable[[torch.nn.Module], CallOnHost]


class ModelCall:
    """`model.forward` of a ported model: takes tensors of the host and of the device,
    gives tensors of the device.

    While the model is a part of something that is traced, runs operation by operation
    in torchax's environment, or is on the host again, it is the model's own forward.

    Args:
        make_on_host: makes `on_host` of the model; None if all its calls are to be
            programs.

    Attributes:
        module: the model.
        replaced: its own forward, which this stands for.
        original: its own forward as it is now, bound.
        compiled: the `CompiledFunction` underneath; its `program.compilations` counts.
        on_host: for calls that no program can compute; None until there is one.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        make_on_host: MakeCallOnHost | None = None,
        original: Callable | None = None,
    ) -> None:
        self.module = module
        self.replaced = ReplacedForward(module, original)
        functools.update_wrapper(self, self.original)
        self._make_on_host = make_on_host
        self.on_host: CallOnHost | None = None

    @property
    def __self__(self) -> torch.nn.Module:
        """As of a bound method: whose forward it is."""
        return self.module

    @property
    def __code__(self) -> types.CodeType:
        """As of a bound method, for `torch.export`, which refuses tensors on the device
        then.
        """
        return inspect.unwrap(self.original).__code__  # type: ignore[attr-defined]

    @property
    def __globals__(self) -> dict[str, Any]:
        """Asked for by `torch.jit.script` alone, of a function that it is about to
        translate.
        """
        raise torch_transforms.unseen("torch.jit.script", type(self.module).__name__)

    @property
    def original(self) -> Callable:
        return self.replaced.current

    @property
    def compiled(self) -> CompiledFunction:
        return self.replaced.compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program for these arguments.

        Raises:
            PortError: as calls of `tpuport.compile(model)` do.
            IndexError: as torch's, for token ids on the host that a language model's
                embedding does not have.
        """
        if torch.compiler.is_dynamo_compiling():
            # `torch.compile(model)`: there is a program already, and nothing around it
            # to compile.
            return torch.compiler.disable(self._run)(*args, **kwargs)
        return self._run(*args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if not is_tracing() and not compat.environment().enabled:
            output = self._run_warm(args, kwargs)
            if output is not None:
                return output[0]
        # While another thread traces, the model has the weights of that trace.
        with trace_lock:
            runs_own = (
                is_on_host(self.module)
                or is_tracing()
                or compat.environment().enabled
                or self._holds_tracers((args, kwargs))
                or self._is_on_host()
            )
        if runs_own:
            return self.original(*args, **kwargs)
        torch_transforms.refuse_transforms(type(self.module).__name__)
        self._check_token_ids(args, kwargs)
        return self._run_compiled(args, kwargs)

    def _run_warm(self, args: tuple, kwargs: dict[str, Any]) -> tuple[Any] | None:
        """The result of a call that nothing has to be prepared for."""
        torch_transforms.refuse_transforms(type(self.module).__name__)
        self._check_token_ids(args, kwargs)
        return self.compiled.run_warm(args, kwargs)

    def _check_token_ids(self, args: tuple, kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        _check_token_ids(self.module, ids)

    def _run_compiled(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run a program, or the code on the host where there can be none."""
        if self.on_host is None or not self.on_host.knows(args, kwargs):
            try:
                return self.compiled.run_prepared(args, kwargs)
            except CannotTrace as error:
                self._leave_to_host(args, kwargs, error)
        assert self.on_host is not None
        return self.on_host.run(args, kwargs)

    def _leave_to_host(
        self, args: tuple, kwargs: dict[str, Any], error: CannotTrace
    ) -> None:
        if self._make_on_host is None:
            raise error
        self.on_host = self.on_host or self._make_on_host(self.module)
        self.on_host.leave_to_host(args, kwargs, error)

    def _is_on_host(self) -> bool:
        """Whether torch itself has moved the model back: `model.cpu()`."""
        tensors = itertools.chain(self.module.parameters(), self.module.buffers())
        first = next(tensors, None)
        # Most often the first is on the device, and no other is looked at.
        return first is not None and not any(
            map(compat.is_ported, itertools.chain([first], tensors))
        )

    def _holds_tracers(self, arguments: Any) -> bool:
        """Whether somebody else traces the model: by its arguments, or by its
        weights.
        """
        leaves = jax.tree.leaves(arguments, is_leaf=compat.is_ported)
        weights = itertools.islice(self.module.parameters(), 1)
        return any(
            isinstance(compat.as_jax(leaf), Tracer) for leaf in (*leaves, *weights)
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "ModelCall":
        # A copy of a model has its copy here already, whose attributes are not all
        # there yet.
        module = memo.get(id(self.module), self.module)
        given = self.replaced.given
        given = given and _bound_to(module, given)
        return type(self)(module, self._make_on_host, given)

    def __reduce__(self) -> tuple[type, tuple]:
        return type(self), (self.module, self._make_on_host, self.replaced.given)


Call = TypeVar("Call", bound=ModelCall)


def _check_token_ids(model: torch.nn.Module, ids: Any) -> None:
    """IndexError for ids outside the vocabulary, which inside of the program would read
    NaN.

    Ids on the device are not checked, because to read them would wait for the device.
    """
    config: Any = getattr(model, "config", None)
    if (
        type(ids) is not torch.Tensor
        or ids.device.type != "cpu"
        or not hasattr(config, "get_text_config")
    ):
        return
    # Models of images and text use ids beyond the vocabulary as placeholders, and
    # replace them.
    if (
        ids.dtype not in (torch.int64, torch.int32)
        or not ids.numel()
        or config.get_text_config() is not config
    ):
        return
    # Only of decoders: the first argument of another model may be anything.
    if not getattr(model, "can_generate", lambda: False)():
        return
    embedding: Any = getattr(model, "get_input_embeddings", lambda: None)()
    if type(embedding) is not torch.nn.Embedding:
        return
    least, most = ids.aminmax()
    vocabulary = embedding.weight.shape[0]
    if least < 0 or most >= vocabulary:
        raise IndexError(
            f"index out of range in self: input_ids from {int(least)} to {int(most)}, vocabulary of {vocabulary}"
        )


def _bound_to(module: torch.nn.Module, original: Callable) -> Callable:
    """A bound method of another module, or a function, which belongs to no module."""
    function = getattr(original, "__func__", None)
    return original if function is None else function.__get__(module)


def compile_call(
    model: torch.nn.Module,
    make_on_host: MakeCallOnHost | None = None,
    call_class: type[Call] = ModelCall,
) -> Call:
    """Let a ported model's own call run its compiled program, and return that call.
    Does nothing the second time.

    Args:
        make_on_host: as of `ModelCall`.
        call_class: `ModelCall`, or what does more in each call.
    """
    call = vars(model).get("forward")
    if isinstance(call, call_class):
        return call
    given = call.replaced.given if isinstance(call, ModelCall) else None
    call = call_class(model, make_on_host, given)
    model.forward = call
    return call


def restore_call(model: torch.nn.Module) -> None:
    """Give a model the forward back that it had."""
    call = vars(model).get("forward")
    if isinstance(call, ModelCall):
        call.replaced.restore()
