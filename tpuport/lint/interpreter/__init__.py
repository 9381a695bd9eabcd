"""Abstract interpretation of traced code: what each expression may be, reported to the
rules as events.
"""

from tpuport.lint.interpreter.tracing_interpreter import TracingInterpreter

__all__ = ["TracingInterpreter"]
