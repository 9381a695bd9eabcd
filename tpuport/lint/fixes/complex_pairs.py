"""Complex tensors of a function that can be pairs of real numbers: where they are made, and where they are used."""

import dataclasses
from collections.abc import Sequence

import libcst as cst

from tpuport.lint.fixes.aliasing import assigned_once
from tpuport.lint.fixes.names import own_nodes, parameters, target_names, uses, walk
from tpuport.lint.fixes.place import Place, is_simple, method

_ASKS_SHAPE = frozenset({"shape", "ndim", "dim", "size"})


@dataclasses.dataclass(frozen=True)
class Product:
    """`torch.view_as_real(left * right)`, the product perhaps under a name first.

    Attributes:
        node: what becomes the real product: the call, or the multiplication that gets a name.
        sides: the factors.
        views: calls of `view_as_real` on the name, each of which becomes the name.
    """

    node: cst.BaseExpression
    sides: tuple[cst.BaseExpression, cst.BaseExpression]
    views: tuple[cst.Call, ...] = ()


@dataclasses.dataclass
class Pairs:
    """What is complex now and can be pairs.

    Attributes:
        made: what makes each: `view_as_complex(...)` or `polar(...)` as the value of an assignment.
        uses: ids of the names that are a side of a product, and of `view_as_complex(name)` in the product itself.
        shapes: names that are only asked for their shape: the real half has the same.
    """

    place: Place
    made: list[cst.Call] = dataclasses.field(default_factory=list)
    uses: set[int] = dataclasses.field(default_factory=set)
    shapes: list[cst.Name] = dataclasses.field(default_factory=list)

    def values(self, torch: str) -> list[tuple[cst.CSTNode, str]]:
        """What each that is made becomes."""
        return [(call, _real(self.place, call, torch)) for call in self.made]


def products(place: Place, function: cst.FunctionDef) -> list[Product]:
    """All products in a function that come back to real numbers at once."""
    found: dict[int, Product] = {}
    for node in own_nodes(function):
        if not isinstance(node, cst.Call) or not place.is_torch(node, "view_as_real") or len(node.args) != 1:
            continue
        inside = node.args[0].value
        named = isinstance(inside, cst.Name)
        product = _named_product(place, function, inside) if named else _product(node, inside)
        if product is not None:
            found[id(product.node)] = product
    return list(found.values())


def _product(
    node: cst.BaseExpression, inside: cst.BaseExpression, views: tuple[cst.Call, ...] = ()
) -> Product | None:
    if isinstance(inside, cst.BinaryOperation) and isinstance(inside.operator, cst.Multiply):
        return Product(node, (inside.left, inside.right), views)
    return None


def _named_product(place: Place, function: cst.FunctionDef, name: cst.Name) -> Product | None:
    """`turned = left * right`, where `turned` is only ever given to `view_as_real`."""
    assign = assigned_once(place, function, name.value)
    if assign is None:
        return None
    views = []
    for use in uses(function, name.value):
        if use is assign.targets[0].target:
            continue
        call = place.parent(place.parent(use) or use)
        if not isinstance(call, cst.Call) or not place.is_torch(call, "view_as_real"):
            return None
        views.append(call)
    return _product(assign.value, assign.value, tuple(views))


def pairs_of(place: Place, function: cst.FunctionDef, found: Sequence[Product]) -> Pairs:
    """The sides of products that are made as complex numbers right there, or before in the same block."""
    result = Pairs(place)
    sides = {id(side) for product in found for side in product.sides}
    for product in found:
        for side in product.sides:
            if isinstance(side, cst.Name) and id(side) not in result.uses:
                _add_name(place, function, side, sides, result)
            elif place.is_torch(side, "view_as_complex") and is_simple(side.args[0].value):  # type: ignore[attr-defined]
                result.uses.add(id(side))
    return result


def operand_pair(place: Place, side: cst.BaseExpression, pairs: set[int]) -> tuple[str, str] | None:
    """Texts of the real and the imaginary part of one side."""
    if id(side) in pairs:
        text = place.code(side if isinstance(side, cst.Name) else side.args[0].value)  # type: ignore[attr-defined]
        return f"{text}[..., 0]", f"{text}[..., 1]"
    angle = _unit_angle(place, side) if isinstance(side, cst.Call) else None
    if angle is not None:
        return f"{place.code(angle)}.cos()", f"{place.code(angle)}.sin()"
    if not _is_short(side):
        return None
    return f"{place.code(side)}.real", f"{place.code(side)}.imag"


def _is_short(side: cst.BaseExpression) -> bool:
    """A name, an index of one, or a reshaping of one: cheap to say twice."""
    if isinstance(side, cst.Subscript):
        return _is_short(side.value)
    if isinstance(side, cst.Call):
        reshapes = method(side) in {"unsqueeze", "view", "reshape", "to", "transpose", "squeeze"}
        return reshapes and _is_short(side.func.value)  # type: ignore[union-attr]
    return is_simple(side)


def _add_name(
    place: Place, function: cst.FunctionDef, side: cst.Name, sides: set[int], result: Pairs
) -> None:
    """Take a name along if all that reads what it is assigned can do with pairs."""
    block, start, call = _made_before(place, side)
    if block is None or call is None:
        return
    read = _reads(block, start, side.value)
    inside = {id(use) for use in read}
    others = [use for use in uses(function, side.value) if id(use) not in inside]
    target = block.body[start]
    if any(_may_see(place, use, block, target) for use in others):
        return
    shapes = [use for use in read if id(use) not in sides]
    if place.is_torch(call, "polar") and shapes:
        return
    if all(_only_shape(place, use) for use in shapes):
        result.made.append(call)
        result.uses.update(inside & sides)
        result.shapes += shapes


def _made_before(place: Place, side: cst.Name) -> tuple[cst.IndentedBlock | None, int, cst.Call | None]:
    """The block, and the statement in it, that makes the name's value, before the product in the same block."""
    line = place.enclosing(side, cst.SimpleStatementLine)
    block = place.parent(line) if line is not None else None
    if not isinstance(block, cst.IndentedBlock):
        return None, 0, None
    here = next(number for number, statement in enumerate(block.body) if statement is line)
    for number in range(here - 1, -1, -1):
        statement = block.body[number]
        if side.value not in _bound(statement):
            continue
        call = _makes_complex(place, statement)
        return (block, number, call) if call is not None else (None, 0, None)
    return None, 0, None


def _makes_complex(place: Place, statement: cst.CSTNode) -> cst.Call | None:
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    assign = statement.body[0]
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return None
    call = assign.value
    if not isinstance(assign.targets[0].target, cst.Name) or not isinstance(call, cst.Call):
        return None
    if place.is_torch(call, "view_as_complex") and len(call.args) == 1:
        return call
    return call if _unit_angle(place, call) is not None else None


def _unit_angle(place: Place, call: cst.Call) -> cst.BaseExpression | None:
    """`angle` of `torch.polar(torch.ones_like(angle), angle)`."""
    if not place.is_torch(call, "polar") or len(call.args) != 2:
        return None
    size, angle = (arg.value for arg in call.args)
    if not place.is_torch(size, "ones_like") or not is_simple(angle):
        return None
    return angle


def _real(place: Place, call: cst.Call, torch: str) -> str:
    angle = _unit_angle(place, call)
    if angle is None:
        return place.code(call.args[0].value)
    text = place.code(angle)
    return f"{torch}.stack([{text}.cos(), {text}.sin()], dim=-1)"


def _bound(statement: cst.CSTNode) -> set[str]:
    found: set[str] = set()
    for node in walk(statement):
        if isinstance(node, cst.AssignTarget | cst.AugAssign | cst.AnnAssign | cst.For | cst.NamedExpr):
            found.update(target_names(node.target))
    return found


def _reads(block: cst.IndentedBlock, start: int, name: str) -> list[cst.Name]:
    """The names that read what statement number `start` of the block assigned; the assigned name itself too."""
    found = []
    for statement in block.body[start + 1 :]:
        bound = name in _bound(statement)
        targets = {
            id(n) for node in walk(statement) if isinstance(node, cst.AssignTarget) for n in walk(node)
        }
        found += [use for use in uses(statement, name) if id(use) not in targets]
        if bound:
            break
    return found


def _may_see(place: Place, use: cst.Name, block: cst.IndentedBlock, target: cst.CSTNode) -> bool:
    """Whether a use elsewhere in the function may read the complex value too."""
    lines = [use, *place.ancestors(use)]
    if any(above is target for above in lines):
        return False
    if isinstance(place.parent(use), cst.AssignTarget | cst.Param):
        return False
    siblings = list(block.body)
    position = next(
        (number for number, statement in enumerate(siblings) if any(a is statement for a in lines)), None
    )
    if position is not None:  # before it is made, or after another value has taken the name
        return any(isinstance(above, cst.For | cst.While) for above in place.ancestors(block)) and (
            position < next(number for number, statement in enumerate(siblings) if statement is target)
        )
    return not _in_other_branch(place, lines, block)


def _in_other_branch(place: Place, lines: list[cst.CSTNode], block: cst.IndentedBlock) -> bool:
    """Whether the use and the block are in two branches of one `if`, and no loop leads from the one to the other."""
    own = [block, *place.ancestors(block)]
    if any(isinstance(above, cst.For | cst.While) for above in own):
        return False
    for above in own:
        if isinstance(above, cst.If) and any(line is above for line in lines):
            mine = any(line is above.body for line in own)
            theirs = any(line is above.body for line in lines)
            return mine != theirs
    return False


def _only_shape(place: Place, use: cst.Name) -> bool:
    """Whether the name is only asked for its shape: here, or in a function of this file that it is given to."""
    above = place.parent(use)
    if isinstance(above, cst.Attribute):
        return above.attr.value in _ASKS_SHAPE
    call = place.parent(above) if isinstance(above, cst.Arg) else None
    if (
        not isinstance(above, cst.Arg)
        or not isinstance(call, cst.Call)
        or not isinstance(call.func, cst.Name)
    ):
        return False
    if above.keyword or above.star or place.shadowed_locally(use, call.func.value):
        return False
    position = [id(arg) for arg in call.args].index(id(above))
    for statement in place.file.module.body:
        if isinstance(statement, cst.FunctionDef) and statement.name.value == call.func.value:
            given = parameters(statement)
            return position < len(given) and _asks_shape_only(place, statement, given[position].name)
    return False


def _asks_shape_only(place: Place, function: cst.FunctionDef, parameter: cst.Name) -> bool:
    for use in uses(function.body, parameter.value):
        above = place.parent(use)
        if not isinstance(above, cst.Attribute) or above.attr.value not in _ASKS_SHAPE:
            return False
    return True
