"""What is told before torch is imported is what the whole way to the target says, and no more than that."""

from typing import Any

import pytest

from tpuport.errors import PortError
from tpuport.topology.targets import early_checks, resolve

OPTIONS: dict[str, Any] = dict.fromkeys(
    ("task", "batch", "length", "max_cache_len", "image_size", "frames", "dtype", "inputs", "component")
) | {"trust_remote_code": False}


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("flux-dev", {"image_size": (1000, 1024)}),
        ("flux-dev", {"frames": 5}),
        ("wan-2.1-14b", {"image_size": (480, 833)}),
        ("wan-2.1-14b", {"frames": 82}),
        ("sdxl-unet", {"image_size": (1020, 1020)}),
        ("hunyuan-video-1.5", {"frames": 120}),
        ("no/such", {}),
        ("llama-2-8b", {}),
        ("absent.py:function", {}),
        ("absent.py", {}),
        ("absent_module_of_mine.part:function", {}),
    ],
)
def test_it_is_refused_in_the_same_words(target: str, said: dict[str, Any]) -> None:
    with pytest.raises(PortError) as told:
        early_checks.check(target, OPTIONS | said)
    with pytest.raises(PortError) as later:
        resolve(target, **OPTIONS | said)
    assert (told.value.what, told.value.where) == (later.value.what, later.value.where)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("flux-dev", {"image_size": (1008, 1024), "dtype": "float32"}),
        ("wan-2.1-14b", {"frames": 81, "image_size": (480, 832)}),
        ("llama-2-7b", {"length": 7}),
        ("json.decoder:function", {"inputs": "json:inputs"}),
        ("flux-dev", {"inputs": "json:inputs", "image_size": (1, 1)}),  # told later, with what inputs decide
    ],
)
def test_what_may_be_is_left_alone(target: str, said: dict[str, Any]) -> None:
    early_checks.check(target, OPTIONS | said)


def test_fields_that_the_class_knows_better_are_left_to_it(tmp_path, tiny) -> None:
    """SD3 has patches of two latents: what a config does not say is no patch of one."""
    raw = tiny.settings("SD3Transformer2DModel", pos_embed_max_size=8)
    odd, options = (8 * 2 * 4 + 8,) * 2, OPTIONS
    path = tiny.write(tmp_path / "whole", raw | {"patch_size": 2})
    with pytest.raises(PortError, match="is not a multiple of 16"):
        early_checks.check(path, options | {"image_size": odd})
    path = tiny.write(tmp_path / "part", {name: raw[name] for name in raw if name != "patch_size"})
    early_checks.check(path, options | {"image_size": odd})
    path = tiny.write(tmp_path / "strange", raw | {"patch_size": ["two"]})
    early_checks.check(path, options | {"image_size": odd})


def test_an_autoencoder_beside_the_model_has_a_say(tmp_path, tiny) -> None:
    path = tiny.write(tmp_path / "transformer", tiny.settings("WanTransformer3DModel"))
    with pytest.raises(PortError, match="multiple of 4"):
        early_checks.check(path, OPTIONS | {"frames": 8})
    (tmp_path / "vae").mkdir()
    early_checks.check(path, OPTIONS | {"frames": 8})
