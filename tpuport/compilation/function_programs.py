"""The programs of one compiled function."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import torch

from tpuport import compat
from tpuport.checkpoint import port_count
from tpuport.compat import index_checks
from tpuport.compat.convert import NarrowIntegers
from tpuport.compilation.prepared_call import (
    PreparedCall,
    ProgramArguments,
    describe_program,
)
from tpuport.compilation.programs import overwritten_arrays
from tpuport.compilation.programs.compilation_count import CompilationCount
from tpuport.compilation.programs.flat_program import FlatProgram
from tpuport.compilation.programs.passes import Draft
from tpuport.compilation.programs.persistent_cache import use_persistent_cache
from tpuport.compilation.programs.program_inputs import ProgramInputs
from tpuport.compilation.programs.program_table import ProgramTable
from tpuport.compilation.programs.traced_once import Retraced
from tpuport.compilation.recorded_programs import Backward, RecordedProgram
from tpuport.compilation.results.call_results import OutputAndWrites


class CallProgram(NamedTuple):
    """A program, and what it does to what a call gives it.

    Attributes:
        flat: the program.
        inputs: the order of its inputs.
        overwrites: the arrays among these that are overwritten.
        changed_caches: numbers of the caches among the arguments that it changes.
        structure: of what the function gives.
        dtypes: torch.int32 for each tensor of that dtype, None for others; None in
            place of all if the program changes anything for the caller.
    """

    flat: FlatProgram
    inputs: ProgramInputs
    overwrites: tuple[overwritten_arrays.Overwrite, ...]
    changed_caches: tuple[int, ...]
    structure: Any
    dtypes: tuple[torch.dtype | None, ...] | None

    def arrays(self, arguments: ProgramArguments, call: PreparedCall) -> list[Any]:
        """The program's inputs for a call; copies of those that are overwritten and
        that others refer to.

        Raises:
            Retraced: the call has other inputs.
        """
        arrays = self.inputs.flatten(*arguments[:-1])
        # A weight may have got a second name, and another one been replaced.
        names = tuple(map(tuple, arguments.weights))
        if names != self.inputs.weights or len(arrays) != self.flat.count:
            raise Retraced
        if self.overwrites:
            call.own_overwritten(arrays, self.overwrites, self.flat.donated, arguments)
        return arrays

    def result(self, results: Sequence[Any]) -> Any:
        """The results in the form that the function gave them; tensors, unless they are
        an `OutputAndWrites`.
        """
        if self.dtypes is not None:
            results = compat.wrap_all(results, self.dtypes)
        return self.structure.unflatten(results)


class FunctionPrograms(CompilationCount, ProgramTable[CallProgram]):
    """The programs of a function, by their keys.

    Args:
        name: what warnings call the function.
        check_indices: whether they check their indices; None: if
            TPUPORT_CHECK_INDICES asks for it. Nothing is donated then, so that the
            caller has everything after an error.

    Attributes:
        checks_indices: whether they do.
    """

    def __init__(self, name: str, *, check_indices: bool | None) -> None:
        CompilationCount.__init__(self, name)
        ProgramTable.__init__(self)
        if check_indices is None:
            check_indices = index_checks.asked_for_by_environment()
        self.checks_indices = check_indices
        use_persistent_cache()

    def make(
        self,
        draft: Draft,
        arguments: ProgramArguments,
        changed_caches: tuple[int, ...],
        backward: Backward | None = None,
    ) -> CallProgram:
        """The program of a function that has been captured for a call.

        Args:
            draft: after all passes.
            changed_caches: as of `CallProgram`.
        """
        models = arguments.static.models
        self.count(
            describe_program(arguments),
            epoch=tuple(port_count(reference()) for reference, _ in models),  # type: ignore[arg-type]
        )
        results = draft.captured.results
        inputs = ProgramInputs.of(*arguments[:-1])
        recorded = arguments.static.recorded
        if recorded is None or backward is None:
            flat = FlatProgram(
                self.name,
                draft.captured,
                draft.donated,
                checks_indices=self.checks_indices,
            )
        else:
            # The others are for the backward pass.
            results, _ = results
            places = inputs.places()
            flat = RecordedProgram(
                self.name,
                draft.captured,
                backward,
                len(jax.tree.leaves(results)),
                [places[slot] for slot in recorded.slots],
                checks_indices=self.checks_indices,
            )
        structure, dtypes = _form_of_results(results)
        return CallProgram(
            flat,
            inputs,
            draft.overwrites,
            changed_caches,
            structure,
            dtypes,
        )


def _form_of_results(
    results: Any,
) -> tuple[Any, tuple[torch.dtype | None, ...] | None]:
    """`structure` and `dtypes` of `CallProgram`."""
    if isinstance(results, OutputAndWrites):
        return jax.tree.structure(results), None
    leaves, structure = jax.tree.flatten(
        results, is_leaf=lambda part: isinstance(part, NarrowIntegers)
    )
    dtypes = (
        torch.int32 if isinstance(leaf, NarrowIntegers) else None for leaf in leaves
    )
    return structure, tuple(dtypes)
