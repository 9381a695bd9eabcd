"""What a result has from the tensors that it is computed from: the place, whether it
is decided or sparse, and the rows that a mask selects.

What follows from weights, buffers and sizes alone is decided: it is the same in each
call, so that tpuport computes it before the trace, where code of libraries asks for it.
Not what products and convolutions compute of weights, which each device rounds in its
own way, nor draws.
"""

from typing import Final

from tpuport.lint.abstract_values import (
    UNKNOWN,
    Sequence,
    Tensor,
    Value,
    changed,
    is_traced,
    tensor,
)
from tpuport.lint.interpreter import placement
from tpuport.lint.interpreter.masked_reads import BY_ROW, read_in_result
from tpuport.lint.passed_arguments import Arguments

# By what nothing can be decided: products, and draws.
_UNDECISIVE: Final = frozenset(
    "linear matmul matmult mm bmm addmm addbmm baddbmm dot vdot inner einsum tensordot chain_matmul cov corrcoef "
    "scaled_dot_product_attention dropout uniform exponential geometric cauchy log_normal".split()
)
_UNDECISIVE_STARTS: Final = ("conv", *placement.DRAWS)
# What makes a sparse tensor, and what gives one again of one.
_MAKES_SPARSE: Final = frozenset(
    "sparse_coo_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor sparse_bsc_tensor "
    "sparse_compressed_tensor spdiags to_sparse to_sparse_coo to_sparse_csr to_sparse_csc to_sparse_bsr "
    "to_sparse_bsc".split()
)
_KEEPS_SPARSE: Final = frozenset(
    "coalesce t transpose to type float double half bfloat16 cpu clone detach requires_grad_ contiguous".split()
)
_FUNCTIONS_OF_LAYERS: Final = {name.replace("_", ""): name for name in BY_ROW}


def of_function(name: str, arguments: Arguments, result: Value) -> Value:
    """What a library function returns."""
    result = placement.of_function(name, arguments, result)
    if not name.startswith("torch."):
        return result
    result = _with_layout(name.rpartition(".")[2], arguments.first, result)
    operands = list(placement.operands_of(arguments))
    # What is unknown may be a tensor, but in a factory it is a size.
    is_of_sizes = name in placement.FACTORIES or UNKNOWN not in operands
    return _derived(name.rpartition(".")[2], operands, result, is_of_sizes)


def of_method(
    receiver: Tensor, name: str, arguments: Arguments, result: Value
) -> Value:
    """What a method of a tensor returns."""
    result = placement.of_method(receiver, name, arguments, result)
    result = _with_layout(name, receiver, result)
    if receiver.masked_read is not None and name == "numel":
        return tensor("int", ndim=0)
    if not receiver.decided and receiver.masked_read is None:
        return result
    return _derived(name, [receiver, *placement.operands_of(arguments)], result)


def of_layer(class_name: str, arguments: Arguments, result: Value) -> Value:
    """What a layer of a torch class returns."""
    name = _FUNCTIONS_OF_LAYERS.get(class_name.lower(), "")
    return (
        _with_rows(name, arguments.positional, result)
        if isinstance(result, Tensor)
        else result
    )


def of_operator(
    name: str, result: Value, *operands: Value | None, keeps_size: bool = True
) -> Value:
    """The result of `a + b`, `a < b`, `a[b]`; see `placement.of_operator`.

    Args:
        name: what torch calls it as a function.
    """
    result = placement.of_operator(result, *operands, keeps_size=keeps_size)
    return _derived(name, list(filter(None, operands)), result)


def _derived(
    name: str, operands: list[Value], result: Value, is_of_sizes: bool = False
) -> Value:
    """The result, decided if all tensors among the operands are.

    Args:
        name: of the function, the method or the operator, without modules.
        operands: all of them.
        result: what is known of it otherwise.
        is_of_sizes: whether a result of sizes alone is decided.
    """
    if not isinstance(result, Tensor | Sequence):
        return result
    if isinstance(result, Tensor):
        result = _with_rows(name, operands, result)
        if result.host or result.decided:
            return result
    traced = list(filter(is_traced, operands))
    are_known = UNKNOWN not in operands
    is_decided = all(value.decided for value in traced) and (
        is_of_sizes or (are_known and traced)
    )
    return _as_decided(result) if is_decided and _is_decisive(name) else result


def _with_layout(name: str, first: Value, result: Value) -> Value:
    is_sparse = name in _MAKES_SPARSE or (
        first.origin == "sparse" and name in _KEEPS_SPARSE
    )
    if is_sparse and isinstance(result, Tensor):
        return changed(result, origin="sparse")
    return result


def _is_decisive(name: str) -> bool:
    name = name.removesuffix("_")
    return name not in _UNDECISIVE and not name.startswith(_UNDECISIVE_STARTS)


def _with_rows(name: str, operands: list[Value], result: Tensor) -> Tensor:
    """The result with the read by a mask that its rows follow from."""
    read = read_in_result(name, operands)
    is_same = read == result.masked_read
    return result if is_same else changed(result, masked_read=read)


def _as_decided(value: Value) -> Value:
    match value:
        case Tensor(host=False):
            return changed(value, decided=True)
        case Sequence(items=items):
            parts = None if items is None else tuple(map(_as_decided, items))
            return Sequence(
                value.kind, parts, _as_decided(value.element), value.tensors
            )
        case _:
            return value


def with_values(value: Value) -> Value:
    """A value as code of libraries may use it: what is decided has values."""
    match value:
        case Tensor(decided=True, host=False):
            return placement.on_host(value)
        case Sequence(items=items):
            parts = None if items is None else tuple(map(with_values, items))
            element = with_values(value.element)
            is_open = items is None and element == value.element
            return Sequence(value.kind, parts, element, value.tensors and is_open)
        case _:
            return value
