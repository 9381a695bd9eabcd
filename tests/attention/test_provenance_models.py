"""The mask code of transformers and diffusers themselves, run by them: what is found of it, and that it is the same."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers.models.attention_processor import Attention
from diffusers.models.transformers.ace_step_transformer import _create_4d_mask
from diffusers.models.transformers.transformer_hunyuan_video15 import HunyuanVideo15IndividualTokenRefiner
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    chunked_overlay,
    or_masks,
    packed_sequence_mask_function,
    sdpa_mask,
    sliding_window_overlay,
)

from benchmarks import tiny_diffusers
from tpuport import compat
from tpuport.attention.provenance import structure_of

B, H, T = 2, 2, 17
PARTS = ("left", "right", "keys_BT", "queries_BQ", "key_segments_BT", "bias_BT", "dense")


def tokens(seed=0):
    return (np.random.RandomState(seed).rand(B, T) < 0.7).astype(np.int32)


def meaning(array, sizes):
    array = np.ones((1,) * 4, bool) if array is None else np.asarray(array)
    array = np.broadcast_to(array, sizes)
    visible = array if array.dtype == bool else array > jnp.finfo(array.dtype).min
    return visible, np.where(visible, 0 if array.dtype == bool else array, 0).astype(np.float32)


def names(array, sizes, results):
    """What is found, the array and the structure's array appended to `results` to be compared."""
    batch, heads, queries, keys = sizes
    mask = structure_of(array, batch=batch, heads=heads, queries=queries, keys=keys)
    results.append((array, mask.to_dense(queries, keys)))
    return {part for part in PARTS if getattr(mask, part) is not None}


def found(build, *arguments, sizes=(B, H, T, T)):
    seen = []

    def run(*traced):
        results = []
        array = compat.as_jax(build(*(compat.wrap(x) for x in traced)))
        seen.append(names(array, sizes, results))
        return results

    with compat.environment(), torch.no_grad():
        results = jax.jit(run)(*(jnp.asarray(x) for x in arguments))
    for array, dense in results:
        for expected, got in zip(meaning(array, sizes), meaning(dense, sizes), strict=True):
            np.testing.assert_array_equal(got, expected)
    return seen[0]


def found_in(monkeypatch, module, call):
    """What is found of each mask that a model hands to attention."""
    seen, sizes_of = [], []
    real = torch.nn.functional.scaled_dot_product_attention
    leaves, spec = jax.tree.flatten(call, is_leaf=lambda x: isinstance(x, torch.Tensor))
    at = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def run(arrays):
        results = []

        def attend(query, key, value, attn_mask=None, *args, **kwargs):
            if attn_mask is not None:
                sizes_of.append((*query.shape[:3], key.shape[2]))
                seen.append(names(compat.as_jax(attn_mask), sizes_of[-1], results))
            return real(query, key, value, None, *args, **kwargs)

        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
        placed = dict(zip(at, arrays, strict=True))
        module(
            **jax.tree.unflatten(
                spec, [compat.wrap(placed[p]) if p in placed else x for p, x in enumerate(leaves)]
            )
        )
        return results

    with compat.environment(), torch.no_grad():
        module.to("jax")
        results = jax.jit(run)([jnp.asarray(compat.to_jax(leaves[place])) for place in at])
    for (array, dense), sizes in zip(results, sizes_of, strict=True):
        for expected, got in zip(meaning(array, sizes), meaning(dense, sizes), strict=True):
            np.testing.assert_array_equal(got, expected)
    return seen


def transformers_mask(function, *, padded=True):
    return lambda m: sdpa_mask(
        B, T, T, 0, 0, mask_function=function, attention_mask=m.bool() if padded else None,
        allow_is_causal_skip=False, device="jax",
    )  # fmt: skip


TRANSFORMERS = {
    "causal": (transformers_mask(causal_mask_function, padded=False), {"right"}),
    "causal and padding": (transformers_mask(causal_mask_function), {"right", "keys_BT"}),
    "bidirectional and padding": (transformers_mask(bidirectional_mask_function), {"keys_BT"}),
    "sliding window": (
        transformers_mask(and_masks(sliding_window_overlay(5), causal_mask_function)), {"left", "right", "keys_BT"}
    ),
    "causal or anything": (
        transformers_mask(or_masks(causal_mask_function, lambda b, h, q, k: (q + k) % 3 == 0)), {"dense"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers(name):
    build, expected = TRANSFORMERS[name]
    assert found(build, tokens()) == expected


def test_packed_sequences_of_transformers():
    numbers = np.sort(np.random.RandomState(0).randint(0, 4, (B, T)), 1).astype(np.int32)

    def build(ids):
        return transformers_mask(
            and_masks(packed_sequence_mask_function(ids), causal_mask_function), padded=False
        )(ids)

    assert found(build, numbers) == {"right", "key_segments_BT"}


def test_chunks_of_transformers():
    def build(m):
        padding = (1 - m[:, 0]).int()
        return transformers_mask(and_masks(chunked_overlay(4, padding), causal_mask_function))(m)

    assert found(build, tokens()) == {"right", "keys_BT", "key_segments_BT"}


ACE_STEP = {
    "causal": ({"is_causal": True}, {"right"}),
    "causal window": ({"is_causal": True, "is_sliding_window": True, "sliding_window": 4}, {"left", "right"}),
    "window": ({"is_causal": False, "is_sliding_window": True, "sliding_window": 4}, {"left", "right"}),
    "all": ({"is_causal": False}, set()),
}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ACE_STEP)
def test_ace_step(name, padded):
    options, expected = ACE_STEP[name]

    def build(m):
        return _create_4d_mask(T, torch.float32, "jax", attention_mask=m if padded else None, **options)

    assert found(build, tokens()) == expected | ({"keys_BT"} if padded else set())


@pytest.mark.parametrize("kind", ["boolean", "numbers"])
def test_diffusers_masks_repeated_over_heads(kind):
    """As PixArt, Sana, LTX, Allegro and the UNets do: numbers [B, 1, T], then one for each head."""
    attention = Attention(query_dim=8, heads=H, dim_head=4)

    def build(m):
        mask = m.bool() if kind == "boolean" else m
        mask = ((1 - mask.to(torch.float32)) * -10000.0).unsqueeze(1)
        return attention.prepare_attention_mask(mask, T, B).view(B, H, -1, T)

    # Of numbers other than 0 and 1 some could be as low as hides.
    expected = {"bias_BT"} if kind == "boolean" else {"bias_BT", "keys_BT"}
    assert found(build, tokens(), sizes=(B, H, 5, T)) == expected


def test_hunyuan_video_15(monkeypatch):
    refiner = HunyuanVideo15IndividualTokenRefiner(
        num_attention_heads=2, attention_head_dim=8, num_layers=1
    ).eval()
    call = {
        "hidden_states": torch.randn(B, T, 16),
        "temb": torch.randn(B, 16),
        "attention_mask": torch.from_numpy(tokens()),
    }
    assert found_in(monkeypatch, refiner, call) == [{"keys_BT", "queries_BQ"}]


@pytest.mark.filterwarnings(
    "ignore:Explicitly requested dtype", "ignore:float64 becomes float32"
)  # of models that ask for int64
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("QwenImageTransformer2DModel", {"keys_BT"}),
        pytest.param("LTXVideoTransformer3DModel", {"keys_BT", "bias_BT"}, marks=pytest.mark.slow),
        pytest.param("HunyuanVideoTransformer3DModel", {"keys_BT"}, marks=pytest.mark.slow),
        pytest.param("HunyuanImageTransformer2DModel", {"keys_BT"}, marks=pytest.mark.slow),
        pytest.param("MotifVideoTransformer3DModel", {"keys_BT"}, marks=pytest.mark.slow),
        pytest.param("NucleusMoEImageTransformer2DModel", {"keys_BT"}, marks=pytest.mark.slow),
        pytest.param("ErnieImageTransformer2DModel", {"keys_BT"}, marks=pytest.mark.slow),
        pytest.param("PixArtTransformer2DModel", {"keys_BT", "bias_BT"}, marks=pytest.mark.slow),
        pytest.param("SanaTransformer2DModel", {"keys_BT", "bias_BT"}, marks=pytest.mark.slow),
    ],
)
def test_diffusers_models(monkeypatch, name, expected):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the library, about the sizes
        model, calls = tiny_diffusers.build(name)
    of_each = found_in(monkeypatch, model, calls[0])
    # Hunyuan's first text layers let every query see the first token: that mask has no such structure.
    assert [names for names in of_each if names != {"dense"}].count(expected) >= 2
    assert len([names for names in of_each if names != expected]) <= (2 if "Hunyuan" in name else 0)
