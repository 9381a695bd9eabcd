"""LoRA, IP-Adapter, textual inversion and other changes of a ported pipeline's models: results are diffusers'."""

import itertools
from typing import Any

import pytest
import torch
from diffusers import (
    AutoencoderKL,
    ControlNetModel,
    DDIMScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    StableDiffusionControlNetPipeline,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict

import tpuport
from tpuport.errors import PortError
from tpuport.quantization import quantized_weights

# Flux's rotary embedding asks for float64.
pytestmark = pytest.mark.filterwarnings("ignore:float64 becomes float32")

none: Any = None
TOLERANCE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def image_vae() -> AutoencoderKL:
    blocks: dict[str, Any] = {
        "down_block_types": ("DownEncoderBlock2D",),
        "up_block_types": ("UpDecoderBlock2D",),
    }
    return AutoencoderKL(
        block_out_channels=(8,), latent_channels=4, norm_num_groups=4, sample_size=16, **blocks
    )


def flux(layers: int = 1) -> Any:
    torch.manual_seed(0)
    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=layers, num_single_layers=0, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    pipe = FluxPipeline(FlowMatchEulerDiscreteScheduler(), image_vae(), none, none, none, none, transformer)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def call_flux(pipe: Any, **options: Any) -> torch.Tensor:
    return pipe(
        prompt_embeds=draw(1, 7, 32), pooled_prompt_embeds=draw(1, 32), height=16, width=16, num_inference_steps=2,
        generator=torch.Generator().manual_seed(0), output_type="latent", **options,
    )[0]  # fmt: skip


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder with LoRA weights for `flux`."""
    pipe = flux()
    config = LoraConfig(
        r=2, lora_alpha=3, init_lora_weights=False, target_modules=["to_q", "to_v", "to_out.0"]
    )
    pipe.transformer.add_adapter(config)
    folder = tmp_path_factory.mktemp("lora")
    weights: Any = get_peft_model_state_dict(pipe.transformer)
    FluxPipeline.save_lora_weights(folder, weights)
    return folder


def change_lora(pipe: Any, folder: Any) -> Any:
    """Change the pipeline's LoRA weights in every way, and yield what it makes after each change."""
    yield "none", call_flux(pipe)
    pipe.load_lora_weights(folder, adapter_name="first")
    yield "loaded", call_flux(pipe)
    yield "scaled", call_flux(pipe, joint_attention_kwargs={"scale": 0.3})
    yield "unscaled", call_flux(pipe)
    pipe.set_adapters(["first"], [0.5])
    yield "weighted", call_flux(pipe)
    pipe.disable_lora()
    yield "disabled", call_flux(pipe)
    pipe.enable_lora()
    pipe.fuse_lora(lora_scale=0.7)
    yield "fused", call_flux(pipe)
    pipe.unfuse_lora()
    pipe.unload_lora_weights()
    yield "unloaded", call_flux(pipe)


def assert_changes_as_in_torch(pipe: Any, lora: Any, changes: int) -> None:
    """Carry out so many of the changes on the ported pipeline, and compare what it makes after each."""
    with torch.no_grad():
        expected = dict(itertools.islice(change_lora(flux(), lora), changes))
    changed = [name for name in ("none", "loaded", "scaled", "weighted", "fused") if name in expected]
    for one, other in itertools.combinations(changed, 2):
        assert not torch.allclose(expected[one], expected[other], **TOLERANCE)
    for name, latents in itertools.islice(change_lora(pipe, lora), changes):
        torch.testing.assert_close(latents, expected[name], **TOLERANCE, msg=name)


@pytest.mark.slow  # the first three below: each compiles, and the later ones are methods of the pipeline as loading is
def test_lora(lora: Any) -> None:
    assert_changes_as_in_torch(tpuport.port(flux()), lora, changes=8)


def test_lora_that_is_loaded_and_scaled_does_not_compile_again(lora: Any) -> None:
    pipe = tpuport.port(flux())
    vae = pipe.vae.decoder.forward
    assert_changes_as_in_torch(pipe, lora, changes=3)
    count = pipe.transformer.forward.program.compilations
    call_flux(pipe, joint_attention_kwargs={"scale": 0.3})
    assert pipe.transformer.forward.program.compilations == count
    assert pipe.vae.decoder.forward is vae  # what the method does not change stays as it was


@pytest.mark.slow  # the adapter on one device above
def test_lora_is_sharded_as_the_model_was(lora: Any) -> None:
    mesh = tpuport.create_mesh(tp=2, dp=4)
    pipe = tpuport.port(flux(), mesh=mesh)
    before = pipe.transformer.transformer_blocks[0].attn.to_q.weight
    pipe.load_lora_weights(lora)
    after = pipe.transformer.transformer_blocks[0].attn.to_q.base_layer.weight
    assert tpuport.compat.as_jax(after).sharding == tpuport.compat.as_jax(before).sharding
    assert "tp" in tpuport.compat.as_jax(after).sharding.spec


@pytest.mark.slow  # the adapter beside weights as they are above
def test_lora_beside_quantised_weights(lora: Any) -> None:
    theirs = flux()
    # What the values of quantised weights stand for.
    tpuport.to_cpu(tpuport.port(theirs, quantize="int8"))
    theirs.load_lora_weights(lora)
    ours = tpuport.port(flux(), quantize="int8")
    ours.load_lora_weights(lora)
    quantized = [name for name, *_ in quantized_weights(ours.transformer)]
    assert any(name.endswith("to_q.base_layer.weight") for name in quantized)
    assert not any("lora" in name for name in quantized)
    torch.testing.assert_close(call_flux(ours), call_flux(theirs), **TOLERANCE)


def test_lora_that_would_make_weights_wide_is_refused(lora: Any) -> None:
    pipe = flux()
    tpuport.port(pipe.transformer, quantize="int8")
    tpuport.port(pipe)
    with pytest.raises(PortError, match="weights of transformer are quantised"):
        pipe.load_lora_weights(lora)
    assert any(quantized_weights(pipe.transformer))


@pytest.mark.slow
def test_lora_of_layers_in_a_loop(lora: Any) -> None:
    theirs, ours = flux(layers=2), tpuport.port(flux(layers=2), scan_layers=True)
    call_flux(ours)
    for pipe in (theirs, ours):
        pipe.load_lora_weights(lora)
    torch.testing.assert_close(call_flux(ours), call_flux(theirs), **TOLERANCE)
    assert ours.transformer.forward.scan_layers


def test_a_method_that_fails_leaves_a_pipeline_that_can_be_called(lora: Any) -> None:
    expected = call_flux(flux())
    pipe = tpuport.port(flux())
    with pytest.raises(ValueError, match="Invalid LoRA checkpoint"):
        pipe.load_lora_weights({"wrong": torch.ones(1)})
    torch.testing.assert_close(call_flux(pipe), expected, **TOLERANCE)


def test_gpu_kernels_are_refused() -> None:
    with pytest.raises(PortError, match="GPU"):
        tpuport.port(flux()).enable_xformers_memory_efficient_attention()


def stable_diffusion() -> Any:
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        block_out_channels=(8,), layers_per_block=1, sample_size=8, norm_num_groups=4, cross_attention_dim=32,
        down_block_types=("CrossAttnDownBlock2D",), up_block_types=("CrossAttnUpBlock2D",), attention_head_dim=4,
    )  # fmt: skip
    scheduler: Any = DDIMScheduler(clip_sample=False, steps_offset=1)
    pipe = StableDiffusionPipeline(
        image_vae(),
        text_encoder(),
        tokenizer(),
        unet,
        scheduler,
        none,
        none,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def text_encoder() -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=32,
        max_position_embeddings=16, bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    return CLIPTextModel(config).eval()


def tokenizer() -> Any:
    """A tokenizer of words, as CLIP's."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<start>", "<end>", "<unk>", "a", "red", "cat"]
    inner = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", 0), ("<end>", 1)]
    )
    tokens = {"bos_token": "<start>", "eos_token": "<end>", "unk_token": "<unk>", "pad_token": "<end>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=16, **tokens)


def call_stable_diffusion(pipe: Any, prompt: str = "a cat", **options: Any) -> torch.Tensor:
    return pipe(
        prompt, height=16, width=16, num_inference_steps=2, generator=torch.Generator().manual_seed(0),
        output_type="latent", **options,
    )[0]  # fmt: skip


def ip_adapter() -> dict[str, Any]:
    """Weights of an IP-Adapter for `stable_diffusion`, in the form of its files."""
    from diffusers.models.attention_processor import IPAdapterAttnProcessor2_0
    from diffusers.models.embeddings import ImageProjection

    unet, weights, number = stable_diffusion().unet, {}, 1
    torch.manual_seed(1)
    for name in unet.attn_processors:
        if name.endswith("attn1.processor"):
            continue
        width = unet.get_submodule(name.removesuffix(".processor")).to_q.out_features
        adapter: Any = IPAdapterAttnProcessor2_0(width, 32, num_tokens=(4,))
        weights[f"{number}.to_k_ip.weight"] = adapter.to_k_ip[0].weight.detach()
        weights[f"{number}.to_v_ip.weight"] = adapter.to_v_ip[0].weight.detach()
        number += 2
    projection = ImageProjection(image_embed_dim=16, cross_attention_dim=32, num_image_text_embeds=4)
    names = {"image_embeds.": "proj.", "norm.": "norm."}
    image_proj = {}
    for name, weight in projection.state_dict().items():
        prefix = next(prefix for prefix in names if name.startswith(prefix))
        image_proj[names[prefix] + name.removeprefix(prefix)] = weight
    return {"image_proj": image_proj, "ip_adapter": weights}


def change_adapter(pipe: Any) -> Any:
    """As `change_lora`, with an IP-Adapter, a new word, and what only sets attributes."""
    yield "none", call_stable_diffusion(pipe)
    pipe.load_textual_inversion({"<cat>": draw(32, seed=3)}, token="<cat>")
    yield "inverted", call_stable_diffusion(pipe, "a <cat>")
    pipe.load_ip_adapter(ip_adapter(), subfolder="", weight_name=None, image_encoder_folder=None)
    pipe.set_ip_adapter_scale(0.6)
    image: dict[str, Any] = {"ip_adapter_image_embeds": [draw(2, 1, 16)]}
    yield "adapted", call_stable_diffusion(pipe, **image)
    pipe.set_ip_adapter_scale(0.1)
    yield "adapted less", call_stable_diffusion(pipe, **image)
    pipe.unload_ip_adapter()
    pipe.enable_freeu(s1=0.9, s2=0.2, b1=1.2, b2=1.4)
    yield "freeu", call_stable_diffusion(pipe)
    pipe.disable_freeu()
    yield "again", call_stable_diffusion(pipe)


@pytest.mark.slow  # six programs of a U-Net; the mechanism is that of LoRA
def test_adapters() -> None:
    with torch.no_grad():
        expected = dict(change_adapter(stable_diffusion()))
    assert len({float(latents.sum()) for latents in expected.values()}) == len(expected) - 1
    for name, latents in change_adapter(tpuport.port(stable_diffusion())):
        torch.testing.assert_close(latents, expected[name], **TOLERANCE, msg=name)


def control_net(seed: int) -> ControlNetModel:
    """A ControlNet that has an effect: a new one adds zeros."""
    torch.manual_seed(seed)
    model = ControlNetModel(
        block_out_channels=(8, 16), layers_per_block=1, cross_attention_dim=32, norm_num_groups=2, attention_head_dim=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), conditioning_embedding_out_channels=(4,),
    )  # fmt: skip
    last: Any = model.controlnet_cond_embedding.conv_out
    for convolution in (last, *model.controlnet_down_blocks, model.controlnet_mid_block):
        torch.nn.init.normal_(convolution.weight, std=0.3)
    return model


@pytest.mark.slow  # stacks as models, and pipelines with one ControlNet, in test_pipeline_families.py
def test_a_stack_of_control_nets() -> None:
    def pipeline() -> Any:
        torch.manual_seed(0)
        unet = UNet2DConditionModel(
            block_out_channels=(8, 16), layers_per_block=1, sample_size=8, cross_attention_dim=32, norm_num_groups=2,
            attention_head_dim=4, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        )  # fmt: skip
        pipe = StableDiffusionControlNetPipeline(
            image_vae(), none, none, unet, [control_net(1), control_net(2)], DDIMScheduler(clip_sample=False), none,
            none, requires_safety_checker=False,
        )  # fmt: skip
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def call(pipe: Any, scales: list[float]) -> torch.Tensor:
        images = [draw(1, 3, 16, 16, seed=seed).sigmoid() for seed in (2, 3)]
        return pipe(
            prompt_embeds=draw(1, 7, 32), negative_prompt_embeds=draw(1, 7, 32, seed=1), image=images, height=16,
            width=16, controlnet_conditioning_scale=scales, num_inference_steps=2, output_type="latent",
            generator=torch.Generator().manual_seed(0),
        )[0]  # fmt: skip

    reference, ported = pipeline(), tpuport.port(pipeline())
    both, first = call(reference, [1.0, 0.5]), call(reference, [1.0, 0.0])
    assert (both - first).abs().max() > 0.1
    torch.testing.assert_close(call(ported, [1.0, 0.5]).cpu(), both, **TOLERANCE)
    torch.testing.assert_close(call(ported, [1.0, 0.0]).cpu(), first, **TOLERANCE)
