"""Findings about results and dtypes that differ from torch's."""

import torch

from tpuport.verification import comparing
from tpuport.verification.check_result import CheckFinding
from tpuport.verification.comparing import Place, Runs

_REPORT = "report it to tpuport with this page"


def result_finding(place: Place, model: torch.nn.Module, stage: str) -> CheckFinding:
    """About the first result that is outside of the bound."""
    found = place.deviation
    module = place.call.name
    line = place.line or comparing.forward_line(model, place.call)
    what = f"the result of {module_name(place, model)}"
    if place.operator:
        what = f"`{place.operator}` in {module_name(place, model)}"
    if place.is_replaced:
        what = f"what tpuport computes in place of {what}"
    ours, theirs = (name(dtype) for dtype in place.dtypes)
    dtypes = f", {ours} here and {theirs} in torch" if ours != theirs else f", in {ours}"
    return CheckFinding(
        "result", stage, "error", f"{what} differs from torch's{dtypes}: {found.describe()}",
        f"write the line with other operations, and {_REPORT}", line, module=module,
        details={
            "operator": place.operator, "call": place.call.number, "path": place.path, "index": list(found.index),
            "ours": found.ours, "torch": found.torch, "exact": found.exact, "error": found.error,
            "torch_error": found.torch_error, "dtype": ours, "torch_dtype": theirs,
        },
    )  # fmt: skip


def dtype_findings(places: list[Place]) -> list[CheckFinding]:
    """About operators that compute in another dtype than torch."""
    return [_dtype_finding(place) for place in places]


def _dtype_finding(place: Place) -> CheckFinding:
    ours, theirs = (name(dtype) for dtype in place.dtypes)
    return CheckFinding(
        "dtype", "compare", "error",
        f"`{place.operator}` gives {ours} here, and {theirs} in torch for arguments of the same dtypes",
        f"convert the result, .to(torch.{theirs}), and {_REPORT}", place.line, module=place.call.name,
        details={"operator": place.operator, "dtype": ours, "torch_dtype": theirs},
    )  # fmt: skip


def summarize(runs: Runs) -> str:
    """How much was compared, for the list of stages."""
    calls = sum(event.kind == "exit" for event in runs.device.events)
    return f"{calls} calls of modules"


def module_name(place: Place, model: torch.nn.Module) -> str:
    """The module's name and class."""
    module = model.get_submodule(place.call.name)
    if not place.call.name:
        return type(module).__name__
    return f"{place.call.name} ({type(module).__name__})"


def name(dtype: torch.dtype) -> str:
    """torch's name of a dtype: "float32"."""
    return str(dtype).removeprefix("torch.")
