"""What the text says of masks: their names, their negations, how many dimensions they have."""

import dataclasses

import libcst as cst

from tpuport.lint.fixes.names import bound_by_statements, parameters
from tpuport.lint.fixes.place import FunctionNode, Place, is_simple, method

_ELEMENTWISE = frozenset(
    "isnan isinf isfinite isneginf isposinf logical_not eq ne lt le gt ge signbit".split()
)
_BOOLEAN = frozenset("bool isnan isinf isfinite isneginf isposinf logical_not logical_and logical_or".split())


def negated(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """`mask` of `~mask` or `mask.logical_not()`."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.BitInvert):
        return node.expression
    if isinstance(node, cst.Call) and method(node) == "logical_not" and not node.args:
        return node.func.value  # type: ignore[union-attr]
    return None


def is_boolean(node: cst.BaseExpression) -> bool:
    """Whether the text says that its dtype is bool."""
    if isinstance(node, cst.Comparison):
        return True
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitAnd | cst.BitOr):
        return is_boolean(node.left) and is_boolean(node.right)
    inside = negated(node)
    if inside is not None:
        return is_boolean(inside)
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value in _BOOLEAN
    )


def as_boolean(place: Place, mask: cst.BaseExpression) -> str:
    """Text of the mask as booleans, whatever its dtype."""
    return place.code(mask) if is_boolean(mask) else f"{place.operand(mask)} != 0"


def same_shape(place: Place, mask: cst.BaseExpression, base: cst.BaseExpression) -> bool:
    """Whether the text says that the mask has the shape of what it indexes: `x[x > 0]`, `x[torch.isnan(x)]`."""
    if isinstance(mask, cst.Comparison) and len(mask.comparisons) == 1:
        other = mask.comparisons[0].comparator
        pair = [(mask.left, other), (other, mask.left)]
        return any(
            place.code(one) == place.code(base) and (is_number(two) or place.code(two) == place.code(base))
            for one, two in pair
        )
    inside = negated(mask)
    if inside is not None:
        return same_shape(place, inside, base)
    if (
        isinstance(mask, cst.Call)
        and isinstance(mask.func, cst.Attribute)
        and mask.func.attr.value in _ELEMENTWISE
    ):
        of_torch = bool(place.dotted(mask.func))
        values = [arg.value for arg in mask.args]
        first = values[:1] if of_torch else [mask.func.value]
        rest = values[1:] if of_torch else values
        return [place.code(v) for v in first] == [place.code(base)] and all(map(is_number, rest))
    return False


def aligned(mask: str, base: str, lead: int = 0) -> str:
    """Text of a mask that broadcasts against all of `base`'s dimensions, of which it indexes those after `lead`.

    An operand is broadcast from the right, an index from the left; behind `...` (lead -1) they are the same.
    """
    if lead < 0:
        return mask
    dims = f"{base}.ndim - {lead} - {mask}.ndim" if lead else f"{base}.ndim - {mask}.ndim"
    return f"{mask}.reshape({mask}.shape + (1,) * ({dims}))"


def is_number(node: cst.BaseExpression) -> bool:
    """Whether it is a number, True or False, or arithmetic with them."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus | cst.Plus):
        return is_number(node.expression)
    if isinstance(node, cst.BinaryOperation):
        return is_number(node.left) and is_number(node.right)
    if isinstance(node, cst.Name):
        return node.value in {"True", "False"}
    return isinstance(node, cst.Integer | cst.Float) or _is_infinity(node)


def _is_infinity(node: cst.BaseExpression) -> bool:
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Name) or node.func.value != "float":
        return False
    return len(node.args) == 1 and isinstance(node.args[0].value, cst.SimpleString)


def is_scalar(place: Place, node: cst.BaseExpression) -> bool:
    """Whether the text says that it is a number of Python's, not a tensor."""
    if is_number(node):
        return True
    if isinstance(node, cst.BinaryOperation):
        return is_scalar(place, node.left) and is_scalar(place, node.right)
    if isinstance(node, cst.UnaryOperation):
        return is_scalar(place, node.expression)
    if isinstance(node, cst.Attribute):
        name = place.dotted(node)
        return name in {"math.inf", "math.pi", "math.nan", "torch.inf", "torch.nan", "torch.pi"} or _of_finfo(
            node
        )
    if isinstance(node, cst.Name):
        return _annotated_number(place.function(node), node.value)
    return isinstance(node, cst.Call) and place.dotted(node.func).startswith("math.")


def _of_finfo(node: cst.Attribute) -> bool:
    inside = node.value
    return (
        isinstance(inside, cst.Call)
        and isinstance(inside.func, cst.Attribute)
        and (inside.func.attr.value in {"finfo", "iinfo"})
    )


def _annotated_number(function: FunctionNode | None, name: str) -> bool:
    """Whether a parameter says `float` or `int`, and nothing else is assigned to it."""
    if function is None:
        return False
    for parameter in parameters(function):
        if parameter.name.value == name and parameter.annotation is not None:
            said = parameter.annotation.annotation
            return (
                isinstance(said, cst.Name)
                and said.value in {"float", "int"}
                and name not in bound_by_statements(function)
            )
    return False


@dataclasses.dataclass(frozen=True)
class MaskedRead:
    """`x[mask]`, `x[:, mask]` or `x[..., mask]`.

    Attributes:
        base: a name, or attributes of one.
        mask: the last index.
        lead: number of full slices before the mask, -1 for `...`.
    """

    base: cst.BaseExpression
    mask: cst.BaseExpression
    lead: int


def masked_read(node: cst.CSTNode) -> MaskedRead | None:
    """The parts of `x[mask]`; None where x is no simple name or there are other indices."""
    if not isinstance(node, cst.Subscript) or not is_simple(node.value):
        return None
    *before, last = (element.slice for element in node.slice)
    if not isinstance(last, cst.Index) or last.star or isinstance(last.value, cst.Tuple):
        return None
    if not before and not isinstance(node.slice[0].comma, cst.MaybeSentinel):
        return None
    if len(before) == 1 and isinstance(before[0], cst.Index) and isinstance(before[0].value, cst.Ellipsis):
        return MaskedRead(node.value, last.value, -1)
    full = all(isinstance(s, cst.Slice) and not (s.lower or s.upper or s.step) for s in before)
    return MaskedRead(node.value, last.value, len(before)) if full else None
