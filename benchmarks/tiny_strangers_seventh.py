"""Tiny models of packages that were fixed by name for a seventh trial, before anything of them was fetched.

See `benchmarks.tiny_strangers`. The disagreements of one half of the packages are read after the first figures, those
of the other half are not.
"""

import hashlib
from typing import Any

import torch
from torch import nn

from benchmarks.tiny_strangers_parts import Build, features, get, images, model, padding_mask, tokens

PACKAGES = (
    "ablang adan-pytorch advertorch aft-pytorch agent-attention-pytorch anny astrophot attn-res "
    "auto-lirpa autoregressive-diffusion-pytorch beam-search-bb beat-this betty-ml bi-lstm-crf "
    "bidirectional-cross-attention biva-pytorch bottleneck-transformer-pytorch bpnet-lite braincog "
    "CALM-pytorch came-pytorch causalflows caustics cbloss chirho complex-valued-transformer "
    "complexPyTorch complextorch coordinate-descent-attention coral-pytorch dadaptation deep-phonemizer "
    "diffdrr dinosaur-torch discrete-key-value-bottleneck-pytorch e2cnn easy-tpp easyfsl ebmkit "
    "ensemble-boxes evotorch ezgatr fast-pytorch-kmeans fastmri feedback-transformer-pytorch "
    "fft-conv-pytorch floydnet focal-loss-torch foolbox g-mlp-pytorch gated-state-spaces-pytorch "
    "goat-attention gotennet-pytorch grafx holonomy-lib hqq hypll info-nce-pytorch isab-pytorch "
    "jet-pytorch kmeans-pytorch kron-torch lampe ledidi lru-pytorch machin mbrl memformer mermaid mgiou "
    "minGRU-pytorch monotonicnetworks mpc mpm-pytorch mrpro multivae music2latent nam-pt normflowpy "
    "optami palm-pytorch parameterfree perceiver-io perfusion-pytorch pomegranate position-encoding POT "
    "pro-gan-pth prodigyopt prototorch pvae pycave pygmtools pyharmx pykernsformer pymde pysdtw pyt-crf "
    "pytorch-adapt pytorch-beam-search pytorch-gmm pytorch-ignite pytorch-lattice pytorch-mppi "
    "pytorch-tree-lstm pytorchyolo quad-torch quantus ranking-metrics-torch rin-pytorch rising rockpool "
    "rssmlite s5-pytorch saev schedulefree simplicial-attention sixdrepnet softadapt spacecutter "
    "speculative-decoding speechtokenizer spline-resize swyft syndrilla tabicl tad-dftd3 tad-dftd4 "
    "tad-mctc tangermeme tangram-sc tednet token-shift-gpt torch-cfd torch-choice torch-dct torch-ga "
    "torch-geometric-median torch-hd torch-image-interpolation torch-interpol torch-kf torch-kmeans "
    "torch-log-wmse torch-mimicry torch-optimizer torch-pesq torch-pruning torch-sim-atomistic "
    "torch-spatiotemporal torch-stft torch-tps torch-treecrf torchattacks torchbnn torchcam torchcast "
    "torchcvnn torchdr torcheeg torcheval torchfcpe torchflow torchgfn torchmd torchnodo torchot torchreg "
    "torchregister torchsparseattn torchsurv torchsynth torchtsetlin torchtt torchtuples torchxlstm "
    "transformer-in-transformer triplettorch tslearn xitorch"
).split()


def is_read(package: str) -> bool:
    """Whether a package is in the half whose disagreements are read."""
    return hashlib.sha256(package.lower().encode()).digest()[0] % 2 == 0


_CALLERS = "benchmarks.tiny_strangers_estimates"
_SEARCHES = "benchmarks.tiny_strangers_searches"
_TRAINING = "benchmarks.tiny_strangers_training"
_LABELS = torch.tensor([0, 1, 2, 3, 0, 1])
_BINARY = torch.tensor([0, 1, 1, 0, 1, 0])
_TRAINED = {"x": torch.randn(5, 4)}
_IMAGES = torch.rand(2, 3, 4, 4)


def _bottleneck_of_keys() -> tuple[Any, dict[str, Any]]:
    bottleneck = get("discrete_key_value_bottleneck_pytorch:DiscreteKeyValueBottleneck")(
        dim=16, num_memories=8, dim_memory=8, decay=0.9, encoder=nn.Identity()
    )
    return bottleneck, {"x": features(6, 16)}


MODELS: dict[str, Build] = {
    "prodigyopt.Prodigy": model(f"{_TRAINING}:Prodigy", _TRAINED),
    "dadaptation.Adaptation": model(f"{_TRAINING}:Adaptation", _TRAINED),
    "schedulefree.ScheduleFree": model(f"{_TRAINING}:ScheduleFree", _TRAINED),
    "came_pytorch.CAME": model(f"{_TRAINING}:Came", _TRAINED),
    "adan_pytorch.Adan": model(f"{_TRAINING}:Adan", _TRAINED),
    "torch_optimizer.many": model(f"{_TRAINING}:ManyOptimizers", _TRAINED),
    "kron_torch.Kron": model(f"{_TRAINING}:Kron", _TRAINED),
    "parameterfree.COCOB": model(f"{_TRAINING}:ParameterFree", _TRAINED),
    "OPTAMI.second_order": model(f"{_TRAINING}:SecondOrder", {"x": torch.randn(3)}),
    "torch_kf.KalmanFilter": model(f"{_CALLERS}:Filter", {"positions": torch.randn(4, 3, 2, 1)}),
    "torch_geometric_median.median": model(f"{_CALLERS}:Median", {"points": torch.randn(6, 2)}),
    "kmeans_pytorch.kmeans": model(f"{_CALLERS}:Clusters", {"points": torch.randn(8, 2)}),
    "fast_pytorch_kmeans.KMeans": model(f"{_CALLERS}:FastClusters", {"points": torch.randn(8, 2)}),
    "torch_kmeans.KMeans": model("torch_kmeans:KMeans", {"x": torch.randn(2, 8, 2)}, n_clusters=2, num_init=2,
                                 max_iter=3, verbose=False),
    "torch_kmeans.KNN": model("torch_kmeans.clustering.knn:KNN", {"x": torch.randn(2, 8, 2)}, k=2),
    "pomegranate.mixture": model(f"{_CALLERS}:GaussianMixture", {"points": torch.randn(8, 2)}),
    "pomegranate.hmm": model(f"{_CALLERS}:Chain", {"symbols": torch.randint(0, 3, (2, 5, 1))}),
    "xitorch.optimize": model(f"{_CALLERS}:Roots", {"y": torch.rand(5, dtype=torch.float64)}),
    "pygmtools.solvers": model(f"{_CALLERS}:Matching", {"scores": torch.rand(3, 3), "affinity": torch.rand(9, 9)}),
    "ot.sinkhorn": model(f"{_CALLERS}:Transport", {"x": torch.randn(5, 2), "y": torch.randn(5, 2)}),
    "torcheval.functional": model(
        f"{_CALLERS}:Classification", {"scores": torch.rand(6, 4), "labels": _LABELS, "binary": _BINARY}
    ),
    "ranking_metrics_torch.ndcg": model(
        f"{_CALLERS}:Ranking", {"scores": torch.randn(2, 5), "labels": (torch.rand(2, 5) > 0.5).float()}
    ),
    "coral_pytorch.losses": model(
        f"{_CALLERS}:Levels", {"logits": torch.randn(6, 3), "levels": torch.ones(6, 3), "labels": _LABELS}
    ),
    "torch_image_interpolation.sample": model(
        f"{_CALLERS}:Samples", {"image": torch.rand(6, 6), "coordinates": torch.rand(4, 2) * 5}
    ),
    "torch_dct.dct": model(f"{_CALLERS}:Cosines", {"x": torch.randn(4, 4)}),
    "spline_resize.resize": model(f"{_CALLERS}:Resized", {"image": torch.rand(1, 1, 4, 4, 4)}),
    "torchattacks.attacks": model(f"{_SEARCHES}:Attacks", {"images": _IMAGES, "labels": torch.tensor([0, 1])}),
    "pytorch_mppi.MPPI": model(f"{_SEARCHES}:Control", {"state": torch.randn(2)}),
    "mpc.MPC": model(f"{_SEARCHES}:Quadratic", {"state": torch.randn(2, 2), "F": torch.randn(2, 2, 2, 3)}),
    "easyfsl.methods": model(
        f"{_SEARCHES}:FewShot",
        {"support": torch.randn(4, 8), "labels": torch.tensor([0, 0, 1, 1]), "query": torch.randn(3, 8)},
    ),
    "hypll.HLinear": model(f"{_CALLERS}:Hyperbolic", {"x": torch.randn(3, 4) * 0.1}),
    "mgiou.MGIoU2D": model(
        f"{_CALLERS}:Boxes", {"predicted": torch.rand(3, 5), "true": torch.rand(3, 5)}
    ),
    "interpol.grid_pull": model(
        f"{_CALLERS}:Splines", {"image": torch.rand(1, 5, 5), "grid": torch.rand(1, 4, 4, 2) * 4}
    ),
    "pytorchyolo.nms": model(f"{_CALLERS}:Detections", {"predictions": torch.rand(1, 6, 8), "x": torch.rand(4, 4)}),
    "triplettorch.miners": model(f"{_CALLERS}:Pruned", {"x": torch.randn(4, 8)}),
    "bi_lstm_crf.CRF": model(
        f"{_CALLERS}:Trees", {"features": features(6, 8), "tags": torch.randint(0, 4, (2, 6)), "masks": padding_mask(6)}
    ),
    "torchreg.AffineRegistration": model(
        f"{_CALLERS}:Registration", {"moving": torch.rand(1, 1, 8, 8, 8), "static": torch.rand(1, 1, 8, 8, 8)}
    ),
    "treelstm.TreeLSTM": model(
        "treelstm:TreeLSTM",
        {"features": torch.randn(3, 4), "node_order": torch.tensor([1, 0, 0]),
         "adjacency_list": torch.tensor([[0, 1], [0, 2]]), "edge_order": torch.tensor([1, 1])},
        in_features=4, out_features=5,
    ),
    "torch_treecrf.TreeCRF": model(
        "torch_treecrf:TreeCRF", {"X": torch.randn(2, 4)}, in_features=4,
        adjacency=torch.tensor([[0, 0, 0], [1, 0, 0], [1, 0, 0]]),
    ),
    "focal_loss.FocalLoss": model(
        "focal_loss.focal_loss:FocalLoss", {"x": torch.rand(6, 4), "target": _LABELS}, gamma=2
    ),
    "info_nce.InfoNCE": model(
        "info_nce:InfoNCE", {"query": torch.randn(4, 8), "positive_key": torch.randn(4, 8)}
    ),
    "cbloss.FocalLoss": model("cbloss.loss:FocalLoss", {"outputs": torch.randn(6, 4), "targets": _LABELS},
                              num_classes=4),
    "spacecutter.CumulativeLinkLoss": model(
        "spacecutter.losses:CumulativeLinkLoss",
        {"y_pred": torch.rand(6, 4), "y_true": _LABELS[:, None]},
        class_weights=torch.ones(4),
    ),
    "spacecutter.OrdinalLogisticModel": model(
        "spacecutter.models:OrdinalLogisticModel", {"input": torch.randn(6, 3)},
        predictor=nn.Linear(3, 1), num_classes=4
    ),
    "fastmri.SSIMLoss": model(
        "fastmri.losses:SSIMLoss",
        {"X": torch.rand(2, 1, 16, 16), "Y": torch.rand(2, 1, 16, 16), "data_range": torch.ones(2)},
    ),
    "fastmri.Unet": model("fastmri.models.unet:Unet", {"image": torch.rand(1, 1, 16, 16)}, in_chans=1, out_chans=1,
                          chans=4, num_pool_layers=2),
    "minGRU_pytorch.minGRU": model("minGRU_pytorch:minGRU", {"x": features(6, 16)}, dim=16),
    "LRU_pytorch.LRU": model("LRU_pytorch:LRU", {"input": features(6, 8)}, in_features=8, out_features=8,
                             state_features=4),
    "s5.S5Block": model("s5:S5Block", {"x": features(6, 8)}, dim=8, state_dim=8, bidir=False),
    "torchxlstm.sLSTM": model(
        "torchxlstm:sLSTM", {"x": torch.randn(4, 2, 8)}, input_size=8, head_size=4, num_heads=2
    ),
    "aft_pytorch.AFTFull": model("aft_pytorch:AFTFull", {"x": features(6, 8)}, max_seqlen=6, dim=8, hidden_dim=8),
    "agent_attention_pytorch.AgentTransformer": model(
        "agent_attention_pytorch:AgentTransformer", {"x": features(6, 16), "mask": padding_mask(6)}, dim=16,
        num_agent_tokens=4, depth=1, heads=2, dim_head=8,
    ),
    "bidirectional_cross_attention.Transformer": model(
        "bidirectional_cross_attention:BidirectionalCrossAttentionTransformer",
        {"x": features(6, 16), "context": features(4, 16), "mask": padding_mask(6), "context_mask": padding_mask(4)},
        dim=16, depth=1, heads=2, dim_head=8,
    ),
    "bottleneck_transformer_pytorch.BottleStack": model(
        "bottleneck_transformer_pytorch:BottleStack", {"x": images(8, 16)}, dim=16, fmap_size=8, dim_out=32,
        num_layers=1, heads=2, dim_head=8,
    ),
    "discrete_key_value_bottleneck_pytorch.DiscreteKeyValueBottleneck": _bottleneck_of_keys,
    "feedback_transformer_pytorch.FeedbackTransformer": model(
        "feedback_transformer_pytorch:FeedbackTransformer", {"x": tokens(6)}, num_tokens=50, dim=16, depth=2, mem_len=4,
        heads=2, dim_head=8,
    ),
    "g_mlp_pytorch.gMLP": model("g_mlp_pytorch:gMLP", {"x": tokens(8)}, num_tokens=50, dim=16, depth=1, seq_len=8,
                                causal=True, circulant_matrix=True),
    "gated_state_spaces_pytorch.GatedStateSpacesLM": model(
        "gated_state_spaces_pytorch:GatedStateSpacesLM", {"x": tokens(8)}, num_tokens=50, dim=16, depth=1,
        dss_kernel_N=8, dss_kernel_H=8,
    ),
    "isab_pytorch.ISAB": model("isab_pytorch:ISAB", {"x": features(6, 16), "mask": padding_mask(6)}, dim=16, heads=2,
                               num_latents=4),
    "memformer.Memformer": model(
        "memformer:Memformer", {"src": tokens(8), "tgt": tokens(6), "src_mask": padding_mask(8)}, dim=16,
        num_memory_slots=4, enc_num_tokens=50, enc_depth=1, enc_heads=2, enc_max_seq_len=8, dec_num_tokens=50,
        dec_depth=1, dec_heads=2, dec_max_seq_len=8,
    ),
    "palm_pytorch.PaLM": model("palm_pytorch.palm_lite:PaLM", {"input": tokens(8)}, num_tokens=50, dim=16, depth=1,
                               heads=2, dim_head=8),
    "token_shift_gpt.TokenShiftGPT": model("token_shift_gpt:TokenShiftGPT", {"x": tokens(8)}, num_tokens=50, dim=16,
                                           max_seq_len=8, depth=1),
    "gotennet_pytorch.GotenNet": model(
        "gotennet_pytorch:GotenNet",
        {"atoms": torch.randint(0, 14, (2, 5)), "coors": torch.randn(2, 5, 3), "lens": torch.tensor([3, 5])}, dim=16,
        depth=1, max_degree=2, heads=2, dim_head=8, cutoff_radius=5.0,
    ),
    "torchbnn.BayesLinear": model("torchbnn:BayesLinear", {"input": torch.randn(3, 4)}, prior_mu=0, prior_sigma=0.1,
                                  in_features=4, out_features=3),
    "beat_this.BeatThis": model("beat_this.model.beat_tracker:BeatThis", {"x": torch.randn(1, 16, 32)}, spect_dim=32,
                                transformer_dim=16, n_layers=1, head_dim=8, stem_dim=8),
    "complexPyTorch.ComplexBatchNorm2d": model(
        "complexPyTorch.complexLayers:ComplexBatchNorm2d", {"input": torch.randn(2, 3, 4, 4, dtype=torch.complex64)},
        num_features=3,
    ),
    "pyharmx.PolyHarmInterpolator": model(
        "pyharmx:PolyHarmInterpolator", {"x": torch.rand(1, 4, 2)}, c=torch.rand(1, 6, 2), f=torch.rand(1, 6, 1)
    ),
    "fft_conv_pytorch.FFTConv1d": model("fft_conv_pytorch:FFTConv1d", {"signal": torch.randn(1, 2, 32)}, in_channels=2,
                                        out_channels=3, kernel_size=5),
    "monotonicnetworks.GroupSort": model("monotonicnetworks:GroupSort", {"x": torch.randn(3, 4)}, n_groups=2),
    "sixdrepnet.rotation": model(f"{_CALLERS}:Rotations", {"poses": torch.randn(3, 6)}),
    "info_nce.unpaired": model(
        "info_nce:InfoNCE",
        {"query": torch.randn(4, 8), "positive_key": torch.randn(4, 8), "negative_keys": torch.randn(4, 3, 8)},
        negative_mode="paired",
    ),
    "pymde.MDE": model(f"{_SEARCHES}:Embedding", {"points": torch.randn(4, 3)}),
}  # fmt: skip
