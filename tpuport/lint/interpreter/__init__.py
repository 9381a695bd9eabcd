"""Abstract interpretation of traced code: what each expression may be, told to the rules as events."""

from tpuport.lint.interpreter.machine import Machine

__all__ = ["Machine"]
