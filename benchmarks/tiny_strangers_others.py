"""Tiny models of more packages that this project does not use; see `benchmarks.tiny_strangers`."""

from typing import Any

import torch

from benchmarks.tiny_strangers_parts import (
    VOCABULARY,
    Build,
    Inputs,
    features,
    get,
    images,
    model,
    padding_mask,
    tokens,
)

# --- torch_geometric ---

_EDGES = torch.tensor([[0, 1, 1, 2, 3, 4, 5, 5, 0], [1, 0, 2, 1, 4, 3, 3, 4, 2]])
_GRAPH = {"x": torch.randn(6, 8), "edge_index": _EDGES}
_BATCH = torch.tensor([0, 0, 0, 1, 1, 1])


def _graph(name: str, inputs: Inputs = _GRAPH, **options: Any) -> Build:
    return model(f"torch_geometric.nn:{name}", inputs, **options)


TORCH_GEOMETRIC = {
    **{
        name: _graph(name, in_channels=8, hidden_channels=8, num_layers=2, out_channels=4)
        for name in ("GCN", "GAT", "GraphSAGE", "GIN", "EdgeCNN")
    },
    "PNA": _graph(
        "PNA",
        in_channels=8,
        hidden_channels=8,
        num_layers=2,
        out_channels=4,
        aggregators=["mean", "max"],
        scalers=["identity", "amplification"],
        deg=torch.tensor([1, 2, 3]),
    ),
    "JumpingKnowledge": _graph(
        "GCN", in_channels=8, hidden_channels=8, num_layers=2, out_channels=4, jk="lstm"
    ),
    "GraphUNet": _graph("GraphUNet", in_channels=8, hidden_channels=8, out_channels=4, depth=2),
    "AttentiveFP": _graph(
        "AttentiveFP",
        {**_GRAPH, "edge_attr": torch.randn(9, 3), "batch": _BATCH},
        in_channels=8,
        hidden_channels=8,
        out_channels=4,
        edge_dim=3,
        num_layers=1,
        num_timesteps=1,
    ),
    "ChebConv": _graph("ChebConv", in_channels=8, out_channels=4, K=2),
    "GATv2Conv": _graph("GATv2Conv", in_channels=8, out_channels=4, heads=2),
    "TransformerConv": _graph("TransformerConv", in_channels=8, out_channels=4, heads=2),
    "RGCNConv": _graph(
        "RGCNConv",
        {**_GRAPH, "edge_type": torch.randint(3, (9,))},
        in_channels=8,
        out_channels=4,
        num_relations=3,
    ),
    "GatedGraphConv": _graph("GatedGraphConv", out_channels=8, num_layers=2),
    "ARMAConv": _graph("ARMAConv", in_channels=8, out_channels=4),
    "APPNP": _graph("APPNP", K=2, alpha=0.1),
    "SGConv": _graph("SGConv", in_channels=8, out_channels=4, K=2),
    "TAGConv": _graph("TAGConv", in_channels=8, out_channels=4),
    "NNConv": _graph(
        "NNConv",
        {**_GRAPH, "edge_attr": torch.randn(9, 3)},
        in_channels=8,
        out_channels=4,
        nn=torch.nn.Linear(3, 32),
    ),
    "PointNetConv": _graph(
        "PointNetConv", {"x": torch.randn(6, 8), "pos": torch.randn(6, 3), "edge_index": _EDGES}
    ),
    "HypergraphConv": _graph(
        "HypergraphConv", {"x": torch.randn(6, 8), "hyperedge_index": _EDGES}, in_channels=8, out_channels=4
    ),
    "TopKPooling": _graph("TopKPooling", {**_GRAPH, "batch": _BATCH}, in_channels=8),
    "SAGPooling": _graph("SAGPooling", {**_GRAPH, "batch": _BATCH}, in_channels=8),
    "EdgePooling": _graph("EdgePooling", {**_GRAPH, "batch": _BATCH}, in_channels=8),
    "ASAPooling": _graph("ASAPooling", {**_GRAPH, "batch": _BATCH}, in_channels=8),
    "Set2Set": _graph(
        "Set2Set", {"x": torch.randn(6, 8), "index": _BATCH}, in_channels=8, processing_steps=2
    ),
    "SortAggregation": _graph("SortAggregation", {"x": torch.randn(6, 8), "index": _BATCH}, k=2),
    "GraphNorm": _graph("GraphNorm", {"x": torch.randn(6, 8), "batch": _BATCH}, in_channels=8),
    "PairNorm": _graph("PairNorm", {"x": torch.randn(6, 8), "batch": _BATCH}),
    "DiffGroupNorm": _graph("DiffGroupNorm", {"x": torch.randn(6, 8)}, in_channels=8, groups=2),
    "DenseGCNConv": _graph(
        "DenseGCNConv", {"x": torch.randn(2, 6, 8), "adj": torch.ones(2, 6, 6)}, in_channels=8, out_channels=4
    ),
    "GPSConv": lambda: (
        get("torch_geometric.nn:GPSConv")(8, get("torch_geometric.nn:GCNConv")(8, 8), heads=2),
        {**_GRAPH, "batch": _BATCH},
    ),
    "LightGCN": _graph("LightGCN", {"edge_index": _EDGES}, num_nodes=6, embedding_dim=4, num_layers=1),
    "SignedGCN": _graph(
        "SignedGCN",
        {"x": torch.randn(6, 8), "pos_edge_index": _EDGES, "neg_edge_index": _EDGES.flip(0)},
        in_channels=8,
        hidden_channels=8,
        num_layers=2,
    ),
}

# --- smaller packages ---


def _quantizer(name: str, width: int = 16, **options: Any) -> Build:
    return model(f"vector_quantize_pytorch:{name}", {"x": features(width=width)}, **options)


VECTOR_QUANTIZE = {
    "VectorQuantize": _quantizer("VectorQuantize", dim=16, codebook_size=8),
    "Cosine": _quantizer(
        "VectorQuantize", dim=16, codebook_size=8, use_cosine_sim=True, rotation_trick=False
    ),
    "Stochastic": _quantizer(
        "VectorQuantize", dim=16, codebook_size=8, sample_codebook_temp=0.5, stochastic_sample_codes=True
    ),
    "Heads": _quantizer("VectorQuantize", dim=16, codebook_size=8, heads=2, separate_codebook_per_head=True),
    "Masked": model(
        "vector_quantize_pytorch:VectorQuantize",
        {"x": features(width=16), "mask": padding_mask()},
        dim=16,
        codebook_size=8,
    ),
    "ResidualVQ": _quantizer("ResidualVQ", dim=16, codebook_size=8, num_quantizers=2),
    "GroupedResidualVQ": _quantizer("GroupedResidualVQ", dim=16, codebook_size=8, num_quantizers=2, groups=2),
    "RandomProjection": _quantizer(
        "RandomProjectionQuantizer", dim=16, num_codebooks=1, codebook_dim=8, codebook_size=8
    ),
    "FSQ": model("vector_quantize_pytorch:FSQ", {"z": features(width=3)}, levels=[4, 4, 4]),
    "ResidualFSQ": _quantizer("ResidualFSQ", dim=16, levels=[4, 4], num_quantizers=2),
    "LFQ": _quantizer("LFQ", 4, codebook_size=16, dim=4),
    "ResidualLFQ": _quantizer("ResidualLFQ", dim=16, codebook_size=16, num_quantizers=2),
    "SimVQ": _quantizer("SimVQ", dim=16, codebook_size=8),
    "LatentQuantize": model(
        "vector_quantize_pytorch:LatentQuantize", {"z": torch.randn(2, 4, 6)}, levels=[4, 4], dim=4
    ),
    "BinaryMapper": model("vector_quantize_pytorch:BinaryMapper", {"logits": torch.randn(2, 4, 6)}, bits=6),
}

_PROTEINS = {"tokens": torch.randint(4, 24, (2, 12))}


def _protein(name: str, **options: Any) -> Build:
    return lambda: (
        get(f"esm.model.{name}")(**options),
        [_PROTEINS, {**_PROTEINS, "repr_layers": [1], "return_contacts": True}],
    )


SMALLER = {
    "local_attention.LocalTransformer": model(
        "local_attention:LocalTransformer",
        {"x": tokens(), "mask": padding_mask()},
        num_tokens=VOCABULARY,
        dim=32,
        depth=1,
        max_seq_len=32,
        local_attn_window_size=8,
        heads=2,
    ),
    "local_attention.Padded": model(
        "local_attention:LocalMHA",
        {"x": features(13, 32)},
        dim=32,
        window_size=8,
        heads=2,
        causal=True,
        use_xpos=True,
        xpos_scale_base=8,
    ),
    "performer_pytorch.PerformerLM": model(
        "performer_pytorch:PerformerLM",
        {"x": tokens(), "mask": padding_mask()},
        num_tokens=VOCABULARY,
        max_seq_len=32,
        dim=32,
        depth=1,
        heads=2,
        dim_head=16,
    ),
    "performer_pytorch.Local": model(
        "performer_pytorch:Performer",
        {"x": features()},
        dim=32,
        depth=1,
        heads=2,
        dim_head=16,
        local_attn_heads=1,
        local_window_size=8,
    ),
    "reformer_pytorch.ReformerLM": model(
        "reformer_pytorch:ReformerLM",
        {"x": tokens(16)},
        num_tokens=VOCABULARY,
        dim=32,
        depth=1,
        max_seq_len=16,
        heads=2,
        bucket_size=4,
        n_hashes=2,
        causal=True,
    ),
    "reformer_pytorch.LSHSelfAttention": model(
        "reformer_pytorch:LSHSelfAttention",
        {"x": features(), "input_mask": padding_mask()},
        dim=32,
        heads=2,
        bucket_size=4,
        n_hashes=2,
    ),
    "perceiver_pytorch.Perceiver": model(
        "perceiver_pytorch:Perceiver",
        {"data": torch.randn(2, 8, 8, 3)},
        num_freq_bands=2,
        max_freq=4.0,
        depth=1,
        num_latents=4,
        latent_dim=16,
        cross_dim_head=8,
        latent_dim_head=8,
        latent_heads=2,
        num_classes=5,
    ),
    "perceiver_pytorch.PerceiverIO": model(
        "perceiver_pytorch:PerceiverIO",
        {"data": features(), "mask": padding_mask(), "queries": torch.randn(6, 32)},
        dim=32,
        queries_dim=32,
        depth=1,
        num_latents=4,
        latent_dim=16,
        cross_dim_head=8,
        latent_dim_head=8,
        latent_heads=2,
    ),
    "nystrom_attention.Nystromformer": model(
        "nystrom_attention:Nystromformer",
        {"x": features(20, 32), "mask": torch.ones(2, 20, dtype=torch.bool)},
        dim=32,
        dim_head=16,
        heads=2,
        depth=1,
        num_landmarks=8,
    ),
    "linformer.LinformerLM": model(
        "linformer:LinformerLM",
        {"x": tokens()},
        num_tokens=VOCABULARY,
        dim=32,
        seq_len=16,
        depth=1,
        heads=2,
        k=4,
    ),
    "conformer.Conformer": model(
        "conformer:Conformer", {"x": features()}, dim=32, depth=1, dim_head=16, heads=2, conv_kernel_size=7
    ),
    "egnn_pytorch.EGNN_Network": model(
        "egnn_pytorch:EGNN_Network",
        {"feats": torch.randint(0, 9, (2, 8)), "coors": torch.randn(2, 8, 3), "mask": padding_mask(8)},
        num_tokens=9,
        num_positions=16,
        dim=16,
        depth=1,
        num_nearest_neighbors=3,
        coor_weights_clamp_value=2.0,
    ),
    "egnn_pytorch.Adjacent": model(
        "egnn_pytorch:EGNN_Network",
        {
            "feats": torch.randint(0, 9, (2, 8)),
            "coors": torch.randn(2, 8, 3),
            "adj_mat": torch.ones(8, 8, dtype=torch.bool),
        },
        num_tokens=9,
        dim=16,
        depth=1,
        only_sparse_neighbors=True,
        num_adj_degrees=2,
        adj_dim=4,
    ),
    "tab_transformer_pytorch.FTTransformer": model(
        "tab_transformer_pytorch:FTTransformer",
        {"x_categ": torch.randint(0, 4, (2, 3)), "x_numer": torch.randn(2, 5)},
        categories=(4, 5, 6),
        num_continuous=5,
        dim=16,
        depth=1,
        heads=2,
    ),
    "denoising_diffusion_pytorch.Unet": model(
        "denoising_diffusion_pytorch:Unet",
        {"x": images(), "time": torch.tensor([1, 3])},
        dim=8,
        dim_mults=(1, 2),
    ),
    "denoising_diffusion_pytorch.Unet1D": model(
        "denoising_diffusion_pytorch:Unet1D",
        {"x": torch.randn(2, 3, 32), "time": torch.tensor([1, 3])},
        dim=8,
        dim_mults=(1, 2),
        channels=3,
    ),
    "denoising_diffusion_pytorch.GaussianDiffusion": lambda: (
        get("denoising_diffusion_pytorch:GaussianDiffusion")(
            get("denoising_diffusion_pytorch:Unet")(dim=8, dim_mults=(1, 2)), image_size=32, timesteps=8
        ),
        {"img": images().sigmoid()},
    ),
    "esm.ESM2": _protein("esm2:ESM2", num_layers=1, embed_dim=32, attention_heads=2),
}

MODELS = {
    **{f"torch_geometric.{name}": build for name, build in TORCH_GEOMETRIC.items()},
    **{f"vector_quantize_pytorch.{name}": build for name, build in VECTOR_QUANTIZE.items()},
    **SMALLER,
}
