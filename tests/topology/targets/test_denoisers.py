"""The inputs that are made for a class of diffusers are those that the class takes: each is called with them."""

import types

import pytest
import torch

from tpuport.checkpoint import building
from tpuport.errors import PortError
from tpuport.topology.targets import resolve
from tpuport.topology.targets.config_files import find_config
from tpuport.topology.targets.diffusers_targets import full_config
from tpuport.topology.targets.image_denoisers import IMAGES
from tpuport.topology.targets.video_denoisers import VIDEOS

# diffusers' own: a class that Chroma imports from where it was.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning"),  # Mochi asks for float32 there
]

FAMILIES = IMAGES | VIDEOS
# They look at values, which the meta device has none of, or ask for the device's autocast.
ON_CPU = ("Lumina2Transformer2DModel", "MochiTransformer3DModel")
# What comes out is not what goes in: (channels or frames of the input, of the output) by class.
OUTPUTS = {
    "QwenImageTransformer2DModel": lambda shape, config: (*shape[:2], 4 * config["out_channels"]),
    "PixArtTransformer2DModel": lambda shape, config: (shape[0], config["out_channels"], *shape[2:]),
    "UNetSpatioTemporalConditionModel": lambda shape, config: (
        *shape[:2],
        config["out_channels"],
        *shape[3:],
    ),
    "DiTTransformer2DModel": lambda shape, config: shape,
}
FRAMES = {4: (9, 3), 6: (13, 3), 8: (17, 3), 1: (5, 5)}  # by compression: of pixels, of latents


def resolved(tiny, tmp_path, name, **changes):
    """The target of a small model of the class, of 4 x 6 patches of two latents, and latent frames."""
    family = FAMILIES[name]
    path = tiny.write(tmp_path, tiny.settings(name, **changes))
    config = full_config(find_config(path))
    spatial = family.spatial(config) if callable(family.spatial) else family.spatial
    options = {} if family.fixed else {"image_size": (8 * spatial, 12 * spatial)}
    if family.temporal:
        options["frames"] = 8 if not family.causal and family.temporal == 4 else FRAMES[family.temporal][0]
    [target] = resolve(path, batch=2, **options)
    return target, config


# Text beside or in the sequence, latents packed or not, other outputs, values on the host, and films.
SAMPLE = {
    "FluxTransformer2DModel", "PixArtTransformer2DModel", "QwenImageTransformer2DModel", "Lumina2Transformer2DModel",
    "UNet2DConditionModel", "WanTransformer3DModel", "LTXVideoTransformer3DModel", "HunyuanVideoTransformer3DModel",
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in SAMPLE else pytest.mark.slow)
        for name in FAMILIES
        if name != "HunyuanVideo15Transformer3DModel"
    ],
)
def test_that_a_denoiser_takes_its_inputs_and_gives_back_their_shape(tmp_path, name, tiny):
    target, config = resolved(tiny, tmp_path, name)
    assert (target.kind, target.unit, target.dtype) == ("denoiser", ("steps", 1.0), "bfloat16")
    assert target.rows == 2
    assert target.is_distilled == bool(config.get("guidance_embeds"))
    assert target.product.startswith(("an image of ", "a clip of "))
    assert all(tensor.device.type == "meta" for tensor in tiny.leaves(target.inputs))
    inputs = tiny.on_cpu(target.inputs) if name in ON_CPU else target.inputs
    model = tiny.with_weights(target.build()) if name in ON_CPU else target.build().to("meta")
    with torch.no_grad():
        made = tiny.first(model(**inputs))
    sample = tiny.first(next(iter(target.inputs.values())))
    assert tuple(made.shape) == OUTPUTS.get(name, lambda shape, _: shape)(tuple(sample.shape), config)


@pytest.mark.parametrize(
    ("task", "given"), [pytest.param("t2v", False, marks=pytest.mark.slow), ("i2v", True)]
)
def test_hunyuan_video_15_as_it_is_called_on_the_device(tmp_path, task, given, tiny):
    from tpuport.patches.hunyuan_video15 import forward

    target, _ = resolved(tiny, tmp_path, "HunyuanVideo15Transformer3DModel", task_type=task, out_channels=16)
    assert (target.inputs["image_embeds"] is not None) == given
    with torch.no_grad():
        made = forward(tiny.with_weights(target.build()), **tiny.on_cpu(target.inputs))
    assert made[0].shape == target.inputs["hidden_states"].shape


def test_latents_of_known_models_at_their_own_sizes(tiny):
    """By hand: 121 frames are 1 + 120/4 latents; 720 x 1280 pixels over 16, or over 8 and packed two by two."""
    shapes = {name: tiny.first(next(iter(resolve(name)[0].inputs.values()))).shape for name in
              ("hunyuan-video-1.5", "wan-2.1-14b", "flux-dev", "sdxl-unet")}  # fmt: skip
    assert shapes == {
        "hunyuan-video-1.5": (1, 65, 31, 45, 80),
        "wan-2.1-14b": (1, 16, 21, 60, 104),
        "flux-dev": (1, 64 * 64, 64),
        "sdxl-unet": (1, 4, 128, 128),
    }
    [wan] = resolve("wan-2.1-14b", image_size="720x1280", batch=2)
    assert wan.inputs["hidden_states"].shape == (2, 16, 21, 90, 160)


def test_the_real_inputs_of_hunyuan_video_are_those_that_were_measured():
    from benchmarks.hunyuan_compile import inputs

    [target] = resolve("hunyuan-video-1.5")
    config = types.SimpleNamespace(**full_config(find_config("hunyuan-video-1.5")))
    wanted = inputs(config)
    assert wanted.keys() == target.inputs.keys()
    for name, value in wanted.items():
        made = target.inputs[name]
        same = (
            (made.shape, made.dtype) == (value.shape, value.dtype)
            if value is not None and name != "return_dict"
            else made == value
        )
        assert same, name


@pytest.mark.parametrize(
    ("target", "options", "says"),
    [
        ("flux-dev", {"frames": 9}, "frames does not apply to FluxTransformer2DModel"),
        ("flux-dev", {"length": 9}, "length does not apply"),
        ("flux-dev", {"task": "decode"}, "has no decode"),
        ("flux-dev", {"image_size": 1000}, "height 1000 is not a multiple of 16"),
        ("wan-2.1-14b", {"image_size": "720x1281"}, "width 1281 is not a multiple of 16"),
        ("wan-2.1-14b", {"frames": 80}, "80 frames are not 1 and a multiple of 4"),
        ("sdxl-unet", {"image_size": 1016}, "not a multiple of 32"),
        ("sdxl-unet", {"component": "unet"}, "not a pipeline"),
        ("hunyuan-video-1.5", {"image_size": "1x2x3"}, "not an image size"),
        ("hunyuan-video-1.5", {"frames": 0}, "frames is 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_any_work(target, options, says):
    with pytest.raises(PortError, match=says):
        resolve(target, **options)


def test_video_models_whose_config_says_more_than_they_make(tmp_path, tiny):
    newer = {
        "patch_size_t": 2,
        "sample_height": 300,
        "sample_width": 300,
        "sample_frames": 81,
        "ofs_embed_dim": None,
    }
    [target] = resolve(tiny.write(tmp_path, {"_class_name": "CogVideoXTransformer3DModel", **newer}))
    # 81 frames are 21 of latents, and 22 fill patches of two; 768 x 1360 over 8.
    assert target.inputs["hidden_states"].shape == (1, 22, 16, 96, 170)


def test_the_numbers_beside_the_text_of_sdxl(tmp_path, tiny):
    """Widths of 2816 = 1280 + 6 * 256 of the base, and of 2560 = 1280 + 5 * 256 of the refiner."""
    for width, sizes in ((2816, 6), (2560, 5)):
        fields = {"projection_class_embeddings_input_dim": width, "addition_time_embed_dim": 256}
        raw = tiny.settings("UNet2DConditionModel", addition_embed_type="text_time", **fields)
        [target] = resolve(tiny.write(tmp_path / str(width), raw))
        added = target.inputs["added_cond_kwargs"]
        assert (added["text_embeds"].shape, added["time_ids"].shape) == ((1, 1280), (1, sizes))
        with torch.no_grad():
            made = tiny.first(target.build().to("meta")(**target.inputs))
        assert made.shape == target.inputs["sample"].shape


def test_a_size_beyond_the_table_of_positions(tmp_path, tiny):
    path = tiny.write(tmp_path, tiny.settings("SD3Transformer2DModel", pos_embed_max_size=16))
    assert resolve(path, image_size=256)
    with pytest.raises(PortError, match="272 pixels are 17 patches, and the model has positions for 16"):
        resolve(path, image_size=272)


def test_an_autoencoder_beside_the_model_says_the_compression(tmp_path, tiny):
    transformer = tiny.write(tmp_path / "transformer", tiny.settings("WanTransformer3DModel"))
    tiny.write(
        tmp_path / "vae", tiny.settings("AutoencoderKLWan", scale_factor_spatial=16, scale_factor_temporal=8)
    )
    [target] = resolve(transformer, image_size=(64, 96), frames=17)
    assert target.inputs["hidden_states"].shape == (1, 16, 3, 4, 6)
    assert any("vae/config.json" in note for note in target.notes)
    with pytest.raises(PortError, match="13 frames"):
        resolve(transformer, image_size=(64, 96), frames=13)


def test_a_class_that_no_family_is_known_for_is_guessed_or_refused(tmp_path, tiny):
    guess = tiny.write(tmp_path / "guess", tiny.settings("SanaVideoTransformer3DModel"))
    [target] = resolve(guess, image_size=64, frames=9)
    with torch.no_grad():
        made = tiny.first(target.build().to("meta")(**target.inputs))
    assert made.shape == target.inputs["hidden_states"].shape
    assert any("guessed" in note for note in target.notes)
    refused = tiny.write(tmp_path / "refused", {"_class_name": "HiDreamImageTransformer2DModel"})
    with pytest.raises(PortError, match="no value can be made for the argument 'img_ids'") as raised:
        resolve(refused)
    assert "--inputs module:function" in str(raised.value)


def test_a_class_that_diffusers_does_not_have(tmp_path, tiny):
    with pytest.raises(PortError, match=r"has no model Flux9Transformer.*\n.*_class_name"):
        resolve(tiny.write(tmp_path, {"_class_name": "Flux9Transformer"}))
    with pytest.raises(PortError, match="has a DDIMScheduler that is not a model"):
        resolve(tiny.write(tmp_path, {"_class_name": "DDIMScheduler"}))


def test_that_nothing_is_built_to_resolve(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "build_empty", lambda *_: pytest.fail("a model was built"))
    assert len(resolve("flux-dev")) == 1


def test_inputs_of_ones_own(tmp_path, monkeypatch, tiny):
    path = tiny.write(tmp_path / "model", tiny.settings("FluxTransformer2DModel"))
    (tmp_path / "mine.py").write_text(
        "import torch\ndef inputs(config):\n    return {'hidden_states': torch.empty(3, config.in_channels)}\n"
    )
    [target] = resolve(path, inputs=f"{tmp_path / 'mine.py'}:inputs")
    assert target.inputs["hidden_states"].shape == (3, tiny.settings("FluxTransformer2DModel")["in_channels"])
    with pytest.raises(PortError, match="image_size is given together with inputs"):
        resolve(path, inputs=f"{tmp_path / 'mine.py'}:inputs", image_size=64)
