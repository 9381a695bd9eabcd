"""Private names of torchax: the array in a tensor, and the operators of an environment.

Like all rooms but `compat`, this one does not import torchax.
"""

from typing import Any, Final

import jax

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


def find_operator(environment: Any, function: Any) -> Any:
    """What an environment runs for a function of torch; None if that is a
    decomposition, or is not known because torchax looks it up in another way.

    Raises:
        OperatorNotFound: of torchax; it has nothing for the function.
    """
    find = getattr(environment, "_get_op_or_decomp", None)
    if find is None:
        return operators(environment).get(function)
    return find(function)


def _dispatch_finds_operators() -> bool:
    """Whether torchax asks the method that is replaced for what runs an operator."""
    import torch
    import torchax

    environment, asked = torchax.default_env(), []

    def find(function: Any) -> Any:
        asked.append(function)
        return type(environment)._get_op_or_decomp(environment, function)

    def negate(array: jax.Array) -> jax.Array:
        tensor = torchax.tensor.Tensor(array, environment)
        return torch.ops.aten.neg.default(tensor).jax()

    vars(environment)["_get_op_or_decomp"] = find
    try:
        with environment:
            jax.eval_shape(negate, jax.ShapeDtypeStruct((), "float32"))
    finally:
        del vars(environment)["_get_op_or_decomp"]
    return torch.ops.aten.neg.default in asked


OPERATORS_WITHOUT_LOWERING: Final = Mechanism(
    "operators that torchax lacks",
    "torchax",
    rests_on="Environment._get_op_or_decomp, which Environment.dispatch asks",
    without="operators that have neither a lowering in torchax nor one in tpuport raise torchax's OperatorNotFound, "
    "also where torch could take them apart",
    probe=_dispatch_finds_operators,
)
