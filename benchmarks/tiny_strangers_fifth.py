"""Tiny models of packages that were fixed by name for a fifth trial, before anything of them was fetched.

See `benchmarks.tiny_strangers`.
"""

import importlib
from typing import Any

import torch
from torch import nn

from benchmarks.tiny_strangers_parts import Build, features, get, model, padding_mask, tokens

_CALLERS = "benchmarks.tiny_strangers_solvers"
_SPANS = torch.tensor([[[0, 2], [3, 5]], [[1, 1], [4, 6]]])


def _embeddings(count: int = 8) -> dict[str, Any]:
    return {"inputs": torch.randn(count, 16), "targets": torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])}


def _allennlp(path: str, inputs: dict[str, Any], **options: Any) -> Build:
    """A part of allennlp, which imports what the hub's client no longer has, to upload models."""

    def build() -> tuple[Any, dict[str, Any]]:
        hub = importlib.import_module("huggingface_hub")
        for name in ("HfFolder", "Repository"):
            vars(hub).setdefault(name, object)
        return get(f"allennlp.modules.{path}")(**options), inputs

    return build


def _span_extractor(name: str, **options: Any) -> Build:
    inputs = {
        "sequence_tensor": features(16, 16), "span_indices": _SPANS, "sequence_mask": padding_mask(),
        "span_indices_mask": torch.tensor([[True, True], [True, False]]),
    }  # fmt: skip
    return _allennlp(f"span_extractors.{name}", inputs, input_dim=16, **options)


def _sequence_encoder(name: str, **options: Any) -> Build:
    inputs = {"inputs": features(16, 16), "mask": padding_mask()}
    return _allennlp(f"seq2seq_encoders.pytorch_seq2seq_wrapper:{name}", inputs, **options)


def _bark(name: str, config: str, inputs: dict[str, Any], **options: Any) -> Build:
    sizes = {"block_size": 32, "input_vocab_size": 50, "output_vocab_size": 50, "n_layer": 1, "n_head": 2}

    def build() -> tuple[Any, dict[str, Any]]:
        module = f"bark.{name}"
        settings = get(f"{module}:{config}Config")(**sizes, n_embd=16, dropout=0.0, bias=False, **options)
        return get(f"{module}:{config}")(settings), inputs

    return build


def _encoder_of_classes(name: str, **options: Any) -> Build:
    return model(f"gliclass.{name}", {"x": features(16, 16), "mask": padding_mask()}, **options)


def _mixed() -> tuple[Any, dict[str, Any]]:
    transfusion = get("transfusion_pytorch:Transfusion")(
        num_text_tokens=20, dim_latent=8, modality_default_shape=(2,),
        transformer={"dim": 16, "depth": 2, "dim_head": 8, "heads": 2},
    )  # fmt: skip
    samples = [
        [torch.randint(0, 20, (6,)), torch.randn(4, 8), torch.randint(0, 20, (3,))],
        [torch.randint(0, 20, (5,)), torch.randn(2, 8)],
    ]
    return transfusion, {"modalities": samples}


def _molecules() -> tuple[Any, dict[str, Any]]:
    attended = get("chemprop.nn.agg:AttentiveAggregation")(output_size=8)
    return attended, {"H": torch.randn(6, 8), "batch": torch.tensor([0, 0, 1, 1, 1, 2])}


def _invertible() -> tuple[Any, dict[str, Any]]:
    framework, modules = get("FrEIA.framework:SequenceINN"), get("FrEIA.modules:AllInOneBlock")
    network = framework(4)
    for _ in range(2):
        network.append(modules, subnet_constructor=nn.Linear)
    return network, {"x_or_z": torch.randn(3, 4)}


def _spikes(path: str, **options: Any) -> Build:
    return model(path, {"input_": torch.rand(2, 8)}, **options)


def _knowledge_graph(name: str, **options: Any) -> Build:
    entities = torch.tensor([0, 1, 2])
    inputs = {
        "heads": entities, "tails": entities.flip(0), "relations": torch.tensor([0, 1, 1]),
        "negative_heads": entities.roll(1), "negative_tails": entities,
    }  # fmt: skip
    return model(f"torchkge.models:{name}", inputs, n_entities=5, n_relations=2, **options)


MODELS: dict[str, Build] = {
    "allennlp.EndpointSpanExtractor": _span_extractor(
        "endpoint_span_extractor:EndpointSpanExtractor", num_width_embeddings=8, span_width_embedding_dim=4,
        bucket_widths=True, use_exclusive_start_indices=True,
    ),
    "allennlp.BidirectionalEndpointSpanExtractor": _span_extractor(
        "bidirectional_endpoint_span_extractor:BidirectionalEndpointSpanExtractor", num_width_embeddings=8,
        span_width_embedding_dim=4,
    ),
    "allennlp.MaxPoolingSpanExtractor": _span_extractor("max_pooling_span_extractor:MaxPoolingSpanExtractor"),
    "allennlp.SelfAttentiveSpanExtractor": _span_extractor(
        "self_attentive_span_extractor:SelfAttentiveSpanExtractor"
    ),
    "allennlp.LstmSeq2SeqEncoder": _sequence_encoder("LstmSeq2SeqEncoder", input_size=16, hidden_size=8),
    "allennlp.StatefulGru": _sequence_encoder("GruSeq2SeqEncoder", input_size=16, hidden_size=8, stateful=True),
    "allennlp.AugmentedLstmSeq2SeqEncoder": _sequence_encoder(
        "AugmentedLstmSeq2SeqEncoder", input_size=16, hidden_size=8
    ),
    "allennlp.StackedBidirectionalLstmSeq2SeqEncoder": _sequence_encoder(
        "StackedBidirectionalLstmSeq2SeqEncoder", input_size=16, hidden_size=8, num_layers=1
    ),
    "allennlp.ElmoLstm": _allennlp(
        "elmo_lstm:ElmoLstm", {"inputs": features(16, 16), "mask": padding_mask()}, input_size=16,
        hidden_size=16, cell_size=16, num_layers=1,
    ),
    "allennlp.BiMpmMatching": _allennlp(
        "bimpm_matching:BiMpmMatching",
        {"context_1": features(16, 16), "mask_1": padding_mask(), "context_2": features(16, 16),
         "mask_2": padding_mask()},
        hidden_dim=16, num_perspectives=4, is_forward=True,
    ),
    "allennlp.ConditionalRandomField": _allennlp(
        "conditional_random_field:ConditionalRandomField",
        {"inputs": features(16, 4), "tags": torch.randint(0, 4, (2, 16)), "mask": padding_mask()}, num_tags=4,
    ),
    "pytorch_msssim.SSIM": model(
        "pytorch_msssim:SSIM", {"X": torch.rand(1, 3, 32, 32), "Y": torch.rand(1, 3, 32, 32)}, data_range=1.0
    ),
    "pytorch_msssim.MS_SSIM": model(
        "pytorch_msssim:MS_SSIM", {"X": torch.rand(1, 3, 192, 192), "Y": torch.rand(1, 3, 192, 192)}, data_range=1.0
    ),
    "bark.GPT": _bark("model", "GPT", {"idx": tokens(8), "use_cache": True}),
    "bark.FineGPT": _bark(
        "model_fine", "FineGPT", {"pred_idx": 2, "idx": torch.randint(0, 50, (1, 8, 4))}, n_codes_total=4,
        n_codes_given=1,
    ),
    "gliclass.LstmSeq2SeqEncoder": _encoder_of_classes(
        "layers:LstmSeq2SeqEncoder", input_size=16, hidden_size=8, bidirectional=True
    ),
    "torchkge.TransE": _knowledge_graph("TransEModel", emb_dim=8),
    "torchkge.TransR": _knowledge_graph("TransRModel", ent_emb_dim=8, rel_emb_dim=8),
    "torchkge.TransD": _knowledge_graph("TransDModel", ent_emb_dim=8, rel_emb_dim=8),
    "torchkge.DistMult": _knowledge_graph("DistMultModel", emb_dim=8),
    "linear_attention_transformer.LM": model(
        "linear_attention_transformer:LinearAttentionTransformerLM", {"x": tokens(16)}, num_tokens=50, dim=16,
        depth=1, max_seq_len=16, heads=2, dim_head=8, causal=True, n_local_attn_heads=1, local_attn_window_size=4,
    ),
    "transfusion_pytorch.Transfusion": _mixed,
    "stable_audio_tools.DiffusionTransformer": model(
        "stable_audio_tools.models.dit:DiffusionTransformer",
        {"x": torch.randn(2, 8, 16), "t": torch.rand(2), "cross_attn_cond": features(4, 16),
         "cross_attn_cond_mask": padding_mask(4), "global_embed": torch.randn(2, 16)},
        io_channels=8, embed_dim=128, cond_token_dim=16, global_cond_dim=16, depth=1, num_heads=2,
    ),
    "block_recurrent_transformer_pytorch.BlockRecurrentTransformer": model(
        "block_recurrent_transformer_pytorch:BlockRecurrentTransformer", {"x": tokens(16), "return_loss": True},
        num_tokens=50, dim=16, depth=2, dim_head=8, heads=2, max_seq_len=16, block_width=8, recurrent_layers=(1,),
        num_state_vectors=4,
    ),
    "MEGABYTE_pytorch.MEGABYTE": model(
        "MEGABYTE_pytorch:MEGABYTE", {"ids": tokens(16), "return_loss": True}, num_tokens=50, dim=(16, 16),
        depth=(1, 1), max_seq_len=(4, 4), dim_head=8, heads=2,
    ),
    "e2_tts_pytorch.Transformer": model(
        "e2_tts_pytorch.e2_tts:Transformer",
        {"x": features(16, 16), "times": torch.rand(2), "mask": padding_mask(), "text_embed": features(16, 16)}, dim=16,
        dim_text=16, depth=2, heads=2, dim_head=8, max_seq_len=64, num_registers=2,
    ),
    "soft_moe_pytorch.SoftMoE": model(
        "soft_moe_pytorch:SoftMoE", {"x": features(16, 16), "mask": padding_mask()}, dim=16, seq_len=16, num_experts=2
    ),
    "retro_pytorch.RETRO": model(
        "retro_pytorch:RETRO",
        {"seq": tokens(16), "retrieved": torch.randint(0, 50, (2, 2, 2, 16))}, num_tokens=50,
        max_seq_len=16, enc_dim=16, enc_depth=1, dec_dim=16, dec_depth=2, dec_cross_attn_layers=(1, 2), heads=2,
        dim_head=64, chunk_size=8,
    ),
    "min_dalle.DalleBartEncoder": model(
        "min_dalle.models:DalleBartEncoder", {"text_tokens": torch.randint(0, 50, (2, 8))}, layer_count=1,
        embed_count=16, attention_head_count=2, text_vocab_count=50, text_token_count=8, glu_embed_count=16,
        device="cpu",
    ),
    "norse.LIF": model("norse.torch:LIF", {"input_tensor": torch.rand(4, 2, 8)}),
    "norse.LIFRecurrentCell": model(
        "norse.torch:LIFRecurrentCell", {"input_tensor": torch.rand(2, 8)}, input_size=8, hidden_size=8
    ),
    "snntorch.Leaky": _spikes("snntorch:Leaky", beta=0.9),
    "snntorch.Synaptic": _spikes("snntorch:Synaptic", alpha=0.9, beta=0.8),
    "snntorch.Lapicque": _spikes("snntorch:Lapicque", beta=0.5),
    "spikingjelly.LIFNode": model("spikingjelly.activation_based.neuron:LIFNode", {"x": torch.rand(2, 8)}),
    "torchnlp.Attention": model(
        "torchnlp.nn:Attention", {"query": features(4, 16), "context": features(6, 16)}, dimensions=16
    ),
    "fastai.AWD_LSTM": model(
        "fastai.text.models.awdlstm:AWD_LSTM", {"inp": tokens(16)}, vocab_sz=50, emb_sz=16, n_hid=16, n_layers=2
    ),
    "chemprop.AttentiveAggregation": _molecules,
    "blitz.BayesianLSTM": model(
        "blitz.modules:BayesianLSTM", {"x": features(8, 16)}, in_features=16, out_features=8
    ),
    "bayesian_torch.LinearFlipout": model(
        "bayesian_torch.layers:LinearFlipout", {"x": torch.randn(3, 8)}, in_features=8, out_features=4
    ),
    "FrEIA.SequenceINN": _invertible,
    "torchreid.TripletLoss": model("torchreid.reid.losses:TripletLoss", _embeddings()),
    "solo.DINOLoss": model(
        "solo.losses.dino:DINOLoss", {"student_output": torch.randn(4, 8), "teacher_output": torch.randn(4, 8)},
        num_prototypes=8, warmup_teacher_temp=0.04, teacher_temp=0.04, warmup_teacher_temp_epochs=2, num_epochs=4,
    ),
    "pytorch_ood.CenterLoss": model(
        "pytorch_ood.loss:CenterLoss", {"distmat": torch.rand(4, 3), "target": torch.tensor([0, 1, -1, 2])},
        n_classes=3, n_dim=2,
    ),
    "pytorch_ood.DeepSVDDLoss": model(
        "pytorch_ood.loss:DeepSVDDLoss", {"x": torch.randn(4, 8), "y": torch.tensor([0, 1, -1, 2])}, n_dim=8
    ),
    "pytorch_ood.EnergyRegularizedLoss": model(
        "pytorch_ood.loss:EnergyRegularizedLoss",
        {"logits": torch.randn(4, 3), "targets": torch.tensor([0, 1, -1, 2])}, margin_in=-5.0, margin_out=-1.0,
    ),
    "pytorch_ood.OutlierExposureLoss": model(
        "pytorch_ood.loss:OutlierExposureLoss", {"logits": torch.randn(4, 3), "target": torch.tensor([0, 1, -1, 2])}
    ),
    "pytorch3dunet.UNet3D": model(
        "pytorch3dunet.unet3d.model:UNet3D", {"x": torch.randn(1, 1, 16, 16, 16)}, in_channels=1, out_channels=2,
        f_maps=4, num_levels=2, num_groups=2,
    ),
    "pytorch3dunet.WeightedCrossEntropyLoss": model(
        "pytorch3dunet.unet3d.losses:WeightedCrossEntropyLoss",
        {"input": torch.randn(2, 3, 8), "target": torch.randint(0, 3, (2, 8))},
    ),
    "allrank.losses": model(
        f"{_CALLERS}:RankingLosses",
        {"scores": torch.randn(2, 5), "relevance": torch.tensor([[3.0, 2, 1, 0, -1], [1, 0, 0, 2, 3]])},
    ),
    "torch_struct.chains": model(
        f"{_CALLERS}:Chains",
        {"chains": torch.randn(2, 4, 3, 3), "segments": torch.randn(2, 4, 2, 3, 3), "lengths": torch.tensor([5, 4])},
    ),
    "torch_struct.trees": model(
        f"{_CALLERS}:Trees",
        {"arcs": torch.randn(2, 4, 4), "spans": torch.randn(2, 4, 4, 3), "lengths": torch.tensor([4, 3])},
    ),
    "flow_matching.ODESolver": model(f"{_CALLERS}:Flow", {"noise": torch.randn(3, 4)}),
    "torchsde.sdeint": model(f"{_CALLERS}:Diffusion", {"x": torch.randn(3, 4)}, adaptive=False),
    "torchsde.adaptive": model(f"{_CALLERS}:Diffusion", {"x": torch.randn(3, 4)}, adaptive=True),
    "torchcfm.ConditionalFlowMatcher": model(
        f"{_CALLERS}:Matching", {"noise": torch.randn(4, 3), "data": torch.randn(4, 3)}
    ),
    "penn.Argmax": model(f"{_CALLERS}:Pitch", {"logits": torch.randn(6, 1440, 1)}),
    "colbert.score": model(
        f"{_CALLERS}:LateInteraction",
        {"queries": torch.randn(2, 4, 8), "documents": torch.randn(2, 6, 8), "mask": padding_mask(6)[..., None]},
    ),
    "face_alignment.Landmarks": model(f"{_CALLERS}:Landmarks", {"heatmaps": torch.rand(1, 5, 64, 64)}),
    "silero_vad.Speech": model(f"{_CALLERS}:Speech", {"audio": torch.randn(16_000)}),
    "torchdyn.NeuralODE": lambda: (
        get("torchdyn.core:NeuralODE")(nn.Linear(4, 4), solver="dopri5"),
        {"x": torch.randn(3, 4), "t_span": torch.linspace(0, 1, 3)},
    ),
}  # fmt: skip
