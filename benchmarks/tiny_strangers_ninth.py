"""Tiny models of popular packages that were fixed by name for a ninth trial, before anything of them was fetched.

The goal speaks of popular repositories, so these are, to our knowledge of downloads and stars, the most used packages
whose main export is a network that people port (of vision, language, speech, sound, diffusion, time series, tables,
proteins, genomes, molecules, graphs or weather), can be had from the index, and are in no earlier trial, corpus or
test. See `benchmarks.tiny_strangers`. The disagreements of one half of the packages are read after the first figures,
those of the other half are not.
"""

import hashlib

import torch

from benchmarks.tiny_strangers_parts import Build, features, get, images, model, padding_mask, tokens

PACKAGES = (
    "adapters ai2-olmo-core alignn anomalib audio-separator audiocraft audioldm backgroundremover boltz "
    "borzoi-pytorch bpnet-lite chai-lab chgnet compressai controlnet-aux d3rlpy deep-daze deep-phonemizer "
    "deepchem deeplabcut descript-audio-codec dreamsim f5-tts fairseq flair flash-linear-attention "
    "flood-forecast gfpgan graph-weather groundingdino-py hiera-transformer iopaint k-diffusion "
    "laion-clap lightweight-gan llama-models mamba-ssm matgl megatron-core metnet mistral-inference mmdet "
    "mmpretrain mmsegmentation monai-generative muse-maskgit-pytorch nequip neuralforecast "
    "nvidia-physicsnemo OpenNMT-py orb-models parler-tts ptlflow pyannote-audio pyfacer pylate "
    "pytorch-fid pytorch-forecasting pytorch-frame pytorch-pretrained-biggan pytorch-tabular "
    "pytorch-widedeep resemblyzer rfdetr romatch salesforce-lavis sam2 schnetpack scvi-tools "
    "sentence-transformers so-vits-svc-fork span-marker super-gradients super-image surya-ocr "
    "SwissArmyTransformer tabpfn torchdrug torchgeo torchmd-net torchtitan torchvggish torchxrayvision "
    "toto-ts uni2ts unimol-tools voicefixer whisperspeech xlstm yolov5"
).split()


def is_read(package: str) -> bool:
    """Whether a package is in the half whose disagreements are read."""
    return hashlib.sha256(package.lower().encode()).digest()[0] % 2 == 0


_CALLERS = "benchmarks.tiny_strangers_popular"
_IMAGES = "benchmarks.tiny_strangers_popular_images"
# The image of each box, its class and its place.
_TARGETS = torch.tensor([[0, 1, 0.5, 0.5, 0.4, 0.3], [0, 2, 0.3, 0.6, 0.2, 0.5], [1, 0, 0.7, 0.2, 0.3, 0.3]])
_MASK = torch.ones(1, 6)

MODELS: dict[str, Build] = {
    "dp.ForwardTransformer": model(f"{_CALLERS}:Phonemes", {"text": torch.randint(0, 20, (2, 6))}),
    "dp.AutoregressiveTransformer": model(
        f"{_CALLERS}:PhonemesByStep",
        {"text": torch.randint(0, 20, (2, 6)), "phonemes": torch.randint(1, 20, (2, 5)), "start": torch.tensor([1, 2])},
    ),
    "xlstm.xLSTMLMModel": model(f"{_CALLERS}:LongMemory", {"ids": tokens(8)}),
    "xlstm.xLSTMLarge": model(f"{_CALLERS}:LargeMemory", {"ids": tokens(8)}),
    "llama_models.Transformer": model(f"{_CALLERS}:Llama", {"ids": tokens(6)}),
    "olmo_core.Transformer": model(f"{_CALLERS}:Olmo", {"ids": tokens(6)}),
    "audiocraft.LMModel": model(f"{_CALLERS}:Music", {"codes": torch.randint(0, 16, (1, 2, 6))}),
    "audiocraft.EncodecModel": model(f"{_CALLERS}:Codec", {"waves": torch.randn(2, 1, 128)}),
    "dac.DAC": model(f"{_CALLERS}:Descript", {"waves": torch.randn(2, 1, 128)}),
    "f5_tts.CFM": model(
        f"{_CALLERS}:Flow",
        {"mels": torch.randn(2, 12, 8), "text": torch.randint(0, 19, (2, 5)), "lengths": torch.tensor([12, 10])},
    ),
    "pyannote.PyanNet": model(f"{_CALLERS}:Segmentation", {"waveforms": torch.randn(1, 1, 16000)}),
    "sentence_transformers.Pooling": model(
        f"{_CALLERS}:Sentences", {"embeddings": features(6, 16), "mask": padding_mask(6).long()}
    ),
    "whisperspeech.TSARTransformer": model(
        f"{_CALLERS}:Speech",
        {"text": torch.randint(0, 50, (2, 8)), "languages": torch.zeros(2, dtype=torch.long),
         "rates": torch.rand(2) * 15, "codes": torch.randint(0, 20, (2, 8))},
    ),
    "audioldm.UNetModel": model(
        f"{_CALLERS}:Latents", {"x": torch.randn(2, 4, 8, 8), "timesteps": torch.tensor([3, 5]), "y": torch.randn(2, 8)}
    ),
    "flood_forecast.Informer": model(
        f"{_IMAGES}:Informed",
        {"x": torch.randn(2, 8, 3), "marks": torch.zeros(2, 8, 4).long(), "y": torch.randn(2, 8, 3),
         "y_marks": torch.zeros(2, 8, 4).long()},
    ),
    "generative.AutoencoderKL": model(
        "generative.networks.nets:AutoencoderKL", {"x": torch.rand(1, 1, 8, 8)}, spatial_dims=2, num_res_blocks=(1, 1),
        num_channels=(8, 8), attention_levels=(False, True), norm_num_groups=4,
    ),
    "k_diffusion.ImageDenoiserModelV1": model(
        f"{_IMAGES}:Samplers", {"images": images(8), "sigmas": torch.tensor([2.0, 0.7, 0.2, 0.0])}
    ),
    "yolov5.DetectionModel": model(f"{_IMAGES}:Boxes", {"images": torch.rand(2, 3, 32, 32), "targets": _TARGETS}),
    "rfdetr.LWDETR": model(
        f"{_IMAGES}:Detections",
        {"images": torch.rand(2, 3, 64, 64), "boxes": torch.rand(2, 3, 4) / 4 + 0.3,
         "labels": torch.randint(0, 3, (2, 3)), "sizes": torch.tensor([[64, 64], [48, 64]])},
    ),
    "sam2.SAM2Base": model(
        f"{_IMAGES}:Masks",
        {"frames": torch.rand(2, 1, 3, 64, 64), "points": torch.rand(1, 2, 2) * 60,
         "labels": torch.ones(1, 2, dtype=torch.int32)},
    ),
    "chgnet.CHGNet": model(
        f"{_IMAGES}:Crystals",
        {"numbers": torch.tensor([3, 8]), "places": torch.tensor([[0.0, 0, 0], [0.5, 0.5, 0.5]]),
         "edges": torch.tensor([[0, 1], [1, 0], [0, 1], [1, 0]], dtype=torch.int32),
         "bonds": torch.tensor([[0, 0, 0, 1, 2], [1, 0, 1, 1, 3]], dtype=torch.int32)},
    ),
    "toto.Toto": model(
        f"{_IMAGES}:Forecasts",
        {"series": torch.randn(1, 2, 16), "mask": torch.ones(1, 2, 16, dtype=torch.bool),
         "ids": torch.zeros(1, 2, 16), "stamps": torch.arange(16).expand(1, 2, 16), "steps": torch.full((1, 2), 60)},
    ),
    "uni2ts.MoiraiForecast": model(
        f"{_IMAGES}:AnyVariate",
        {"past": torch.randn(2, 16, 1), "seen": torch.ones(2, 16, 1).bool(), "padded": torch.zeros(2, 16).bool()},
    ),
    "ptlflow.raft_small": model(f"{_IMAGES}:Flows", {"images": torch.rand(1, 2, 3, 64, 64)}, name="raft_small"),
    "ptlflow.gma": model(f"{_IMAGES}:Flows", {"images": torch.rand(1, 2, 3, 64, 64)}, name="gma"),
    "compressai.ScaleHyperprior": model(f"{_IMAGES}:Compressed", {"images": torch.rand(1, 3, 64, 64)}),
    "mmseg.EncoderDecoder": model(
        f"{_IMAGES}:Segmented", {"images": images(24), "labels": torch.randint(0, 3, (2, 1, 24, 24))}
    ),
    "pytorch_widedeep.WideDeep": model(
        f"{_IMAGES}:Tables",
        {"wide": torch.tensor([[1, 5], [3, 7]]), "table": torch.tensor([[1.0, 2, 0.3], [3, 1, -0.2]])},
    ),
    "laion_clap.ClipLoss": model(
        f"{_IMAGES}:Clap", {"sound": torch.randn(2, 8), "text": torch.randn(2, 8), "scale": torch.tensor(2.0)}
    ),
    "hiera.Hiera": model("hiera:Hiera", {"x": images(64)}, input_size=(64, 64), embed_dim=16, num_classes=4,
                         stages=(1, 1, 1, 1), q_pool=1),
    "hiera.MaskedAutoencoderHiera": model(
        "hiera:MaskedAutoencoderHiera", {"x": images(64)}, input_size=(64, 64), embed_dim=16, stages=(1, 1, 1),
        q_pool=2, mask_unit_size=(4, 4), decoder_embed_dim=16, decoder_depth=1, decoder_num_heads=2,
    ),
    "boltz.PairformerModule": model(
        "boltz.model.modules.trunk:PairformerModule",
        {"s": torch.randn(1, 6, 16), "z": torch.randn(1, 6, 6, 8), "mask": _MASK, "pair_mask": torch.ones(1, 6, 6)},
        token_s=16, token_z=8, num_blocks=1, num_heads=2, pairwise_head_width=4, pairwise_num_heads=2,
    ),
    "backgroundremover.U2NETP": model("backgroundremover.u2net.u2net:U2NETP", {"x": images(32)}),
    "audio_separator.TFC_TDF_net": lambda: (
        get("audio_separator.separator.uvr_lib_v5.tfc_tdf_v3:TFC_TDF_net")(
            get("ml_collections:ConfigDict")(
                {"model": {"norm": "InstanceNorm", "act": "gelu", "num_subbands": 2, "num_channels": 4, "growth": 4,
                           "num_scales": 1, "num_blocks_per_scale": 1, "scale": [2, 2], "bottleneck_factor": 2},
                 "audio": {"num_channels": 2, "dim_f": 16, "n_fft": 62, "hop_length": 16},
                 "training": {"instruments": ["a", "b"], "target_instrument": None}}
            ),
            "cpu",
        ),
        {"x": torch.randn(1, 2, 240)},
    ),
    "resemblyzer.VoiceEncoder": model(
        "resemblyzer:VoiceEncoder", {"mels": torch.rand(2, 20, 40)}, device="cpu", verbose=False
    ),
    "super_image.EdsrModel": lambda: (
        get("super_image:EdsrModel")(get("super_image:EdsrConfig")(scale=2, n_resblocks=1, n_feats=8)),
        {"x": torch.rand(1, 3, 16, 16)},
    ),
    "metnet.MetNet": model(
        "metnet:MetNet", {"imgs": torch.randn(1, 2, 4, 64, 64), "lead_time": 1}, input_channels=4, sat_channels=4,
        input_size=16, output_channels=2, hidden_dim=16, num_att_heads=2, num_att_layers=1, forecast_steps=2,
    ),
    "torchxrayvision.DenseNet": model(
        "torchxrayvision.models:DenseNet", {"x": images(64, 1)}, growth_rate=4, block_config=(1, 1, 1, 1),
        num_init_features=8, num_classes=3,
    ),
    "bpnetlite.BPNet": model("bpnetlite.bpnet:BPNet", {"X": torch.rand(2, 4, 128), "X_ctl": torch.rand(2, 2, 128)},
                             n_filters=8, n_layers=2, verbose=False),
    "torchgeo.FarSeg": model("torchgeo.models:FarSeg", {"x": torch.rand(1, 3, 64, 64)}, backbone="resnet18",
                             classes=3, backbone_pretrained=False),
    "torchgeo.ChangeStarFarSeg": model(
        "torchgeo.models:ChangeStarFarSeg", {"x": torch.rand(1, 2, 3, 64, 64)}, backbone="resnet18", classes=1,
        backbone_pretrained=False,
    ),
    "controlnet_aux.ControlNetHED": model("controlnet_aux.hed:ControlNetHED_Apache2", {"x": images(32)}),
    "controlnet_aux.LineartGenerator": model(
        "controlnet_aux.lineart:Generator", {"x": images(32)}, input_nc=3, output_nc=1, n_residual_blocks=1
    ),
    "controlnet_aux.MobileV2_MLSD": model(
        "controlnet_aux.mlsd.models.mbv2_mlsd_large:MobileV2_MLSD_Large", {"x": images(64, 4)}
    ),
    "torchmdnet.TensorNet": lambda: (
        get("torchmdnet.models.model:TorchMD_Net")(
            get("torchmdnet.models.tensornet:TensorNet")(
                hidden_channels=8, num_layers=1, num_rbf=4, static_shapes=False
            ),
            get("torchmdnet.models.output_modules:Scalar")(8),
        ),
        {"z": torch.tensor([1, 6, 8, 1]), "pos": torch.randn(4, 3), "batch": torch.tensor([0, 0, 1, 1])},
    ),
    "neuralforecast.NHITS": model(
        "neuralforecast.models:NHITS",
        {"windows_batch": {"insample_y": torch.randn(2, 8, 1), "futr_exog": None, "hist_exog": None,
                           "stat_exog": None, "insample_mask": torch.ones(2, 8, 1)}},
        h=4, input_size=8, mlp_units=[[8, 8]] * 3,
    ),
    "neuralforecast.Informer": model(
        "neuralforecast.models:Informer",
        {"windows_batch": {"insample_y": torch.randn(2, 8, 1), "futr_exog": None, "hist_exog": None,
                           "stat_exog": None, "insample_mask": torch.ones(2, 8, 1)}},
        h=4, input_size=8, hidden_size=16, n_head=2, conv_hidden_size=8,
    ),
}  # fmt: skip
