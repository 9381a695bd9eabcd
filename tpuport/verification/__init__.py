"""`tpuport.check`: everything that stops a model on the device, or differs from torch,
before any TPU.
"""

from tpuport.verification.check_calls import check, confirm
from tpuport.verification.check_result import CheckFinding, CheckResult, Stage

__all__ = ["CheckFinding", "CheckResult", "Stage", "check", "confirm"]
