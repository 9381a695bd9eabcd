"""Objects that models call by methods of their own names: modules without a forward,
and classes that a registry builds from a configuration.
"""

import ast
import itertools
from collections.abc import Iterable, Iterator

from tpuport.lint.abstract_values import Instance, is_tensor
from tpuport.lint.interpreter import TracingInterpreter
from tpuport.lint.interpreter.class_facts import last_names
from tpuport.lint.interpreter.compiled_methods import LOOPS, is_compiled_method
from tpuport.lint.modules import ClassInfo, FunctionInfo, ModuleInfo
from tpuport.lint.scope_statements import statements_within
from tpuport.lint.traced_functions import EntryPoint


def component_methods(
    interpreter: TracingInterpreter, module: ModuleInfo
) -> Iterator[EntryPoint]:
    """The methods of a file's components that compute something of a tensor.

    Nothing in the text tells who calls them: the caller has the object from a
    constructor's argument or a registry.
    """
    for info in module.classes:
        for name in _names(interpreter, info):
            entry = EntryPoint(info.methods[name], Instance(info))
            if (
                not name.startswith("_")
                and _returns_value(entry.function)
                and _gets_tensor(interpreter, entry)
            ):
                yield entry


def _names(interpreter: TracingInterpreter, info: ClassInfo) -> Iterable[str]:
    """The methods that callers of a component may know by name."""
    classes = interpreter.classes
    if not classes.is_module(info):
        is_registered = any(
            name.startswith("register") for name in last_names(info.decorators)
        )
        return info.methods if is_registered else ()
    is_called_by_name = (
        classes.torch_base(info) == "torch.nn.Module"
        and all(_is_left_to_others(forward.info) for forward in classes.forwards(info))
        and all(
            _is_left_to_others(method) or not is_compiled_method(name)
            for name, method in info.methods.items()
        )
    )
    return sorted(info.methods.keys() - LOOPS) if is_called_by_name else ()


def _is_left_to_others(method: FunctionInfo) -> bool:
    """Whether subclasses write it: callers know the base by its other methods."""
    return method.is_a("abstractmethod")


def _returns_value(method: FunctionInfo) -> bool:
    """Whether it is called for its result; others save, show and log, on the host."""
    return any(
        isinstance(statement, ast.Return) and statement.value is not None
        for statement in statements_within(method.node)
    )


def _gets_tensor(interpreter: TracingInterpreter, entry: EntryPoint) -> bool:
    values = interpreter.declared_parameters(*entry).values()
    return any(map(is_tensor, itertools.islice(values, 1, 2)))
