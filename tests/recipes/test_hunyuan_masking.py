"""The wrong ways of the figure are what they say, and one step of the training goes the right way."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.models.transformers.transformer_hunyuan_video15 import HunyuanVideo15Transformer3DModel

from recipes.hunyuan_video import masking, storing, train, train_vae


@pytest.fixture(scope="module")
def transformer() -> Any:
    torch.manual_seed(0)
    return HunyuanVideo15Transformer3DModel(
        in_channels=5,
        out_channels=2,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=2,
        num_refiner_layers=1,
        mlp_ratio=1.0,
        text_embed_dim=8,
        text_embed_2_dim=4,
        image_embed_dim=4,
        rope_axes_dim=(2, 2, 4),
    ).eval()


def _inputs(valid: int) -> dict[str, Any]:
    """A call with `valid` of six tokens of text, and no others."""
    draw = torch.Generator().manual_seed(1)
    return {
        "hidden_states": torch.randn(1, 5, 2, 2, 2, generator=draw),
        "timestep": torch.tensor([500.0]),
        "encoder_hidden_states": torch.randn(1, 6, 8, generator=draw),
        "encoder_attention_mask": (torch.arange(6) < valid).float()[None],
        "encoder_hidden_states_2": torch.zeros(1, 0, 4),
        "encoder_attention_mask_2": torch.zeros(1, 0),
        "image_embeds": torch.zeros(1, 0, 4),
        "return_dict": False,
    }


@torch.no_grad()
def test_zeroing_equals_the_mask_without_padding_and_differs_with_it(transformer: Any) -> None:
    full, padded = transformer(**_inputs(6))[0], transformer(**_inputs(3))[0]
    with masking.zeroed_padding(transformer):
        assert torch.allclose(transformer(**_inputs(6))[0], full, atol=1e-5)
        assert (transformer(**_inputs(3))[0] - padded).abs().max() > 1e-3
    assert torch.equal(transformer(**_inputs(3))[0], padded)


def test_leaving_the_masks_out_changes_masks_alone() -> None:
    held = {"prompt_embeds": torch.zeros(1, 4, 2), "negative_prompt_embeds_mask": torch.zeros(1, 4)}
    changed = masking.without_masks(held)
    assert changed["prompt_embeds"] is held["prompt_embeds"]
    assert bool((changed["negative_prompt_embeds_mask"] == 1).all())


def test_weights_are_stored_as_the_training_sees_them() -> None:
    model = torch.nn.Linear(80, 60)
    exact, rounded = model.weight.detach().clone(), copy.deepcopy(model)
    storing.round_weights(rounded)
    with storing.as_stored(model, active=True):
        assert torch.equal(model.weight, rounded.weight)
        assert torch.equal(model.weight, exact.to(storing.STORED).float())
    assert torch.equal(model.weight, exact)


def test_kernels_as_matrices_share_their_memory_and_gradients() -> None:
    conv = torch.nn.Conv3d(2, 4, 3)
    flat = train_vae.FlatKernels(conv)
    conv(torch.ones(1, 2, 3, 3, 3)).sum().backward()
    flat.take_gradients()
    with torch.no_grad():
        flat.matrices[0].zero_()
    assert float(conv.weight.detach().abs().max()) == 0
    gradient = flat.matrices[0].grad
    assert gradient is not None
    assert torch.equal(gradient, torch.ones(4, 54))
    assert conv.weight.grad is None


def test_the_transformer_learns_and_goes_on_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "BATCH", 4)
    latents = torch.randn(4, 8, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    kept = train.Training(train.build_pipeline(), latents, tmp_path / "kept.pt", steps=40)
    train.begin_at_zero(kept.model)
    losses = [kept.advance() for _ in range(2)]
    kept.save()
    again = train.Training(train.build_pipeline(), latents, tmp_path / "kept.pt", steps=40)
    again.load()
    assert again.advance() == kept.advance()
    assert losses[0] == pytest.approx(
        2, rel=0.3
    )  # nothing is predicted at first: the noise and the latents remain
    untrained = [name for name, weight in kept.model.named_parameters() if not weight.requires_grad]
    assert {name.split(".")[0] for name in untrained} == set(train.UNTRAINED)
