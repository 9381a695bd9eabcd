"""Where each weight lives on the mesh: rules from names to PartitionSpecs, derived, overridden, audited."""

from tpuport.sharding.audit import AuditReport, audit
from tpuport.sharding.rules import Parameter, Rule, ShardingRules

__all__ = ["AuditReport", "Parameter", "Rule", "ShardingRules", "audit"]
