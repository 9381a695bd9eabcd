"""Private names of torchax: the array in a tensor, and the operators of an environment.

Like all rooms but `compat`, this one does not import torchax.
"""

from typing import Any, Final

from tpuport.internals.mechanism import Mechanism

# The attribute of a tensor that has its array.
ARRAY: Final = "_elem"
# Attributes that a tensor has from torchax and from `torch.nn.Parameter`.
TENSOR_ATTRIBUTES: Final = frozenset({ARRAY, "_env", "_is_param"})


def array_of(tensor: Any) -> Any:
    """The array of a torchax tensor."""
    return tensor._elem


def set_array(tensor: Any, array: Any) -> None:
    """Give a torchax tensor another array."""
    tensor._elem = array


def own_array(value: Any) -> Any:
    """The array that a value has itself; None for what is no torchax tensor, and for a
    mask that is computed on demand.
    """
    return getattr(value, "__dict__", {}).get(ARRAY)


def initialize_tensor(tensor: Any, array: Any, environment: Any) -> None:
    """What torchax's class does with a new tensor, but not a second time."""
    if ARRAY not in vars(tensor):
        tensor._elem, tensor._env = array, environment


class ArrayOnDemand:
    """Mixed into torchax's class of tensors, before it: the array is computed when it
    is read.
    """

    _env: Any

    def compute_array(self) -> Any:
        """The array."""
        raise NotImplementedError

    def replace_array(self, array: Any) -> None:
        """Called where torchax writes to the tensor."""
        raise NotImplementedError

    @property
    def _elem(self) -> Any:
        return self.compute_array()

    @_elem.setter
    def _elem(self, array: Any) -> None:
        self.replace_array(array)


def operators(environment: Any) -> dict[Any, Any]:
    """The operators of an environment, by what they answer for. There is a public call
    that replaces one, and none that reads or removes it.
    """
    return environment._ops


def is_autocast(environment: Any) -> bool:
    """Whether torchax itself, and not torch, casts arguments to a dtype."""
    return environment.param.autocast_dtype is not None


# Settings of an environment for those who look for mistakes in it.
_DEBUGGING: Final = (
    "debug_print_each_op", "debug_accuracy_for_each_op", "debug_mixed_tensor", "force_materialize_views",
)  # fmt: skip


def is_debugged(environment: Any) -> bool:
    """Whether torchax itself has to run each operator, to print or to compare it."""
    config = vars(environment.config)
    return any(map(config.get, _DEBUGGING))


def is_lazy_view(value: Any) -> bool:
    """Whether this is a view of torchax's own, which is computed when it is read."""
    cls = type(value)
    return cls.__module__ == "torchax.view" and cls.__name__ == "View"


def composing(environment: Any) -> Any:
    """A block in which torch composes something of operators: these, and the tensors
    that it makes of nothing, are the environment's.
    """
    return environment._dispatch_mode


def add_operator(
    environment: Any, target: Any, function: Any, *, of_arrays: bool
) -> None:
    """Let a function of tensors, or of arrays, answer for an operator."""
    environment.override_op_definition(target, function)
    if of_arrays:
        operators(environment)[target].is_jax_function = True


def entry_of(environment: Any, function: Any) -> Any:
    """What torchax has for a function or an operator of torch: a lowering of it, or of
    all overloads of the operator, or a decomposition; None if it has nothing.
    """
    names = (function, getattr(function, "overloadpacket", None))
    for table in (environment._ops, getattr(environment, "_decomps", {})):
        for name in names:
            if name is not None and name in table:
                return table[name]
    return None


def _has_names_of_dispatch() -> bool:
    """Whether an environment and its entries have all names that a call needs."""
    import torch
    import torchax

    environment = torchax.default_env()
    entry = entry_of(environment, torch.ops.aten.neg.default)
    is_autocast(environment)
    is_debugged(environment)
    with composing(environment):
        return (entry.is_jax_function, entry.needs_env) == (True, False) and callable(
            entry.func
        )


DISPATCH: Final = Mechanism(
    "dispatch of operators",
    "torchax",
    rests_on="Environment._dispatch_mode, config and param.autocast_dtype, func, is_jax_function, "
    "is_user_defined and needs_env of their entries, and two modes",
    without="torchax itself runs the operators, slower, and those that it has no lowering for raise its "
    "OperatorNotFound, also where torch could take them apart",
    probe=_has_names_of_dispatch,
)
