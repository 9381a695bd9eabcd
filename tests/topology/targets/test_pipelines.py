"""Pipelines, component by component, and what may be wrong with paths and files."""

import pytest
import torch

from tpuport.errors import PortError
from tpuport.topology.targets import known, resolve

CLIP = {
    "model_type": "clip_text_model", "architectures": ["CLIPTextModel"], "vocab_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 64, "torch_dtype": "float32",
}  # fmt: skip
UMT5 = {
    "model_type": "umt5", "architectures": ["UMT5EncoderModel"], "vocab_size": 64, "d_model": 32, "d_kv": 8,
    "d_ff": 64, "num_layers": 1, "num_heads": 2,
}  # fmt: skip


@pytest.fixture
def wan(tmp_path, tiny):
    """A pipeline of a video transformer, its text encoder and its autoencoder."""
    index = {
        "_class_name": "WanPipeline", "_diffusers_version": "0.42.1", "scheduler": ["diffusers", "UniPC"],
        "text_encoder": ["transformers", "UMT5EncoderModel"], "tokenizer": ["transformers", "T5TokenizerFast"],
        "transformer": ["diffusers", "WanTransformer3DModel"], "transformer_2": [None, None],
        "vae": ["diffusers", "AutoencoderKLWan"], "boundary_ratio": None,
    }  # fmt: skip
    tiny.write(tmp_path / "text_encoder", UMT5)
    tiny.write(tmp_path / "transformer", tiny.settings("WanTransformer3DModel"))
    tiny.write(tmp_path / "vae", tiny.settings("AutoencoderKLWan"))
    return tiny.write(tmp_path, index, "model_index.json")


def test_that_a_pipeline_is_its_components(wan):
    targets = {
        target.name.split()[-1]: target for target in resolve(wan, image_size=(64, 96), frames=9, batch=2)
    }
    assert list(targets) == ["text_encoder", "transformer", "vae"]
    assert targets["text_encoder"].inputs["input_ids"].shape == (2, 512)  # as WanPipeline pads
    assert targets["transformer"].inputs["hidden_states"].shape == (2, 16, 3, 8, 12)
    assert targets["vae"].inputs["latents"].shape == (2, 16, 3, 8, 12)
    kinds = {name: (target.kind, target.unit) for name, target in targets.items()}
    assert kinds == {
        "text_encoder": ("encoder", ("tokens", 1024.0)),
        "transformer": ("denoiser", ("steps", 1.0)),
        "vae": ("vae", ("frames", 18.0)),
    }
    assert all("not compiled: scheduler, tokenizer" in target.notes for target in targets.values())


def test_that_the_decoder_takes_what_the_denoiser_makes(wan):
    targets = {target.name.split()[-1]: target for target in resolve(wan)}
    # The pipeline's defaults: 81 frames of 480 x 832.
    assert targets["transformer"].inputs["hidden_states"].shape[2:] == (21, 60, 104)
    assert targets["vae"].inputs["latents"].shape[2:] == (21, 60, 104)


def test_that_components_are_built(wan):
    for target in resolve(wan, image_size=64, frames=5):
        assert all(parameter.device.type == "meta" for parameter in target.build().parameters())


def test_one_component(wan, tmp_path):
    [target] = resolve(wan, component="transformer", image_size=64, frames=5)
    assert target.name == f"{tmp_path.name} transformer"
    [alone] = resolve(str(tmp_path / "transformer"), image_size=64, frames=5)
    assert alone.inputs["hidden_states"].shape == target.inputs["hidden_states"].shape
    [encoder] = resolve(wan, component="text_encoder", length=32)
    assert encoder.inputs["input_ids"].shape == (1, 32)


def test_inputs_of_one_component(wan, tmp_path):
    (tmp_path / "own_inputs.py").write_text("def f(config):\n    return {'latents': config.z_dim}\n")
    named = f"{tmp_path}/own_inputs.py:f"
    [target] = resolve(wan, component="vae", inputs=named)
    assert target.inputs == {"latents": 16}
    with pytest.raises(PortError, match="inputs are those of one component"):
        resolve(wan, inputs=named)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"component": "unet"}, r"no component 'unet'(.|\n)*text_encoder, transformer, vae"),
        ({"component": "scheduler"}, "no component 'scheduler'"),
        ({"length": 3}, "length applies to none of text_encoder, transformer, vae"),
        ({"component": "text_encoder", "frames": 3}, "frames applies to none of text_encoder"),
        ({"frames": 8}, "8 frames are not 1 and a multiple of 4"),
        ({"image_size": 100}, "height 100 is not a multiple of 16"),
    ],
)
def test_what_a_pipeline_cannot_do(wan, options, says):
    with pytest.raises(PortError, match=says):
        resolve(wan, **options)


def test_a_component_that_was_not_downloaded(wan, tmp_path):
    (tmp_path / "vae" / "config.json").unlink()
    with pytest.raises(PortError, match=r"vae has no config.json(.|\n)*vae/config.json"):
        resolve(wan)
    assert resolve(wan, component="text_encoder")


def test_an_image_pipeline(tmp_path, tiny):
    index = {
        "_class_name": "StableDiffusionPipeline", "feature_extractor": ["transformers", "CLIPImageProcessor"],
        "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
        "text_encoder": ["transformers", "CLIPTextModel"], "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }  # fmt: skip
    tiny.write(tmp_path / "text_encoder", CLIP)
    tiny.write(tmp_path / "unet", tiny.settings("UNet2DConditionModel"))
    tiny.write(tmp_path / "vae", tiny.settings("AutoencoderKL"))
    targets = {
        target.name.split()[-1]: target for target in resolve(tiny.write(tmp_path, index, "model_index.json"))
    }
    # The vae's two levels halve once; sample_size 16 counts latents.
    assert targets["unet"].inputs["sample"].shape == (1, 4, 16, 16)
    assert targets["vae"].inputs["latents"].shape == (1, 4, 16, 16)
    assert targets["text_encoder"].inputs["input_ids"].shape == (1, 77)
    assert targets["text_encoder"].dtype == "float32"
    assert targets["vae"].unit == ("images", 1.0)
    with torch.no_grad():
        made = tiny.first(targets["vae"].build().to("meta")(**targets["vae"].inputs))
    assert made.shape == (1, 3, 32, 32)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("no/such/place", "no such file or directory"),
        (
            "meta-llama/Llama-2-7b-hf",
            r"not downloaded here(.|\n)*hf download meta-llama/Llama-2-7b-hf config",
        ),
        ("llama-9", r"no such file(.|\n)*flux-dev, gemma-3-27b"),
        ("./absent", "no such file or directory"),
    ],
)
def test_paths_that_are_not_there(target, says):
    with pytest.raises(PortError, match=says):
        resolve(target)


def test_files_that_are_no_configs(tmp_path, tiny):
    with pytest.raises(PortError, match=r"no config\.json"):
        resolve(str(tmp_path))
    (tmp_path / "config.json").write_text('{\n "model_type": llama\n}')
    with pytest.raises(PortError, match=r"not JSON(.|\n)*config.json:2"):
        resolve(str(tmp_path))
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(PortError, match="not an object"):
        resolve(str(tmp_path))
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(PortError, match="cannot be read"):
        resolve(str(tmp_path))


def test_that_a_path_goes_before_a_known_name(tmp_path, tiny, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny.write(tmp_path / known()[0], CLIP)
    assert resolve(known()[0])[0].kind == "encoder"
