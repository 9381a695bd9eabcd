"""How weights are divided over the mesh: rules from names to PartitionSpecs, derived,
overridden, audited.
"""

from typing import TYPE_CHECKING, Any

from tpuport.sharding.audit import AuditReport, audit
from tpuport.sharding.sharding_rules import ShardingRules
from tpuport.sharding.specs import Parameter, Rule

__all__ = [
    "AuditReport",
    "InferredPlan",
    "Parameter",
    "Rule",
    "ShardingRules",
    "audit",
    "infer_plan",
]

if TYPE_CHECKING:
    from tpuport.sharding.inference import InferredPlan as InferredPlan
    from tpuport.sharding.inference import infer_plan as infer_plan


def __getattr__(name: str) -> Any:
    # Imported on first use: tracing needs torchax, which rules do not.
    if name not in ("InferredPlan", "infer_plan"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tpuport.sharding import inference

    return getattr(inference, name)
