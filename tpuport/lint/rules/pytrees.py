"""Which classes `jax.jit` can take apart, as far as their text says."""

import ast
import re
from typing import Any, Final

from tpuport.lint.abstract_values import Tensor

# Bases whose subclasses tpuport registers, or that jax knows.
_KNOWN: Final = re.compile(
    r"(ModelOutput|BaseOutput|NamedTuple|Cache|CacheLayerMixin|DynamicLayer|StaticLayer|Enum)$"
)
_REGISTERS: Final = re.compile(
    r"register_pytree|register_dataclass|register_static|tree_util|flax\.struct|jax_dataclasses"
)


def is_unknown(info: Any) -> bool:
    """Whether instances of a class of the linted code are nothing that jax or tpuport knows."""
    if info.__dict__.get("is_module"):
        return False
    chain = info.__dict__.get("mro", (info,))
    names = [one.node.name for one in chain] + [ast.unparse(base) for one in chain for base in one.node.bases]
    return not any(_KNOWN.search(name) for name in names) and not any(
        _REGISTERS.search(line) for line in info.module.lines
    )


def holds_tensors(info: Any) -> bool:
    """Whether an annotated field, an argument of `__init__` or an attribute set there is a tensor."""
    annotations = list(info.annotated.values())
    if "__init__" in info.methods:
        annotations += [arg.annotation for arg in info.methods["__init__"].node.args.args if arg.annotation]
    annotated = any("Tensor" in ast.unparse(annotation) for annotation in annotations)
    return annotated or any(
        isinstance(value, Tensor) for value in info.__dict__.get("attributes", {}).values()
    )
