"""Where random numbers are drawn: on the device, on the host, or in the program that is
being traced.

In a program's trace also the draws that torch would do on the host become the
program's: the host runs its code once only, while the program is traced, and each call
would get the same numbers.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat import missing_cuda
from tpuport.compat.argument_checks import is_known, require_values
from tpuport.compat.convert import as_jax, is_ported, to_device, wrap
from tpuport.compat.declarations import Lowering, Method, overloads
from tpuport.compat.outputs import store
from tpuport.compat.randomness import distributions, generator_states, streams
from tpuport.compat.randomness.samplers import (
    check_placement,
    dtype_of,
    finished,
    require_floating,
    shape_of,
)
from tpuport.compat.randomness.streams import next_key
from tpuport.compat.view_steps import on_twins
from tpuport.errors import PortError
from tpuport.internals.torch_internals import torch_pytree


def randperm(
    n: int,
    *,
    generator: Any = None,
    out: Any = None,
    dtype: Any = None,
    requires_grad: bool = False,
    **placement: Any,
) -> Any:
    """`torch.randperm`."""
    check_placement(placement)
    [size] = shape_of((n,))
    dtype = dtype_of(dtype, out, torch.int64)
    numbers = jax.random.permutation(next_key(generator), size).astype(dtype)
    return finished(store(out, numbers), requires_grad)


def normal(
    mean: Any = 0.0, std: Any = 1.0, size: Any = None, *, generator: Any = None, dtype: Any = None,
    out: Any = None, requires_grad: bool = False, **placement: Any,
) -> Any:  # fmt: skip
    """`torch.normal`: mean and standard deviation are numbers, with a size, or either
    is a tensor.
    """
    check_placement(placement)
    mean, std = as_jax((mean, std))
    require_values(lambda values: values >= 0, std, message=_negative_std(std))
    arrays = [value for value in (mean, std) if isinstance(value, jax.Array)]
    if arrays:
        shape = jnp.broadcast_shapes(*(array.shape for array in arrays))
        # The mean decides the dtype if it is a tensor.
        kind = arrays[0].dtype
    else:
        shape, kind = shape_of((), size), dtype_of(dtype, out)
    require_floating(kind, "normal_kernel_cpu")
    numbers = (
        distributions.gaussian(next_key(generator), shape, kind) * std + mean
    ).astype(kind)
    return finished(store(out, numbers), requires_grad)


def _negative_std(std: Any) -> str:
    if isinstance(std, jax.Array) and std.ndim:
        return "normal expects all elements of std >= 0.0"
    return f"normal expects std >= 0.0, but found std {std}"


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
    return kind in ("jax", "privateuseone") or (kind == "meta" and environment.enabled)


def is_all_true(tensor: Any) -> Any:
    """`torch._is_all_true`, by which `torch.distributions` checks its arguments:
    unknown values are taken for valid.
    """
    array = tensor.jax()
    return wrap(jnp.all(array)) if is_known(array) else torch.tensor(True)


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


def as_program_draw(
    function: Any, args: tuple, kwargs: dict[str, Any]
) -> tuple[tuple, dict]:
    """The arguments of a function of torch: while a program is traced, a draw on the
    host becomes the program's.
    """
    if not is_program_draw(function, args, kwargs):
        return args, kwargs
    operands = _tensors((args, kwargs))
    has_no_values = (
        any(operand.is_meta for operand in operands)
        or str(kwargs.get("device")) == "meta"
    )
    if has_no_values or any(map(is_ported, operands)):
        return args, kwargs
    if not operands:
        return args, kwargs | {"device": "jax"}
    out = kwargs.get("out", kwargs.get("out0"))
    if function in _FILLING or out is not None:
        raise PortError(
            "compiled code fills a tensor on the host with random numbers, which would be the same in each call",
            where=f"{function.__name__} of {operands[0].dtype} {list(operands[0].shape)}",
            fix="create the tensor on the device of the others, device=x.device; weights belong into __init__",
        )
    return torch_pytree.tree_map_only(torch.Tensor, to_device, (args, kwargs))


def _next_key(self: Any, generator: torch.Generator | None = None) -> jax.Array:
    """torchax's `get_and_rotate_prng_key`, which its own samplers call."""
    return next_key(generator)


def _manual_seed(self: Any, key: Any) -> None:
    """torchax's `manual_seed`, which is torch's."""
    torch.manual_seed(int(key))


def _check_seed(seed: int) -> None:
    """What `torch.manual_seed` calls for devices other than its own."""
    generator_states.check_manual_seed()


_Generator = torch.Generator


class _GeneratorKind(type):
    """Makes `torch.Generator(device="jax")` a generator of the host, which draws on the
    device draw from as well.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Generator)

    def __getattr__(cls, name: str) -> Any:
        return getattr(_Generator, name)

    def __call__(cls, device: Any = "cpu") -> torch.Generator:
        kind = torch.device(device).type
        if kind == "cuda" and not missing_cuda.has_gpu():
            raise missing_cuda.explanation(
                'torch.Generator("cuda"): torch.Generator() draws on the device too'
            )
        return generator_states.WatchedGenerator(
            "cpu" if kind in ("jax", "privateuseone") else device
        )


_generator_class = _GeneratorKind(
    "Generator", (), {"__module__": "torch", "__doc__": _Generator.__doc__}
)


class _ValidateKnownValues:
    """`Distribution._validate_args` where nobody has set it: not while a program is
    traced, which has no values yet.

    Not a property: torch assigns `self._validate_args` where a constructor is told to
    validate, or not to.
    """

    def __init__(self, default: bool) -> None:
        self._default = default

    def __get__(self, instance: Any, owner: type) -> bool:
        return self._default and not streams.is_traced()


_FUNCTION_NAMES = (
    "rand", "randn", "randint", "randperm", "normal", "rand_like", "randn_like", "randint_like", "bernoulli",
    "multinomial", "poisson", "binomial", "_standard_gamma", "_sample_dirichlet", "native_dropout",
)  # fmt: skip
# Of operators that no function of torch's own has the name of.
_OPERATOR_NAMES = (
    "normal_functional", "uniform", "random", "exponential", "cauchy", "log_normal", "geometric",
    "rrelu_with_noise_functional",
)  # fmt: skip
_FILLING_NAMES = (
    "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_",
)  # fmt: skip
_METHOD_NAMES = ("bernoulli", "multinomial")
# What `rrelu` and `rrelu_` are made of; they fill the noise that they are given.
_NOISY_NAMES = ("rrelu_with_noise", "rrelu_with_noise_")


def _all_overloads(*names: str) -> set[Any]:
    return set(itertools.chain.from_iterable(map(overloads, names)))


_FILLING = frozenset(
    {getattr(torch.Tensor, name) for name in _FILLING_NAMES}
    | _all_overloads(*_FILLING_NAMES, *_NOISY_NAMES)
)
_SAMPLERS = (
    _FILLING
    | {getattr(torch, name) for name in _FUNCTION_NAMES}
    | {getattr(torch.Tensor, name) for name in _METHOD_NAMES}
    | _all_overloads(*_FUNCTION_NAMES, *_OPERATOR_NAMES)
)
# Of those that draw in training only: where among the arguments they are told so.
_TRAINING_POSITIONS = {
    torch.native_dropout: 2,
    **dict.fromkeys(_all_overloads("native_dropout"), 2),
    **dict.fromkeys(_all_overloads(*_NOISY_NAMES, "rrelu_with_noise_functional"), 4),
}

_REASON = "draws on the device even if asked for the host, and does not know every form"
_KEY_REASON = (
    "keeps one key beside all programs, which is a tracer after the first of them"
)

LOWERINGS = (
    Lowering(torch.randperm, _placed(randperm, torch.randperm), _REASON),
    Lowering(torch.normal, _placed(normal, torch.normal), _REASON),
    *(
        Lowering(target, _placed(randperm, torch.randperm), _REASON)
        for target in overloads("randperm")
    ),
    Lowering(torch.ops.aten._is_all_true.default, is_all_true, "has no lowering"),
    *(
        Lowering(target, _placed(normal, torch.normal), _REASON)
        for target in overloads("normal")
    ),
)
_is_not_meta = property(lambda self: False)
_META_REASON = "says that it has no values, and torch.nn.init then leaves it as it is"
_STATE_REASON = "does not notice a state that is read in code that is being traced"

METHODS = (
    Method("torch", "Generator", _generator_class, "has no generator of the device"),
    Method(
        "Distribution",
        "_validate_args",
        _ValidateKnownValues(torch.distributions.Distribution._validate_args),
        "asks for the values of arguments",
    ),
    Method("Tensor", "is_meta", _is_not_meta, _META_REASON),
    Method("Environment", "get_and_rotate_prng_key", _next_key, _KEY_REASON),
    Method("Environment", "manual_seed", _manual_seed, _KEY_REASON),
    Method(
        "device_module",
        "manual_seed_all",
        _check_seed,
        "does not notice a seed in code that is being traced",
    ),
    *(
        Method(module, function.__name__, function, _STATE_REASON)
        for module in ("torch", "torch.random")
        for function in (
            generator_states.get_rng_state,
            generator_states.set_rng_state,
            generator_states.initial_seed,
            generator_states.seed,
        )
    ),
    Method(
        "device_module",
        "get_rng_state",
        generator_states.get_rng_state,
        "has no state to save",
    ),
    Method(
        "device_module",
        "set_rng_state",
        generator_states.set_rng_state,
        "has no state to restore",
    ),
)
