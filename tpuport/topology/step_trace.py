"""When each instruction of a step runs, in plain values: what a trace and the page's
timeline are made of.

The docstrings of these classes are also the descriptions in the JSON Schema (see
`reports.json_schema`).
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class TracedInstruction:
    """An instruction of the compiled program, and what one execution of it asks for.

    Attributes:
        name, operation: as the program has them; kind: as in `Profile.kinds`.
        shape: of its result, with the layout.
        module: its path in the model, with the number of the block; empty for code that
            is in no module.
        source: the line of code, as an index into the trace's sources; None if the
            compiler names none.
        hbm_bytes: that it reads and writes; flops: of products and kernels.
    """

    name: str
    operation: str
    kind: str
    shape: str
    module: str
    source: int | None
    hbm_bytes: float
    flops: float


@dataclasses.dataclass(frozen=True)
class CoreSpan:
    """An instruction on the core.

    Attributes:
        instruction: an index into the trace's instructions.
        start: seconds since its computation began.
        seconds: that it takes; of a loop, of all its rounds.
        waiting: seconds before it in which the core waits for what it needs.
        rounds: how often a loop runs; 1 for all others.
        calls: the computations that it executes each round, in order; empty unless it
            is a loop, a branch or a call.
    """

    instruction: int
    start: float
    seconds: float
    waiting: float
    rounds: int
    calls: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A copy or a collective, while it moves bytes.

    Attributes:
        instruction: that starts it, an index into the trace's instructions.
        start: seconds since its computation began; seconds: that it takes.
        axes: of the mesh that a collective goes along; empty for a copy.
    """

    instruction: int
    start: float
    seconds: float
    axes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class TracedComputation:
    """One execution of a computation: the program, or what a loop does in a round.

    Attributes:
        seconds: that it takes, with the time in which the core waits at its end for
            what goes on beside it.
        core: instructions one after another; copies: beside them, one after another.
        collectives: one after another along the same axes.
    """

    seconds: float
    core: tuple[CoreSpan, ...]
    copies: tuple[Transfer, ...]
    collectives: tuple[Transfer, ...]


@dataclasses.dataclass(frozen=True)
class StepTrace:
    """A step on each device. What a loop executes is there once.

    Attributes:
        seconds: of a step.
        entry: the name of the computation that is the program.
        computations: by name, those that are executed.
        instructions: of all of them.
        sources: lines of code, "file:line function".
    """

    seconds: float
    entry: str
    computations: dict[str, TracedComputation]
    instructions: tuple[TracedInstruction, ...]
    sources: tuple[str, ...]
