"""Seeds and states of torch's generators in compiled code.

Python runs once for a program, while it is traced: a state that it reads there is a
constant of the program, and a seed is set in the first call only. Both are refused.
torch's own code may save and restore a state around code that draws nothing, as
`torch.utils.checkpoint` and `torch.random.fork_rng` do.
"""

import sys
import weakref
from typing import Any, Final

import torch
from torch.utils.weak import WeakTensorKeyDictionary

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


def check_manual_seed() -> None:
    """Called by `torch.manual_seed`.

    Raises:
        PortError: compiled code calls it.
    """
    _refuse_in_program("torch.manual_seed", _SET)


class WatchedGenerator(torch.Generator):
    """A `torch.Generator` that compiled code neither seeds nor asks for its state,
    unless the same program has created it.
    """

    def __init__(self, device: Any = "cpu") -> None:
        program = streams.traced_program()
        self._program = None if program is None else weakref.ref(program)

    def get_state(self) -> torch.Tensor:
        self._check_use("get_state", _READ)
        return super().get_state()

    def initial_seed(self) -> int:
        self._check_use("initial_seed", _READ)
        return super().initial_seed()

    def clone_state(self) -> torch.Generator:
        self._check_use("clone_state", _READ)
        return super().clone_state()

    def set_state(self, new_state: torch.Tensor) -> torch.Generator:
        self._check_use("set_state", _SET)
        return super().set_state(new_state)

    def manual_seed(self, seed: int) -> torch.Generator:
        self._check_use("manual_seed", _SET)
        return super().manual_seed(seed)

    def seed(self) -> int:
        self._check_use("seed", _SET)
        return super().seed()

    def _check_use(self, name: str, harm: str) -> None:
        program = streams.traced_program()
        is_its_own = self._program is not None and self._program() is program
        if not is_its_own:
            _refuse_in_program(f"torch.Generator.{name}", harm)


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
