"""TPU302: `"cuda"` as a device."""

import ast
import dataclasses
import re
from typing import Final

from tpuport.lint.events import Refusal, Text
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.event_queries import gpu_hit
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule

_CUDA: Final = re.compile(r"cuda(:\d+)?$")
_DEVICE_FUNCTIONS: Final = frozenset(
    {".to", "torch.device", "torch.Generator", "torch.set_default_device"}
)


def check(event: Text | Refusal, context: Context) -> Answer:
    """A device word as a `device=`, in `.to(...)` and `torch.device(...)`, or as a
    default; a demand for a GPU.
    """
    if isinstance(event, Refusal):
        return _check_refusal(event)
    # The text alone says little: a path or a key may be called "cuda" too.
    if not _CUDA.match(event.text) or not _is_device(event):
        return False
    hit = gpu_hit(event)
    # There is no mechanical rewrite of `f"cuda:{rank}"`.
    if hit and isinstance(event.node, ast.JoinedStr):
        return dataclasses.replace(hit, fix=Applicability.NONE)
    return (
        _weigh_traced(event, hit)
        if hit and event.traced
        else _weigh_default(event, hit)
    )


def _weigh_traced(event: Text, hit: Hit) -> Answer:
    """In traced code, what is done with the device decides, if another place does
    it.
    """
    # The device of the program is what "cuda" means there.
    if event.callee == ".to" or (
        event.role == "keyword device" and event.callee != "torch.Generator"
    ):
        return False
    is_elsewhere = event.role in {"default", "assign"} or event.callee == "torch.device"
    return Hit(severity=Severity.WARNING) if is_elsewhere else hit


def _weigh_default(event: Text, hit: Hit | None) -> Answer:
    """A default may never be used, and a name alone does no harm."""
    return (
        Hit(severity=Severity.WARNING)
        if hit and event.role in {"default", "assign"}
        else hit
    )


def _check_refusal(event: Refusal) -> Answer:
    """`assert q.device.type == "cuda"`, and `if not q.is_cuda: raise ...`."""
    if event.missing or "cuda" not in ast.unparse(event.test):
        return False
    reason = "this raises: a traced tensor is not on a CUDA device"
    return Hit(
        reason, "remove the check, or let it accept any device", fix=Applicability.NONE
    )


def _is_device(event: Text) -> bool:
    match event.role:
        case "argument":
            return event.callee in _DEVICE_FUNCTIONS
        case "keyword device" | "keyword device_type" | "keyword map_location":
            # Autocast for a GPU is autocast of the device.
            return not event.callee.endswith("autocast")
        case role:
            return role in {"default", "assign"}


RULE = Rule(
    id="TPU302",
    name="cuda-device",
    severity=Severity.ERROR,
    summary='`"cuda"` as a device: `.to("cuda")`, `device="cuda"`, a default argument',
    why='A hard-coded device ties the code to one kind of machine: at import, or when a model is built, `.to("cuda")` '
    'and `torch.zeros(4, device="cuda")` raise without a GPU. In traced code they mean the device that the program '
    'runs on, and do no harm; nor do comparisons such as `x.device.type == "cuda"`, which are decided while tracing, '
    "unless code raises where they are false. `with tpuport.gpu_shim():` lets the rest be imported and built as it is.",
    reason='the device "cuda" does not exist on a TPU machine',
    remedy="use the device of an existing tensor, `device=x.device`, or leave it out and let `tpuport.port` "
    "place the weights",
    bad=Example("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((4,), 2.0, device="cuda"))

    def forward(self, x):
        return x * self.scale
"""),
    good=Example("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, x):
        return x * self.scale
"""),
    quiet=(
        # Autocast for a GPU is autocast of the device.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        with torch.autocast(device_type="cuda", enabled=False):
            return x * 2
"""),
        # Only a comparison.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        return x * 2 if x.device.type == "cuda" else x
"""),
        # What is on the device stays there.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        return x.to("cuda", torch.float32) + x.new_ones(4, device="cuda:0")
"""),
        # Runs on a GPU alone.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        if x.device.type == "cuda":
            x = x.to("cuda")
        return x
"""),
    ),
    harm="cuda",
    events=(Text, Refusal),
    check=check,
    fix=Applicability.UNSAFE,
)
