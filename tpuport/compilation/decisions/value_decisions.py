"""What a function decides by: inputs whose values shape its program, and values that it
computes itself.

Both are learned when a trace asks for a value, and are part of the key of each program
from then on.
"""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax

from tpuport.compat import autocast, randomness
from tpuport.compat.tracing import trace_lock
from tpuport.compilation.arguments.call_arguments import shapes_key
from tpuport.compilation.decisions.decided_values import DecidedValues, warn_of_decided
from tpuport.compilation.decisions.host_inputs import Candidates, find_needed
from tpuport.compilation.prepared_call import PreparedCall
from tpuport.libraries.library_classes import is_of_library
from tpuport.objects.state.host_input import HostInput

logger = logging.getLogger("tpuport")
_OWN_CALL: Final = "call the ported model itself, which runs on the host then, over compiled calls of its modules"


class ValueDecisions:
    """The values that one compiled function decides by.

    Args:
        function_name: what logs call the function.
        run: traces the function:
            `run(weights, tensors, donated, static=..., answers=...)`.

    Attributes:
        inputs: names of the inputs whose values are a part of the program.
    """

    def __init__(self, function_name: str, run: Callable[..., Any]) -> None:
        self.inputs: set[str] = set()
        self._function_name = function_name
        self._run = run
        # None as long as the values of inputs have been enough.
        self._computed: DecidedValues | None = None

    def keep_on_host(self, names: Sequence[str]) -> None:
        """Make the values of these inputs a part of the programs from now on."""
        self.inputs.update(names)
        logger.warning(
            "%s decides by the values of %s, which are a part of its program from now on: other values compile "
            "another program. tpuport.compile(..., static=%r) says so from the start",
            self._function_name, ", ".join(names), sorted(self.inputs),
        )  # fmt: skip

    def find_needed_inputs(
        self,
        candidates: Candidates,
        prepare_call: Callable[[Sequence[str]], PreparedCall],
    ) -> list[str]:
        """Names of the inputs with which on the host the function can be traced; none
        if it cannot.

        Args:
            candidates: the inputs that may decide.
            prepare_call: prepares the call with the inputs of these names on the host.
        """

        def can_trace(names: Sequence[str]) -> bool:
            call = prepare_call(names)
            weights, tensors, donated, static = call.arguments
            run = functools.partial(self._run, static=static)
            try:
                with (
                    trace_lock,
                    randomness.call_generators(call.divided.generators),
                    randomness.any_stream(),
                ):
                    jax.eval_shape(run, weights, tensors, donated)
            except Exception as error:  # noqa: BLE001 - the first error is the one that is raised
                logger.debug(
                    "not traced with %s on the host: %s", ", ".join(names), error
                )
                return False
            return True

        return find_needed(candidates, can_trace)

    def compute_from_now_on(
        self, call: PreparedCall, *, only_from_weights: bool = False
    ) -> bool:
        """Whether the function can be traced with the values that it computes and asks
        for; then it will be.

        Args:
            only_from_weights: whether these values may follow from nothing but weights
                and sizes, so that they are the same in each call.
        """
        self._computed = DecidedValues(only_from_weights=only_from_weights)
        try:
            decided = self._find_computed(self._computed, call)
        except Exception as error:  # noqa: BLE001 - the first error is the one that is raised
            logger.debug("not traced with the values that it asks for: %s", error)
            decided = None
        if decided is None:
            self._computed = None
            return False
        if decided and not only_from_weights:
            warn_of_decided(self._function_name, decided)
        return True

    def add_computed(self, call: PreparedCall) -> PreparedCall:
        """The call with the values that the function computes and decides by in the key
        of its program.
        """
        if self._computed is None:
            return call
        decided = self._find_computed(self._computed, call)
        static = call.arguments.static._replace(decided=decided)
        return call._replace(arguments=call.arguments._replace(static=static))

    def _find_computed(
        self, computed: DecidedValues, call: PreparedCall
    ) -> tuple[HostInput, ...] | None:
        """The values that the function decides by in this call; None if it asks for too
        many, or for others than it may.
        """
        weights, tensors, donated, static = call.arguments
        key = (
            static,
            shapes_key(tensors),
            tuple(map(shapes_key, donated)),
            autocast.state(),
        )
        run = functools.partial(self._run, static=static)
        with trace_lock, randomness.call_generators(call.divided.generators):
            return computed.find(key, run, (weights, tensors, donated))


def advise(function: Any, names: Sequence[str]) -> str:
    """What the user can do about a function that asks for values, beside changing its
    code, or "".

    Args:
        names: of inputs whose values it may ask for.
    """
    if names:
        return f"tpuport.compile(..., static={list(names)!r}), if few different values occur: each compiles a program"
    return _OWN_CALL if is_of_library(function) else ""
