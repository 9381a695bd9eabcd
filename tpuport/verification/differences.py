"""Findings about results and dtypes that differ from torch's."""

from collections.abc import Sequence

import torch

from tpuport.topology.advice.float32_products import Float32Product
from tpuport.topology.hlo.source_lines import short_path
from tpuport.verification import comparing
from tpuport.verification.bounds import deviation, same_dtype
from tpuport.verification.check_result import CheckFinding
from tpuport.verification.comparing import Place, Runs
from tpuport.verification.recording import Recording

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


def output_findings(
    outputs: Sequence[torch.Tensor], torch_run: Recording, exact_run: Recording | None
) -> list[CheckFinding]:
    """About the result of the program that a user compiles, whose modules agree one by one."""
    expected = _results(torch_run)
    exact = [None] * len(expected) if exact_run is None else _results(exact_run)
    if len(outputs) != len(expected):
        return [_output_finding(f"it has {len(outputs)} tensors, and torch's has {len(expected)}")]
    for ours, theirs, referee in zip(outputs, expected, exact, strict=True):
        found = deviation(ours, theirs, referee)
        if found is not None and not found.is_rounding:
            return [_output_finding(found.describe())]
        if not same_dtype(ours.dtype, theirs.dtype):
            return [_output_finding(f"{name(ours.dtype)} here, {name(theirs.dtype)} in torch")]
    return []


def rounding_findings(runs: Runs) -> list[CheckFinding]:
    """A note about the model's result if it would fail a plain comparison, and is no worse than torch's own."""
    exact = [] if runs.exact is None else _results(runs.exact)
    for ours, theirs, referee in zip(_results(runs.device), _results(runs.torch), exact, strict=False):
        found = deviation(ours, theirs, referee)
        if found is None or not found.is_rounding or _is_close(ours, theirs):
            continue
        return [
            CheckFinding(
                "rounding", "compare", "note",
                "the result differs from torch's by rounding that grew from module to module, and is as near to "
                f"float64 as torch's own: {found.describe()}",
                details={"ours": found.ours, "torch": found.torch, "exact": found.exact},
            )
        ]  # fmt: skip
    return []


def _is_close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """By the tolerances that torch's own tests have."""
    try:
        torch.testing.assert_close(ours, theirs, check_dtype=False, equal_nan=True)
    except AssertionError:
        return False
    return True


def _results(run: Recording) -> list[torch.Tensor]:
    return [run.values[note.value] for note in run.events[-1].outputs if note.value is not None]


def _output_finding(message: str) -> CheckFinding:
    return CheckFinding(
        "result", "compile", "error", f"the compiled model's result differs from torch's: {message}", _REPORT
    )


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


def float32_findings(products: Sequence[Float32Product], torch_run: Recording) -> list[CheckFinding]:
    """About products that a program of 16 bits computes in float32, on lines where torch has no float32 operand."""
    findings = []
    for product in products:
        line = product.source
        if line is None:
            continue
        operators = [
            event
            for event in torch_run.events
            if event.line is not None
            and (short_path(event.line.file), event.line.line) == (line.file, line.line)
        ]
        dtypes = {note.dtype for event in operators for note in event.inputs if note.dtype.is_floating_point}
        # Where torch computes in float32 too, the code asks for it.
        if dtypes and dtypes <= {torch.bfloat16, torch.float16}:
            names = ", ".join(map(name, dtypes))
            findings.append(
                CheckFinding(
                    "dtype", "compare", "error",
                    f"a {product.kind} is computed in float32 here, and in {names} in torch: "
                    f"{'; '.join(map(str, product.origins))}",
                    f"give it operands in {names}, and {_REPORT} if the code does", line,
                    details={"operator": product.kind, "dtype": "float32", "torch_dtype": names},
                )
            )  # fmt: skip
    return findings


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
