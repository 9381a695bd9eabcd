"""What a check is called with: `tpuport.check`, and what `tpuport lint --confirm`
asks.
"""

from collections.abc import Iterable
from typing import Any

import torch
from jax.sharding import Mesh

from tpuport import compat
from tpuport.errors import PortError
from tpuport.lint.findings import Finding
from tpuport.sharding import ShardingRules
from tpuport.verification import confirming
from tpuport.verification.check_result import CheckResult
from tpuport.verification.checking import Check
from tpuport.verification.model_runs import Arguments


def check(
    model: Any,
    inputs: Any,
    *,
    mesh: Mesh | None = None,
    rules: ShardingRules | None = None,
) -> CheckResult:
    """Run a model in torch and compiled on the device, and report everything that stops
    it, or differs.

    The model itself is not changed: copies of it run, in evaluation mode.

    Args:
        model: on the CPU, with weights.
        inputs: the arguments of one call: a mapping by name, a tuple or list in order,
            or a single tensor.
        mesh: also compare the model on the devices of this mesh.
        rules: for the mesh; None for the model's own plan.

    Returns:
        The result; its `ok` says whether nothing has to be changed, and its `findings`
        what to do, in order.

    Raises:
        PortError: this is not a torch.nn.Module, it is on the device or without values,
            or it cannot be copied.
    """
    if not isinstance(model, torch.nn.Module):
        raise PortError(
            f"cannot check a {type(model).__name__}",
            where="model",
            fix="give a torch.nn.Module",
        )
    if any(map(compat.is_ported, (*model.parameters(), *model.buffers()))):
        raise PortError(
            "the model is on the device already, and torch has nothing to compare with",
            where=type(model).__name__,
            fix="check the model before tpuport.port(model), or a copy: copy.deepcopy(model) before it is ported",
        )
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise PortError(
            "the model has tensors without values, on the meta device",
            where=type(model).__name__,
            fix="give a model with weights, random ones for example; tpuport compile needs none",
        )
    return Check(model, Arguments.of(inputs), mesh, rules).run()


def confirm(
    model: torch.nn.Module, inputs: Any, findings: Iterable[Finding]
) -> dict[Finding, confirming.Mark]:
    """What a run of a model says about findings of the linter: confirmed, not reached,
    or harmless there.

    Args:
        model, inputs: as for `check`.
        findings: of the linter, in files with the model's code.

    Raises:
        PortError: as for `check`.
    """
    run = Check(model, Arguments.of(inputs), None, None)
    run.carry_out(("torch", "values", "compare", "compile"))
    return {
        finding: confirming.mark(finding, run.traced, run.findings)
        for finding in findings
    }
