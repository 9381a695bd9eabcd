"""Tiny models of packages that were fixed by name for a sixth trial, before anything of them was fetched.

See `benchmarks.tiny_strangers`. The disagreements of one half of the packages are read after the first figures, those
of the other half are not.
"""

import hashlib
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.tiny_strangers_parts import Build, features, get, model, padding_mask, tokens

PACKAGES = (
    "agilerl ai2-olmo allennlp-models anemoi-models audioseal azula batch-face bert-score bindsnet brevitas "
    "catalyst cebra cellpose charformer-pytorch coca-pytorch craft-text-detector ctgan DALL-E deeprobust "
    "deeptab deepxde deformable-attention denoiser DI-engine diaparser diffsptk diffwave DISTS-pytorch "
    "donut-python dynamic-network-architectures electra-pytorch elegantrl en-transformer eole fairchem-core "
    "fastcoref fastNLP flamingo-pytorch flowtorch fuxictr geomloss gigagan-pytorch glom-pytorch "
    "h-transformer-1d halonet-pytorch hanlp higher hippynn hourglass-transformer-pytorch hpsv2 "
    "human-body-prior ibm-fms image-reward infini-transformer-pytorch iTransformer kraken lambda-networks "
    "laplace-torch lava-dl libauc loralib ltp ludwig make-a-video-pytorch mantis-tsfm mattersim "
    "maverick-coref mega-pytorch microsoft-aurora mirasol-pytorch mlm-pytorch monai-generative mushroom-rl "
    "musiclm-pytorch neuralprophet neurodiffeq nnmnkwii nnunetv2 noisereduce nougat-ocr ogb opacus "
    "open-flamingo optimum-quanto palm-rlhf-pytorch parti-pytorch PEER-pytorch pesto-pitch "
    "piano-transcription-inference piqa pix2tex point-transformer-pytorch ponder-transformer ptwt pygod pyiqa "
    "pypose pytext-nlp pytorch-frame pytorch-kinematics pytorch-minimize pytorch-optimizer "
    "pytorch-partial-crf pytorch-pretrained-bert pytorch-transformers pytorch-wavelets pytorchcv "
    "q-transformer qpth realesrgan rectified-flow-pytorch recurrent-memory-transformer-pytorch replay-rec "
    "retinaface-pytorch rl-games roma rsl-rl-lib rtdl_revisiting_models rudalle scgpt "
    "segmentation-models-pytorch-3d sequence-models simple-hierarchical-transformer sinabs "
    "sinkhorn-transformer smplpytorch smplx sru stylegan2-pytorch tabdpt tabm taming-transformers "
    "tape-proteins texar-pytorch theseus-ai timesfm timesformer-pytorch tirex-ts tntorch "
    "torch-audiomentations torch-dftd torch-geometric-signed-directed torch-geometric-temporal "
    "torch-uncertainty TorchCRF torchdrug torchgan torchio torchopt torchphysics torchquad torchquantum "
    "trankit transformer-lens transformers4rec transparent-background unbabel-comet video-diffusion-pytorch "
    "vision-aided-loss voxelmorph wav2clip xuance zennit zetascale"
).split()


def is_read(package: str) -> bool:
    """Whether a package is in the half whose disagreements are read."""
    return hashlib.sha256(package.lower().encode()).digest()[0] % 2 == 0


_CALLERS = "benchmarks.tiny_strangers_solutions"
_TAGS = torch.randint(0, 4, (2, 16))
_LOGITS, _CLASSES = torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])


def _bert(package: str, name: str, inputs: dict[str, Any], **options: Any) -> Build:
    """A model of an old library of transformers, whose config takes its sizes by name."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}

    def build() -> tuple[Any, dict[str, Any]]:
        config = get(f"{package}:BertConfig")(vocab_size_or_config_json_file=50, **sizes)
        return get(f"{package}:{name}")(config, **options), inputs

    return build


def _of_config(module: str, name: str, config: str, inputs: dict[str, Any], **sizes: Any) -> Build:
    return lambda: (get(f"{module}:{name}")(get(f"{module}:{config}")(**sizes)), inputs)


def _tags(path: str, mask: torch.Tensor, names: str, **options: Any) -> Build:
    features_name, tags_name = names.split()
    return model(path, {features_name: features(16, 4), tags_name: _TAGS, "mask": mask}, **options)


def _texar(build: Build) -> Build:
    """A part of texar, which uses a name that numpy no longer has."""

    def patched() -> tuple[Any, Any]:
        vars(np).setdefault("float_", np.float64)
        return build()

    return patched


def _masked_language() -> tuple[Any, dict[str, Any]]:
    body = get("x_transformers:TransformerWrapper")(
        num_tokens=50, max_seq_len=16, attn_layers=get("x_transformers:Encoder")(dim=16, depth=1, heads=2)
    )
    return get("mlm_pytorch:MLM")(body, mask_token_id=2, pad_token_id=0, num_tokens=50), {"seq": tokens(16)}


def _electra() -> tuple[Any, dict[str, Any]]:
    generator, discriminator = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50)), nn.Embedding(50, 16)
    electra = get("electra_pytorch:Electra")(
        generator, discriminator, num_tokens=50, discr_dim=16, discr_layer=-1
    )
    return electra, {"input": tokens(16)}


def _language_of_memories() -> tuple[Any, dict[str, Any]]:
    body = get("infini_transformer_pytorch:InfiniTransformer")(
        num_tokens=50, dim=16, depth=1, dim_head=8, heads=2
    )
    wrapper = get("infini_transformer_pytorch:InfiniTransformerWrapper")(body, segment_length=8)
    return wrapper, {"seq": tokens(24)}


MODELS: dict[str, Build] = {
    "charformer_pytorch.GBST": model(
        "charformer_pytorch:GBST", {"x": tokens(16), "mask": padding_mask()}, num_tokens=50, dim=16, max_block_size=4,
    ),
    "coca_pytorch.CoCa": model(
        "coca_pytorch:CoCa", {"text": tokens(8), "image_tokens": features(16, 16), "return_loss": True}, dim=16,
        num_tokens=50, unimodal_depth=1, multimodal_depth=1, dim_latents=16, image_dim=16, num_img_queries=4,
        dim_head=8, heads=2,
    ),
    "deformable_attention.DeformableAttention": model(
        "deformable_attention:DeformableAttention", {"x": torch.randn(1, 16, 16, 16)}, dim=16, dim_head=8, heads=2,
    ),
    "mlm_pytorch.MLM": _masked_language,
    "en_transformer.EnTransformer": model(
        "en_transformer:EnTransformer",
        {"feats": features(8, 16), "coors": torch.randn(2, 8, 3), "mask": padding_mask(8)}, dim=16, depth=1,
        dim_head=32, heads=2, neighbors=4,
    ),
    "en_transformer.sparse": model(
        "en_transformer:EnTransformer",
        {"feats": features(8, 16), "coors": torch.randn(2, 8, 3), "mask": padding_mask(8),
         "adj_mat": torch.eye(8, dtype=torch.bool).roll(1, 0)}, dim=16, depth=1, dim_head=32, heads=2,
        only_sparse_neighbors=True, num_adj_degrees=2, adj_dim=4,
    ),
    "flamingo_pytorch.GatedCrossAttentionBlock": model(
        "flamingo_pytorch:GatedCrossAttentionBlock",
        {"x": features(16, 16), "media": torch.randn(2, 2, 4, 16), "media_locations": padding_mask()}, dim=16,
        dim_head=8, heads=2,
    ),
    "glom_pytorch.Glom": model(
        "glom_pytorch:Glom", {"img": torch.randn(1, 3, 16, 16), "iters": 2}, dim=16, levels=2, image_size=16,
        patch_size=8,
    ),
    "h_transformer_1d.HTransformer1D": model(
        "h_transformer_1d:HTransformer1D", {"x": tokens(32), "mask": padding_mask(32)}, num_tokens=50, dim=16, depth=1,
        max_seq_len=32, heads=2, dim_head=8, block_size=8,
    ),
    "halonet_pytorch.HaloAttention": model(
        "halonet_pytorch:HaloAttention", {"x": torch.randn(1, 16, 16, 16)}, dim=16, block_size=8, halo_size=4,
        dim_head=8, heads=2,
    ),
    "hourglass_transformer_pytorch.LM": model(
        "hourglass_transformer_pytorch:HourglassTransformerLM", {"x": tokens(16), "mask": padding_mask()},
        num_tokens=50, dim=16, max_seq_len=16, depth=(1, (1, 1, 1), 1), shorten_factor=(2, 2), heads=2, dim_head=8,
    ),
    "iTransformer.iTransformer": model(
        "iTransformer:iTransformer", {"x": torch.randn(2, 16, 5)}, num_variates=5, lookback_len=16, depth=1, dim=16,
        pred_length=(4, 8), dim_head=8, heads=2, use_reversible_instance_norm=True,
    ),
    "infini_transformer_pytorch.InfiniTransformerWrapper": _language_of_memories,
    "lambda_networks.LambdaLayer": model(
        "lambda_networks:LambdaLayer", {"x": torch.randn(1, 16, 8, 8)}, dim=16, dim_k=8, r=3, heads=2,
    ),
    "mega_pytorch.Mega": model(
        "mega_pytorch:Mega", {"x": tokens(16)}, dim=16, num_tokens=50, depth=1, ema_heads=2, attn_dim_qk=8,
        attn_dim_value=16,
    ),
    "PEER_pytorch.PEER": model(
        "PEER_pytorch:PEER", {"x": features(8, 16)}, dim=16, heads=2, num_experts=64, num_experts_per_head=4,
    ),
    "point_transformer_pytorch.PointTransformerLayer": model(
        "point_transformer_pytorch:PointTransformerLayer",
        {"x": features(8, 16), "pos": torch.randn(2, 8, 3), "mask": padding_mask(8)}, dim=16, num_neighbors=4,
    ),
    "ponder_transformer.PonderTransformer": model(
        "ponder_transformer:PonderTransformer", {"x": tokens(8), "mask": padding_mask(8)}, num_tokens=50, dim=16,
        max_seq_len=8, dim_head=8, heads=2,
    ),
    "recurrent_memory_transformer_pytorch.RecurrentMemoryTransformer": model(
        "recurrent_memory_transformer_pytorch:RecurrentMemoryTransformer", {"x": tokens(16), "mask": padding_mask()},
        dim=16, num_tokens=50, depth=1, num_memory_tokens=4, seq_len=16, dim_head=8, heads=2,
    ),
    "simple_hierarchical_transformer.HierarchicalTransformer": model(
        "simple_hierarchical_transformer:HierarchicalTransformer", {"ids": tokens(16)}, num_tokens=50, dim=16, depth=1,
        seq_len=16, dim_head=8, heads=2, hierarchies=(1, 2), window_sizes=(8, None),
    ),
    "sinkhorn_transformer.SinkhornTransformerLM": model(
        "sinkhorn_transformer:SinkhornTransformerLM", {"x": tokens(32), "input_mask": padding_mask(32)}, num_tokens=50,
        dim=16, max_seq_len=32, depth=1, heads=2, bucket_size=8,
    ),
    "timesformer_pytorch.TimeSformer": model(
        "timesformer_pytorch:TimeSformer",
        {"video": torch.randn(1, 4, 3, 16, 16), "mask": torch.tensor([[True, True, True, False]])}, dim=16,
        num_frames=4, num_classes=3, image_size=16, patch_size=8, depth=1, heads=2, dim_head=8,
    ),
    "video_diffusion_pytorch.Unet3D": model(
        "video_diffusion_pytorch:Unet3D", {"x": torch.randn(1, 3, 4, 16, 16), "time": torch.tensor([3])}, dim=16,
        dim_mults=(1, 2), attn_heads=2, attn_dim_head=8,
    ),
    "make_a_video_pytorch.SpaceTimeUnet": model(
        "make_a_video_pytorch:SpaceTimeUnet",
        {"x": torch.randn(1, 3, 4, 16, 16), "timestep": torch.tensor([0.5]), "enable_time": True}, dim=16,
        dim_mult=(1, 2), self_attns=(False, True), temporal_compression=(False, True), resnet_block_depths=(1, 1),
        attn_dim_head=8, attn_heads=2,
    ),
    "TorchCRF.CRF": _tags("TorchCRF:CRF", padding_mask(), "h labels", num_labels=4, use_gpu=False),
    "TorchCRF.viterbi": model(
        f"{_CALLERS}:TagDecoder", {"emissions": features(16, 4), "mask": padding_mask()}
    ),
    "pytorch_partial_crf.CRF": _tags("pytorch_partial_crf:CRF", padding_mask(), "emissions tags", num_tags=4),
    "pytorch_partial_crf.PartialCRF": _tags(
        "pytorch_partial_crf:PartialCRF", padding_mask(), "emissions tags", num_tags=4
    ),
    "pytorch_partial_crf.viterbi": model(
        f"{_CALLERS}:PartialTags", {"emissions": features(16, 4), "mask": padding_mask()}
    ),
    "diaparser.MatrixTreeTheorem": model(
        "diaparser.modules.matrix_tree_theorem:MatrixTreeTheorem",
        {"scores": torch.randn(2, 6, 6), "mask": padding_mask(6), "target": torch.zeros(2, 6, dtype=torch.long)},
    ),
    "pytorch_pretrained_bert.BertForQuestionAnswering": _bert(
        "pytorch_pretrained_bert.modeling", "BertForQuestionAnswering",
        {"input_ids": tokens(16), "attention_mask": padding_mask().long(), "start_positions": torch.tensor([1, 2]),
         "end_positions": torch.tensor([3, 4])},
    ),
    "pytorch_transformers.BertModel": _bert(
        "pytorch_transformers.modeling_bert", "BertModel",
        {"input_ids": tokens(16), "attention_mask": padding_mask().long()},
    ),
    "pytorch_transformers.XLNetLMHeadModel": _of_config(
        "pytorch_transformers.modeling_xlnet", "XLNetLMHeadModel", "XLNetConfig",
        {"input_ids": tokens(16), "attention_mask": padding_mask().float(), "labels": tokens(16)},
        vocab_size_or_config_json_file=50, d_model=16, n_layer=1, n_head=2, d_inner=32,
    ),
    "pytorch_transformers.TransfoXLModel": _of_config(
        "pytorch_transformers.modeling_transfo_xl", "TransfoXLModel", "TransfoXLConfig", {"input_ids": tokens(16)},
        vocab_size_or_config_json_file=50, cutoffs=[10, 30], d_model=16, d_embed=16, n_head=2, d_head=8, d_inner=32,
        n_layer=1, tgt_len=16, mem_len=8,
    ),
    "tape.ProteinBertModel": _of_config(
        "tape.models.modeling_bert", "ProteinBertModel", "ProteinBertConfig",
        {"input_ids": torch.randint(0, 30, (2, 16)), "input_mask": padding_mask().long()}, vocab_size=30,
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
    ),
    "tape.ProteinLSTMModel": _of_config(
        "tape.models.modeling_lstm", "ProteinLSTMModel", "ProteinLSTMConfig",
        {"input_ids": torch.randint(0, 30, (2, 16)), "input_mask": padding_mask().long()}, vocab_size=30,
        input_size=8, hidden_size=8, num_hidden_layers=2,
    ),
    "sequence_models.ByteNetLM": model(
        "sequence_models.convolutional:ByteNetLM", {"x": torch.randint(0, 20, (2, 16)),
        "input_mask": padding_mask()[..., None].float()}, n_tokens=20, d_embedding=8, d_model=16, n_layers=2,
        kernel_size=3, r=4,
    ),
    "sequence_models.MaskedCrossEntropyLoss": model(
        "sequence_models.losses:MaskedCrossEntropyLoss",
        {"pred": features(16, 4), "tgt": _TAGS, "mask": padding_mask()[..., None]},
    ),
    "sequence_models.SequenceCrossEntropyLoss": model(
        "sequence_models.losses:SequenceCrossEntropyLoss", {"prediction": features(16, 4), "tgt": _TAGS}
    ),
    "sru.SRU": model(
        "sru:SRU", {"input": torch.randn(6, 2, 8), "mask_pad": padding_mask(6).t()}, input_size=8, hidden_size=8,
        num_layers=2, bidirectional=True,
    ),
    "torchgan.Wasserstein": model(
        "torchgan.losses:WassersteinDiscriminatorLoss", {"fx": torch.randn(4), "fgz": torch.randn(4)}
    ),
    "torchgan.BoundaryEquilibrium": model(
        "torchgan.losses:BoundaryEquilibriumDiscriminatorLoss", {"dx": torch.randn(4), "dgz": torch.randn(4)}
    ),
    "torchgan.EnergyBasedPullingAwayTerm": model(
        "torchgan.losses:EnergyBasedPullingAwayTerm", {"dgz": torch.randn(4), "d_hid": torch.randn(4, 8)}
    ),
    "torch_uncertainty.DECLoss": model(
        "torch_uncertainty.losses:DECLoss", {"evidence": torch.rand(8, 4), "targets": _CLASSES, "current_epoch": 1},
        annealing_step=10,
    ),
    "torch_uncertainty.FocalLoss": model(
        "torch_uncertainty.losses:FocalLoss", {"inputs": _LOGITS, "targets": _CLASSES}, gamma=2.0
    ),
    "torch_uncertainty.MixupMPLoss": model(
        "torch_uncertainty.losses.classification:MixupMPLoss", {"input": _LOGITS, "target": _CLASSES}
    ),
    "torch_uncertainty.PackedLinear": model(
        "torch_uncertainty.layers:PackedLinear", {"inputs": torch.randn(8, 16)}, in_features=16, out_features=8,
        alpha=2, num_estimators=2, first=True,
    ),
    "torch_uncertainty.MaskedLinear": model(
        "torch_uncertainty.layers:MaskedLinear", {"inputs": torch.randn(8, 16)}, in_features=16, out_features=8,
        num_estimators=2, scale=2.0,
    ),
    "libauc.AUCMLoss": model(
        "libauc.losses.auc:AUCMLoss", {"y_pred": torch.rand(8, 1), "y_true": (_CLASSES > 1)[:, None].float()},
        device="cpu",
    ),
    "libauc.pAUCLoss": model(
        f"{_CALLERS}:PartialAreas", {"scores": torch.rand(8, 1), "labels": (_CLASSES > 1)[:, None].float()}
    ),
    "torchmin.minimize": model(f"{_CALLERS}:Minimum", {"x": torch.randn(3)}),
    "torchmin.least_squares": model(f"{_CALLERS}:LeastSquares", {"x": torch.randn(3)}),
    "qpth.QPFunction": model(f"{_CALLERS}:Quadratic", {"p": torch.randn(2, 3)}),
    "electra_pytorch.Electra": _electra,
    "diaparser.eisner": model(
        f"{_CALLERS}:TreeDecoder", {"scores": torch.randn(2, 7, 7), "mask": torch.tensor([[False] + [True] * 6] * 2)}
    ),
    "torch_dftd.energy": model(
        f"{_CALLERS}:Dispersion",
        {"Z": torch.tensor([1, 6, 8]), "pos": torch.rand(3, 3) * 3, "edge_index": torch.tensor([[0, 0, 1], [1, 2, 2]])},
    ),
    "roma.rotations": model(
        f"{_CALLERS}:Rotations", {"matrices": torch.randn(3, 3, 3), "vectors": torch.randn(3, 3)}
    ),
    "geomloss.SamplesLoss": model(
        f"{_CALLERS}:Transport", {"x": torch.rand(5, 2), "y": torch.rand(6, 2)}
    ),
    "piqa.SSIM": model("piqa:SSIM", {"x": torch.rand(1, 3, 32, 32), "y": torch.rand(1, 3, 32, 32)}),
    "piqa.HaarPSI": model("piqa:HaarPSI", {"x": torch.rand(1, 3, 32, 32), "y": torch.rand(1, 3, 32, 32)}),
    "fms.LLaMA": lambda: (
        get("fms.models.llama:LLaMA")(get("fms.models.llama:LLaMAConfig")(
            src_vocab_size=50, emb_dim=16, nheads=2, nlayers=1, max_expected_seq_len=32)),
        {"x": tokens(8)},
    ),
    "eole.SparsemaxLoss": model("eole.modules.sparse_losses:SparsemaxLoss", {"input": _LOGITS, "target": _CLASSES}),
    "eole.GlobalAttention": model(
        "eole.modules.global_attention:GlobalAttention",
        {"src": features(4, 16), "enc_out": features(8, 16), "src_pad_mask": ~padding_mask(8)[:, None]}, dim=16,
    ),
    "eole.RepresentationExtractor": model(
        "eole.modules.representation:RepresentationExtractor",
        {"hidden_states": [features(8, 16)] * 2, "attention_mask": padding_mask(8)},
    ),
    "comet.LayerwiseAttention": model(
        "comet.modules:LayerwiseAttention", {"tensors": [features(8, 16)] * 2, "mask": padding_mask(8)}, num_layers=2,
        layer_norm=True,
    ),
    "diffsptk.LevinsonDurbin": model("diffsptk:LevinsonDurbin", {"r": torch.rand(2, 5)}, lpc_order=4),
    "diffsptk.DynamicTimeWarping": model(
        "diffsptk:DynamicTimeWarping",
        {"x": torch.randn(2, 6, 3), "y": torch.randn(2, 5, 3), "lengths": torch.tensor([[6, 5], [4, 3]])},
    ),
    "diffsptk.ExcitationGeneration": model(
        "diffsptk:ExcitationGeneration", {"p": torch.tensor([[0.0, 10.0, 12.0, 0.0]])}, frame_period=20
    ),
    "diffsptk.LindeBuzoGrayAlgorithm": model(
        "diffsptk:LindeBuzoGrayAlgorithm", {"x": torch.randn(32, 3)}, order=2, codebook_size=4, n_iter=3
    ),
    "diffsptk.GaussianMixtureModeling": model(
        "diffsptk:GaussianMixtureModeling", {"x": torch.randn(32, 3)}, order=2, n_mixture=2, n_iter=3
    ),
    "diffsptk.IndependentComponentAnalysis": model(
        "diffsptk:IndependentComponentAnalysis", {"x": torch.randn(32, 3)}, order=2, n_comp=2, n_iter=3
    ),
    "noisereduce.TorchGate": model(
        "noisereduce.torchgate:TorchGate", {"x": torch.randn(1, 4000)}, sr=8000, nonstationary=False, n_fft=256
    ),
    "pypose.UKF": model(f"{_CALLERS}:StateEstimate", {"x": torch.randn(2), "y": torch.randn(2), "u": torch.randn(2)}),
    "pypose.ICP": model(f"{_CALLERS}:Alignment", {"source": torch.randn(6, 3), "target": torch.randn(6, 3)}),
    "tntorch.round": model(f"{_CALLERS}:Trains", {"data": torch.rand(4, 4, 4)}),
    "denoiser.Demucs": model(
        "denoiser.demucs:Demucs", {"mix": torch.randn(1, 1, 400)}, hidden=4, depth=2, resample=2
    ),
    "audioseal.SEANetEncoder": model(
        "audioseal.libs.moshi.modules:SEANetEncoder", {"x": torch.randn(1, 1, 640)}, n_filters=4, dimension=8,
        ratios=[4, 2], n_residual_layers=1,
    ),
    "ogb.AtomEncoder": model(
        "ogb.graphproppred.mol_encoder:AtomEncoder", {"x": torch.zeros(4, 9, dtype=torch.long)}, emb_dim=16
    ),
    "smplx.lbs": model(f"{_CALLERS}:Skin", {"pose": torch.randn(1, 9)}),
    "bindsnet.LIFNodes": model(f"{_CALLERS}:LeakySpikes", {"x": torch.rand(1, 8)}),
    "bindsnet.DiehlAndCookNodes": model(
        f"{_CALLERS}:Spikes", {"x": torch.rand(1, 8)}
    ),
    "torchopt.solve": model(f"{_CALLERS}:LinearSolve", {"b": torch.randn(3)}),
    "retinaface.loss": model(f"{_CALLERS}:Boxes", {"truth": torch.rand(2, 4)}),
    "torch_audiomentations.Gain": model(
        "torch_audiomentations:Gain", {"samples": torch.randn(2, 1, 800), "sample_rate": 800}, p=1.0,
        output_type="tensor",
    ),
    "torch_audiomentations.PolarityInversion": model(
        "torch_audiomentations:PolarityInversion", {"samples": torch.randn(2, 1, 800), "sample_rate": 800}, p=0.5,
        output_type="tensor",
    ),
    "fastNLP.ConditionalRandomField": model(
        "fastNLP.modules.torch.decoder.crf:ConditionalRandomField",
        {"feats": features(16, 4), "tags": _TAGS, "mask": padding_mask()}, num_tags=4, include_start_end_trans=True,
    ),
    "fastNLP.viterbi": model(f"{_CALLERS}:FastTags", {"emissions": features(16, 4), "mask": padding_mask()}),
    "fastNLP.LSTM": model(
        "fastNLP.modules.torch.encoder.lstm:LSTM", {"x": features(16, 8), "seq_len": torch.tensor([16, 9])},
        input_size=8, hidden_size=8, bidirectional=True,
    ),
    "fastNLP.TransformerSeq2SeqEncoder": model(
        "fastNLP.modules.torch.encoder.seq2seq_encoder:TransformerSeq2SeqEncoder",
        {"tokens": tokens(16), "seq_len": torch.tensor([16, 9])}, embed=(50, 16), d_model=16, num_layers=1, n_head=2,
        dim_ff=32,
    ),
    "fastNLP.StarTransformer": model(
        "fastNLP.modules.torch.encoder.star_transformer:StarTransformer",
        {"data": features(16, 16), "mask": padding_mask()}, hidden_size=16, num_layers=1, num_head=2, head_dim=8,
        max_len=32,
    ),
    "fastNLP.VarLSTM": model(
        "fastNLP.modules.torch.encoder.variational_rnn:VarLSTM", {"x": features(6, 8)}, input_size=8, hidden_size=8,
        batch_first=True,
    ),
    "fastNLP.BiaffineParser": model(
        "fastNLP.models.torch.biaffine_parser:BiaffineParser",
        {"words1": tokens(6), "words2": torch.randint(0, 10, (2, 6)), "seq_len": torch.tensor([6, 4])}, embed=(50, 16),
        pos_vocab_size=10, pos_emb_dim=8, num_label=4, rnn_layers=1, rnn_hidden_size=8, arc_mlp_size=8,
        label_mlp_size=8,
    ),
    "fastNLP.seq_len_to_mask": model(f"{_CALLERS}:LengthMasks", {"lengths": torch.tensor([5, 3])}),
    "texar.losses": _texar(model(
        f"{_CALLERS}:SequenceLosses", {"logits": features(6, 5), "labels": torch.randint(0, 5, (2, 6)),
        "lengths": torch.tensor([6, 4])},
    )),
    "texar.LuongAttention": _texar(model(
        "texar.torch.core:LuongAttention",
        {"query": torch.randn(2, 8), "state": torch.randn(2, 6), "memory": features(6, 8),
         "memory_sequence_length": torch.tensor([6, 4])}, num_units=8, encoder_output_size=8,
    )),
    "hanlp.CRF": model(
        "hanlp.layers.crf.crf:CRF", {"emissions": torch.randn(16, 2, 4), "tags": _TAGS.t(), "mask": padding_mask().t()},
        num_tags=4, batch_first=False,
    ),
    "hanlp.viterbi": model(f"{_CALLERS}:Labels", {"emissions": features(16, 4), "mask": padding_mask()}),
    "hanlp.CnnEncoder": model(
        "hanlp.layers.cnn_encoder:CnnEncoder", {"tokens": features(16, 8), "mask": padding_mask()}, embedding_dim=8,
        num_filters=4,
    ),
    "hanlp.VariationalLSTMEncoder": model(
        "hanlp.components.parsers.biaffine.variationalbilstm:VariationalLSTM",
        {"sequence": torch.nn.utils.rnn.pack_padded_sequence(features(6, 8), [6, 4], batch_first=True)}, input_size=8,
        hidden_size=8,
    ),
    "kraken.TorchVGSLModel": model(
        "kraken.lib.vgsl:TorchVGSLModel", {"x": torch.rand(2, 1, 16, 40), "seq_lens": torch.tensor([40, 30])},
        vgsl="[1,16,0,1 Cr3,3,8 Mp2,2 S1(1x0)1,3 Lbx8 O1c5]",
    ),
    "rsl_rl.EmpiricalNormalization": model(
        "rsl_rl.modules.normalization:EmpiricalNormalization", {"x": torch.randn(4, 8)}, shape=8, until=100
    ),
    "rsl_rl.RNN": model("rsl_rl.modules.rnn:RNN", {"input": torch.randn(2, 8)}, input_size=8, hidden_dim=8),
    "rsl_rl.unpad": model(
        f"{_CALLERS}:Trajectories", {"observations": torch.randn(5, 2, 4), "dones": torch.rand(5, 2) > 0.6}
    ),
    "libauc.GCLoss": model(
        "libauc.losses.contrastive:GCLoss_v1",
        {"hidden1": torch.randn(4, 8), "hidden2": torch.randn(4, 8), "index": torch.arange(4)}, N=8, device="cpu",
    ),
    "libauc.MultiLabelAUCMLoss": model(
        "libauc.losses.auc:MultiLabelAUCMLoss",
        {"y_pred": torch.rand(8, 2), "y_true": (torch.rand(8, 2) > 0.5).float()},
        num_labels=2, device="cpu",
    ),
    "libauc.MIDAM": model(
        "libauc.losses.mil:MIDAM_softmax_pooling_loss",
        {"y_pred": torch.rand(8, 1), "y_true": (_CLASSES > 1)[:, None].float(), "index": torch.arange(8)}, data_len=8,
        device="cpu",
    ),
    "replay.SasRecNormalizer": model("replay.models.nn.sequential.sasrec.model:SasRecNormalizer",
        {"seqs": features(6, 16)}, hidden_size=16),
    "segmentation_models_pytorch_3d.losses": model(
        f"{_CALLERS}:Segments", {"logits": torch.randn(1, 3, 4, 4, 4), "target": torch.randint(0, 3, (1, 4, 4, 4))}
    ),
    "opacus.DPLSTM": model(
        "opacus.layers:DPLSTM",
        {"input": torch.nn.utils.rnn.pack_padded_sequence(torch.randn(6, 2, 8), [6, 4])}, input_size=8, hidden_size=8,
    ),
    "torch_uncertainty.BetaNLL": model(
        "torch_uncertainty.losses.regression:BetaNLL",
        {"mean": torch.randn(4), "targets": torch.randn(4), "variance": torch.rand(4)}, beta=0.5,
    ),
    "timesfm.Transformer": model(f"{_CALLERS}:Rotary", {"x": torch.randn(2, 6, 2, 8)}),
    "ogb.BondEncoder": model(
        "ogb.graphproppred.mol_encoder:BondEncoder", {"edge_attr": torch.zeros(4, 3, dtype=torch.long)}, emb_dim=16
    ),
    "zeta.SigLipLoss": model("zeta.nn.modules.sig_lip:SigLipLoss", {"image_features": torch.randn(4, 8),
        "text_features": torch.randn(4, 8), "logit_scale": torch.tensor(1.0), "logit_bias": torch.tensor(0.0)}),
    # These change torch's default dtype, so they are the last.
    "neurodiffeq.Resnet": model(
        "neurodiffeq.networks:Resnet", {"t": torch.randn(4, 1, dtype=torch.float64)}, n_input_units=1
    ),
    "torchquad.integrate": model(f"{_CALLERS}:Integral", {"scale": torch.tensor(2.0)}),
}  # fmt: skip
