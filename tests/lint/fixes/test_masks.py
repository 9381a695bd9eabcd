"""Rewrites of boolean masks and places of true elements."""

import pytest

_ALIGNED = "mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))"


@pytest.mark.parametrize(
    ("node", "before", "after"),
    [
        (
            "x[x > 0] *= 2",
            "x = x.clone()\nx[x > 0] *= 2  # double\nreturn x",
            "x = x.clone()\nx = torch.where(x > 0, x * 2, x)  # double\nreturn x",
        ),
        (
            "y[torch.isnan(y)] = 0.5",
            "y = x + 1\ny[torch.isnan(y)] = 0.5",
            "y = x + 1\ny = torch.where(torch.isnan(y), 0.5, y).to(y.dtype)",
        ),
        (
            "y[..., mask] -= 1",
            "y = torch.zeros_like(x)\ny[..., mask] -= 1",
            "y = torch.zeros_like(x)\ny = torch.where(mask, y - 1, y)",
        ),
        (
            "y[:, mask] += 1",
            "y = torch.zeros_like(x)\ny[:, mask] += 1",
            (
                "y = torch.zeros_like(x)\n"
                "y = torch.where(mask.reshape(mask.shape + (1,) * (y.ndim - 1 - mask.ndim)), y + 1, y)"
            ),
        ),
        (
            "y[mask == 0] *= 2",
            "y = torch.zeros_like(x)\n# halve\ny[mask == 0] *= 2",
            (
                "y = torch.zeros_like(x)\n# halve\nselected = mask == 0\n"
                "y = torch.where(selected.reshape(selected.shape + (1,) * (y.ndim - selected.ndim)), y * 2, y)"
            ),
        ),
        (
            "y[y < 0] = -(x[y < 0] + 1) ** 2",
            "y = torch.zeros_like(x)\ny[y < 0] = -(x[y < 0] + 1) ** 2",
            "y = torch.zeros_like(x)\ny[y < 0] = -(x[y < 0] + 1) ** 2",  # its gradient may be NaN: unsafe
        ),
        (
            "y[y < 0] = -(x[y < 0] + 1) * 2",
            "y = torch.zeros_like(x)\ny[y < 0] = -(x[y < 0] + 1) * 2",
            "y = torch.zeros_like(x)\ny = torch.where(y < 0, -(x + 1) * 2, y).to(y.dtype)",
        ),
    ],
)
def test_writes_to_a_tensor_of_the_function(node: str, before: str, after: str, fix_forward) -> None:
    assert fix_forward(before, ("TPU113", node)) == after


@pytest.mark.parametrize(
    "before",
    [
        "x[mask] *= 2\nreturn x",  # the caller sees it
        "y = x\ny[mask] *= 2\nreturn x",
        "y = x.view(-1)\ny[mask] *= 2",
        "y = x.clone()\nz = y\ny[mask] *= 2\nreturn z",
        "y = x.clone()\nz = y[0]\ny[mask] *= 2\nreturn z",
        "y = x.clone()\nself.keep(y)\ny[mask] *= 2",
        "y = x.clone()\nkept.append(y)\ny[mask] *= 2",
        "y = x.clone()\nfor i in range(3):\n    y[mask] *= 2\n    z = y",
        "y = x.clone()\nz = [y]\ny[mask] *= 2\nreturn z",
    ],
)
def test_a_write_that_others_may_see_is_unsafe(before: str, fix_forward) -> None:
    name = "x" if before.startswith("x[") else "y"
    target = ("TPU113", f"{name}[mask] *= 2")
    assert fix_forward(before, target) == before
    assert f"{name} = torch.where(" in fix_forward(before, target, unsafe=True)


@pytest.mark.parametrize(
    ("node", "before"),
    [
        ("self.x[mask] *= 2", "self.x[mask] *= 2"),
        ("x[0][mask] *= 2", "x[0][mask] *= 2"),
        ("x[mask] *= v", "x[mask] *= v"),  # one number, or one for each true element
        ("x[mask] = y[other]", "x[mask] = y[other]"),
        ("x[mask, 0] *= 2", "x[mask, 0] *= 2"),
        ("x[:1, mask] *= 2", "x[:1, mask] *= 2"),
        ("x[mask] @= y", "x[mask] @= y"),
        ("x[mask] *= 2", "x[mask] *= 2; y = 1"),
        ("x[mask] *= 2", "global x\nx[mask] *= 2"),
        ("x[mask] *= 2", "def f():\n    return x\nx[mask] *= 2\nreturn f()"),
        ("x[mask] *= 2", "def f():\n    x[mask] *= 2\nf()"),
        ("x[(m := mask)] = x[(m := mask)]", "x[(m := mask)] = x[(m := mask)]"),
        ("x[mask] = y = 0", "x[mask] = y = 0"),
    ],
)
def test_writes_left_alone(node: str, before: str, fix_forward) -> None:
    arguments = "mask" if "global" in before else "x, mask"
    assert fix_forward(before, ("TPU113", node), unsafe=True, arguments=arguments) == before


def test_numbers_that_the_signature_says(fix) -> None:
    text = "import torch\ndef f(v: float, w, n: int):\n    y = torch.ones(n)\n    y[y > 0] *= {0}\n    return y\n"
    assert "torch.where(y > 0, y * v, y)" in fix(text.format("v"), ("TPU113", "y[y > 0] *= v"))
    assert "torch.where" not in fix(text.format("w"), ("TPU113", "y[y > 0] *= w"), unsafe=True)
    assert "y * (v * n - 1)" in fix(text.format("v * n - 1"), ("TPU113", "y[y > 0] *= v * n - 1"))


@pytest.mark.parametrize(
    ("node", "before", "after"),
    [
        ("torch.where(mask)", "x[torch.where(mask)] = 0", "x[mask != 0] = 0"),
        ("torch.where(x > 0)", "x[torch.where(x > 0)] = v  # all", "x[x > 0] = v  # all"),
        (
            "torch.nonzero(~(x > 0), as_tuple=True)",
            "x[torch.nonzero(~(x > 0), as_tuple=True)] += 1",
            "x[~(x > 0)] += 1",
        ),
        (
            "mask.nonzero(as_tuple=True)",
            "i = mask.nonzero(as_tuple=True)\nx[i] = 0",
            "i = mask != 0\nx[i] = 0",
        ),
        ("torch.where(mask)", "return x[torch.where(mask)].sum()", "return x[mask != 0].sum()"),
    ],
)
def test_places_that_are_only_an_index(node: str, before: str, after: str, fix_forward) -> None:
    assert fix_forward(before, ("TPU102", node)) == after


@pytest.mark.parametrize(
    ("node", "before"),
    [
        ("torch.where(mask)", "return x[torch.where(mask)]"),
        ("mask.nonzero()", "x[mask.nonzero()] = 0"),  # a matrix of places
        ("torch.where(mask, x, y)", "x[torch.where(mask, x, y)] = 0"),
        ("torch.where(mask)", "rows, columns = torch.where(mask)\nx[rows] = 0"),
        ("torch.where(mask)", "i = torch.where(mask)\nx[i] = 0\nreturn i"),
        ("torch.where(mask)", "i = torch.where(mask)\nx[i[0]] = 0"),
        ("torch.where(mask)", "i = torch.where(mask)\nif x:\n    i = 0\nx[i] = 0"),
        ("torch.where(mask)", "x[torch.where(mask), 0] = 0"),
    ],
)
def test_places_left_alone(node: str, before: str, fix_forward) -> None:
    assert fix_forward(before, ("TPU102", node), unsafe=True) == before


@pytest.mark.parametrize(
    ("node", "before", "after"),
    [
        ("x[x > 0]", "return x[x > 0].sum()", "return torch.where(x > 0, x, 0).sum()"),
        ("x[mask]", "return x[mask].any() + 1", f"return torch.where({_ALIGNED}, x, False).any() + 1"),
        (
            "x[x > 0]",
            "return 1 / x[x > 0].mean()",
            "return 1 / (torch.where(x > 0, x, 0).sum() / ((x > 0).sum() * (x.numel() // (x > 0).numel())))",
        ),
        (
            "x[mask > 0]",
            "# sum\nreturn x[mask > 0].sum()",
            (
                "# sum\nselected = mask > 0\n"
                "return torch.where(selected.reshape(selected.shape + (1,) * (x.ndim - selected.ndim)), x, 0).sum()"
            ),
        ),
    ],
)
def test_reductions_of_masked_reads(node: str, before: str, after: str, fix_forward) -> None:
    assert fix_forward(before, ("TPU101", node)) == before
    assert fix_forward(before, ("TPU101", node), unsafe=True) == after


@pytest.mark.parametrize(
    ("node", "before"),
    [
        ("x[mask]", "return x[mask]"),
        ("x[mask]", "return x[mask].sum(0)"),
        ("x[mask]", "return x[mask].max()"),
        ("x[mask > 0]", "return x[mask > 0].sum() if mask is not None else 0"),  # the mask may be None
        ("x[mask > 0]", "return [x[mask > 0].sum() for mask in masks]"),
        ("x[mask]", "return torch.cat([x[mask], y])"),
        ("x[mask]", "return torch.cat([x[mask], x[mask]])"),
        ("x[mask]", "return torch.cat([x[mask], y[~mask]])"),  # as many rows only if x and y are alike
        ("x[mask]", "return torch.cat([x[mask], x[~mask]], dim=1)"),
        ("x[mask]", "return torch.stack([x[mask], x[~mask]])"),
        ("x[mask > 0]", "return torch.cat([x[mask > 0], x[~(mask > 0)]])"),
        ("x[mask]", "return torch.cat([x[mask], x[~mask]], *more)"),
    ],
)
def test_reads_left_alone(node: str, before: str, fix_forward) -> None:
    assert fix_forward(before, ("TPU101", node), unsafe=True) == before


_SAMPLES = """
kept = []
masks = []
for a, a_mask, b, b_mask in zip(x, mask, y, other):
    # valid ones first
    kept.append(
        torch.cat(
            [
                a[a_mask],  # valid a
                b[b_mask],
                a[~a_mask],
                torch.zeros_like(b[~b_mask]),  # zeroed
            ],
            dim=0,
        )
    )
    masks.append(torch.cat([a_mask[a_mask], b_mask[b_mask], a_mask[~a_mask], b_mask[~b_mask]]))
return torch.stack(kept), torch.stack(masks)
"""
_REORDERED = """
kept = []
masks = []
for a, a_mask, b, b_mask in zip(x, mask, y, other):
    # valid ones first
    order = torch.argsort(
        torch.cat([~a_mask, ~b_mask, a_mask, b_mask]), stable=True
    )[: len(a_mask) + len(b_mask)]
    kept.append(
        torch.cat(
            [
                a,  # valid a
                b,
                a,
                torch.zeros_like(b),  # zeroed
            ],
            dim=0,
        )[order]
    )
    masks.append(torch.cat([a_mask, b_mask, a_mask, b_mask])[order])
return torch.stack(kept), torch.stack(masks)
"""


def test_valid_tokens_to_the_front_of_each_sample(fix_forward) -> None:
    arguments = "x, mask, y, other"
    first = fix_forward(_SAMPLES, ("TPU101", "a[a_mask]"), unsafe=True, arguments=arguments)
    second = fix_forward(first, ("TPU101", "a_mask[~a_mask]"), unsafe=True, arguments=arguments)
    assert second == _REORDERED.strip()
    both = ("TPU101", "b[~b_mask]"), ("TPU101", "b_mask[b_mask]")
    assert (
        fix_forward(_SAMPLES, *both, unsafe=True, arguments=arguments) == first
    )  # the rest in the next round


def test_one_tensor_in_another_order(fix_forward) -> None:
    after = fix_forward("return torch.cat([x[mask], x[~mask]])", ("TPU101", "x[~mask]"), unsafe=True)
    assert after == "return x.flatten(0, mask.ndim - 1)[torch.argsort(~mask.flatten(), stable=True)]"
    loop = "for t, m in zip(x, mask):\n    yield torch.cat([t[~m], t[m]])"
    after = fix_forward(loop, ("TPU101", "t[m]"), unsafe=True)
    assert after == "for t, m in zip(x, mask):\n    yield t[torch.argsort(m, stable=True)]"
