"""A call after one that was interrupted at the moments at which that spoils jax's caches."""

import sys
from types import FrameType

import jax._src.util
import pytest
import torch

import tpuport

# On a miss, when there is an entry already that nothing fills yet, jax's caches ask a function whether to explain it.
FILE, FUNCTION = jax._src.util.__file__, "<lambda>"
X = torch.arange(3.0)


class Interruption:
    """Interrupts the call of that function with this number."""

    def __init__(self, number: int) -> None:
        self.number, self.calls = number, 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and (code.co_filename, code.co_name) == (FILE, FUNCTION):
            self.calls += 1
            if self.calls == self.number:
                sys.setprofile(None)
                raise KeyboardInterrupt


def compiled():
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    return tpuport.compile(double)


def call_interrupted(function, interruption: Interruption) -> None:
    sys.setprofile(interruption)
    try:
        function(X)
    finally:
        sys.setprofile(None)


def test_a_call_after_an_interrupt_of_jax_s_caches_is_right():
    interrupted = 0
    while True:
        function, interruption = compiled(), Interruption(interrupted + 1)
        try:
            call_interrupted(function, interruption)
        except KeyboardInterrupt:
            interrupted += 1
            torch.testing.assert_close(function(X).cpu(), X * 2)
        else:
            break
    assert interrupted > 5


def test_other_interrupts_leave_programs_compiled():
    function = compiled()
    function(X)
    before = function.program.compilations

    def interrupted(x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tpuport.compile(interrupted)(X)
    function(X)
    assert function.program.compilations == before == 1
