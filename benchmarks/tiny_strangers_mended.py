"""Tiny models of packages whose disagreements were read after the first figures; see `benchmarks.tiny_strangers`."""

from typing import Any

import torch

from benchmarks.tiny_strangers_parts import VOCABULARY, Build, get, model, padding_mask, tokens

_AUDIO: dict[str, Any] = {"mix": torch.randn(1, 2, 4096)}
_LINE: list[dict[str, Any]] = [
    {"x": torch.rand(1, 3, 32, 128)},
    {"x": torch.rand(1, 3, 32, 128), "return_preds": True},
]


def _whisper() -> tuple[Any, dict[str, Any]]:
    sizes = get("whisper.model:ModelDimensions")(8, 16, 32, 2, 1, VOCABULARY, 16, 32, 2, 1)
    return get("whisper.model:Whisper")(sizes), {"mel": torch.randn(2, 8, 32), "tokens": tokens(8)}


def _litgpt(**options: Any) -> Build:
    """A prompt, and a step with the cache."""
    step = {"idx": tokens(1), "input_pos": torch.tensor([3])}

    def build() -> tuple[Any, list[dict[str, Any]]]:
        config = get("litgpt.config:Config")(
            block_size=32, padded_vocab_size=VOCABULARY, vocab_size=VOCABULARY, n_layer=2, n_head=4, n_embd=32,
            **options,
        )  # fmt: skip
        gpt = get("litgpt.model:GPT")(config)
        gpt.set_kv_cache(2)
        return gpt, [{"idx": tokens(8)}, step, {**step, "input_pos_maxp1": 4}]

    return build


def _torchtune(path: str, **options: Any) -> Build:
    positions = torch.arange(8).expand(2, 8)
    calls = [{"tokens": tokens(8)}, {"tokens": tokens(8), "input_pos": positions}]
    return model(
        path, calls, vocab_size=VOCABULARY, num_layers=2, num_heads=4, num_kv_heads=2, embed_dim=32,
        max_seq_len=32, **options,
    )  # fmt: skip


def _torchtune_cache() -> tuple[Any, list[dict[str, Any]]]:
    decoder, _ = _torchtune("torchtune.models.llama3:llama3")()
    decoder.setup_caches(batch_size=2, dtype=torch.float32)
    mask = torch.tril(torch.ones(32, 32, dtype=torch.bool))
    return decoder, [
        {"tokens": tokens(8), "mask": mask[None, :8].expand(2, 8, 32), "input_pos": torch.arange(8)[None]},
        {"tokens": tokens(1), "mask": mask[None, 8:9].expand(2, 1, 32), "input_pos": torch.tensor([[8]])},
    ]


def _crf() -> tuple[Any, dict[str, Any]]:
    call = {
        "emissions": torch.randn(2, 8, 5),
        "tags": torch.randint(0, 5, (2, 8)),
        "mask": padding_mask(8),
    }
    return get("torchcrf:CRF")(5, batch_first=True), call


def _flow(name: str) -> Build:
    def build() -> tuple[Any, dict[str, Any]]:
        flow = get(f"zuko.flows:{name}")(3)
        return (lambda x: flow().log_prob(x)), {"x": torch.rand(4, 3)}

    return build


def _experts() -> tuple[Any, dict[str, Any]]:
    experts = get("st_moe_pytorch:MoE")(dim=16, num_experts=4)
    block = get("st_moe_pytorch:SparseMoEBlock")(experts, add_ff_before=True)
    return block, {"x": torch.randn(2, 8, 16)}


_LLAMA: dict[str, Any] = {
    "rotary_percentage": 1.0, "parallel_residual": False, "bias": False, "norm_class_name": "RMSNorm",
    "intermediate_size": 48,
}  # fmt: skip
_YOLO = {
    "DetectionModel": "yolov5n yolov8n yolov9t yolov10n yolo11n yolo12n yolo26n",
    "SegmentationModel": "yolo11n-seg",
    "PoseModel": "yolo11n-pose",
    "OBBModel": "yolo11n-obb",
    "ClassificationModel": "yolo11n-cls",
    "RTDETRDetectionModel": "rtdetr-resnet50",
    "WorldModel": "yolov8s-world",
}

MODELS: dict[str, Build] = {
    "whisper.Whisper": _whisper,
    "litgpt.GPT": _litgpt(),
    "litgpt.llama": _litgpt(**_LLAMA, mlp_class_name="LLaMAMLP", n_query_groups=2),
    "litgpt.experts": _litgpt(**_LLAMA, mlp_class_name="LLaMAMoE", n_expert=4, n_expert_per_token=2),
    "litgpt.window": _litgpt(
        sliding_window_size=4, sliding_window_indices=[1, 0], attention_logit_softcapping=5.0,
        parallel_residual=False,
    ),
    "torchtune.llama3": _torchtune("torchtune.models.llama3:llama3"),
    "torchtune.cache": _torchtune_cache,
    "torchtune.qwen2": _torchtune(
        "torchtune.models.qwen2:qwen2", intermediate_dim=48, tie_word_embeddings=True
    ),
    "torchtune.gemma": _torchtune("torchtune.models.gemma:gemma", head_dim=8, intermediate_dim=48),
    "torchtune.mistral": _torchtune("torchtune.models.mistral:mistral", intermediate_dim=48),
    "torchtune.phi3": _torchtune("torchtune.models.phi3:phi3", intermediate_dim=48),
    "torchtune.vision": model(
        "torchtune.models.llama3_2_vision:llama3_2_vision_encoder",
        {"images": torch.randn(1, 1, 2, 3, 16, 16), "aspect_ratio": torch.tensor([[[1, 2]]])},
        patch_size=8, num_heads=2, clip_embed_dim=32, clip_num_layers=1, clip_hidden_states=None,
        num_layers_projection=1, decoder_embed_dim=32, tile_size=16,
    ),
    **{
        f"ultralytics.{name}": model(
            f"ultralytics.nn.tasks:{kind}", {"x": torch.rand(1, 3, 64, 64)}, cfg=f"{name}.yaml", verbose=False
        )
        for kind, names in _YOLO.items()
        for name in names.split()
    },
    **{
        f"doctr.{name}": model(
            f"doctr.models.recognition:{name}", _LINE, pretrained=False, pretrained_backbone=False
        )
        for name in "crnn_mobilenet_v3_small sar_resnet31 vitstr_small parseq master viptr_tiny".split()
    },
    **{
        f"doctr.{name}": model(
            f"doctr.models.classification:{name}", {"x": torch.rand(1, 3, 32, 32)}, pretrained=False
        )
        for name in "mobilenet_v3_small resnet18 vgg16_bn_r".split()
    },
    "torchcrf.CRF": _crf,
    **{f"zuko.{name}": _flow(name) for name in "NSF MAF NICE UNAF GMM BPF GF NCSF SOSPF".split()},
    "st_moe_pytorch.SparseMoEBlock": _experts,
    "demucs.HTDemucs": model(
        "demucs.htdemucs:HTDemucs", _AUDIO, sources=["a", "b"], channels=8, nfft=512, depth=2, t_layers=1,
        segment=1, samplerate=4096,
    ),
    "demucs.Demucs": model(
        "demucs.demucs:Demucs", _AUDIO, sources=["a", "b"], channels=8, depth=3, lstm_layers=1
    ),
}  # fmt: skip
