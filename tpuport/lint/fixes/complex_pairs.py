"""Complex tensors of a function that can be pairs of real numbers: where they are
created, and where they are used.

Models write rotary embeddings as `view_as_real(view_as_complex(x) * table)`. Such a
product of complex numbers can be computed from the pairs themselves, if everything that
reads one of the complex tensors can do with pairs too.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final, NamedTuple

import libcst as cst

from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import (
    expect,
    is_simple,
    name_uses,
    names_assigned_in,
    parameters,
    receiver,
    scope_nodes,
    simple_assignment,
)
from tpuport.lint.fixes.tensors import only_assignment

_SHAPE_ATTRIBUTES: Final = frozenset({"shape", "ndim", "dim", "size"})
_RESHAPING_METHODS: Final = frozenset(
    {"unsqueeze", "view", "reshape", "to", "transpose", "squeeze"}
)


# --- products ---


@dataclasses.dataclass(frozen=True)
class Product:
    """`torch.view_as_real(left * right)`, the product perhaps bound to a name first.

    Attributes:
        node: what becomes the real product: the call, or the multiplication that a name
            is bound to.
        factors: left and right.
        views: calls of `view_as_real` on the name, each of which becomes the name.
    """

    node: cst.BaseExpression
    factors: tuple[cst.BaseExpression, cst.BaseExpression]
    views: tuple[cst.Call, ...] = ()


def find_products(site: Site, function: cst.FunctionDef) -> list[Product]:
    """All products in a function that are turned back into real numbers at once."""
    views = [
        node
        for node in scope_nodes(function)
        if site.is_torch_call(node, "view_as_real")
    ]
    products = [_product_viewed_by(site, function, view) for view in views]
    # Two views of one name give the same product.
    return list(
        {product.node: product for product in products if product is not None}.values()
    )


def _product_viewed_by(
    site: Site, function: cst.FunctionDef, view: cst.CSTNode
) -> Product | None:
    match view:
        case cst.Call(
            args=[
                cst.Arg(
                    value=cst.BinaryOperation(
                        left=left, operator=cst.Multiply(), right=right
                    )
                )
            ]
        ):
            return Product(view, (left, right))
        case cst.Call(args=[cst.Arg(value=cst.Name(value=name))]):
            return _named_product(site, function, name)
    return None


def _named_product(site: Site, function: cst.FunctionDef, name: str) -> Product | None:
    """`turned = left * right`, if `turned` is only ever passed to `view_as_real`."""
    match only_assignment(site, function, name):
        case cst.Assign(
            targets=[cst.AssignTarget(target=target)],
            value=cst.BinaryOperation(
                left=left, operator=cst.Multiply(), right=right
            ) as product,
        ):
            # Any other reader would see pairs where it expects complex numbers.
            views = [
                site.argument_of(use)
                for use in name_uses(function, name)
                if use is not target
            ]
            if all(site.is_torch_call(view, "view_as_real") for view in views):
                return Product(product, (left, right), tuple(filter(None, views)))
    return None


# --- pairs ---


@dataclasses.dataclass
class Pairs:
    """The complex tensors that can be pairs.

    Attributes:
        creations: the calls of `view_as_complex` or `polar` that names are bound to.
        factors: the factors that become pairs: names, and `view_as_complex(name)` in
            the product itself.
        shape_uses: names of which only the shape is read; a real half of the pairs has
            the same.
    """

    creations: list[cst.Call] = dataclasses.field(default_factory=list)
    factors: set[cst.CSTNode] = dataclasses.field(default_factory=set)
    shape_uses: list[cst.Name] = dataclasses.field(default_factory=list)


def find_pairs(
    site: Site, function: cst.FunctionDef, products: Sequence[Product]
) -> Pairs:
    """The factors that are created as complex numbers in the product, or earlier in the
    same block.
    """
    pairs = Pairs()
    factors = [factor for product in products for factor in product.factors]
    for factor in factors:
        match factor:
            # One creation may have been the reason to add several names.
            case cst.Name() if factor not in pairs.factors:
                _add_name(site, function, factor, factors, pairs)
            case cst.Call(args=[cst.Arg(value=value), *_]) if site.is_torch_call(
                factor, "view_as_complex"
            ):
                if is_simple(value):
                    pairs.factors.add(factor)
    return pairs


class _Creation(NamedTuple):
    """Statement number `position` of a block, which binds a name to a complex
    tensor.
    """

    block: cst.IndentedBlock
    position: int
    call: cst.Call


def _add_name(
    site: Site,
    function: cst.FunctionDef,
    factor: cst.Name,
    factors: Sequence[cst.BaseExpression],
    pairs: Pairs,
) -> None:
    """Add a factor that is a name, if everything that reads its value can do with
    pairs.
    """
    # Only a creation in the same block has surely run before the product.
    creation = _creation_before(site, factor)
    if creation is None:
        return
    reads = _reads_of(site, creation, factor.value)
    other_uses = set(name_uses(function, factor.value)).difference(reads)
    if any(_may_read(site, use, creation) for use in other_uses):
        return
    shape_uses = [use for use in reads if use not in factors]
    # `polar` becomes a stack of two tensors, whose halves are not slices of one input.
    if shape_uses and site.is_torch_call(creation.call, "polar"):
        return
    if all(_only_shape_is_read(site, use) for use in shape_uses):
        pairs.creations.append(creation.call)
        pairs.factors.update(set(reads).intersection(factors))
        pairs.shape_uses += shape_uses


def _creation_before(site: Site, factor: cst.Name) -> _Creation | None:
    """The last statement before a product, in the same block, that assigns to a factor;
    if it creates a pair.
    """
    line = site.enclosing(factor, cst.SimpleStatementLine)
    block = site.parent(line)
    if not isinstance(block, cst.IndentedBlock):
        return None
    for position in reversed(range(list(block.body).index(line))):
        statement = block.body[position]
        if factor.value in names_assigned_in(statement):
            call = _complex_value(site, statement)
            # Any other value hides what earlier statements assigned.
            if call is None:
                return None
            return _Creation(block, position, call)
    return None


def _complex_value(site: Site, statement: cst.CSTNode) -> cst.Call | None:
    """The call in `name = torch.view_as_complex(x)` or
    `name = torch.polar(torch.ones_like(angle), angle)`.
    """
    match simple_assignment(statement):
        case cst.Assign(value=cst.Call(args=[_]) as call) if site.is_torch_call(
            call, "view_as_complex"
        ):
            return call
        case cst.Assign(value=cst.Call() as call) if (
            _unit_angle(site, call) is not None
        ):
            return call
    return None


def _unit_angle(site: Site, node: cst.CSTNode) -> cst.BaseExpression | None:
    """`angle` in `torch.polar(torch.ones_like(angle), angle)`."""
    match node:
        case cst.Call(
            args=[cst.Arg(value=cst.Call() as radius), cst.Arg(value=angle)]
        ) if is_simple(angle):
            # With any other radius, the parts are not the bare cosine and sine.
            if site.is_torch_call(node, "polar") and site.is_torch_call(
                radius, "ones_like"
            ):
                return angle
    return None


def _reads_of(site: Site, creation: _Creation, name: str) -> list[cst.Name]:
    """The names that read what the creation assigned, up to the statement that assigns
    the name again.
    """
    reads: list[cst.Name] = []
    for statement in creation.block.body[creation.position + 1 :]:
        # `x = x * table` still reads the old value, so the block's reads end only after
        # it.
        reads += [
            use
            for use in name_uses(statement, name)
            if not site.enclosing(use, cst.AssignTarget)
        ]
        if name in names_assigned_in(statement):
            break
    return reads


def _may_read(site: Site, use: cst.Name, creation: _Creation) -> bool:
    """Whether a use outside the statements after the creation may read the complex
    value too.
    """
    path = {use, *site.ancestors(use)}
    if creation.block.body[creation.position] in path:
        return False
    if isinstance(site.parent(use), cst.AssignTarget | cst.Param):
        return False
    for index, statement in enumerate(creation.block.body):
        if statement in path:
            # After the creation another value has the name by then; before it only a
            # loop leads there.
            return (
                index < creation.position
                and site.enclosing(creation.block, *_LOOPS) is not None
            )
    return not _is_in_other_branch(site, path, creation.block)


_LOOPS: Final = (cst.For, cst.While)


def _is_in_other_branch(
    site: Site, path: set[cst.CSTNode], block: cst.IndentedBlock
) -> bool:
    """Whether a use and the block are in two branches of one `if`, and no loop leads
    from one to the other.

    Args:
        site: the finding.
        path: the use and its ancestors.
        block: the block of the creation.
    """
    if site.enclosing(block, *_LOOPS) is not None:
        return False
    for child, parent in site.steps_up(block):
        match parent:
            # The innermost `if` around both; they are in the same branch unless their
            # paths part here.
            case cst.If(body=body) if parent in path:
                return (child is body) != (body in path)
    return False


def _only_shape_is_read(site: Site, use: cst.Name) -> bool:
    """Whether code reads only the name's shape: here, or in a function of this file
    that the name is passed to.
    """
    parent = site.parent(use)
    match parent, site.argument_of(use):
        case cst.Attribute(attr=cst.Name(value=attribute)), _:
            return attribute in _SHAPE_ATTRIBUTES
        case cst.Arg(keyword=None), cst.Call(
            func=cst.Name(value=function_name), args=arguments
        ):
            if parent.star or site.is_shadowed_locally(use, function_name):
                return False
            return _reads_only_shape_of(
                site, function_name, list(arguments).index(parent)
            )
    return False


def _reads_only_shape_of(site: Site, function_name: str, index: int) -> bool:
    """Whether a function of this file reads only the shape of one of its parameters."""
    for statement in site.file.module.body:
        match statement:
            case cst.FunctionDef(name=cst.Name(value=name), body=body) if (
                name == function_name
            ):
                candidates = parameters(statement)
                if index >= len(candidates):
                    return False
                uses = name_uses(body, candidates[index].name.value)
                return all(_is_shape_attribute(site.parent(use)) for use in uses)
    return False


def _is_shape_attribute(node: cst.CSTNode | None) -> bool:
    return isinstance(node, cst.Attribute) and node.attr.value in _SHAPE_ATTRIBUTES


# --- new text ---


class ComplexParts(NamedTuple):
    """Texts of the real and the imaginary part of a complex number."""

    real: str
    imaginary: str


def factor_parts(site: Site, factor: cst.BaseExpression, pairs: Pairs) -> ComplexParts:
    """Texts of a factor's parts.

    Raises:
        CannotRewriteError: the text would repeat an expensive expression.
    """
    if factor in pairs.factors:
        match factor:
            case cst.Call(args=[cst.Arg(value=pair), *_]):
                text = site.code(pair)
            case _:
                text = site.code(factor)
        return ComplexParts(f"{text}[..., 0]", f"{text}[..., 1]")
    angle = _unit_angle(site, factor)
    if angle is not None:
        text = site.code(angle)
        return ComplexParts(f"{text}.cos()", f"{text}.sin()")
    expect(_is_cheap(factor))
    text = site.code(factor)
    return ComplexParts(f"{text}.real", f"{text}.imag")


def _is_cheap(factor: cst.BaseExpression) -> bool:
    """Whether the factor is a name, an index of one, or a reshaping of one."""
    match factor:
        case cst.Subscript(value=value):
            return _is_cheap(value)
        case cst.Call(func=cst.Attribute(attr=cst.Name(value=method))):
            return method in _RESHAPING_METHODS and _is_cheap(receiver(factor))
    return is_simple(factor)


def pair_text(site: Site, creation: cst.Call, torch: str) -> str:
    """Text of the pairs that a created complex tensor consists of."""
    angle = _unit_angle(site, creation)
    # `view_as_complex` of a tensor takes the pairs in its last dimension.
    if angle is None:
        return site.code(creation.args[0].value)
    text = site.code(angle)
    return f"{torch}.stack([{text}.cos(), {text}.sin()], dim=-1)"
