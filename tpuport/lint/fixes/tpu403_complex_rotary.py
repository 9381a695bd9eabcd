"""TPU403: complex rotary embeddings in real numbers."""

import libcst as cst

from tpuport.lint.fixes.complex_pairs import (
    Pairs,
    Product,
    factor_parts,
    find_pairs,
    find_products,
    pair_text,
)
from tpuport.lint.fixes.edits import Edit, Replacement, Rewrite
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import expect, require_kind


def rewrite(node: cst.Call, site: Site) -> Edit:
    """`view_as_real(view_as_complex(x) * freqs)` as (x0 cos - x1 sin, x0 sin + x1 cos),
    for a whole function at once.

    The name that was bound to `view_as_complex(x)` is bound to x itself, pairs in its
    last dimension. The table keeps its type: its real and imaginary parts are read,
    unless the function itself creates it with `torch.polar`.
    """
    function = require_kind(site.enclosing_function(node), cst.FunctionDef)
    torch = site.torch_name(node)
    products = find_products(site, function)
    pairs = find_pairs(site, function, products)
    changes: list[tuple[cst.CSTNode, Replacement]] = []
    for product in products:
        if pairs.factors.isdisjoint(product.factors):
            continue
        changes.append(
            (
                product.node,
                site.expression(_product_text(site, product, pairs, torch.name)),
            )
        )
        changes += [(view, view.args[0].value) for view in product.views]
    # Without a product there is nothing to gain from pairs.
    expect(changes)
    for creation in pairs.creations:
        changes.append(
            (creation, site.expression(pair_text(site, creation, torch.name)))
        )
    for use in pairs.shape_uses:
        changes.append((use, site.expression(f"{use.value}[..., 0]")))
    # The rest of the function may be rewritten while the call of this finding stays.
    path = {node, *site.ancestors(node)}
    expect(any(changed in path for changed, _ in changes))
    return Edit(tuple(changes), unsafe=True, imports=torch.imports)


def _product_text(site: Site, product: Product, pairs: Pairs, torch: str) -> str:
    """Text of the product of two complex numbers, as a real tensor with pairs in its
    last dimension.
    """
    left, right = (factor_parts(site, factor, pairs) for factor in product.factors)
    return (
        f"{torch}.stack(\n"
        "    [\n"
        f"        {left.real} * {right.real} - {left.imaginary} * {right.imaginary},\n"
        f"        {left.real} * {right.imaginary} + {left.imaginary} * {right.real},\n"
        "    ],\n"
        "    dim=-1,\n"
        ")"
    )


REWRITE = Rewrite("TPU403", (cst.Call,), rewrite, reads_whole_file=True)
