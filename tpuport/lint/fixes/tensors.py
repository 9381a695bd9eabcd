"""What the text tells about tensors: which device they are on, and whether another name
shares their memory.
"""

from collections.abc import Iterator
from typing import Final

import libcst as cst

from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import (
    FUNCTION_NODES,
    FunctionNode,
    called_name,
    is_name,
    keyword_argument,
    method_name,
    name_uses,
    parameter_names,
    parameters,
    receiver,
    scope_nodes,
    simple_assignment,
    walk,
)

# --- devices ---

_FACTORIES: Final = frozenset(
    "arange as_tensor empty eye full linspace logspace ones rand randint randn randperm tensor zeros Generator "
    "tril_indices triu_indices hann_window hamming_window from_numpy".split()
)
_TENSOR_TYPES: Final = frozenset(
    {"Tensor", "FloatTensor", "LongTensor", "IntTensor", "BoolTensor"}
)
# Only a tensor has all of these, and code that reads one of a parameter treats it as a
# tensor.
_TENSOR_ATTRIBUTES: Final = frozenset({"shape", "dtype", "device", "ndim"})


def device_of_input(site: Site, node: cst.CSTNode) -> str | None:
    """Text for the device of a tensor that the function around the node surely has:
    `x.device` of a parameter.
    """
    function = site.enclosing_function(node)
    if not isinstance(function, cst.FunctionDef):
        return None
    # In the order of the parameters: the first is usually the input itself.
    treated_as_tensors = _names_treated_as_tensors(function)
    for parameter in parameters(function):
        if _is_tensor_input(site, parameter, treated_as_tensors):
            return f"{parameter.name.value}.device"
    return _device_of_forward_input(function)


def _is_tensor_input(
    site: Site, parameter: cst.Param, treated_as_tensors: set[str]
) -> bool:
    """Whether each call passes a tensor for a parameter."""
    match parameter:
        case (
            cst.Param(name=cst.Name(value="self" | "cls")) | cst.Param(star="*" | "**")
        ):
            return False
        # A parameter with a default may be None.
        case cst.Param(default=None, annotation=None, name=cst.Name(value=name)):
            return name in treated_as_tensors
        case cst.Param(default=None, annotation=cst.Annotation(annotation=annotation)):
            return _is_tensor_type(site.code(annotation))
    return False


def _is_tensor_type(annotation: str) -> bool:
    return annotation.strip("\"'").rpartition(".")[2] in _TENSOR_TYPES


def _names_treated_as_tensors(function: cst.FunctionDef) -> set[str]:
    """Names whose `.shape`, `.dtype`, `.device` or `.ndim` the function reads."""
    names: set[str] = set()
    for node in scope_nodes(function):
        match node:
            case cst.Attribute(
                value=cst.Name(value=name), attr=cst.Name(value=attribute)
            ):
                if attribute in _TENSOR_ATTRIBUTES:
                    names.add(name)
    return names


def _device_of_forward_input(function: cst.FunctionDef) -> str | None:
    """The first input of a `forward` is a tensor if the `forward` computes with it."""
    match function.name.value, parameters(function)[1:2]:
        case "forward", [
            cst.Param(name=cst.Name(value=name), annotation=None, default=None, star="")
        ]:
            operations = (
                node
                for node in scope_nodes(function)
                if isinstance(node, cst.BinaryOperation)
            )
            if any(
                is_name(node.left, name) or is_name(node.right, name)
                for node in operations
            ):
                return f"{name}.device"
    return None


def is_created_on_host(site: Site, node: cst.CSTNode) -> bool:
    """Whether the expression creates a tensor without a device or for the CPU, methods
    of the tensor aside.
    """
    # Of `torch.ones(4).view(2, 2)` the innermost call creates the tensor.
    while isinstance(node, cst.Call) and site.method_of_value(node):
        node = receiver(node)
    if not isinstance(node, cst.Call) or not is_factory(site.function_name(node)):
        return False
    match keyword_argument(node, "device"):
        case cst.Arg(value=device):
            return site.code(device).strip("\"'") == "cpu"
    return True


def is_factory(function: str) -> bool:
    """Whether a library function of this name creates tensors on the host unless it is
    passed a device.
    """
    return function.startswith("torch.") and function.rpartition(".")[2] in _FACTORIES


# --- shared memory ---

# Functions and methods of torch whose result has memory of its own.
_ALLOCATING: Final = frozenset(
    "zeros ones full empty rand randn randint arange linspace zeros_like ones_like full_like empty_like rand_like "
    "randn_like clone where cat stack softmax sigmoid tanh exp log sqrt matmul bmm einsum gather index_select "
    "masked_fill clamp abs sum mean cumsum add mul sub div new_zeros new_ones new_full new_empty".split()
)
_SCOPES: Final = (cst.ClassDef, *FUNCTION_NODES)
_METADATA: Final = frozenset(
    {"shape", "dtype", "device", "ndim", "size", "dim", "numel"}
)


def can_be_rebound(site: Site, target: cst.Name, function: FunctionNode) -> bool:
    """Whether `name = ...` instead of `name[...] = ...` means the same: the name is
    local, and no closure uses it.
    """
    name = target.value
    if name not in site.file.local_names(function):
        return False
    # A closure would see the new tensor, or none at all.
    return all(
        site.enclosing(use, *_SCOPES) is function
        for use in name_uses(function.body, name)
    )


def is_private(site: Site, target: cst.Name, function: FunctionNode) -> bool:
    """Whether no other name can share the tensor's memory at a write to it.

    The function itself must have created the tensor, and nothing between there and the
    write may keep hold of it.
    """
    creation = _creating_line(site, target, function)
    if creation is None:
        return False
    # The order of the text is the order of execution, loops aside.
    nodes = list(walk(function.body))
    between = nodes[nodes.index(creation) : nodes.index(target)]
    before_write = {*between, *_nodes_repeated_before(site, target, creation)} - {
        target
    }
    uses = [
        use for use in name_uses(function.body, target.value) if use in before_write
    ]
    return all(_keeps_no_hold(site, use) for use in uses)


def _nodes_repeated_before(
    site: Site, target: cst.Name, creation: cst.CSTNode
) -> Iterator[cst.CSTNode]:
    """Nodes in loops around the write but not around the creation: they also run before
    the next write.
    """
    for ancestor in set(site.ancestors(target)).difference(site.ancestors(creation)):
        if isinstance(ancestor, cst.For | cst.While):
            yield from walk(ancestor)


def _creating_line(
    site: Site, target: cst.Name, function: FunctionNode
) -> cst.CSTNode | None:
    """The last line that surely runs before the write and binds the name to a new
    tensor.
    """
    for child, parent in site.steps_up(target):
        # What runs outside the function, before the call, cannot bind a local name.
        if parent is function:
            break
        if isinstance(parent, cst.IndentedBlock):
            statements: list[cst.CSTNode] = list(parent.body)
            for statement in reversed(statements[: statements.index(child)]):
                if _creates(site, statement, target.value):
                    return statement
    return None


def _creates(site: Site, statement: cst.CSTNode, name: str) -> bool:
    match simple_assignment(statement):
        case cst.Assign(
            targets=[cst.AssignTarget(target=cst.Name(value=target))], value=value
        ):
            return target == name and _has_own_memory(site, value)
    return False


def _has_own_memory(site: Site, value: cst.BaseExpression) -> bool:
    """Whether the value is a new tensor."""
    return isinstance(value, cst.BinaryOperation) or _is_allocating_call(site, value)


def _is_allocating_call(site: Site, node: cst.CSTNode | None) -> bool:
    if not isinstance(node, cst.Call):
        return False
    # "" for a method of a value.
    package, _, function = site.function_name(node).partition(".")
    return (
        package in {"", "torch"}
        and (function.rpartition(".")[2] or method_name(node)) in _ALLOCATING
    )


def _keeps_no_hold(site: Site, use: cst.Name) -> bool:
    """Whether no reference to the tensor's memory can remain after this use of its
    name.
    """
    parent = site.parent(use)
    match parent:
        case cst.AssignTarget():
            match site.parent(parent):
                case cst.Assign(targets=[_], value=value):
                    return _has_own_memory(site, value)
            return False
        case cst.AugAssign(target=target, operator=operator):
            # `names += x` may extend a list by the tensor.
            return target is use or not isinstance(operator, cst.AddAssign)
        case cst.Attribute(attr=cst.Name(value=attribute)):
            return attribute in _METADATA or _is_allocating_call(
                site, site.parent(parent)
            )
        # The results of operators have memory of their own.
        case (
            cst.BinaryOperation()
            | cst.UnaryOperation()
            | cst.Comparison()
            | cst.ComparisonTarget()
        ):
            return True
        case cst.Arg():
            call = site.parent(parent)
            return _is_allocating_call(site, call) or called_name(call) == "len"
        case cst.Subscript(value=base) if base is use:
            return isinstance(site.parent(parent), cst.AssignTarget | cst.AugAssign)
    return False


def only_assignment(site: Site, function: FunctionNode, name: str) -> cst.Assign | None:
    """The only statement in the function that binds the name, if that is a plain
    `name = value`.
    """
    if name in parameter_names(function):
        return None
    match [use for use in name_uses(function, name) if _is_binding(site, use)]:
        # Not one in a nested function or class.
        case [binding] if site.enclosing(binding, *_SCOPES) is function:
            target = site.parent(binding)
            match target, site.parent(target):
                case cst.AssignTarget(), cst.Assign(targets=[_]) as assignment:
                    return assignment
    return None


def _is_binding(site: Site, use: cst.Name) -> bool:
    """Whether the name is the target of a statement, or part of it, and not merely read
    there.
    """
    for child, ancestor in site.steps_up(use):
        match ancestor:
            case (
                cst.AssignTarget()
                | cst.AsName()
                | cst.Del()
                | cst.Global()
                | cst.Nonlocal()
            ):
                return True
            case (
                cst.AugAssign(target=target)
                | cst.AnnAssign(target=target)
                | cst.NamedExpr(target=target)
                | cst.For(target=target)
                | cst.CompFor(target=target)
            ):
                return target is child
            case (
                cst.Subscript()
                | cst.Attribute()
                | cst.Call()
                | cst.BaseSmallStatement()
            ):
                return False
    return False
