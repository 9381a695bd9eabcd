"""A call after one that was interrupted at the moments at which that spoils jax's caches."""

import itertools
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


@pytest.mark.parametrize("stride", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_a_call_after_an_interrupt_of_jax_s_caches_is_right(stride):
    """At every moment, or at every thirteenth."""
    for number in itertools.count(1, stride):
        function, interruption = compiled(), Interruption(number)
        try:
            call_interrupted(function, interruption)
        except KeyboardInterrupt:
            torch.testing.assert_close(function(X).cpu(), X * 2)
        else:
            break
    assert number > 6


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
