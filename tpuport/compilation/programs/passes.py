"""What is done to a captured program before it is compiled, in order.

| pass | what it does |
| --- | --- |
| `loop_equal_blocks` | calls of blocks whose weights are stacked become one loop |
| `donate_overwritten` | results get the memory of the inputs that they replace |

A pass takes a `Draft` and returns one; a pass that is not sure leaves it as it is. To
add one, write such a function, put it into `PASSES`, and try it in
tests/compilation/test_passes.py on a captured function: results as before.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from tpuport.compilation import layers
from tpuport.compilation.programs import overwritten_arrays
from tpuport.compilation.programs.capture import Captured
from tpuport.compilation.programs.program_inputs import ProgramInputs
from tpuport.compilation.shared_tensors import Slot


class Overwritable(NamedTuple):
    """The inputs that a program may overwrite.

    Attributes:
        inputs: the order of all of them.
        arrays: these inputs, or their forms.
        first_of_state: the number of the first tensor that is of the function's state.
        given: numbers of the tensors that the user donates.
    """

    inputs: ProgramInputs
    arrays: Sequence[Any]
    first_of_state: int
    given: Sequence[int] = ()


class Draft(NamedTuple):
    """A captured program on its way to the compiler.

    Attributes:
        captured: the program.
        overwritable: what it may overwrite; None if nothing, or if the caller says what
            is donated.
        blocks: the blocks that were called; None if none is to run in a loop.
        donated: numbers of the inputs that are donated, in the order of the results
            that take their memory.
        overwrites: what is donated beside caches.
        scanned, declined: blocks that run in loops, and that do not.
    """

    captured: Captured
    overwritable: Overwritable | None = None
    blocks: layers.CallRecord | None = None
    donated: tuple[int, ...] = ()
    overwrites: tuple[overwritten_arrays.Overwrite, ...] = ()
    scanned: tuple[layers.ScannedBlocks, ...] = ()
    declined: tuple[layers.DeclinedBlocks, ...] = ()

    @property
    def is_mostly_looped(self) -> bool:
        """Whether more blocks with stacked weights run in loops than do not.

        If they are not, blocks take slices of stacked weights for nothing, and single
        weights serve them better.
        """
        count = sum(blocks.count for blocks in self.scanned)
        return count > sum(blocks.count for blocks in self.declined)


def loop_equal_blocks(draft: Draft) -> Draft:
    """Let blocks with equal equations, whose weights are rows of stacked arrays, run in
    a loop (`layers.scanning`).
    """
    if draft.blocks is None:
        return draft
    captured = draft.captured
    program, scanned, declined = layers.loop_blocks(captured.program, draft.blocks)
    return draft._replace(
        captured=captured.changed(program), scanned=scanned, declined=declined
    )


def donate_overwritten(draft: Draft) -> Draft:
    """Donate the inputs that results replace (`overwritten_arrays`)."""
    if draft.overwritable is None:
        return draft
    inputs, arrays, first_of_state, given = draft.overwritable
    results = draft.captured.results
    places: dict[Slot, int] = inputs.places()
    caches = [
        [arrays[place] for place in inputs.of_cache(number)]
        for number in range(len(inputs.caches))
    ]
    overwrites = overwritten_arrays.find_overwrites(
        results,
        {slot: arrays[place] for slot, place in places.items()},
        first_of_state,
        itertools.chain.from_iterable(caches),
        given,
    )
    donated = [places[overwrite.slot] for overwrite in overwrites]
    read = overwritten_arrays.find_read_caches(results, caches)
    # Last: caches are in the output, which is the last result.
    for number in range(len(caches)):
        donated += () if number in read else inputs.of_cache(number)
    return draft._replace(donated=tuple(donated), overwrites=overwrites)


PASSES: Final[tuple[Callable[[Draft], Draft], ...]] = (
    loop_equal_blocks,
    donate_overwritten,
)


def run_passes(draft: Draft) -> Draft:
    """The draft after all passes."""
    for each in PASSES:
        draft = each(draft)
    return draft
