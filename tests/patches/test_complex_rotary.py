"""Rotary embeddings in real arithmetic, against diffusers' own with complex numbers."""

import importlib

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tpuport
from tpuport import compat
from tpuport.patches import complex_rotary, original

MODELS = "diffusers.models.transformers.transformer_"
# (module, function, shape of a complex table with S positions, whether `use_real=False` is said)
FUNCTIONS = [
    (f"{MODELS}qwenimage", "apply_rotary_emb_qwen", lambda b, s, h: (s, h), True),
    (f"{MODELS}qwenimage21", "apply_rotary_emb_qwen", lambda b, s, h: (s, h), True),
    (f"{MODELS}nucleusmoe_image", "_apply_rotary_emb_nucleus", lambda b, s, h: (s, h), True),
    ("diffusers.models.embeddings", "apply_rotary_emb", lambda b, s, h: (b, s, h), True),
    (f"{MODELS}anyflow", "apply_rotary_emb", lambda b, s, h: (1, s, 1, h), False),
    (f"{MODELS}anyflow_far", "apply_rotary_emb", lambda b, s, h: (1, s, 1, h), False),
]


@pytest.fixture(scope="module", autouse=True)
def patched():
    tpuport.enable()
    yield
    tpuport.disable()


@pytest.mark.parametrize(("module", "name", "shape", "choice"), FUNCTIONS)
@given(
    sizes=st.sampled_from([(1, 1, 1, 1), (2, 3, 2, 4)]),  # few: each operation is compiled for each
    seed=st.integers(0, 99),
    as_pair=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=5, deadline=None)
def test_equals_the_original(module, name, shape, choice, sizes, seed, as_pair, dtype):
    batch, length, heads, half = sizes
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, length, heads, 2 * half, generator=generator).to(dtype)
    angles = 100 * torch.randn(*shape(batch, length, half), generator=generator)
    table = torch.polar(torch.ones_like(angles), angles)
    options = {"use_real": False} if choice else {}
    function = getattr(importlib.import_module(module), name)
    expected = function(x, table, **options)
    real, imaginary = compat.to_jax(table.real), compat.to_jax(table.imag)
    with compat.environment():
        given_table = (
            complex_rotary.pair_as_complex(real, imaginary)
            if as_pair
            else compat.wrap(jax.lax.complex(real, imaginary))
        )
        got = function(compat.wrap(compat.to_jax(x)), given_table, **options)
    assert got.dtype == dtype
    close = {torch.float32: 1e-6, torch.bfloat16: 8e-3}[dtype]
    torch.testing.assert_close(tpuport.to_cpu(got), expected, atol=close, rtol=close)


@pytest.mark.parametrize("dimension", [-1, -2])
def test_real_tables_are_the_originals_affair(dimension):
    from diffusers.models.embeddings import apply_rotary_emb

    x, cos, sin = torch.randn(1, 2, 3, 8), torch.randn(3, 8), torch.randn(3, 8)
    options = {"use_real_unbind_dim": dimension}
    expected = apply_rotary_emb(x, (cos, sin), **options)
    with compat.environment():
        x, cos, sin = (compat.wrap(compat.to_jax(t)) for t in (x, cos, sin))
        got = apply_rotary_emb(x, (cos, sin), **options)
    torch.testing.assert_close(tpuport.to_cpu(got), expected)


def test_no_product_of_complex_numbers_in_the_program():
    from diffusers.models.transformers.transformer_qwenimage import apply_rotary_emb_qwen

    def turn(x, real, imaginary):
        with compat.environment():
            table = complex_rotary.pair_as_complex(real, imaginary)
            return compat.as_jax(apply_rotary_emb_qwen(compat.wrap(x), table, use_real=False))

    shapes = np.zeros((1, 3, 2, 8), np.float32), np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32)
    compiled = jax.jit(turn).lower(*shapes).compile().as_text()
    assert "c64" not in compiled
    with_patches_off = original("diffusers.models.transformers.transformer_qwenimage:apply_rotary_emb_qwen")
    assert with_patches_off is not apply_rotary_emb_qwen
