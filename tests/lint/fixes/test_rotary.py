"""Rewrites of complex rotary embeddings."""

import pytest

_LLAMA = """
import torch


def reshape_for_broadcast(freqs_cis, x):
    ndim = x.ndim
    assert freqs_cis.shape == (x.shape[1], x.shape[-1])
    shape = [d if i == 1 or i == ndim - 1 else 1 for i, d in enumerate(x.shape)]
    return freqs_cis.view(*shape)


def apply_rotary_emb(xq, xk, freqs_cis):
    # pairs
    xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    xk_ = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
    freqs_cis = reshape_for_broadcast(freqs_cis, xq_)
    xq_out = torch.view_as_real(xq_ * freqs_cis).flatten(3)  # queries
    xk_out = torch.view_as_real(xk_ * freqs_cis).flatten(3)
    return xq_out.type_as(xq), xk_out.type_as(xk)
"""
_LLAMA_AFTER = """
def apply_rotary_emb(xq, xk, freqs_cis):
    # pairs
    xq_ = xq.float().reshape(*xq.shape[:-1], -1, 2)
    xk_ = xk.float().reshape(*xk.shape[:-1], -1, 2)
    freqs_cis = reshape_for_broadcast(freqs_cis, xq_[..., 0])
    xq_out = torch.stack(
        [
            xq_[..., 0] * freqs_cis.real - xq_[..., 1] * freqs_cis.imag,
            xq_[..., 0] * freqs_cis.imag + xq_[..., 1] * freqs_cis.real,
        ],
        dim=-1,
    ).flatten(3)  # queries
"""
_QUERY = "torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))"


def test_llama(fix) -> None:
    assert fix(_LLAMA, ("TPU403", _QUERY)) == _LLAMA
    after = fix(_LLAMA, ("TPU403", _QUERY), unsafe=True)
    assert _LLAMA_AFTER in after
    assert "view_as_" not in after


def test_all_of_a_function_is_one_rewrite(fix) -> None:
    products = [("TPU403", f"torch.view_as_real(x{name}_ * freqs_cis)") for name in "qk"]
    assert fix(_LLAMA, *products, unsafe=True) == fix(_LLAMA, ("TPU403", _QUERY), unsafe=True)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (  # diffusers, one branch of several that use the same names
            """
            if mask:
                z = x.real
                return z
            else:
                z = torch.view_as_complex(x.float().unflatten(3, (-1, 2)))
                y = torch.view_as_real(z * table.unsqueeze(1)).flatten(3)
                return y.type_as(x)
            """,
            """
            if mask:
                z = x.real
                return z
            else:
                z = x.float().unflatten(3, (-1, 2))
                y = torch.stack(
                    [
                        z[..., 0] * table.unsqueeze(1).real - z[..., 1] * table.unsqueeze(1).imag,
                        z[..., 0] * table.unsqueeze(1).imag + z[..., 1] * table.unsqueeze(1).real,
                    ],
                    dim=-1,
                ).flatten(3)
                return y.type_as(x)
            """,
        ),
        (  # the table is made in the same function; the name is taken again
            """
            f = torch.polar(torch.ones_like(mask), mask)
            x = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
            x = torch.view_as_real(f * x).flatten(-2)
            return x
            """,
            """
            f = torch.stack([mask.cos(), mask.sin()], dim=-1)
            x = x.unflatten(-1, (-1, 2))
            x = torch.stack(
                [
                    f[..., 0] * x[..., 0] - f[..., 1] * x[..., 1],
                    f[..., 0] * x[..., 1] + f[..., 1] * x[..., 0],
                ],
                dim=-1,
            ).flatten(-2)
            return x
            """,
        ),
        (  # the shape of the complex tensor is asked for; the product has a name
            """
            z = torch.view_as_complex(x)
            table = table.view(1, z.size(1), z.shape[-1])
            turned = z * table
            return torch.view_as_real(turned)
            """,
            """
            z = x
            table = table.view(1, z[..., 0].size(1), z[..., 0].shape[-1])
            turned = torch.stack(
                [
                    z[..., 0] * table.real - z[..., 1] * table.imag,
                    z[..., 0] * table.imag + z[..., 1] * table.real,
                ],
                dim=-1,
            )
            return turned
            """,
        ),
        (
            "return torch.view_as_real(torch.view_as_complex(x) * table)",
            """
            return torch.stack(
                [
                    x[..., 0] * table.real - x[..., 1] * table.imag,
                    x[..., 0] * table.imag + x[..., 1] * table.real,
                ],
                dim=-1,
            )
            """,
        ),
    ],
)
def test_forms(before: str, after: str, fix_forward) -> None:
    from textwrap import dedent

    node = next(t for t in _NODES if t in before)
    assert (
        fix_forward(before, ("TPU403", node), arguments="x, mask, table", unsafe=True)
        == dedent(after).strip()
    )


_NODES = (
    "torch.view_as_complex(x.float().unflatten(3, (-1, 2)))",
    "torch.polar(torch.ones_like(mask), mask)",
    "torch.view_as_complex(x)",
)


@pytest.mark.parametrize(
    "before",
    [
        "z = torch.view_as_complex(x)\nreturn z * table",
        "z = torch.view_as_complex(x)\ny = torch.view_as_real(z * table)\nreturn y, z",
        "z = torch.view_as_complex(x)\nself.z = z\nreturn torch.view_as_real(z * table)",
        "z = torch.view_as_complex(x)\nreturn torch.view_as_real(z + table)",
        "z = torch.view_as_complex(x)\nreturn torch.view_as_real(z * self.make(mask))",
        "z = torch.view_as_complex(x)\ntable = other(table, z)\nreturn torch.view_as_real(z * table)",
        "if mask:\n    z = torch.view_as_complex(x)\nreturn torch.view_as_real(z * table)",
        "z = torch.view_as_complex(x)\ny = torch.view_as_real(z * table)\nreturn lambda: z",
        "for i in x:\n    use(z)\n    z = torch.view_as_complex(x)\n    y = torch.view_as_real(z * table)",
        "z = torch.view_as_complex(x)  # pairs\nprod = z * table\nreturn torch.view_as_real(prod), prod",
    ],
)
def test_left_alone(before: str, fix_forward) -> None:
    target = ("TPU403", "torch.view_as_complex(x)")
    assert fix_forward(before, target, arguments="x, mask, table", unsafe=True) == before


def test_a_table_for_other_functions_is_left_alone(fix_forward) -> None:
    before = "f = torch.polar(torch.ones_like(x), x)\nreturn f"
    assert fix_forward(before, ("TPU403", "torch.polar(torch.ones_like(x), x)"), unsafe=True) == before
