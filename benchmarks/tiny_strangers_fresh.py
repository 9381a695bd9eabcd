"""Tiny models of packages that were fixed by name before anything of them was run or read.

See `benchmarks.tiny_strangers`.
"""

from typing import Any

import torch
from torch import nn

from benchmarks.tiny_strangers_parts import Build, features, get, images, model, tokens

_STEPS, _FEATURES = 8, 4


def _series() -> torch.Tensor:
    return torch.randn(2, _STEPS, _FEATURES)


def _observed() -> torch.Tensor:
    return (torch.rand(2, _STEPS, _FEATURES) > 0.3).float()


def _both_directions() -> dict[str, Any]:
    one = {"X": _series(), "missing_mask": _observed(), "deltas": torch.ones(2, _STEPS, _FEATURES)}
    return {"forward": one, "backward": one}


def _imputer(path: str, inputs: Any, **options: Any) -> Build:
    sizes = {"n_steps": _STEPS, "n_features": _FEATURES} | options
    return model(f"pypots.nn.modules.{path}", inputs, **sizes)


def _enformer() -> tuple[Any, dict[str, Any]]:
    kind = get("enformer_pytorch.modeling_enformer:Enformer")
    enformer = kind.from_hparams(
        dim=96, depth=1, heads=2, output_heads={"human": 5}, target_length=4, num_downsamples=3, attn_dim_key=8,
        dim_divisible_by=8,
    )  # fmt: skip
    return enformer, {"x": torch.randint(0, 5, (1, 64))}


def _memorizing() -> tuple[Any, dict[str, Any]]:
    kind = get("memorizing_transformers_pytorch:MemorizingTransformer")
    transformer = kind(
        num_tokens=50, dim=16, depth=2, dim_head=8, heads=2, memorizing_layers=(2,), max_knn_memories=32
    )
    memories = transformer.create_knn_memories(batch_size=2)
    return transformer, {"x": tokens(), "knn_memories": memories}


def _segment_anything() -> tuple[Any, dict[str, Any]]:
    part = "segment_anything.modeling:"
    sizes: dict[str, Any] = {"embed_dim": 16, "img_size": 32, "patch_size": 8, "depth": 1, "num_heads": 2}
    encoder = get(f"{part}ImageEncoderViT")(out_chans=16, **sizes)
    prompts = get(f"{part}PromptEncoder")(
        embed_dim=16, image_embedding_size=(4, 4), input_image_size=(32, 32), mask_in_chans=4
    )
    transformer = get(f"{part}TwoWayTransformer")(depth=1, embedding_dim=16, num_heads=2, mlp_dim=16)
    decoder = get(f"{part}MaskDecoder")(transformer_dim=16, transformer=transformer)
    image = {
        "image": torch.rand(3, 32, 24) * 255,
        "original_size": (64, 48),
        "point_coords": torch.rand(1, 2, 2) * 20,
        "point_labels": torch.ones(1, 2),
    }
    return get(f"{part}Sam")(encoder, prompts, decoder), {"batched_input": [image], "multimask_output": True}


def _variational(name: str, **options: Any) -> Build:
    def build() -> tuple[Any, dict[str, Any]]:
        suffix = "_Config" if "_" in name else "Config"
        config = get(f"pythae.models:{name}{suffix}")(input_dim=(1, 28, 28), latent_dim=4, **options)
        inputs = get("pythae.data.datasets:BaseDataset")(torch.rand(2, 1, 28, 28), torch.ones(2))
        batch = get("pythae.data.datasets:DatasetOutput")(data=inputs.data)
        return get(f"pythae.models:{name}")(config), {"inputs": batch}

    return build


def _flow(name: str, **options: Any) -> Build:
    def build() -> tuple[Any, dict[str, Any]]:
        config = get(f"pythae.models.normalizing_flows:{name}Config")(input_dim=(4,), **options)
        flow = get(f"pythae.models.normalizing_flows:{name}")(config)
        flow.eval()
        return flow, {"x": torch.randn(3, 4)}

    return build


def _ranked() -> tuple[Any, dict[str, Any]]:
    sparse, sequence = (
        get("torch_rechub.basic.features:SparseFeature"),
        get("torch_rechub.basic.features:SequenceFeature"),
    )
    history = sequence("history", vocab_size=9, embed_dim=8, pooling="concat", shared_with="item")
    item, user = sparse("item", vocab_size=9, embed_dim=8), sparse("user", vocab_size=5, embed_dim=8)
    din = get("torch_rechub.models.ranking:DIN")(
        [user], [history], [item], {"dims": [8]}, {"dims": [8], "activation": "relu"}
    )
    batch = {
        "user": torch.randint(0, 5, (3,)),
        "item": torch.randint(0, 9, (3,)),
        "history": torch.randint(0, 9, (3, 6)),
    }
    return din, {"x": batch}


def _deepar() -> tuple[Any, dict[str, Any]]:
    kind = get("gluonts.torch.model.deepar.module:DeepARModel")
    deepar = kind("D", 8, 3, num_layers=1, hidden_size=8, lags_seq=[1, 2], num_parallel_samples=2)
    past = 8 + 2
    return deepar, {
        "feat_static_cat": torch.zeros(2, 1, dtype=torch.long), "feat_static_real": torch.randn(2, 1),
        "past_time_feat": torch.randn(2, past, 1), "past_target": torch.rand(2, past),
        "past_observed_values": torch.ones(2, past), "future_time_feat": torch.randn(2, 3, 1),
    }  # fmt: skip


def _text_encoder() -> tuple[Any, dict[str, Any]]:
    lengths = torch.tensor([8, 5])
    mask = torch.arange(8)[None] >= lengths[:, None]
    encoder = get("kokoro.modules:TextEncoder")(16, 3, 1, 50)
    return encoder, {"x": torch.randint(0, 50, (2, 8)), "input_lengths": lengths, "m": mask}


def _prosody() -> tuple[Any, dict[str, Any]]:
    lengths = torch.tensor([8, 5])
    mask = torch.arange(8)[None] >= lengths[:, None]
    predictor = get("kokoro.modules:ProsodyPredictor")(8, 16, 1)
    return predictor, {
        "texts": torch.randn(2, 16, 8), "style": torch.randn(2, 8), "text_lengths": lengths,
        "alignment": torch.rand(2, 8, 12), "m": mask,
    }  # fmt: skip


def _recurrent_translator() -> tuple[Any, dict[str, Any]]:
    encoder = get("joeynmt.encoders:RecurrentEncoder")(hidden_size=16, emb_size=16)
    lengths = torch.tensor([8, 5])
    mask = (torch.arange(8)[None] < lengths[:, None])[:, None]
    return encoder, {"src_embed": features(8, 16), "src_length": lengths, "mask": mask}


def _tagger() -> tuple[Any, dict[str, Any]]:
    masks = torch.arange(8)[None] >= torch.tensor([[8], [5]])
    return get("stanza.models.common.crf:CRFLoss")(4), {
        "inputs": torch.randn(2, 8, 4), "masks": masks, "tag_indices": torch.randint(0, 4, (2, 8)),
    }  # fmt: skip


MODELS: dict[str, Build] = {
    "enformer_pytorch.Enformer": _enformer,
    "se3_transformer_pytorch.SE3Transformer": model(
        "se3_transformer_pytorch:SE3Transformer",
        {"feats": torch.randn(1, 6, 8), "coors": torch.randn(1, 6, 3), "mask": torch.ones(1, 6).bool()},
        dim=8, heads=2, depth=1, dim_head=4, num_degrees=2, num_neighbors=3,
    ),
    "se3_transformer_pytorch.adjacent": model(
        "se3_transformer_pytorch:SE3Transformer",
        {"feats": torch.randn(1, 6, 8), "coors": torch.randn(1, 6, 3), "mask": torch.ones(1, 6).bool(),
         "adj_mat": torch.eye(6).bool()},
        dim=8, heads=2, depth=1, dim_head=4, num_degrees=2, num_neighbors=0, attend_sparse_neighbors=True,
        num_adj_degrees=2, adj_dim=2, max_sparse_neighbors=3,
    ),
    "kan.KAN": model("kan:KAN", {"x": torch.randn(4, 2)}, width=[2, 3, 1], grid=3, k=3, auto_save=False),
    "magvit2_pytorch.VideoTokenizer": model(
        "magvit2_pytorch:VideoTokenizer", {"video_or_images": torch.rand(1, 3, 5, 32, 32)}, image_size=32,
        init_dim=8, layers=("residual", "compress_space", "compress_time"), codebook_size=16, use_gan=False,
        perceptual_loss_weight=0.0,
    ),
    "memorizing_transformers_pytorch.MemorizingTransformer": _memorizing,
    "routing_transformer.RoutingTransformerLM": model(
        "routing_transformer:RoutingTransformerLM", {"x": tokens(32)}, num_tokens=50, dim=16, depth=2,
        max_seq_len=32, heads=2, dim_head=8, window_size=8, causal=True,
    ),
    "routing_transformer.local": model(
        "routing_transformer:RoutingTransformerLM", {"x": tokens(32)}, num_tokens=50, dim=16, depth=2,
        max_seq_len=32, heads=4, dim_head=8, window_size=8, n_local_attn_heads=2, pkm_layers=(1,), moe_layers=(2,),
    ),
    "audiolm_pytorch.SoundStream": model(
        "audiolm_pytorch.soundstream:SoundStream",
        [{"x": torch.randn(1, 1280), "return_recons_only": True},
         {"x": torch.randn(1, 1280), "return_codes_only": True}],
        channels=4, codebook_dim=16, codebook_size=16, rq_num_quantizers=2, attn_window_size=8, attn_dim_head=8,
        attn_heads=2, attn_depth=1,
    ),
    "segment_anything.Sam": _segment_anything,
    "easyocr.CRNN": model(
        "easyocr.model.model:Model", {"input": torch.randn(1, 1, 64, 100), "text": torch.zeros(1, 5).long()},
        input_channel=1, output_channel=16, hidden_size=8, num_class=10,
    ),
    "easyocr.CRAFT": model("easyocr.craft:CRAFT", {"x": images(64)}),
    "ncps.CfC": model("ncps.torch:CfC", {"input": features(6, 8)}, input_size=8, units=8),
    "ncps.LTC": model("ncps.torch:LTC", {"input": features(6, 8)}, input_size=8, units=8),
    "facexlib.RetinaFace": model(
        "facexlib.detection.retinaface:RetinaFace", {"inputs": torch.rand(1, 3, 64, 64)},
        network_name="mobile0.25", device="cpu",
    ),
    "tortoise.DiffusionTts": model(
        "tortoise.models.diffusion_decoder:DiffusionTts",
        {"x": torch.randn(1, 8, 16), "timesteps": torch.tensor([3]), "aligned_conditioning": torch.randn(1, 4, 16),
         "conditioning_latent": torch.randn(1, 64)},
        model_channels=32, num_layers=1, in_channels=8, in_latent_channels=16, in_tokens=20, out_channels=16,
        num_heads=2,
    ),
    "tortoise.CLVP": model(
        "tortoise.models.clvp:CLVP", {"text": tokens(8), "speech_tokens": tokens(12)}, dim_text=16, dim_speech=16,
        dim_latent=16, num_text_tokens=60, text_enc_depth=1, text_seq_len=16, text_heads=2, num_speech_tokens=60,
        speech_enc_depth=1, speech_heads=2, speech_seq_len=16,
    ),
    "kokoro.TextEncoder": _text_encoder,
    "kokoro.ProsodyPredictor": _prosody,
    "kokoro.TorchSTFT": model(
        "kokoro.istftnet:TorchSTFT", {"input_data": torch.randn(1, 800)}, filter_length=32, hop_length=8, win_length=32
    ),
    "kokoro.SourceModuleHnNSF": model(
        "kokoro.istftnet:SourceModuleHnNSF", {"x": torch.rand(1, 40, 1) * 200}, sampling_rate=800, upsample_scale=4,
        harmonic_num=2,
    ),
    **{f"pythae.{name}": _variational(name) for name in "VAE BetaVAE IWAE VAE_IAF VAE_LinNF VQVAE WAE_MMD".split()},
    **{f"pythae.{name}": _variational(name) for name in "INFOVAE_MMD SVAE VAMP Adversarial_AE".split()},
    **{f"pythae.{name}": _flow(name) for name in "MAF IAF".split()},
    "pypots.SAITS": _imputer(
        "saits.backbone:BackboneSAITS", {"X": _series(), "missing_mask": _observed()}, n_layers=1, d_model=16,
        n_heads=2, d_k=8, d_v=8, d_ffn=16, dropout=0.0, attn_dropout=0.0,
    ),
    "pypots.BRITS": _imputer("brits.backbone:BackboneBRITS", {"inputs": _both_directions()}, rnn_hidden_size=8),
    "pypots.MRNN": _imputer("mrnn.backbone:BackboneMRNN", {"inputs": _both_directions()}, rnn_hidden_size=8),
    "pypots.GRUD": _imputer(
        "grud.backbone:BackboneGRUD",
        {"X": _series(), "missing_mask": _observed(), "deltas": _observed(), "empirical_mean": torch.randn(_FEATURES),
         "X_filledLOCF": _series()},
        rnn_hidden_size=8,
    ),
    "pypots.TimesNet": model(
        "pypots.nn.modules.timesnet.backbone:BackboneTimesNet", {"X": torch.randn(2, 16, 8)}, n_layers=1, n_steps=16,
        n_pred_steps=0, top_k=2, d_model=8, d_ffn=8, n_kernels=2,
    ),
    "pypots.Raindrop": model(
        "pypots.nn.modules.raindrop.backbone:BackboneRaindrop",
        {"X": torch.randn(8, 2, 8), "timestamps": torch.rand(8, 2), "lengths": torch.tensor([8, 6])}, n_features=4,
        n_layers=1, d_model=8, n_heads=2, d_ffn=8, n_classes=2, max_len=8,
    ),
    "pypots.GPVAE": model(
        "pypots.nn.modules.gpvae.backbone:BackboneGPVAE", {"X": _series(), "missing_mask": _observed()}, input_dim=4,
        time_length=8, latent_dim=4, window_size=3,
    ),
    "torch_rechub.DIN": _ranked,
    "gluonts.DeepAR": _deepar,
    "tianshou.Recurrent": model(
        "tianshou.utils.net.common:Recurrent", {"obs": torch.randn(2, 5, 4)}, layer_num=1, state_shape=4,
        action_shape=2, hidden_layer_size=8,
    ),
    "joeynmt.RecurrentEncoder": _recurrent_translator,
    "stanza.CRFLoss": _tagger,
    "pytorchvideo.slowfast": model(
        "pytorchvideo.models.slowfast:create_slowfast",
        {"x": [torch.randn(1, 3, 2, 32, 32), torch.randn(1, 3, 8, 32, 32)]}, model_num_class=4, model_depth=18,
        head_pool_kernel_sizes=((2, 1, 1), (8, 1, 1)),
    ),
    "pytorchvideo.mvit": model(
        "pytorchvideo.models.vision_transformers:create_multiscale_vision_transformers",
        {"x": torch.randn(1, 3, 4, 32, 32)}, spatial_size=32, temporal_size=4, depth=1, num_heads=1, patch_embed_dim=16,
        head_num_classes=4,
    ),
    "lightly.NTXentLoss": model(
        "lightly.loss:NTXentLoss", {"out0": torch.randn(4, 8), "out1": torch.randn(4, 8)}
    ),
    **{
        f"lightly.{name}": lambda name=name: (
            get(f"lightly.loss:{name}")(), {"z_a": torch.randn(4, 8), "z_b": torch.randn(4, 8)},
        )
        for name in "BarlowTwinsLoss VICRegLoss".split()
    },
    "gliner.SpanRepLayer": model(
        "gliner.modeling.span_rep:SpanRepLayer", {"x": features(8, 16), "span_idx": torch.randint(0, 8, (2, 24, 2))},
        hidden_size=16, max_width=3, span_mode="markerV0", dropout=0.0,
    ),
    "esm.ESMC": model(
        "esm.models.esmc:ESMC", {"sequence_tokens": torch.randint(4, 20, (2, 8))}, d_model=32, n_heads=2, n_layers=1,
        tokenizer=nn.Identity(), use_flash_attn=False,
    ),
}  # fmt: skip
