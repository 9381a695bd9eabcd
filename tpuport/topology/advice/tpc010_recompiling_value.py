"""TPC010: Python numbers among the inputs that change from call to call."""

import re
from collections.abc import Iterator
from typing import Any, Final

import torch

from tpuport.topology.advice.advice_rules import AdviceRule, Hit
from tpuport.topology.advice.evidence import Evidence

# Whole numbers that change with each call, by their names. Others (height, num_frames)
# are a choice of the user's.
_CHANGING: Final = re.compile(
    r"(^|_)(t|timesteps?|steps?|sigmas?|position|pos|offset|index|seq_?len|lengths?|past_length|cur_len)(_ids?)?$|cache_"
)


def check(evidence: Evidence) -> Iterator[Hit]:
    """The inputs of a call; the numbers of a task are shapes that `generate`
    chooses.
    """
    if evidence.report.task != "forward":
        return
    for name, value in evidence.named_inputs():
        if not _changes(name, value):
            continue
        remedy = _remedy(evidence, name, value)
        # An int is an argument from its second value on, if the code can do without
        # the number.
        if isinstance(value, float) or remedy != _pass_tensor(name, value):
            yield Hit(
                f"{name}={value!r} is a Python number, and so part of the program: each new value is traced and "
                "compiled again",
                remedy,
            )


def _remedy(evidence: Evidence, name: str, value: Any) -> str:
    """A tensor, if the code can be traced with one in the number's place."""
    remedy = _pass_tensor(name, value)
    # Only arguments themselves are replaced, not what is inside of them.
    if evidence.retrace is None or name not in evidence.inputs:
        return f"{remedy} (not tried)"
    try:
        evidence.retrace({name: torch.tensor(value)})
    except Exception as error:  # noqa: BLE001 - whatever the code does with the tensor
        return (
            f"a tensor cannot take its place, because the code needs the number while it is traced "
            f"({str(error).splitlines()[0]}): compute what depends on it before the call and pass that as a tensor, "
            "or call with few different values"
        )
    return remedy


def _pass_tensor(name: str, value: Any) -> str:
    return f"pass a tensor: {name}=torch.tensor({value!r})"


def _changes(name: str, value: Any) -> bool:
    match value:
        case bool():  # a flag has two values at most
            return False
        case float():
            return True
        case int():
            # Only the names tell a position, which changes, from a size.
            last_key = name.rpartition("['")[2].rstrip("]'").lower()
            return _CHANGING.search(last_key) is not None
    return False


RULE = AdviceRule(
    id="TPC010",
    name="recompiling-value",
    summary="Python numbers among the inputs that change from call to call",
    why="""Tensors are arguments of the compiled program, and so are integers that change, where code only computes with
them. A timestep that is a float, or a length that decides a shape, needs a new program for each value, so a step of
milliseconds turns into a compilation of seconds or minutes.""",
    measured="""Inputs of a forward call that are floats, or integers with the name of something that changes
(timestep, step, position, length, offset, cache_...) if no tensor can take their place. The cost is not in bytes, so
this finding comes last.""",
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
