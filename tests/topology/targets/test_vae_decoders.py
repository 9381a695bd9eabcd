"""Decoders give images and videos of the size that was asked for, without the weights that encode."""

import pytest
import torch

from tpuport.errors import PortError
from tpuport.libraries.library_classes import is_diffusers_model
from tpuport.topology.targets import resolve
from tpuport.topology.targets.config_files import find_config
from tpuport.topology.targets.diffusers_targets import full_config
from tpuport.topology.targets.vae_decoders import vae_compression

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")

# (frames in pixels, frames of latents) by class; none for images.
VIDEOS = {
    "AutoencoderKLCogVideoX": (9, 3), "AutoencoderKLCosmos": (17, 3), "AutoencoderKLHunyuanVideo": (9, 3),
    "AutoencoderKLHunyuanVideo15": (9, 3), "AutoencoderKLLTXVideo": (17, 3), "AutoencoderKLMagvit": (9, 3),
    "AutoencoderKLMochi": (13, 3), "AutoencoderKLQwenImage": (1, 1), "AutoencoderKLWan": (9, 3),
}  # fmt: skip
IMAGES = (
    "AsymmetricAutoencoderKL", "AutoencoderDC", "AutoencoderKL", "AutoencoderKLFlux2", "AutoencoderKLHunyuanImage",
    "AutoencoderTiny", "VQModel",
)  # fmt: skip


# Films of another compression each, frames alone, and images of three.
SAMPLE = {
    "AutoencoderKLLTXVideo", "AutoencoderKLMochi", "AutoencoderKLQwenImage", "AutoencoderKLWan", "AutoencoderDC",
    "AutoencoderKL", "VQModel",
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in SAMPLE else pytest.mark.slow) for name in [*VIDEOS, *IMAGES]],
)
def test_that_a_decoder_makes_the_size_that_was_asked_for(tmp_path, name, tiny):
    path = tiny.write(tmp_path, tiny.settings(name))
    side = vae_compression(name, full_config(find_config(path)), "").spatial
    height, width = 4 * side, 6 * side
    frames, latent_frames = VIDEOS.get(name, (None, None))
    [target] = resolve(path, image_size=(height, width), frames=frames)
    with torch.no_grad():
        made = tiny.first(target.build().to("meta")(**target.inputs))
    film = () if frames is None else (frames,)
    assert tuple(made.shape) == (1, 3, *film, height, width)
    assert target.inputs["latents"].shape[2:] == (*(() if frames is None else (latent_frames,)), 4, 6)
    assert target.unit == (("images", 1.0) if frames is None else ("frames", float(frames)))


def test_that_a_decoder_holds_its_own_weights_under_their_own_names(tmp_path, tiny):
    import diffusers

    path = tiny.write(tmp_path, tiny.settings("AutoencoderKL"))
    with torch.device("meta"):
        whole = diffusers.AutoencoderKL.from_config(tiny.settings("AutoencoderKL"))
    [target] = resolve(path)
    model = target.build()
    kept = {name for name in whole.state_dict() if name.split(".")[0] in ("decoder", "post_quant_conv")}
    assert set(model.state_dict()) == kept != set(whole.state_dict())
    assert is_diffusers_model(model)
    assert isinstance(model, diffusers.AutoencoderKL)
    assert type(model).__name__ == "AutoencoderKLDecoder"


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("AutoencoderKL", {"frames": 9}, "frames does not apply to AutoencoderKL"),
        ("AutoencoderKLWan", {"frames": 8}, "8 frames are not 1 and a multiple of 4"),
        ("AutoencoderKLWan", {"image_size": 36}, "height 36 is not a multiple of 8"),
        ("AutoencoderKLWan", {"task": "prefill"}, "has no prefill"),
        ("AutoencoderKLAllegro", {}, "latents of AutoencoderKLAllegro"),
    ],
)
def test_what_a_decoder_cannot_do(tmp_path, name, options, says, tiny):
    path = tiny.write(tmp_path, tiny.settings(name))
    with pytest.raises(PortError, match=says):
        resolve(path, **options)
