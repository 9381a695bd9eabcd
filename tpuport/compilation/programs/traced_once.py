"""Functions that jax traces once.

jax keeps the trace of a function object by the forms of its arguments; what is donated
and the compiler's options are no part of the key. So the function that was traced to
capture a program is the one that is jitted to run it, and jax lowers the trace that it
has.
"""

import copy
import inspect
import re
from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun


class Retraced(Exception):
    """jax has no program for these arrays: their shapes or dtypes are others, or a
    setting of jax is. The code has to be captured again.
    """


class TracedOnce:
    """A function for `jax.jit`, whose code runs once.

    The code is dropped then, with everything that it refers to, for jax keeps the
    function as long as its trace.

    Args:
        name: what profilers, and the files of the persistent cache, call the program.
        code: takes trees of arrays.
        signature: by which jax names the arguments.

    Attributes:
        program: what the code computes of the arrays in its arguments; None before it
            is known.
    """

    def __init__(self, name: str, code: Callable, signature: inspect.Signature) -> None:
        self.__name__ = re.sub(r"\W+", "_", name)
        self.__signature__ = signature
        self._code: Callable | None = code
        self.program: ClosedJaxpr | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Traced. What the code returns.

        Raises:
            Retraced: the code has run.
        """
        leaves = jax.tree.leaves(arguments)
        is_traced = any(isinstance(leaf, Tracer) for leaf in leaves)
        if self.program is not None and not is_traced:
            # jax looks for the operation that made a NaN, or runs everything operation
            # by operation.
            return self._evaluate(*arguments)
        if self._code is None:
            raise Retraced
        code, self._code = self._code, None
        return code(*arguments)

    def evaluating(self, program: ClosedJaxpr) -> "TracedOnce":
        """A function with the same name and arguments whose code is a program."""
        function = copy.copy(self)
        function.program = program
        function._code = function._evaluate
        return function

    def _evaluate(self, *arguments: Any) -> list[Any]:
        assert self.program is not None
        return jaxpr_as_fun(self.program)(*jax.tree.leaves(arguments))
