"""Tiny models of further packages, fixed by name for an eleventh trial before anything of them was fetched.

These are, to our knowledge, packages that many use whose main export is a network that people port (of vision, speech,
music, language, embeddings, molecules, cells, genomes, tables, time series, physics or robots), that the index
has, and that no earlier trial, corpus, test or page has. See `benchmarks.tiny_strangers`. The disagreements of one half
of the packages are read after the first figures, those of the other half are not.
"""

import hashlib

import torch

from benchmarks.tiny_strangers_parts import Build, images, model, tokens

PACKAGES = (
    "allosaurus asteroid-filterbanks audio-diffusion-pytorch biapy boxmot carvekit ChatTTS cn-clip cogdl "
    "cornac deepod diffq dptb drugex geneformer glasses grelu icevision insightface instanseg-torch "
    "InstructorEmbedding lightzero medusa-llm metatrain multilingual-clip muq neuralhydrology neuspell "
    "omnisafe opendelta openspeech-py pina-mathlab pororo pycorrector pycox pytabkit pytoda realtabformer "
    "ruclip sample-factory satlaspretrain-models sbi scarches scglue selene-sdk silentcipher "
    "simple-lama-inpainting simpletransformers taming-transformers-rom1504 tensorly-torch tevatron "
    "textbrewer timm-3d torch-em torchcde torchlibrosa vissl wavmark whisper-timestamped wtpsplit yolort"
).split()


def is_read(package: str) -> bool:
    """Whether a package is in the half whose disagreements are read."""
    return hashlib.sha256(package.lower().encode()).digest()[0] % 2 == 0


_CALLED = "benchmarks.tiny_strangers_called"
_RIVERS = {
    "rain": torch.rand(2, 6, 1), "heat": torch.rand(2, 6, 1), "area": torch.rand(2, 1), "flow": torch.rand(2, 6, 1)
}  # fmt: skip
_CELLS = torch.zeros(1, 1, 32, 32)
_CELLS[..., 4:14, 4:14] = 1
_CELLS[..., 18:28, 16:28] = 2

MODELS: dict[str, Build] = {
    "allosaurus.AllosaurusTorchModel": model(
        f"{_CALLED}:Phones", {"features": torch.randn(2, 8, 6), "lengths": torch.tensor([8, 5])}
    ),
    "cornac.TIGERSeq2Seq": model(
        f"{_CALLED}:Catalog",
        {"items": torch.randn(6, 6), "tokens": torch.tensor([[1, 6, 2, 7], [3, 8, 0, 0]]),
         "mask": torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0]])},
    ),
    "cornac.LETTERRQVAE": model(f"{_CALLED}:Letters", {"items": torch.randn(6, 6)}),
    "cornac.DiffGRMBackbone": model(
        f"{_CALLED}:Digits",
        {"items": torch.tensor([[0, 1, 2], [3, 4, 4]]), "mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
         "targets": torch.tensor([[0, 1, 2], [1, 2, 3]])},
    ),
    "cornac.SASRecModel": model(
        f"{_CALLED}:Recommended",
        {"users": torch.tensor([0, 1]), "items": torch.tensor([[1, 2, 3], [4, 5, 10]]),
         "outputs": torch.tensor([3, 5])},
    ),
    "instanseg.InstanSeg": model(f"{_CALLED}:Cells", {"images": torch.randn(1, 3, 32, 32), "instances": _CELLS}),
    "neuralhydrology.CudaLSTM": model(f"{_CALLED}:Rivers", _RIVERS, name="cudalstm"),
    "neuralhydrology.EALSTM": model(f"{_CALLED}:Rivers", _RIVERS, name="ealstm", loss="mse"),
    "neuralhydrology.GMM": model(f"{_CALLED}:Rivers", _RIVERS, name="gru", head="gmm", loss="gmmloss"),
    "neuralhydrology.CMAL": model(f"{_CALLED}:Rivers", _RIVERS, name="cudalstm", head="cmal", loss="cmalloss"),
    "neuspell.SCLSTM": model(
        f"{_CALLED}:Spelled",
        {"first": torch.randn(3, 6), "second": torch.randn(2, 6), "lengths": torch.tensor([3, 2]),
         "targets": torch.tensor([[1, 2, 3], [4, 5, 0]])},
    ),
    "audio_diffusion_pytorch.VSampler": model(
        f"{_CALLED}:Sounds", {"sounds": torch.randn(1, 2, 16), "mask": torch.rand(1, 2, 16) > 0.5}
    ),
    "taming.VQModel": model(f"{_CALLED}:Drawn", {"images": torch.randn(2, 3, 16, 16)}),
    "pycox.DeepHit": model(
        f"{_CALLED}:Survival",
        {"x": torch.randn(4, 5), "times": torch.tensor([0, 2, 3, 1]), "events": torch.tensor([1.0, 0, 1, 1]),
         "ranks": torch.rand(4, 4)},
    ),
    "sbi.MDN": model(f"{_CALLED}:Inferred", {"theta": torch.randn(4, 2), "x": torch.randn(4, 3)}, kind="mdn"),
    "sbi.MAF": model(f"{_CALLED}:Inferred", {"theta": torch.randn(4, 2), "x": torch.randn(4, 3)}, kind="maf"),
    "sbi.NSF": model(f"{_CALLED}:Inferred", {"theta": torch.randn(4, 2), "x": torch.randn(4, 3)}, kind="nsf"),
    "sbi.ZukoNSF": model(
        f"{_CALLED}:Inferred", {"theta": torch.randn(4, 2), "x": torch.randn(4, 3)}, kind="zuko_nsf"
    ),
    "textbrewer.losses": model(
        f"{_CALLED}:Distilled",
        {"student": torch.randn(2, 5, 4), "teacher": torch.randn(2, 5, 4),
         "mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])},
    ),
    "sample_factory.policies": model(
        f"{_CALLED}:Policies",
        {"logits": torch.randn(3, 4), "rewards": torch.randn(3, 5), "dones": torch.zeros(3, 5),
         "values": torch.randn(3, 6)},
    ),
    "torchcde.cdeint": model(f"{_CALLED}:Paths", {"x": torch.randn(2, 5, 3), "start": torch.randn(2, 4)}),
    "wavmark.Model": model(f"{_CALLED}:Hidden", {"sounds": torch.randn(1, 640), "message": torch.rand(1, 8)}),
    "tevatron.DenseModel": model(
        f"{_CALLED}:Retrieved",
        {"question": tokens(6), "passage": tokens(6), "mask": torch.ones(2, 6, dtype=torch.long)},
    ),
    "biapy.MemoryBank": model(
        f"{_CALLED}:Bank", {"features": torch.randn(2, 4, 6, 6), "labels": torch.randint(0, 3, (2, 1, 6, 6))}
    ),
    "biapy.MAE": model(
        "biapy.models.mae:MaskedAutoencoderViT", {"imgs": torch.randn(2, 1, 16, 16)}, img_size=16, patch_size=4,
        in_chans=1, embed_dim=16, depth=1, num_heads=2, decoder_embed_dim=16, decoder_depth=1, decoder_num_heads=2,
    ),
    "medusa.candidates": model(
        f"{_CALLED}:Accepted", {"heads": torch.randn(2, 1, 3, 9), "logits": torch.randn(1, 3, 9)}
    ),
    "cn_clip.CLIP": model(
        "cn_clip.clip.model:CLIP", {"image": images(32), "text": tokens(6)}, embed_dim=16, image_resolution=32,
        vision_layers=1, vision_width=64, vision_patch_size=16, vocab_size=50, text_attention_probs_dropout_prob=0.1,
        text_hidden_act="gelu", text_hidden_dropout_prob=0.1, text_hidden_size=16, text_initializer_range=0.02,
        text_intermediate_size=16, text_max_position_embeddings=20, text_num_attention_heads=2,
        text_num_hidden_layers=1, text_type_vocab_size=2,
    ),
    "carvekit.U2NET": model(
        "carvekit.ml.arch.u2net.u2net:U2NETArchitecture", {"x": torch.randn(1, 3, 64, 64)}, cfg_type="full"
    ),
    "carvekit.BASNet": model(
        "carvekit.ml.arch.basnet.basnet:BASNet", {"x": torch.randn(1, 3, 64, 64)}, n_channels=3, n_classes=1
    ),
    "carvekit.FBA": model(
        "carvekit.ml.arch.fba_matting.models:FBA",
        {"image": torch.rand(1, 3, 64, 64), "two_chan_trimap": torch.rand(1, 2, 64, 64),
         "image_n": torch.rand(1, 3, 64, 64), "trimap_transformed": torch.rand(1, 6, 64, 64)},
        encoder="resnet50_GN_WS",
    ),
    "boxmot.CSLTinyViT": model(
        "boxmot.reid.backbones.families.csl_tinyvit.model:CSLTinyViT", {"x": torch.randn(2, 3, 384, 128)},
        num_classes=4,
    ),
    "boxmot.MLFN": model("boxmot.reid.backbones.mlfn:mlfn", {"x": torch.randn(1, 3, 64, 32)}, num_classes=4,
                         pretrained=False),
    "deepod.TimesNet": model(
        "deepod.models.time_series.timesnet:TimesNetModel", {"x_enc": torch.randn(2, 16, 3)}, seq_len=16, pred_len=0,
        enc_in=3, c_out=3, e_layers=1, d_model=8, d_ff=8, dropout=0.1, top_k=2, num_kernels=2,
    ),
    "deepod.AnomalyTransformer": model(
        "deepod.models.time_series.anomalytransformer:AnomalyTransformerModel", {"x": torch.randn(2, 8, 3)},
        win_size=8, enc_in=3, c_out=3, d_model=16, n_heads=2, e_layers=1, d_ff=16, device="cpu",
    ),
    "grelu.ConvGRUModel": model("grelu.model.models:ConvGRUModel", {"x": torch.randn(1, 4, 64)}, n_tasks=2,
                                channel_init=8, n_conv=2),
    "grelu.ConvTransformerModel": model(
        "grelu.model.models:ConvTransformerModel", {"x": torch.randn(1, 4, 64)}, n_tasks=2, channel_init=8, n_conv=2
    ),
    "glasses.ViT": model("glasses.models.classification.vit:ViT", {"input": images(32)}, in_channels=3, patch_size=16,
                         img_size=32, emb_size=16, depth=1, n_classes=3, num_heads=2),
    "timm_3d.ViT": model("timm_3d:create_model", {"x": torch.randn(1, 3, 32, 32, 32)}, model_name="resnet18"),
    "silentcipher.Encoder": model(
        "silentcipher.model:Encoder", {"x": torch.randn(1, 1, 17, 6)}, out_dim=8, n_layers=3,
        message_dim=4, message_band_size=17, n_fft=32,
    ),
    "tltorch.FactorizedLinear": model(
        "tltorch:FactorizedLinear", {"x": torch.randn(2, 16)}, in_tensorized_features=(4, 4),
        out_tensorized_features=(2, 4), factorization="cp", rank=4,
    ),
    "ChatTTS.DVAEDecoder": model("ChatTTS.model.dvae:DVAEDecoder", {"x": torch.randn(1, 8, 10)}, idim=8, odim=8,
                                 n_layer=1, bn_dim=8, hidden=16),
}  # fmt: skip
