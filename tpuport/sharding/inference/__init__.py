"""A tensor-parallel plan from a model's structure: its traced program shows which
dimensions are divided together.
"""

from tpuport.sharding.inference.inferred_plan import InferredPlan, infer_plan
from tpuport.sharding.inference.weight_plan import WeightPlan

__all__ = ["InferredPlan", "WeightPlan", "infer_plan"]
