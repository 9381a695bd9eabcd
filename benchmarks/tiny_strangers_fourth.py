"""Tiny models of packages that were fixed by name for a fourth trial, before anything of them was fetched.

See `benchmarks.tiny_strangers`.
"""

from typing import Any

import torch
from torch import nn

from benchmarks.tiny_strangers_parts import Build, features, get, images, model, padding_mask, tokens

_CALLERS = "benchmarks.tiny_strangers_callers"
_LENGTHS = torch.tensor([16, 9])


def _classifier(name: str) -> Build:
    return lambda: (get(f"pretrainedmodels.models:{name}")(pretrained=None), {"input": images(224)})


def _loss(name: str, **options: Any) -> Build:
    """A metric learning loss of a few embeddings with labels."""
    inputs = {"embeddings": torch.randn(8, 16), "labels": torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])}
    return lambda: (get(f"pytorch_metric_learning.losses:{name}")(**options), inputs)


def _miner(name: str) -> Build:
    inputs = {"embeddings": torch.randn(8, 16), "labels": torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])}
    return lambda: (get(f"pytorch_metric_learning.miners:{name}")(), inputs)


def _dalle() -> tuple[Any, dict[str, Any]]:
    vae = get("dalle_pytorch:DiscreteVAE")(
        image_size=16, num_layers=2, num_tokens=20, codebook_dim=16, hidden_dim=8
    )
    dalle = get("dalle_pytorch:DALLE")(
        dim=16, vae=vae, num_text_tokens=50, text_seq_len=8, depth=2, heads=2, dim_head=48
    )
    return dalle, {"text": torch.randint(1, 50, (2, 8)), "image": torch.rand(2, 3, 16, 16)}


def _prior() -> tuple[Any, dict[str, Any]]:
    network = get("dalle2_pytorch:DiffusionPriorNetwork")(
        dim=16, depth=1, heads=2, dim_head=8, num_timesteps=10, max_text_len=8
    )
    return network, {
        "image_embed": torch.randn(2, 16), "diffusion_timesteps": torch.tensor([1, 4]),
        "text_embed": torch.randn(2, 16), "text_encodings": torch.randn(2, 8, 16), "text_cond_drop_prob": 0.2,
    }  # fmt: skip


def _vector_perceptrons() -> tuple[Any, dict[str, Any]]:
    part = get("geometric_vector_perceptron:GVP")
    gvp = part(dim_vectors_in=4, dim_feats_in=8, dim_vectors_out=4, dim_feats_out=8)
    return gvp, {"data": (torch.randn(2, 8), torch.randn(2, 4, 3))}


def _mesh() -> tuple[Any, dict[str, Any]]:
    autoencoder = get("meshgpt_pytorch:MeshAutoencoder")(
        num_discrete_coors=16, dim_coor_embed=8, dim_area_embed=8, dim_normal_embed=8, dim_angle_embed=8,
        encoder_dims_through_depth=(16, 16), decoder_dims_through_depth=(16, 16), dim_codebook=16, codebook_size=16,
        num_quantizers=1, attn_encoder_depth=0, attn_decoder_depth=0, local_attn_encoder_depth=0,
        local_attn_decoder_depth=0,
    )  # fmt: skip
    faces = torch.randint(0, 9, (2, 6, 3))
    faces[1, 4:] = -1
    return autoencoder, {"vertices": torch.rand(2, 9, 3) * 2 - 1, "faces": faces, "return_codes": True}


def _recurrent_policy() -> tuple[Any, dict[str, Any]]:
    spaces = get("gymnasium.spaces:Box"), get("gymnasium.spaces:Discrete")
    policy = get("sb3_contrib.common.recurrent.policies:RecurrentActorCriticPolicy")(
        spaces[0](-1, 1, (4,)), spaces[1](3), lambda _: 0.1, lstm_hidden_size=8
    )
    state = (torch.zeros(1, 2, 8), torch.zeros(1, 2, 8))
    states = get("sb3_contrib.common.recurrent.type_aliases:RNNStates")(state, state)
    return policy, {
        "obs": torch.randn(2, 4),
        "lstm_states": states,
        "episode_starts": torch.tensor([1.0, 0.0]),
    }


def _policy() -> tuple[Any, dict[str, Any]]:
    box = get("gymnasium.spaces:Box")
    policy = get("stable_baselines3.common.policies:ActorCriticPolicy")(
        box(-1, 1, (4,)), box(-1, 1, (2,)), lambda _: 0.1, use_sde=False
    )
    return policy, {"obs": torch.randn(2, 4)}


def _pairs(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The indices of all ordered pairs of different atoms."""
    first, second = (torch.arange(count) for _ in range(2))
    pairs = torch.cartesian_prod(first, second)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return pairs[:, 0], pairs[:, 1]


def _tokenizer() -> tuple[Any, dict[str, Any]]:
    config = get("s3tokenizer.model:ModelConfig")(n_mels=80, n_audio_ctx=64, n_audio_state=32, n_audio_head=2)
    config.n_audio_layer, config.n_codebook_size = 1, 27
    return get("s3tokenizer.model:S3Tokenizer")("speech_tokenizer_v1", config), {
        "mel": torch.randn(2, 80, 32), "mel_len": torch.tensor([32, 20]),
    }  # fmt: skip


def _speech(path: str, **options: Any) -> Build:
    """An encoder of padded speech."""
    return model(path, {"xs_pad": torch.randn(2, 40, 20), "ilens": torch.tensor([40, 28])}, **options)


def _synthesis(name: str, inputs: dict[str, Any], **options: Any) -> Build:
    batch = {
        "text": torch.randint(1, 20, (2, 6)), "text_lengths": torch.tensor([6, 4]),
        "feats": torch.randn(2, 12, 8), "feats_lengths": torch.tensor([12, 8]),
    }  # fmt: skip
    return model(name, batch | inputs, idim=20, odim=8, **options)


def _nodes() -> tuple[Any, dict[str, Any]]:
    network = get("e3nn.nn.models.v2106.gate_points_networks:SimpleNetwork")(
        irreps_in="2x0e",
        irreps_out="1x0e",
        max_radius=2.0,
        num_neighbors=3,
        num_nodes=4,
        mul=4,
        layers=1,
        lmax=1,
    )
    first, second = _pairs(4)
    return network, {
        "data": {
            "pos": torch.randn(4, 3), "x": torch.randn(4, 2), "batch": torch.zeros(4, dtype=torch.long),
            "edge_index": torch.stack([first, second]),
        }
    }  # fmt: skip


def _gaussian_process() -> tuple[Any, dict[str, Any]]:
    inputs, outputs = torch.rand(6, 2, dtype=torch.double), torch.rand(6, 1, dtype=torch.double)
    posterior = get(f"{_CALLERS}:Posterior")(inputs, outputs)
    return posterior, {"x": torch.rand(3, 2, dtype=torch.double)}


def _boundaries() -> tuple[Any, dict[str, Any]]:
    predictor = get("funasr.models.paraformer.cif_predictor:CifPredictor")(16, 1, 1)
    mask = padding_mask()[:, None].float()
    return predictor, {"hidden": features(16, 16), "mask": mask}


def _recommended() -> tuple[Any, dict[str, Any]]:
    layers = get("rectools.models.nn.transformers.sasrec:SASRecTransformerLayers")(1, 16, 2, 0.0)
    return layers, {
        "seqs": features(8, 16), "timeline_mask": torch.ones(2, 8, 1),
        "attn_mask": torch.ones(8, 8).triu(1).bool(), "key_padding_mask": None,
    }  # fmt: skip


MODELS: dict[str, Build] = {
    "byol_pytorch.BYOL": model(
        "byol_pytorch:BYOL", {"x": images(), "return_embedding": True},
        net=nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8)), image_size=32,
        projection_size=8, projection_hidden_size=16, use_simplicial_embeddings=False,
    ),
    "siren_pytorch.SirenNet": model(
        "siren_pytorch:SirenNet", {"x": torch.randn(5, 2)}, dim_in=2, dim_hidden=16, dim_out=3, num_layers=2
    ),
    "native_sparse_attention_pytorch.SparseAttention": model(
        "native_sparse_attention_pytorch:SparseAttention", {"inp": features(31, 16)}, dim=16, dim_head=8, heads=2,
        sliding_window_size=2, compress_block_size=4, compress_block_sliding_stride=2, selection_block_size=4,
        num_selected_blocks=2, causal=True,
    ),
    "imagen_pytorch.Unet": model(
        "imagen_pytorch:Unet",
        {"x": images(16), "time": torch.rand(2), "text_embeds": features(8, 16),
         "text_mask": padding_mask(8), "cond_drop_prob": 0.1},
        dim=8, text_embed_dim=16, cond_dim=16, dim_mults=(1, 2), num_resnet_blocks=1, layer_attns=(False, True),
        layer_cross_attns=(False, True), attn_heads=2, attn_dim_head=8, max_text_len=8,
    ),
    "dalle_pytorch.DALLE": _dalle,
    "dalle_pytorch.CLIP": model(
        "dalle_pytorch:CLIP",
        {"text": tokens(8), "image": images(), "text_mask": padding_mask(8), "return_loss": True},
        dim_text=16, dim_image=16, dim_latent=16, num_text_tokens=50, text_enc_depth=1, text_seq_len=8, text_heads=2,
        visual_enc_depth=1, visual_heads=2, visual_image_size=32, visual_patch_size=8,
    ),
    "dalle2_pytorch.DiffusionPriorNetwork": _prior,
    "dalle2_pytorch.Unet": model(
        "dalle2_pytorch:Unet",
        {"x": images(16), "time": torch.tensor([1, 4]), "image_embed": torch.randn(2, 16),
         "text_encodings": features(8, 16)},
        dim=8, image_embed_dim=16, text_embed_dim=16, cond_dim=16, dim_mults=(1, 2), cond_on_text_encodings=True,
        max_text_len=8, attn_heads=2, attn_dim_head=8, resnet_groups=4,
    ),
    "phenaki_pytorch.CViViT": model(
        "phenaki_pytorch:CViViT", {"video": torch.rand(1, 3, 5, 32, 32), "return_recons_only": True}, dim=16,
        codebook_size=16, image_size=32, patch_size=16, temporal_patch_size=2, spatial_depth=1, temporal_depth=1,
        dim_head=8, heads=2, use_vgg_and_gan=False,
    ),
    "phenaki_pytorch.MaskGit": model(
        "phenaki_pytorch:MaskGit",
        {"x": tokens(12), "context": features(6, 16), "text_mask": padding_mask(6), "video_patch_shape": (3, 2, 2)},
        dim=16, num_tokens=50, max_seq_len=32, dim_context=16, depth=1, heads=2, dim_head=8,
    ),
    "soundstorm_pytorch.ConformerWrapper": lambda: (
        get("soundstorm_pytorch:ConformerWrapper")(
            codebook_size=16, num_quantizers=2,
            conformer=get("soundstorm_pytorch:Conformer")(dim=16, depth=1, dim_head=8, heads=2, conv_kernel_size=3),
        ),
        {"x": torch.randint(0, 16, (2, 16)), "mask": padding_mask(8)},
    ),
    "voicebox_pytorch.VoiceBox": model(
        "voicebox_pytorch:VoiceBox",
        {"x": features(16, 16), "times": torch.rand(2), "cond_token_ids": torch.randint(0, 20, (2, 16)),
         "cond": features(16, 16), "self_attn_mask": padding_mask()},
        num_cond_tokens=20, dim_in=16, dim_cond_emb=16, dim=16, depth=2, dim_head=8, heads=2, num_register_tokens=2,
        conv_pos_embed_kernel_size=3,
    ),
    "voicebox_pytorch.DurationPredictor": model(
        "voicebox_pytorch:DurationPredictor",
        {"cond": torch.rand(2, 8), "phoneme_ids": torch.randint(0, 20, (2, 8)), "phoneme_mask": padding_mask(8)},
        num_phoneme_tokens=20, dim_phoneme_emb=16, dim=16, depth=1, dim_head=8, heads=2, conv_pos_embed_kernel_size=3,
        aligner_kwargs={"dim_in": 8, "attn_channels": 8},
    ),
    "naturalspeech2_pytorch.Model": model(
        "naturalspeech2_pytorch:Model",
        {"x": features(16, 16), "times": torch.rand(2), "prompt": features(8, 16)},
        dim=16, depth=1, dim_head=8, heads=2, wavenet_layers=2, wavenet_stacks=1, dim_prompt=16, num_latents_m=4,
        resampler_depth=1, condition_on_prompt=True, use_flash_attn=False, cond_drop_prob=0.2,
    ),
    "titans_pytorch.NeuralMemory": model(
        "titans_pytorch:NeuralMemory", {"seq": features(16, 16)}, dim=16, chunk_size=4
    ),
    "titans_pytorch.MemoryAsContextTransformer": model(
        "titans_pytorch:MemoryAsContextTransformer", {"x": tokens(15)}, num_tokens=50, dim=16, depth=2, segment_len=4,
        num_persist_mem_tokens=2, num_longterm_mem_tokens=2, dim_head=8, heads=2, neural_memory_layers=(2,),
    ),
    "geometric_vector_perceptron.GVP": _vector_perceptrons,
    "slot_attention.SlotAttention": model(
        "slot_attention:SlotAttention", {"inputs": features(8, 16)}, num_slots=3, dim=16
    ),
    "meshgpt_pytorch.MeshAutoencoder": _mesh,
    **{
        f"pytorch_metric_learning.{name}": _loss(name)
        for name in "TripletMarginLoss ContrastiveLoss MultiSimilarityLoss NTXentLoss CircleLoss LiftedStructureLoss "
        "NPairsLoss FastAPLoss HistogramLoss SupConLoss".split()
    },
    "pytorch_metric_learning.ArcFaceLoss": _loss("ArcFaceLoss", num_classes=4, embedding_size=16),
    "pytorch_metric_learning.ProxyAnchorLoss": _loss("ProxyAnchorLoss", num_classes=4, embedding_size=16),
    **{
        f"pytorch_metric_learning.{name}": _miner(name)
        for name in "MultiSimilarityMiner BatchHardMiner TripletMarginMiner".split()
    },
    "asteroid.ConvTasNet": model(
        "asteroid.models:ConvTasNet", {"wav": torch.randn(2, 400)}, n_src=2, n_blocks=2, n_repeats=1, bn_chan=8,
        hid_chan=8, skip_chan=8, n_filters=16,
    ),
    "asteroid.DPRNNTasNet": model(
        "asteroid.models:DPRNNTasNet", {"wav": torch.randn(2, 400)}, n_src=2, bn_chan=8, hid_size=8, chunk_size=10,
        n_repeats=1, n_filters=16,
    ),
    "asteroid.PITLossWrapper": lambda: (
        get("asteroid.losses:PITLossWrapper")(get("asteroid.losses:pairwise_neg_sisdr"), pit_from="pw_mtx"),
        {"est_targets": torch.randn(2, 2, 64), "targets": torch.randn(2, 2, 64)},
    ),
    "espnet2.ConformerEncoder": _speech(
        "espnet2.asr.encoder.conformer_encoder:ConformerEncoder", input_size=20, output_size=16, attention_heads=2,
        linear_units=16, num_blocks=1, rel_pos_type="latest", cnn_module_kernel=3, use_flash_attn=False,
    ),
    "espnet2.TransformerEncoder": _speech(
        "espnet2.asr.encoder.transformer_encoder:TransformerEncoder", input_size=20, output_size=16,
        attention_heads=2, linear_units=16, num_blocks=1,
    ),
    "espnet2.EBranchformerEncoder": _speech(
        "espnet2.asr.encoder.e_branchformer_encoder:EBranchformerEncoder", input_size=20, output_size=16,
        attention_heads=2, linear_units=16, cgmlp_linear_units=16, num_blocks=1, rel_pos_type="latest",
    ),
    "espnet2.RNNEncoder": _speech(
        "espnet2.asr.encoder.rnn_encoder:RNNEncoder", input_size=20, num_layers=2, hidden_size=8, output_size=8,
        subsample=(2, 1),
    ),
    "espnet2.TransformerDecoder": model(
        "espnet2.asr.decoder.transformer_decoder:TransformerDecoder",
        {"hs_pad": features(16, 16), "hlens": _LENGTHS, "ys_in_pad": tokens(6), "ys_in_lens": torch.tensor([6, 4])},
        vocab_size=50, encoder_output_size=16, attention_heads=2, linear_units=16, num_blocks=1,
    ),
    "espnet2.CTC": model(
        "espnet2.asr.ctc:CTC",
        {"hs_pad": features(16, 16), "hlens": _LENGTHS, "ys_pad": torch.randint(1, 10, (2, 5)),
         "ys_lens": torch.tensor([5, 3])},
        odim=10, encoder_output_size=16,
    ),
    "espnet2.FastSpeech2": _synthesis(
        "espnet2.tts.fastspeech2:FastSpeech2",
        {"durations": torch.tensor([[2, 2, 2, 2, 2, 1, 1], [2, 2, 2, 1, 1, 0, 0]]),
         "durations_lengths": torch.tensor([7, 5]),
         "pitch": torch.randn(2, 7, 1), "pitch_lengths": torch.tensor([7, 5]), "energy": torch.randn(2, 7, 1),
         "energy_lengths": torch.tensor([7, 5])},
        adim=16, aheads=2, elayers=1, eunits=16, dlayers=1, dunits=16, postnet_layers=1, postnet_chans=8,
    ),
    "espnet2.Tacotron2": _synthesis(
        "espnet2.tts.tacotron2:Tacotron2", {}, embed_dim=16, eunits=16, econv_layers=1, econv_chans=16, adim=16,
        aconv_chans=4, aconv_filts=3, dunits=16, prenet_units=8, postnet_layers=1, postnet_chans=8,
    ),
    "pretrainedmodels.DPN68": _classifier("dpn68"),
    "clip.CLIP": model(
        "clip.model:CLIP", {"image": images(), "text": torch.randint(1, 49, (2, 8))}, embed_dim=16,
        image_resolution=32, vision_layers=1, vision_width=64, vision_patch_size=8, context_length=8, vocab_size=50,
        transformer_width=16, transformer_heads=2, transformer_layers=1,
    ),
    "x_clip.CLIP": model(
        "x_clip:CLIP", {"text": tokens(8), "image": images()}, dim_text=16, dim_image=16, dim_latent=16,
        num_text_tokens=50, text_enc_depth=1, text_seq_len=8, text_heads=2, text_dim_head=8,
        visual_enc_depth=1, visual_heads=2, visual_dim_head=8, visual_image_size=32, visual_patch_size=8,
        use_all_token_embeds=True, use_mlm=False,
    ),
    **{
        f"supar.{name}": model(
            f"{_CALLERS}:{name}", {"scores": torch.randn(2, 6, 6), "lens": torch.tensor([5, 4])}
        )
        for name in "MatrixTrees ProjectiveTrees Constituents".split()
    },
    "openunmix.OpenUnmix": model(
        "openunmix.model:OpenUnmix", {"x": torch.rand(2, 2, 33, 8)}, nb_bins=33, hidden_size=16, nb_layers=1
    ),
    "snac.SNAC": model(
        "snac:SNAC", {"audio_data": torch.randn(1, 1, 256)}, encoder_dim=8, encoder_rates=[2, 2], decoder_dim=16,
        decoder_rates=[2, 2], attn_window_size=None, codebook_size=16, vq_strides=[2, 1],
    ),
    "auraloss.MultiResolutionSTFTLoss": model(
        "auraloss.freq:MultiResolutionSTFTLoss", {"x": torch.randn(1, 1, 4096), "y": torch.randn(1, 1, 4096)}
    ),
    "nnAudio.STFT": model("nnAudio.features.stft:STFT", {"x": torch.randn(1, 4096)}, n_fft=256, verbose=False),
    "s3tokenizer.S3Tokenizer": _tokenizer,
    "styletts2.TextEncoder": model(
        "styletts2.models:TextEncoder",
        {"x": tokens(16), "input_lengths": _LENGTHS, "m": ~padding_mask()}, channels=16, kernel_size=3, depth=1,
        n_symbols=50,
    ),
    "styletts2.ProsodyPredictor": model(
        "styletts2.models:ProsodyPredictor",
        {"texts": torch.randn(2, 16, 16), "style": torch.randn(2, 8), "text_lengths": _LENGTHS,
         "alignment": torch.rand(2, 16, 20), "m": ~padding_mask()},
        style_dim=8, d_hid=16, nlayers=1,
    ),
    "funasr.CifPredictor": _boundaries,
    "funasr.SANMEncoder": _speech(
        "funasr.models.sanm.encoder:SANMEncoder", input_size=20, output_size=16, attention_heads=2, linear_units=16,
        num_blocks=1, kernel_size=3,
    ),
    "e3nn.SimpleNetwork": _nodes,
    "botorch.SingleTaskGP": _gaussian_process,
    "pyro.AutoRegressiveNN": model(
        "pyro.nn:AutoRegressiveNN", {"x": torch.randn(3, 4)}, input_dim=4, hidden_dims=[8]
    ),
    "stable_baselines3.ActorCriticPolicy": _policy,
    "sb3_contrib.RecurrentActorCriticPolicy": _recurrent_policy,
    "pytorch_tcn.TCN": model(
        "pytorch_tcn:TCN", {"x": torch.randn(2, 4, 16)}, num_inputs=4, num_channels=[8, 8], use_gate=True
    ),
    "torchfm.DeepFM": model(
        "torchfm.model.dfm:DeepFactorizationMachineModel", {"x": torch.randint(0, 4, (3, 2))}, field_dims=[4, 4],
        embed_dim=8, mlp_dims=(8,), dropout=0.0,
    ),
    "rectools.SASRecTransformerLayers": _recommended,
    **{
        f"geoopt.{name}": model(
            f"{_CALLERS}:Distances", {"x": torch.randn(3, 4) * 0.1, "u": torch.randn(3, 4) * 0.1}, name=name
        )
        for name in "PoincareBall Sphere Lorentz".split()
    },
    "compressive_transformer_pytorch.CompressiveTransformer": model(
        "compressive_transformer_pytorch:CompressiveTransformer", {"x": tokens(16)}, num_tokens=50, dim=16, depth=1,
        seq_len=16, mem_len=16, cmem_len=4, heads=2,
    ),
    "axial_attention.AxialAttention": model(
        "axial_attention:AxialAttention", {"x": images(8, 16)}, dim=16, dim_index=1, heads=2
    ),
    "ring_attention_pytorch.RingTransformer": model(
        "ring_attention_pytorch:RingTransformer", {"x": tokens(16)}, num_tokens=50, dim=16, depth=1, causal=True,
        dim_head=8, heads=2, bucket_size=8, use_cuda_kernel=False,
    ),
    "memory_efficient_attention_pytorch.Attention": model(
        "memory_efficient_attention_pytorch:Attention", {"x": features(16, 16), "mask": padding_mask()}, dim=16,
        dim_head=8, heads=2, memory_efficient=True, q_bucket_size=8, k_bucket_size=8,
    ),
    "rotary_embedding_torch.RotaryEmbedding": model(f"{_CALLERS}:Rotated", {"queries": torch.randn(1, 2, 8, 16)}),
    "dnc.DNC": model(
        "dnc:DNC", {"input": torch.randn(2, 5, 8)}, input_size=8, hidden_size=8, nr_cells=4, cell_size=4, read_heads=2,
        batch_first=True,
    ),
    "neuralop.FNO": model(
        "neuralop.models:FNO", {"x": images(16)}, n_modes=(4, 4), in_channels=3, out_channels=3, hidden_channels=8,
        n_layers=1,
    ),
    "torch_harmonics.RealSHT": model(
        "torch_harmonics:RealSHT", {"x": torch.randn(1, 8, 16)}, nlat=8, nlon=16
    ),
}  # fmt: skip
