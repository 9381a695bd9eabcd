"""How weights are divided over the mesh: rules from names to PartitionSpecs, derived, overridden, audited."""

from tpuport.sharding.audit import AuditReport, audit
from tpuport.sharding.sharding_rules import ShardingRules
from tpuport.sharding.specs import Parameter, Rule

__all__ = ["AuditReport", "Parameter", "Rule", "ShardingRules", "audit"]
