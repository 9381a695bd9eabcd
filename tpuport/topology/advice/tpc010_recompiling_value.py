"""TPC010: Python numbers among the inputs that change from call to call."""

import re
from collections.abc import Iterator
from typing import Any, Final

from tpuport.topology.advice.advice_rules import AdviceRule, Hit
from tpuport.topology.advice.evidence import Evidence

# Whole numbers that change with each call, by their names. Others (height, num_frames) are a choice of the user's.
_CHANGING: Final = re.compile(
    r"(^|_)(t|timesteps?|steps?|sigmas?|position|pos|offset|index|seq_?len|lengths?|past_length|cur_len)(_ids?)?$|cache_"
)


def check(evidence: Evidence) -> Iterator[Hit]:
    """The inputs of a call; the numbers of a task are shapes that `generate` chooses."""
    if evidence.report.task != "forward":
        return
    for name, value in evidence.named_inputs():
        if _changes(name, value):
            yield Hit(
                f"{name}={value!r} is a Python number, and part of the program: each other value is traced and "
                "compiled again",
                f"give a tensor: {name}=torch.tensor({value!r})",
            )


def _changes(name: str, value: Any) -> bool:
    # A flag has two values at most.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # Of integers, only the names tell a position, which changes, from a size.
    last_key = name.rpartition("['")[2].rstrip("]'").lower()
    return isinstance(value, float) or _CHANGING.search(last_key) is not None


RULE = AdviceRule(
    id="TPC010",
    name="recompiling-value",
    summary="Python numbers among the inputs that change from call to call",
    why="""Tensors are arguments of the compiled program; everything else is part of it. A timestep or a length given
as a Python number makes a new program for each value, and a compilation of seconds or minutes takes the place of a
step of milliseconds.""",
    measured="""Inputs of a forward call that are floats, or whole numbers with the name of something that changes
(timestep, step, position, length, offset, cache_...). It is not measured in bytes, and comes last.""",
    before="""class Denoiser(nn.Module):
    def forward(self, latents, timestep):
        return latents * timestep


latents = torch.empty(8, 128, dtype=torch.bfloat16, device="meta")
compile_for(Denoiser(), {"latents": latents, "timestep": 0.5}, topology="v6e:2x2", tp=4)""",
    after="""class Denoiser(nn.Module):
    def forward(self, latents, timestep):
        return latents * timestep


latents = torch.empty(8, 128, dtype=torch.bfloat16, device="meta")
compile_for(Denoiser(), {"latents": latents, "timestep": torch.tensor(0.5)}, topology="v6e:2x2", tp=4)""",
    check=check,
)
