"""TPC010: Python numbers among the inputs that change from call to call."""

import re
from collections.abc import Iterator
from typing import Any, Final

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.inputs import leaves
from tpuport.topology.advice.rule import Hit, Rule

# Whole numbers that change with each call, by their names; others (height, num_frames) are a choice of the user's.
_CHANGES: Final = re.compile(
    r"(^|_)(t|timesteps?|steps?|sigmas?|position|pos|offset|index|seq_?len|lengths?|past_length|cur_len)(_ids?)?$|cache_"
)


def check(evidence: Evidence) -> Iterator[Hit]:
    """Of a call's inputs; a task's numbers are shapes that `generate` chooses."""
    if evidence.report.task != "forward":
        return
    for name, value in leaves(evidence.inputs):
        if _changes(name, value):
            yield Hit(
                f"{name}={value!r} is a Python number, and part of the program: each other value is traced and "
                "compiled again",
                f"give a tensor: {name}=torch.tensor({value!r})",
            )


def _changes(name: str, value: Any) -> bool:
    if isinstance(value, float):
        return True
    number = isinstance(value, int) and not isinstance(value, bool)
    return number and _CHANGES.search(name.rpartition("['")[2].rstrip("]'").lower()) is not None


RULE = Rule(
    id="TPC010",
    name="recompiling-value",
    summary="Python numbers among the inputs that change from call to call",
    why="""Tensors are arguments of the compiled program; everything else is part of it. A timestep or a length given
as a Python number makes a new program for each value, and a compilation of seconds or minutes takes the place of a
step of milliseconds.""",
    measured="""Inputs of a forward call that are floats, or whole numbers with the name of something that changes
(timestep, step, position, length, offset, cache_...). It is not measured in bytes, and comes last.""",
    before="""compile_for(model, {"latents": latents, "timestep": 0.5}, topology="v6e")""",
    after="""compile_for(model, {"latents": latents, "timestep": torch.tensor(0.5)}, topology="v6e")""",
    check=check,
)
