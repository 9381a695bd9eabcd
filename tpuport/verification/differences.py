"""Findings about results and dtypes that differ from torch's."""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import torch

from tpuport.base.plurals import count_noun
from tpuport.lint.rules.rule_registry import rule_by_id
from tpuport.topology.advice.float32_products import Float32Product
from tpuport.topology.hlo.source_lines import short_path
from tpuport.verification import comparing
from tpuport.verification.bounds import deviation, same_dtype
from tpuport.verification.check_result import CheckFinding
from tpuport.verification.comparing import Mismatch, Runs
from tpuport.verification.recording import Recording
from tpuport.verification.reference_runs import ReferenceRuns

_REPORT: Final = "report it to tpuport with this page"
_HALVES: Final = {torch.bfloat16, torch.float16}


def result_finding(
    mismatch: Mismatch, model: torch.nn.Module, stage: str
) -> CheckFinding:
    """About the first result that is outside of the bound."""
    difference = mismatch.deviation
    module = module_name(mismatch, model)
    what = f"the result of {module}"
    if mismatch.operator:
        what = f"`{mismatch.operator}` in {module}"
    if mismatch.is_replaced:
        what = f"what tpuport computes in place of {what}"
    if mismatch.is_added:
        what = f"what follows from {what}, which only the device runs,"
    ours, theirs = map(name, mismatch.dtypes)
    dtypes = f", in {ours}"
    if ours != theirs:
        dtypes = f", {ours} here and {theirs} in torch"
    message = f"{what} differs from torch's{dtypes}: {difference.describe()}"
    remedy, rule = f"write the line with other operations, and {_REPORT}", None
    if mismatch.is_added:
        remedy = f"let torch run the same code: look for a branch on the device's type; without one, {_REPORT}"
    # Nothing is wrong with the operator then. What is comes to light once both compute
    # in float32.
    if mismatch.dtypes in comparing.FLOAT64_LOST:
        float64 = rule_by_id("TPU401")
        message, remedy, rule = (
            f"{float64.reason}: {message}",
            float64.remedy,
            float64.id,
        )
    return CheckFinding(
        "result", stage, "error", message, remedy,
        mismatch.line or comparing.forward_line(model, mismatch.call), rule, mismatch.call.name,
        details={
            "operator": mismatch.operator, "call": mismatch.call.number, "path": mismatch.path,
            "index": list(difference.index), "ours": difference.ours, "torch": difference.torch,
            "exact": difference.exact, "error": difference.error, "torch_error": difference.torch_error,
            "dtype": ours, "torch_dtype": theirs,
        },
    )  # fmt: skip


def tie_finding(mismatch: Mismatch, model: torch.nn.Module, stage: str) -> CheckFinding:
    """About an operator that has chosen others of equal values than torch."""
    assert mismatch.tie is not None
    difference = mismatch.deviation
    values = (
        "equal values"
        if mismatch.tie.is_exact
        else "values that are equal but for rounding"
    )
    message = (
        f"a tie: `{mismatch.operator}` in {module_name(mismatch, model)} chooses among {values}, whose order torch "
        f"leaves open, and the device chooses another element: {difference.describe()}. What is computed with it "
        "may differ; it was compared with torch's choice instead"
    )
    return CheckFinding(
        "tie", stage, "note", message,
        "nothing, if any of them will do; else let the model say which: sort(stable=True), or values that differ",
        mismatch.line or comparing.forward_line(model, mismatch.call), module=mismatch.call.name,
        details={"operator": mismatch.operator, "call": mismatch.call.number, "exact": mismatch.tie.is_exact},
    )  # fmt: skip


def output_findings(
    outputs: Sequence[torch.Tensor], references: ReferenceRuns
) -> list[CheckFinding]:
    """About the result of the program that a user compiles, even if all modules agree
    one by one.
    """
    message = describe_output(outputs, references)
    if message:
        return [_output_finding(message)]
    for ours, theirs in zip(outputs, results(references.torch), strict=True):
        if not same_dtype(ours.dtype, theirs.dtype):
            return [
                _output_finding(
                    f"{name(ours.dtype)} here, {name(theirs.dtype)} in torch"
                )
            ]
    return []


def describe_output(outputs: Sequence[torch.Tensor], references: ReferenceRuns) -> str:
    """How the model's result differs from torch's by more than rounding can do to it;
    "" if it does not.
    """
    expected = results(references.torch)
    exact = [] if references.exact is None else results(references.exact)
    while True:
        rounded = list(map(results, references.rounded))
        message = describe_difference(outputs, expected, exact, rounded)
        if not message or not references.add_rounded():
            return message


def describe_difference(
    outputs: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor],
    rounded: Sequence[Sequence[torch.Tensor]] = (),
) -> str:
    """How the tensors of a result differ from torch's by more than rounding; "" if they
    do not.

    Args:
        exact: in float64; empty if the model does not run in float64.
        rounded: of runs in float64 with random rounding.
    """
    if len(outputs) != len(expected):
        return f"it has {count_noun(len(outputs), 'tensor')}, and torch's has {len(expected)}"
    all_results = itertools.zip_longest(outputs, expected, exact, *rounded)
    for ours, theirs, referee, *others in all_results:
        difference = deviation(ours, theirs, referee, others)
        if difference is not None and not difference.is_rounding:
            return difference.describe()
    return ""


def rounding_findings(runs: Runs) -> list[CheckFinding]:
    """A note about the model's result if it would fail a plain comparison, and is no
    worse than torch's own.
    """
    # Without a referee nothing says whose rounding it is.
    if runs.exact is None:
        return []
    all_runs = runs.device, runs.torch, runs.exact, *runs.rounded
    for ours, theirs, referee, *others in zip(*map(results, all_runs), strict=False):
        difference = deviation(ours, theirs, referee, others)
        if difference is None or not difference.is_rounding or _is_close(ours, theirs):
            continue
        return [
            CheckFinding(
                "rounding", "compare", "note",
                "the result differs from torch's by rounding that grew from module to module, and is as near to "
                f"float64 as torch's own: {difference.describe()}",
                details={"ours": difference.ours, "torch": difference.torch, "exact": difference.exact},
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


def has_comparable_result(run: Recording) -> bool:
    """Whether the model's result has tensors that a recording finds."""
    return bool(results(run))


def results(run: Recording) -> list[torch.Tensor]:
    """The tensors of the model's own result."""
    # The last event of a complete run is the exit of the model itself.
    return [
        run.values[note.value]
        for note in run.events[-1].outputs
        if note.value is not None
    ]


def _output_finding(message: str) -> CheckFinding:
    return CheckFinding(
        "result",
        "compile",
        "error",
        f"the compiled model's result differs from torch's: {message}",
        _REPORT,
    )


def dtype_findings(mismatches: list[Mismatch]) -> list[CheckFinding]:
    """About operators that compute in another dtype than torch."""
    return list(map(_dtype_finding, mismatches))


def _dtype_finding(mismatch: Mismatch) -> CheckFinding:
    ours, theirs = map(name, mismatch.dtypes)
    if mismatch.in_cpu_region:
        return CheckFinding(
            "dtype", "compare", "warning",
            f"`{mismatch.operator}` gives {ours} here, as on a GPU: torch.autocast('cpu') is for tensors of the CPU",
            "name the device of the tensors, torch.autocast(x.device.type), if the region is meant for them",
            mismatch.line, module=mismatch.call.name,
            details={"operator": mismatch.operator, "dtype": ours, "torch_dtype": theirs},
        )  # fmt: skip
    return CheckFinding(
        "dtype", "compare", "error",
        f"`{mismatch.operator}` gives {ours} here, and {theirs} in torch for arguments of the same dtypes",
        f"convert the result, .to(torch.{theirs}), and {_REPORT}", mismatch.line, module=mismatch.call.name,
        details={"operator": mismatch.operator, "dtype": ours, "torch_dtype": theirs},
    )  # fmt: skip


def float32_findings(
    products: Sequence[Float32Product], torch_run: Recording
) -> list[CheckFinding]:
    """About products that a program of 16 bits computes in float32, on lines where
    torch has no float32 operand.
    """
    dtypes_by_line = _operand_dtypes(torch_run)
    findings = []
    for product in products:
        line = product.source
        if line is None:
            continue
        dtypes = dtypes_by_line[line.file, line.line]
        # Where torch computes in float32 too, the code asks for it.
        if dtypes and dtypes <= _HALVES:
            findings.append(_float32_finding(product, dtypes))
    return findings


def has_halves(run: Recording) -> bool:
    """Whether torch computes anything in 16 bits."""
    notes = itertools.chain.from_iterable(event.inputs for event in run.events)
    return any(note.dtype in _HALVES for note in notes)


def _float32_finding(product: Float32Product, dtypes: set[torch.dtype]) -> CheckFinding:
    names = ", ".join(sorted(map(name, dtypes)))
    return CheckFinding(
        "dtype", "compile", "error",
        f"a {product.kind} is computed in float32 here, and in {names} in torch: "
        f"{'; '.join(map(str, product.origins))}",
        f"give it operands in {names}, and {_REPORT} if the code does", product.source,
        details={"operator": product.kind, "dtype": "float32", "torch_dtype": names},
    )  # fmt: skip


def _operand_dtypes(run: Recording) -> dict[tuple[str, int], set[torch.dtype]]:
    """The floating dtypes of operands by line, with files as the compiler's products
    name them.
    """
    dtypes: dict[tuple[str, int], set[torch.dtype]] = defaultdict(set)
    for event in run.events:
        if event.line is not None:
            operands = {
                note.dtype for note in event.inputs if note.dtype.is_floating_point
            }
            dtypes[short_path(event.line.file), event.line.line] |= operands
    return dtypes


def summarize(runs: Runs) -> str:
    """How much was compared, for the list of stages."""
    calls = sum(event.kind == "exit" for event in runs.device.events)
    return f"{calls} calls of modules"


def module_name(mismatch: Mismatch, model: torch.nn.Module) -> str:
    """The module's name and class: "blocks.0 (Block)"."""
    module_class = type(model.get_submodule(mismatch.call.name)).__name__
    # The model itself has no name.
    if not mismatch.call.name:
        return module_class
    return f"{mismatch.call.name} ({module_class})"


def name(dtype: torch.dtype) -> str:
    """torch's name of a dtype: "float32"."""
    return str(dtype).removeprefix("torch.")
