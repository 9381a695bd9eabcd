"""TPU403: complex rotary embeddings in real numbers."""

import libcst as cst

from tpuport.lint.fixes.complex_pairs import Product, operand_pair, pairs_of, products
from tpuport.lint.fixes.place import Place
from tpuport.lint.fixes.rewrite import Edit, New, Rewrite


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """`view_as_real(view_as_complex(x) * freqs)` as (x0 cos - x1 sin, x0 sin + x1 cos), all of a function at once.

    The name that held `view_as_complex(x)` holds x itself, pairs in its last dimension. The table keeps its type:
    its real and imaginary parts are read, unless the function itself makes it with `torch.polar`.
    """
    function = place.function(node)
    torch = place.torch(node)
    if not isinstance(function, cst.FunctionDef) or torch is None:
        return None
    found = products(place, function)
    names = pairs_of(place, function, found)
    found = [product for product in found if any(id(side) in names.uses for side in product.sides)]
    changes: list[tuple[cst.CSTNode, New]] = []
    for product in found:
        text = _multiplied(place, product, names.uses, torch[0])
        if text is None:
            return None
        changes.append((product.node, place.expression(text)))
        changes += [(view, view.args[0].value) for view in product.views]
    if not found:
        return None
    changes += [(old, place.expression(text)) for old, text in names.values(torch[0])]
    changes += [(use, place.expression(f"{use.value}[..., 0]")) for use in names.shapes]
    covers = {id(part) for old, _ in changes for part in _below(old)}
    return Edit(tuple(changes), True, torch[1]) if id(node) in covers else None


def _below(node: cst.CSTNode) -> list[cst.CSTNode]:
    return [node, *(part for child in node.children for part in _below(child))]


def _multiplied(place: Place, product: Product, uses: set[int], torch: str) -> str | None:
    """Text of the product of two complex numbers, as a real tensor with pairs in its last dimension."""
    sides = [operand_pair(place, side, uses) for side in product.sides]
    left, right = sides
    if left is None or right is None:
        return None
    return (
        f"{torch}.stack(\n"
        "    [\n"
        f"        {left[0]} * {right[0]} - {left[1]} * {right[1]},\n"
        f"        {left[0]} * {right[1]} + {left[1]} * {right[0]},\n"
        "    ],\n"
        "    dim=-1,\n"
        ")"
    )


REWRITE = Rewrite("TPU403", (cst.Call,), rewrite)
