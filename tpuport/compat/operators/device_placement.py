"""Where a function of torch that takes a device makes its tensor: on the device, on the
host, or without values.

torchax ignores the device that `torch.zeros_like(x, device="cpu")` and
`x.new_zeros(3, device="cpu")` name, and has only some of torch's constructors.
"""

import threading
from typing import Any

import torch

from tpuport.base.mappings import without
from tpuport.compat import aliasing, randomness, view_steps
from tpuport.compat.convert import is_ported, to_device, to_torch
from tpuport.compat.declarations import Answer, Call
from tpuport.compat.operators import outside
from tpuport.compat.operators.lowered_calls import has_lowering
from tpuport.compat.randomness.placement import is_program_draw
from tpuport.errors import PortError
from tpuport.internals.torch_internals import torch_pytree

_DRAWING_LIKES = frozenset({torch.rand_like, torch.randn_like, torch.randint_like})
# Their first argument says what device, dtype and shape the result has by default.
_LIKE_A_TENSOR = _DRAWING_LIKES | {
    torch.zeros_like, torch.ones_like, torch.empty_like, torch.full_like, torch.Tensor.new,
    torch.Tensor.new_zeros, torch.Tensor.new_ones, torch.Tensor.new_full, torch.Tensor.new_empty,
    torch.Tensor.new_empty_strided, torch.Tensor.new_tensor,
}  # fmt: skip
_COPIES = frozenset({torch.tensor, torch.as_tensor, torch.asarray})
_DRAWS = frozenset(
    {torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal}
)
_WITH_LOWERINGS = frozenset({
    torch.zeros, torch.ones, torch.empty, torch.full, torch.arange, torch.linspace, torch.eye, torch.empty_strided,
    torch.empty_permuted,
})  # fmt: skip
# Computed by torch on the host; their values depend on nothing but numbers.
_COMPUTED_ON_HOST = frozenset({
    torch.logspace, torch.scalar_tensor, torch.range, torch.tril_indices, torch.triu_indices, torch.hann_window,
    torch.hamming_window, torch.bartlett_window, torch.blackman_window, torch.kaiser_window, torch.fft.fftfreq,
    torch.fft.rfftfreq,
})  # fmt: skip
_TAKE_A_DEVICE = _LIKE_A_TENSOR | _COPIES | _DRAWS | _WITH_LOWERINGS | _COMPUTED_ON_HOST


class _Operators(threading.local):
    """Whether this thread is inside an operator, where torch's own code takes the
    device for "meta".
    """

    is_running = False


_operators = _Operators()


class inside_operator:  # noqa: N801 - used as a function is
    """While an operator of torch runs, as opposed to a function that the user has
    called. A class, as each operator enters it.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = _operators.is_running
        _operators.is_running = True

    def __exit__(self, *error: object) -> None:
        _operators.is_running = self._before


def takes_device(function: Any) -> bool:
    """Whether calls of a function may name the device of a new tensor."""
    return function in _TAKE_A_DEVICE


def follow_device(call: Call) -> Answer | None:
    """Make a new tensor where a call says, or is to by default: elsewhere at once, on
    the device by what runs next.
    """
    if _operators.is_running:
        return None
    func, args, kwargs = call.function, call.args, call.kwargs
    if kwargs.get("out") is not None:
        if func in _DRAWS and is_ported(kwargs["out"]):
            call.kwargs = kwargs | {"device": "jax"}
            return None
        return _answer(_written_out(func, args, kwargs))
    kind = _device_kind(func, args, kwargs)
    if kind != "jax":
        return _answer(_make_elsewhere(func, args, kwargs, kind))
    if func in _COMPUTED_ON_HOST and not any(map(is_ported, args)):
        host = view_steps.on_twins(func, *args, **kwargs | {"device": "cpu"})
        return Answer(to_device(host))
    others = without(kwargs, {"device"})
    # What is like a tensor of the device needs no name for it, which the oldest of
    # these functions would not know.
    is_like_ported = func in _LIKE_A_TENSOR and is_ported(_data(func, args, kwargs))
    call.kwargs = others if is_like_ported else others | {"device": "jax"}
    if has_lowering(call.environment, func):
        return None
    # torchax would call the function with the arguments that it was given.
    return Answer(func(*args, **call.kwargs))


def _answer(tensor: torch.Tensor | None) -> Answer | None:
    return None if tensor is None else Answer(tensor)


def compute_on_host(call: Call) -> Answer | None:
    """What a trace whose inputs decide shapes computes on the host: all that follows
    from them, so that it has values.

    Integers that it moves to the device, or counts there, stay on the host as well.
    None for all else, and in other traces (`outside.host_tensors_as_constants`).
    """
    if not outside.takes_host_tensors():  # nearly always
        return None
    func, args, kwargs = call.function, call.args, call.kwargs
    if (
        _operators.is_running
        or func in _DRAWING_LIKES
        or is_program_draw(func, args, kwargs)
    ):
        return None
    if func is torch.arange and _device_kind(func, args, kwargs) == "jax":
        numbers = [*args, *map(kwargs.get, ("start", "end", "step"))]
        if kwargs.get("out") is None and all(
            number is None or isinstance(number, int) for number in numbers
        ):
            return Answer(
                view_steps.on_twins(func, *args, **kwargs | {"device": "cpu"})
            )
        return None
    if func in _COPIES | _MOVES:
        return _moved_on_host(func, args, kwargs)
    tensors = [
        leaf
        for leaf in torch_pytree.tree_leaves((args, kwargs))
        if isinstance(leaf, torch.Tensor)
    ]
    if not tensors or not all(map(_is_on_host, tensors)):
        return None
    device = kwargs.get("device")
    if func in _TAKE_A_DEVICE and device is not None and _kind_of(device) == "jax":
        return None
    return Answer(view_steps.on_twins(func, *args, **kwargs))


_MOVES = frozenset({torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.type_as})


def _moved_on_host(func: Any, args: tuple, kwargs: dict[str, Any]) -> Answer | None:
    """Integers of the host that are to move to the device, cast if that is asked for
    too.
    """
    if not args or not _is_discrete_on_host(args[0]):
        return None
    if func is torch.Tensor.cuda:
        return Answer(args[0])
    if func is torch.tensor:
        return None
    # Of a tensor that `to` is given, the dtype counts.
    targets = [
        value.dtype if isinstance(value, torch.Tensor) else value
        for value in (*args[1:], *kwargs.values())
    ]
    dtype = next(
        (value for value in targets if isinstance(value, torch.dtype)), args[0].dtype
    )
    return Answer(view_steps.on_twins(torch.Tensor.to, args[0], dtype))


def _is_on_host(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.device.type == "cpu"


def _is_discrete_on_host(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and _is_on_host(value)
        and not value.is_floating_point()
    )


def is_move(function: Any) -> bool:
    """Whether a function moves a tensor."""
    return function in _MOVES


def move(call: Call) -> Answer | None:
    """`x.cuda()` of a tensor on the host, in compiled code, as `x.to("cuda")`: to the
    device of the program; and `x.to("meta")`.

    `x.type_as(y)` becomes `x.to(y)`. And what is traced stays in the program if it is
    to go where positions are that the trace knows.
    """
    func, args = call.function, call.args
    if func is torch.Tensor.to:
        if outside.takes_host_tensors():
            call.args, call.kwargs = _stay_traced(args, call.kwargs)
    elif func is torch.Tensor.type_as:
        if not is_ported(args[0]) and is_ported(args[1]):
            call.function = torch.Tensor.to
    elif not is_ported(args[0]):
        tensor, *options = args
        names = ("device", "non_blocking", "memory_format")
        options = dict(zip(names, options, strict=False)) | call.kwargs
        device = options.pop("device", None)
        # torch refuses any other device, and says so.
        if device is None or _kind_of(device) == "jax":
            call.function, call.args = torch.Tensor.to, (tensor, "jax")
            call.kwargs = options
    moved = outside.without_values(call.function, call.args, call.kwargs)
    return _answer(moved)


def _stay_traced(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """The arguments of `to` for a traced tensor, without the host in them; others as
    they are.

    `mask.to(positions.device)` names the host, where a trace keeps positions that it
    knows; in torch both are on the device.
    """
    tensor, *targets = args
    if not outside.is_traced(tensor):
        return args, kwargs
    kwargs = {name: _without_host(value) for name, value in kwargs.items()}
    return (tensor, *map(_without_host, targets)), kwargs


def _without_host(target: Any) -> Any:
    """What `to` is given, with the device for the host; of a tensor there, the
    dtype.
    """
    if isinstance(target, torch.Tensor) and _is_on_host(target):
        return target.dtype
    is_device = isinstance(target, str | torch.device)
    return "jax" if is_device and _kind_of(target) == "cpu" else target


def _written_out(func: Any, args: tuple, kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The tensor on the device that is to be written to, with what torch computes on
    the host; None for all else.
    """
    out = kwargs["out"]
    if not is_ported(out):
        return None
    values = view_steps.on_twins(
        func, *args, **kwargs | {"out": None, "dtype": out.dtype, "device": "cpu"}
    )
    if values.shape != out.shape:
        raise PortError(
            f"{func.__name__}() is to write {list(values.shape)} numbers into a tensor of {list(out.shape)}",
            where="out",
            fix="give a tensor of the right shape, or none, device=x.device",
        )
    return out.copy_(to_device(values))


def _device_kind(func: Any, args: tuple, kwargs: dict[str, Any]) -> str:
    """The type of the device that a call means: "jax" for all names of the device."""
    device = kwargs.get("device")
    if device is None:
        is_of_device = func in _LIKE_A_TENSOR | _COPIES and is_ported(
            _data(func, args, kwargs)
        )
        return "jax" if is_of_device else _canonical(torch.get_default_device().type)
    return _kind_of(device)


def _kind_of(device: Any) -> str:
    """The type of a device: "jax" for all names of the device, and for a number."""
    return "jax" if isinstance(device, int) else _canonical(torch.device(device).type)


def _canonical(kind: str) -> str:
    # Beside a tensor of the device, and in compiled code, the GPU that code names is
    # the device.
    return "jax" if kind in ("jax", "privateuseone", "cuda") else kind


def _data(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The first argument: the tensor that the result is like, or the data of a copy."""
    if args:
        return args[0]
    return kwargs.get("obj" if func is torch.asarray else "data", kwargs.get("input"))


def _make_elsewhere(
    func: Any, args: tuple, kwargs: dict[str, Any], kind: str
) -> torch.Tensor | None:
    """A tensor of the host, or one without values; None if other code follows the
    device.
    """
    if kind == "cpu" and randomness.is_traced() and func in _DRAWS | _DRAWING_LIKES:
        return None  # the program's
    if func in _COPIES:
        return _copied_elsewhere(func, _data(func, args, kwargs), kwargs, kind)
    if func in _LIKE_A_TENSOR:
        like = _data(func, args, kwargs)
        if not is_ported(like):
            return None
        options = without(kwargs, {"input"})
        others, options = torch_pytree.tree_map(_on_host, (args[1:], options))
        return view_steps.on_twins(func, aliasing.twin(like), *others, **options)
    if kind == "meta" or func not in _DRAWS | _WITH_LOWERINGS - {torch.empty_permuted}:
        return view_steps.on_twins(func, *args, **kwargs)
    return None


def _copied_elsewhere(
    func: Any, data: Any, kwargs: dict[str, Any], kind: str
) -> torch.Tensor | None:
    if not any(map(is_ported, torch_pytree.tree_leaves(data))):
        # In torchax's environment, a tensor without values is one on the device to it.
        return (
            view_steps.on_twins(func, data, **_without_data(kwargs))
            if kind == "meta"
            else None
        )
    if not is_ported(data):
        return None
    dtype = kwargs.get("dtype") or data.dtype
    if kind == "cpu":
        return data.to("cpu", dtype)
    return view_steps.on_twins(torch.empty, data.shape, dtype=dtype, device=kind)


def _without_data(kwargs: dict[str, Any]) -> dict[str, Any]:
    return without(kwargs, ("data", "obj"))


def _on_host(value: Any) -> Any:
    return to_torch(value) if is_ported(value) else value


LOWERINGS = ()
# `dispatching` has the steps of calls.
METHODS = ()
