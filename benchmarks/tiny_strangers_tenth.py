"""Tiny models of further popular packages, fixed by name for a tenth trial before anything of them was fetched.

As for the ninth, these are, to our knowledge of downloads and stars, the most used packages whose main export is a
network that people port (of detection, segmentation, text in images, poses, depth, restoration, speech, music,
language, embeddings, diffusion, proteins, molecules, weather, forecasts, products or robots), that the index has,
and that no earlier trial, corpus, test or page has. See `benchmarks.tiny_strangers`. The disagreements of one half
of the packages are read after the first figures, those of the other half are not.
"""

import hashlib

import torch

from benchmarks.tiny_strangers_parts import Build, get, images, model, tokens

PACKAGES = (
    "aimnet allin1 alphafold3-pytorch angle-emb audioldm2 audiosr BeatNet braindecode careamics "
    "ccrestoration classy-vision clearvoice climate-learn cnstd colpali-engine deepinv deepmd-kit "
    "depth-anything-v2 detoxify dkm doclayout-yolo docling-ibm-models evodiff fairseq2 FlagEmbedding "
    "frame2seq geffnet glide-text2im graphium guided-diffusion icon-registration ImmuneBuilder indextts "
    "infer-rvc-python kandinsky2 l2cs lag-llama librecommender llm-foundry llm2vec miles-credit mineru "
    "mivolo mmaction2 mmagic mmdet3d mmocr mmpose mmrotate mmyolo mobile-sam myshell-openvoice nanodet "
    "nari-tts nemo-toolkit nequip-allegro nerfstudio omegafold openpifpaf openspliceai parlai "
    "perspective-fields pfrl piper-train point-e ppgs pvnet py-feat pycls resnest "
    "robotic-transformer-pytorch setfit sheeprl skrl sockeye texify text2vec tmbed torchopenl3 torchrec "
    "torchseg torchsig transkun unidepth vall-e vggt voltron-robotics voxcpm vsrife wenet wespeaker"
).split()


def is_read(package: str) -> bool:
    """Whether a package is in the half whose disagreements are read."""
    return hashlib.sha256(package.lower().encode()).digest()[0] % 2 == 0


_CALLERS = "benchmarks.tiny_strangers_used"
_IMAGES = "benchmarks.tiny_strangers_used_images"

MODELS: dict[str, Build] = {
    "ccrestoration.HAT": model(
        "ccrestoration.arch.hat_arch:HAT", {"x": torch.rand(1, 3, 16, 16)}, img_size=16, embed_dim=60, depth=(1,),
        num_heads=(2,), window_size=8, upsampler="pixelshuffle", upscale=2,
    ),
    "ccrestoration.SwinIR": model(
        "ccrestoration.arch.swinir_arch:SwinIR", {"x": torch.rand(1, 3, 16, 16)}, img_size=16, embed_dim=12, depths=[2],
        num_heads=[2], window_size=8, upsampler="pixelshuffle", upscale=2,
    ),
    "ccrestoration.DAT": model(
        "ccrestoration.arch.dat_arch:DAT", {"x": torch.rand(1, 3, 16, 16)}, img_size=16, embed_dim=60,
        split_size=[4, 8], depth=[2], num_heads=[2], upscale=2,
    ),
    "ccrestoration.SCUNet": model(
        "ccrestoration.arch.scunet_arch:SCUNet", {"x0": torch.rand(1, 3, 50, 60)}, config=[2] * 7, dim=64,
        input_resolution=64,
    ),
    "ccrestoration.UpCunet": model("ccrestoration.arch.upcunet_arch:UpCunet", {"x": torch.rand(1, 3, 45, 51)}),
    "vsrife.IFNet": model(f"{_IMAGES}:Frames", {"first": images(64)[:1], "last": images(64)[:1]}),
    "geffnet.EfficientNet": model("geffnet:create_model", {"x": images(64)}, model_name="efficientnet_lite0",
                                  num_classes=4),
    "geffnet.MobileNetV3": model("geffnet:create_model", {"x": images(64)}, model_name="mobilenetv3_rw",
                                 num_classes=4),
    "resnest.resnest50": model("resnest.torch:resnest50", {"x": images(64)}, num_classes=4),
    "pycls.EffNet": model("pycls.models.effnet:EffNet", {"x": images(64)}),
    "careamics.UNet": model("careamics.models.unet.unet:UNet", {"x": torch.randn(1, 1, 32, 32)}, conv_dims=2, depth=2,
                            num_channels_init=8, n2v2=True),
    "careamics.LadderVAE": model(
        "careamics.models.lvae.lvae:LadderVAE", {"x": torch.randn(1, 1, 64, 64)}, input_shape=(64, 64),
        output_channels=2, multiscale_count=1, z_dims=[8, 8], encoder_n_filters=8, decoder_n_filters=8,
        encoder_conv_strides=[2, 2], decoder_conv_strides=[2, 2], encoder_dropout=0.1, decoder_dropout=0.1,
        nonlinearity="ELU", predict_logvar=True, analytical_kl=False,
    ),
    "deepinv.DRUNet": model(
        "deepinv.models:DRUNet", {"x": torch.rand(1, 3, 33, 40), "sigma": 0.1}, nc=(4, 4, 8, 8), nb=1, pretrained=None
    ),
    "deepinv.PnP": model(f"{_IMAGES}:Inverse", {"images": torch.rand(1, 3, 16, 16)}),
    "deepinv.NCSNpp": model(
        "deepinv.models:NCSNpp", {"x": torch.rand(1, 3, 32, 32), "sigma": 0.1}, img_resolution=32,
        model_channels=32, channel_mult=[1, 2], num_blocks=1, attn_resolutions=[16], pretrained=None,
    ),
    "icon_registration.InverseConsistentNet": model(
        f"{_IMAGES}:Registered", {"first": torch.rand(1, 1, 32, 32), "second": torch.rand(1, 1, 32, 32)}
    ),
    "docling_ibm_models.TableModel04_rs": model(f"{_IMAGES}:Cells", {"images": torch.rand(1, 3, 64, 64)}),
    "docling_ibm_models.TableFormerV2": model(
        f"{_IMAGES}:Structure", {"images": torch.rand(1, 3, 64, 64), "ids": torch.tensor([[1, 5, 6, 5, 2]])}
    ),
    "doclayout_yolo.YOLOv10DetectionModel": model(
        f"{_IMAGES}:Layouts",
        {"images": torch.rand(2, 3, 64, 64), "owners": torch.tensor([0.0, 0, 1]),
         "labels": torch.tensor([[1.0], [2], [0]]), "boxes": torch.rand(3, 4) / 4 + 0.3},
    ),
    "mineru.DBNet": model(f"{_IMAGES}:Letters", {"images": torch.rand(1, 3, 64, 64)}),
    "torchseg.Unet": model("torchseg:create_model", {"x": images(64)}, arch="unet", encoder_name="resnet18",
                           encoder_weights=None, classes=3),
    "torchseg.DeepLabV3Plus": model("torchseg:create_model", {"x": images(64)}, arch="deeplabv3plus",
                                    encoder_name="resnet18", encoder_weights=None, classes=3),
    "torchseg.Losses": model(
        f"{_IMAGES}:Segments", {"logits": torch.randn(2, 3, 16, 16), "labels": torch.randint(0, 3, (2, 16, 16))}
    ),
    "feat.RetinaFace": model(f"{_IMAGES}:Faces", {"images": torch.rand(1, 3, 64, 64) * 255}),
    "mmpose.RTMCCHead": model(
        f"{_IMAGES}:Poses", {"features": torch.randn(2, 8, 4, 4), "places": torch.rand(2, 1, 3, 2) * 64}
    ),
    "mmpose.HeatmapHead": model(
        f"{_IMAGES}:Heatmaps", {"features": torch.randn(2, 8, 4, 4), "places": torch.rand(2, 1, 3, 2) * 64}
    ),
    "mmaction.BMN": model(f"{_IMAGES}:Proposals", {"features": torch.randn(2, 8, 8)}),
    "mmaction.Recognizer3D": model(
        f"{_IMAGES}:Actions", {"clips": torch.randn(1, 1, 3, 4, 32, 32), "labels": torch.tensor([1])}
    ),
    "mmocr.SARDecoder": model(f"{_IMAGES}:Words", {"features": torch.randn(2, 16, 4, 12)}),
    "mmocr.DBNet": model(
        f"{_IMAGES}:Texts", {"features": torch.randn(1, 16, 16, 16)}
    ),
    "mmyolo.YOLOv8Head": model(
        f"{_IMAGES}:Ordered",
        {"small": torch.randn(2, 8, 8, 8), "large": torch.randn(2, 8, 4, 4), "boxes": torch.rand(2, 4) * 16,
         "labels": torch.tensor([0, 2])},
    ),
    "nerfstudio.NeRF": model(
        f"{_IMAGES}:Rays", {"origins": torch.zeros(4, 3), "directions": torch.randn(4, 3)}
    ),
    "sockeye.SockeyeModel": model(
        f"{_CALLERS}:Translated",
        {"source": torch.randint(4, 12, (2, 5, 1)), "lengths": torch.tensor([[5], [3]]),
         "target": torch.randint(4, 12, (2, 5, 1))},
    ),
    "parlai.TransformerGeneratorModel": model(
        f"{_CALLERS}:Dialogue", {"text": torch.randint(4, 20, (2, 6)), "labels": torch.randint(4, 20, (2, 5))}
    ),
    "voxcpm.VoxCPMModel": model(
        f"{_CALLERS}:Spoken", {"text": torch.randint(3, 100, (1, 6)), "features": torch.randn(1, 6, 2, 4)}
    ),
    "transkun.NeuralSemiCRFInterval": model(
        f"{_CALLERS}:Notes", {"scores": torch.randn(5, 5, 2), "gaps": torch.randn(4, 2)}
    ),
    "clearvoice.MossFormer": model(f"{_CALLERS}:Cleared", {"spectra": torch.randn(1, 18, 40)}),
    "infer_rvc_python.Synthesizer": model(
        f"{_CALLERS}:Sung", {"phones": torch.randn(2, 24, 768), "lengths": torch.tensor([24, 20]),
                             "pitches": torch.randint(1, 200, (2, 24))}
    ),
    "infer_rvc_python.E2E": model(f"{_CALLERS}:Pitched", {"mels": torch.randn(1, 128, 32)}),
    "audioldm2.UNetModel": model(
        f"{_CALLERS}:Latents",
        {"x": torch.randn(2, 4, 8, 8), "steps": torch.tensor([3, 5]), "texts": torch.randn(2, 3, 8)},
    ),
    "audiosr.UNetModel": model(
        f"{_CALLERS}:Upsampled", {"x": torch.randn(2, 8, 8, 8), "steps": torch.tensor([3, 5])}
    ),
    "BeatNet.BDA": model("BeatNet.model:BDA", {"data": torch.randn(1, 5, 272)}, dim_in=272, num_cells=16, num_layers=2,
                         device="cpu"),
    "FlagEmbedding.EncoderOnlyEmbedderM3Model": model(
        f"{_CALLERS}:Embedded", {"queries": tokens(6), "passages": torch.randint(0, 50, (4, 8))}
    ),
    "colpali_engine.ColbertLoss": model(
        f"{_CALLERS}:Late", {"queries": torch.randn(2, 4, 8), "pages": torch.randn(2, 6, 8)}
    ),
    "credit.KCRPSLoss": model(
        f"{_CALLERS}:Ensemble", {"target": torch.randn(1, 2, 1, 8, 8), "members": torch.randn(3, 2, 1, 8, 8)}
    ),
    "climate_learn.VisionTransformer": model(
        "climate_learn.models.hub:VisionTransformer", {"x": torch.randn(2, 1, 3, 16, 16)}, img_size=(16, 16),
        in_channels=3, out_channels=2, history=1, patch_size=4, embed_dim=16, depth=1, decoder_depth=1, num_heads=2,
    ),
    "climate_learn.Unet": model(
        "climate_learn.models.hub:Unet", {"x": torch.randn(2, 1, 3, 16, 16)}, in_channels=3, out_channels=2,
        hidden_channels=8,
    ),
    "sheeprl.RSSM": model(
        f"{_CALLERS}:Imagined",
        {"seen": torch.randn(3, 2, 6), "actions": torch.randn(3, 2, 2), "first": torch.tensor([[[1.0], [1]], [[0], [0]],
         [[0], [1]]]), "rewards": torch.randn(3, 2, 1)},
    ),
    "pfrl.DistributionalQFunction": model(
        f"{_CALLERS}:Valued", {"states": torch.randn(2, 4), "actions": torch.tensor([0, 2])}
    ),
    "skrl.GaussianMixin": model(
        f"{_CALLERS}:Acts",
        {"states": torch.randn(5, 4), "actions": torch.randn(5, 2), "rewards": torch.randn(5, 3, 1),
         "done": torch.zeros(5, 3, 1, dtype=torch.bool)},
    ),
    "voltron.VMVP": model(f"{_CALLERS}:Instructed", {"images": images(32)}),
    "evodiff.ByteNetLMTime": model(
        f"{_CALLERS}:Diffused", {"tokens": torch.randint(0, 20, (2, 6)), "steps": torch.tensor([3, 4])}
    ),
    "frame2seq.frame2seq": model(
        f"{_CALLERS}:Designed",
        {"places": torch.randn(1, 6, 5, 3), "mask": torch.ones(1, 6, dtype=torch.bool), "known": torch.rand(1, 6, 21)},
    ),
    "openspliceai.SpliceAI": lambda: (
        get("openspliceai.train_base.openspliceai:SpliceAI")(
            8, get("numpy:array")([11] * 4), get("numpy:array")([1] * 4)
        ),
        {"x": torch.randn(1, 4, 200)},
    ),
}  # fmt: skip
