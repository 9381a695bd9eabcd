"""Where random numbers are drawn: on the device, on the host, or in the program that is
being traced.

In a program's trace also the draws that torch would do on the host become the
program's: the host runs its code once only, while the program is traced, and each call
would get the same numbers.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch

from tpuport.compat.convert import is_ported, to_device
from tpuport.compat.declarations import Call, Lowering, Method, overloads
from tpuport.compat.randomness import samplers, streams
from tpuport.compat.view_steps import on_twins
from tpuport.errors import PortError
from tpuport.internals.torch_internals import torch_pytree


def _placed(
    function: Callable[..., Any], host_function: Callable[..., Any]
) -> Callable[..., Any]:
    """A constructor that torchax takes for an operator: without a device that is ours,
    torch itself runs it.
    """

    def draw(*args: Any, **kwargs: Any) -> Any:
        import torchax

        operands = _tensors((args, kwargs))
        is_on_device = any(map(is_ported, operands))
        if not operands:
            is_on_device = _is_on_device(torchax.default_env(), kwargs)
        if is_on_device:
            return function(*args, **kwargs)
        return on_twins(host_function, *args, **kwargs)

    return draw


def _tensors(arguments: Any) -> list[torch.Tensor]:
    return [
        leaf
        for leaf in torch_pytree.tree_leaves(arguments)
        if isinstance(leaf, torch.Tensor)
    ]


def _is_on_device(environment: Any, kwargs: dict[str, Any]) -> bool:
    """As torchax decides for constructors without tensors."""
    device = kwargs.get("device") or torch.get_default_device()
    kind = str(device).partition(":")[0]
    if kind == "cuda":
        return environment.config.treat_cuda_as_jax_device
    return kind in ("jax", "privateuseone")


def is_sampler(function: Any) -> bool:
    """Whether a function or an operator of torch may draw random numbers."""
    return function in _SAMPLERS


def is_program_draw(function: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a call of torch draws random numbers, which belong to the program that is
    being traced.
    """
    return (
        function in _SAMPLERS
        and streams.is_traced()
        and _is_training(function, args, kwargs)
    )


def _is_training(function: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a call draws, of those that do in training only."""
    position = _TRAINING_POSITIONS.get(function)
    if position is None:
        return True
    named = kwargs.get("training", kwargs.get("train", False))
    training = args[position] if position < len(args) else named
    # To dropout None is training.
    return training is None or bool(training)


def draw_in_program(call: Call) -> None:
    """Let a draw on the host be the program's, while one is traced."""
    function, args, kwargs = call.function, call.args, call.kwargs
    if not is_program_draw(function, args, kwargs):
        return
    operands = _tensors((args, kwargs))
    has_no_values = (
        any(operand.is_meta for operand in operands)
        or str(kwargs.get("device")) == "meta"
    )
    if has_no_values or any(map(is_ported, operands)):
        return
    if not operands:
        call.kwargs = kwargs | {"device": "jax"}
        return
    out = kwargs.get("out", kwargs.get("out0"))
    if function in _FILLING or out is not None:
        raise PortError(
            "compiled code fills a tensor on the host with random numbers, which would be the same in each call",
            where=f"{function.__name__} of {operands[0].dtype} {list(operands[0].shape)}",
            fix="create the tensor on the device of the others, device=x.device; weights belong into __init__",
        )
    call.args, call.kwargs = torch_pytree.tree_map_only(
        torch.Tensor, to_device, (args, kwargs)
    )


# What `rrelu` and `rrelu_` are made of; they fill the noise that they are given.
_NOISY_NAMES = ("rrelu_with_noise", "rrelu_with_noise_")
_NAMES = (*samplers.OPERATORS, "native_dropout", "rrelu_with_noise_functional")


def _functions(*names: str) -> set[Any]:
    """torch's functions, methods and operators of these names."""
    operators = set(itertools.chain.from_iterable(map(overloads, names)))
    named = {
        getattr(owner, name, None) for owner in (torch, torch.Tensor) for name in names
    }
    return operators | set(filter(callable, named))


_FILLING = _functions(
    *(name for name in samplers.OPERATORS if name.endswith("_")), *_NOISY_NAMES
)
_SAMPLERS = _FILLING | _functions(*_NAMES)
# Of those that draw in training only: where among the arguments they are told so.
_TRAINING_POSITIONS = {
    **dict.fromkeys(_functions("native_dropout"), 2),
    **dict.fromkeys(_functions(*_NOISY_NAMES, "rrelu_with_noise_functional"), 4),
}

_REASON = "draws on the device even if asked for the host, and does not know every form"
LOWERINGS = (
    *(
        Lowering(
            target, _placed(samplers.OPERATORS[name], getattr(torch, name)), _REASON
        )
        for name in samplers.PLACED
        for target in (getattr(torch, name), *overloads(name))
    ),
)
METHODS = (
    Method(
        "Tensor",
        "is_meta",
        property(lambda self: False),
        "says that it has no values, and torch.nn.init then leaves it as it is",
    ),
)
