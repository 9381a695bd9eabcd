"""How weights are divided over the mesh: rules from names to PartitionSpecs, derived,
overridden, audited.

Names resolve on first use: a file of rules is read without jax.
"""

from typing import TYPE_CHECKING, Any

from tpuport.base.lazy_names import lazy_name

if TYPE_CHECKING:
    from tpuport.sharding.auditing import AuditReport as AuditReport
    from tpuport.sharding.auditing import audit as audit
    from tpuport.sharding.inference import InferredPlan as InferredPlan
    from tpuport.sharding.inference import infer_plan as infer_plan
    from tpuport.sharding.sharding_rules import ShardingRules as ShardingRules
    from tpuport.sharding.specs import Parameter as Parameter
    from tpuport.sharding.specs import Rule as Rule

_PUBLIC = {
    "AuditReport": "auditing",
    "InferredPlan": "inference",
    "Parameter": "specs",
    "Rule": "specs",
    "ShardingRules": "sharding_rules",
    "audit": "auditing",
    "infer_plan": "inference",
}

__all__ = [
    "AuditReport",
    "InferredPlan",
    "Parameter",
    "Rule",
    "ShardingRules",
    "audit",
    "infer_plan",
]


def __getattr__(name: str) -> Any:
    return lazy_name(__name__, _PUBLIC, name)
