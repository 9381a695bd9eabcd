"""`tpuport.check`: everything that stops a model on the device, or differs from torch, before any TPU."""

from tpuport.verification.check_result import CheckFinding, CheckResult, Stage
from tpuport.verification.checking import check, confirm

__all__ = ["CheckFinding", "CheckResult", "Stage", "check", "confirm"]
