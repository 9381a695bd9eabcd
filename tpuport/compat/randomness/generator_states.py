"""Seeds and states of torch's generators in compiled code.

Python runs once for a program, while it is traced: a state that it reads there is a
constant of the program, and a seed is set in the first call only. Both are refused.
torch's own code may save and restore a state around code that draws nothing, as
`torch.utils.checkpoint` and `torch.random.fork_rng` do.
"""

import functools
import sys
import weakref
from typing import Any, Final

import jax
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from tpuport.compat import missing_cuda
from tpuport.compat.declarations import Method
from tpuport.compat.randomness import streams
from tpuport.compat.user_frames import user_line
from tpuport.errors import PortError

_get_rng_state: Final = torch.get_rng_state
_set_rng_state: Final = torch.set_rng_state
_initial_seed: Final = torch.initial_seed
_seed: Final = torch.seed
_READ = "each call would get what the first one got"
_SET = "it would happen in the first call only"

# By state that torch's own code has saved: how many numbers the program had drawn.
_draws_before_state = WeakTensorKeyDictionary()


def get_rng_state(device: Any = None) -> torch.Tensor:
    """`torch.get_rng_state`, and what `fork_rng(device_type="jax")` saves.

    Raises:
        PortError: compiled code calls it.
    """
    program = streams.traced_program()
    if program is None:
        return _get_rng_state()
    if _calling_package() != "torch":
        _refuse("torch.get_rng_state", _READ)
    state = _get_rng_state()
    _draws_before_state[state] = program.default_draws
    return state


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """`torch.set_rng_state`, and what `fork_rng(device_type="jax")` restores.

    Raises:
        PortError: compiled code calls it, or has drawn numbers inside of a `fork_rng`
            that ends.
    """
    program = streams.traced_program()
    if program is not None:
        if _calling_package() != "torch":
            _refuse("torch.set_rng_state", _SET)
        if _draws_before_state.get(new_state) != program.default_draws:
            raise PortError(
                "compiled code draws random numbers inside of torch.random.fork_rng, which would not repeat after it",
                where=user_line(),
                fix="draw from torch.Generator().manual_seed(seed), or put fork_rng around the compiled call",
            )
    _set_rng_state(new_state)


def initial_seed() -> int:
    """`torch.initial_seed`.

    Raises:
        PortError: compiled code calls it.
    """
    # torchax makes a key for each thread that it has not seen before.
    if _calling_package() != "torchax":
        _refuse_in_program("torch.initial_seed", _READ)
    return _initial_seed()


def seed() -> int:
    """`torch.seed`.

    Raises:
        PortError: compiled code calls it.
    """
    _refuse_in_program("torch.seed", _SET)
    return _seed()


def check_seed(seed: int) -> None:
    """What `torch.manual_seed` calls for devices other than its own.

    Raises:
        PortError: compiled code calls it.
    """
    _refuse_in_program("torch.manual_seed", _SET)


_Generator = torch.Generator


class WatchedGenerator(_Generator):
    """A `torch.Generator` that compiled code neither seeds nor asks for its state,
    unless the same program has created it.
    """

    def __init__(self, device: Any = "cpu") -> None:
        program = streams.traced_program()
        self._program = None if program is None else weakref.ref(program)

    def check_use(self, name: str, harm: str) -> None:
        """Raise an error if compiled code calls a method of this name."""
        program = streams.traced_program()
        is_its_own = self._program is not None and self._program() is program
        if not is_its_own:
            _refuse_in_program(f"torch.Generator.{name}", harm)


def _watched(name: str, harm: str) -> Any:
    method = getattr(_Generator, name)

    @functools.wraps(method)
    def call(self: WatchedGenerator, *args: Any, **kwargs: Any) -> Any:
        self.check_use(name, harm)
        return method(self, *args, **kwargs)

    return call


for _name in ("get_state", "initial_seed", "clone_state"):
    setattr(WatchedGenerator, _name, _watched(_name, _READ))
for _name in ("set_state", "manual_seed", "seed"):
    setattr(WatchedGenerator, _name, _watched(_name, _SET))


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
        return WatchedGenerator("cpu" if kind in ("jax", "privateuseone") else device)


_generator_class = _GeneratorKind(
    "Generator", (), {"__module__": "torch", "__doc__": _Generator.__doc__}
)


def _calling_package() -> str:
    """The package whose code calls this module."""
    module = sys._getframe(2).f_globals.get("__name__", "")
    return module.partition(".")[0]


def _refuse_in_program(name: str, harm: str) -> None:
    if streams.is_traced():
        _refuse(name, harm)


def _refuse(name: str, harm: str) -> None:
    raise PortError(
        f"{name} was called in compiled code, where {harm}",
        where=user_line(),
        fix="call it before the compiled call, and pass what the code needs of it as an argument; "
        "torch.Generator().manual_seed(seed) in the code draws the same numbers in each call",
    )


def _next_key(self: Any, generator: torch.Generator | None = None) -> jax.Array:
    """torchax's `get_and_rotate_prng_key`, which its own samplers call."""
    return streams.next_key(generator)


def _manual_seed(self: Any, key: Any) -> None:
    """torchax's `manual_seed`, which is torch's."""
    torch.manual_seed(int(key))


_KEY_REASON = (
    "keeps one key beside all programs, which is a tracer after the first of them"
)
_STATE_REASON = "does not notice a state that is read in code that is being traced"

LOWERINGS = ()
METHODS = (
    Method("torch", "Generator", _generator_class, "has no generator of the device"),
    Method("Environment", "get_and_rotate_prng_key", _next_key, _KEY_REASON),
    Method("Environment", "manual_seed", _manual_seed, _KEY_REASON),
    Method(
        "device_module",
        "manual_seed_all",
        check_seed,
        "does not notice a seed in code that is being traced",
    ),
    *(
        Method(module, function.__name__, function, _STATE_REASON)
        for module in ("torch", "torch.random")
        for function in (get_rng_state, set_rng_state, initial_seed, seed)
    ),
    *(
        Method("device_module", function.__name__, function, "has no state to save")
        for function in (get_rng_state, set_rng_state)
    ),
)
