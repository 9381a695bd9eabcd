"""Names that code computes: what is known of them."""

import ast


def known_ends(node: ast.expr) -> tuple[str, str]:
    """What a computed string starts and ends with: `"_" + mode`, `f"layer{i}"`,
    `"layer%d" % i`.
    """
    match node:
        case ast.Constant(value=str(text)):
            return text, text
        case ast.JoinedStr(values=[first, *_]):
            return known_ends(first)[0], known_ends(node.values[-1])[1]
        case ast.BinOp(op=ast.Add()):
            return known_ends(node.left)[0], known_ends(node.right)[1]
        case ast.BinOp(op=ast.Mod()):
            return known_ends(node.left)[0].partition("%")[0], ""
        case ast.Call(func=ast.Attribute(attr="format", value=template)):
            start, end = known_ends(template)
            return start.partition("{")[0], end.rpartition("}")[2]
        case _:
            return "", ""
