"""triton's decorators, so that modules which define kernels can be imported; a kernel
that is called raises an error.
"""

from collections.abc import Callable
from typing import Any

from tpuport.errors import PortError
from tpuport.gpu.replaced_calls import caller


class Config:
    """triton's description of one way to run a kernel, which nothing reads."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


class Kernel:
    """A kernel, which can be decorated again and chosen a grid for, but not run."""

    def __init__(self, function: Any) -> None:
        self.fn = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def __getitem__(self, grid: Any) -> "Kernel":
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        file, line = caller()
        raise PortError(
            f"{self.__name__} is a Triton kernel, which runs on GPUs only",
            where=f"{file}:{line}",
            fix="let the model take its branch without Triton, or write what the kernel computes in plain torch",
        )

    run = warmup = __call__


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """A kernel of this function; without one, a decorator."""
    return Kernel if function is None else Kernel(function)


def autotune(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """A decorator that leaves the kernel as it is."""
    return lambda kernel: kernel


heuristics = autotune
