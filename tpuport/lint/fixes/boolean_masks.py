"""What the text tells about boolean masks: their negation, their dtype, and how their
shape relates to a tensor's.
"""

import dataclasses
from typing import Final

import libcst as cst

from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import (
    FunctionNode,
    is_number,
    is_simple,
    names_bound_by_statements,
    parameters,
)

# Functions whose result has the shape of the tensor that they read.
_ELEMENTWISE: Final = frozenset(
    "isnan isinf isfinite isneginf isposinf logical_not eq ne lt le gt ge signbit".split()
)
# Functions whose result is boolean.
_PREDICATES: Final = frozenset(
    "bool isnan isinf isfinite isneginf isposinf logical_not logical_and logical_or".split()
)
_CONSTANTS: Final = frozenset(
    {"math.inf", "math.pi", "math.nan", "torch.inf", "torch.nan", "torch.pi"}
)

# The lead of a mask behind `...`.
TRAILING: Final = -1


@dataclasses.dataclass(frozen=True)
class MaskedAccess:
    """`x[mask]`, `x[:, mask]` or `x[..., mask]`, read or written.

    Attributes:
        base: a name, or attributes of one.
        mask: the last index.
        lead: number of full slices before the mask, `TRAILING` for `...`.
    """

    base: cst.BaseExpression
    mask: cst.BaseExpression
    lead: int

    def covers_whole_base(self, site: Site) -> bool:
        """Whether the mask broadcasts against the base as it is, without an alignment
        of its dimensions.
        """
        if self.lead == TRAILING:
            return True
        return self.lead == 0 and has_same_shape(site, self.mask, self.base)

    def aligned_mask(self, site: Site, mask: str) -> str:
        """Text that broadcasts the mask, of which `mask` is the text, against all
        dimensions of the base.

        An operand is broadcast from the right, an index from the left.
        """
        base_dimensions = f"{site.code(self.base)}.ndim"
        if self.lead == TRAILING:
            return mask
        if self.lead:
            base_dimensions += f" - {self.lead}"
        return (
            f"{mask}.reshape({mask}.shape + (1,) * ({base_dimensions} - {mask}.ndim))"
        )


def masked_access(node: cst.CSTNode) -> MaskedAccess | None:
    """The parts of `x[mask]`; None if x is not a simple name or if there are other
    indices.
    """
    match node:
        case cst.Subscript(
            value=base,
            slice=[
                *leading,
                cst.SubscriptElement(slice=cst.Index(value=mask, star=None)) as last,
            ],
        ) if is_simple(base):
            pass
        case _:
            return None
    match mask, leading:
        case cst.Tuple(), _:
            return None
        # `x[mask,]` indexes by a tuple.
        case _, [] if isinstance(last.comma, cst.Comma):
            return None
        case _, [cst.SubscriptElement(slice=cst.Index(value=cst.Ellipsis()))]:
            return MaskedAccess(base, mask, TRAILING)
        case _ if all(map(_is_full_slice, leading)):
            return MaskedAccess(base, mask, len(leading))
    return None


def _is_full_slice(element: cst.SubscriptElement) -> bool:
    match element.slice:
        case cst.Slice(lower=None, upper=None, step=None):
            return True
    return False


def negated(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """`mask` in `~mask` or `mask.logical_not()`; None for any other expression."""
    match node:
        case cst.UnaryOperation(operator=cst.BitInvert(), expression=mask):
            return mask
        case cst.Call(
            func=cst.Attribute(value=mask, attr=cst.Name(value="logical_not")), args=[]
        ):
            return mask
    return None


def is_boolean(node: cst.BaseExpression) -> bool:
    """Whether the text shows that the dtype is bool."""
    match node:
        case cst.Comparison():
            return True
        case cst.BinaryOperation(
            operator=cst.BitAnd() | cst.BitOr(), left=left, right=right
        ):
            return is_boolean(left) and is_boolean(right)
        case cst.UnaryOperation(operator=cst.BitInvert(), expression=mask):
            return is_boolean(mask)
        case cst.Call(
            func=cst.Attribute(value=mask, attr=cst.Name(value="logical_not")), args=[]
        ):
            return is_boolean(mask)
        case cst.Call(func=cst.Attribute(attr=cst.Name(value=name))):
            return name in _PREDICATES
    return False


def boolean_text(site: Site, mask: cst.BaseExpression) -> str:
    """Text of the mask as booleans, whatever its dtype."""
    return site.code(mask) if is_boolean(mask) else f"{site.operand(mask)} != 0"


def has_same_shape(
    site: Site, mask: cst.BaseExpression, base: cst.BaseExpression
) -> bool:
    """Whether the text shows that a mask has the shape of the tensor it indexes:
    `x[x > 0]`, `x[torch.isnan(x)]`.
    """
    # A negation has the shape of what it negates.
    positive = negated(mask)
    if positive is not None:
        return has_same_shape(site, positive, base)
    match mask:
        case cst.Comparison(
            left=left, comparisons=[cst.ComparisonTarget(comparator=right)]
        ):
            operands = [left, right]
        case cst.Call(
            func=cst.Attribute(value=owner, attr=cst.Name(value=name)), args=args
        ) if name in _ELEMENTWISE:
            operands = [argument.value for argument in args]
            # `x.isnan()`, as opposed to `torch.isnan(x)`.
            if not site.function_name(mask):
                operands.append(owner)
        case _:
            return False
    base_text = site.code(base)
    # Beside the tensor itself (`x != x` is true for NaN), only numbers surely keep its
    # shape.
    others = [operand for operand in operands if site.code(operand) != base_text]
    return len(others) < len(operands) and all(map(is_number, others))


def is_scalar(site: Site, node: cst.BaseExpression) -> bool:
    """Whether the text shows that the node is a Python number, not a tensor."""
    if is_number(node):
        return True
    match node:
        case cst.BinaryOperation(left=left, right=right):
            return is_scalar(site, left) and is_scalar(site, right)
        case cst.UnaryOperation(expression=operand):
            return is_scalar(site, operand)
        # `torch.finfo(x.dtype).min`
        case cst.Attribute(
            value=cst.Call(func=cst.Attribute(attr=cst.Name(value="finfo" | "iinfo")))
        ):
            return True
        case cst.Attribute():
            return site.dotted_name(node) in _CONSTANTS
        case cst.Name(value=name):
            return _is_number_parameter(site.enclosing_function(node), name)
    return site.function_name(node).startswith("math.")


def _is_number_parameter(function: FunctionNode | None, name: str) -> bool:
    """Whether a parameter is annotated as `float` or `int`, and the function never
    assigns to it.
    """
    if function is None or name in names_bound_by_statements(function):
        return False
    annotations = {
        parameter.name.value: parameter.annotation for parameter in parameters(function)
    }
    match annotations.get(name):
        case cst.Annotation(annotation=cst.Name(value="float" | "int")):
            return True
    return False
