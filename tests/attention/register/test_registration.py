"""Registering, undoing and failing to register; masks under jax's other transformations."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

from tpuport import attention, compat
from tpuport.attention import attention_settings


def test_a_registration_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(importlib.import_module("tpuport.attention.register"), "register_names", fail)
    with pytest.raises(RuntimeError, match="no"):
        attention.register()
    assert attention_settings.registered_settings() is None
    assert attention_settings.settings_owners() == []


def test_a_registration_serves_one_block_after_another() -> None:
    registration = attention.register(sequence="ring")
    for _ in range(2):
        with registration:
            assert attention_settings.registered_settings() == registration.settings
        assert attention_settings.registered_settings() is None


def test_its_text_says_with_what() -> None:
    with attention.register(padding="zero") as registration:
        assert "padding='zero'" in repr(registration)


@pytest.mark.parametrize("kind", ["boolean", "lengths", "added"])
@pytest.mark.parametrize("interpret", [True, False])
def test_masks_under_vmap(kind: str, interpret: bool) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, 1, 2, 130, 32)).astype(np.float32) for _ in range(3))
    masks = {
        "boolean": rng.random((2, 1, 1, 130, 130)) < 0.5,
        "lengths": np.arange(130) < np.array([100, 31]).reshape(2, 1, 1, 1, 1),
        "added": rng.normal(size=(2, 1, 1, 130, 130)).astype(np.float32),
    }
    mask = masks[kind]

    def run(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
        with compat.environment():
            tensors = compat.as_torch((q, k, v))
            return compat.as_jax(
                functional.scaled_dot_product_attention(*tensors, attn_mask=compat.wrap(mask))
            )

    with attention.register(interpret=interpret):
        got = jax.jit(jax.vmap(run))(*(jnp.asarray(x) for x in (q, k, v, mask)))
    wide = [torch.from_numpy(x).double() for x in (q, k, v)]
    given = torch.from_numpy(mask)
    expected = functional.scaled_dot_product_attention(
        *wide, attn_mask=given if given.dtype == torch.bool else given.double()
    )
    np.testing.assert_allclose(got, expected, atol=2e-5)


@pytest.mark.parametrize("traced", [True, False])
def test_nan_in_a_mask_shows(traced: bool) -> None:
    q = torch.randn(1, 1, 130, 32, generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(1, 1, 130, 130)
    mask[..., 5] = torch.nan

    def run(q: jax.Array, mask: jax.Array) -> jax.Array:
        with compat.environment(), attention.register():
            x = compat.wrap(q)
            return compat.as_jax(
                functional.scaled_dot_product_attention(x, x, x, attn_mask=compat.wrap(mask))
            )

    got = (jax.jit(run) if traced else run)(compat.to_jax(q), compat.to_jax(mask))
    assert torch.isnan(functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)).all()
    assert np.isnan(got).all()
