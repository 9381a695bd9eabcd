"""Tiny models of popular packages that were fixed by name for a ninth trial, before anything of them was fetched.

The goal speaks of popular repositories, so these are, to our knowledge of downloads and stars, the most used packages
whose main export is a network that people port (of vision, language, speech, sound, diffusion, time series, tables,
proteins, genomes, molecules, graphs or weather), can be had from the index, and are in no earlier trial, corpus or
test. See `benchmarks.tiny_strangers`. The disagreements of one half of the packages are read after the first figures,
those of the other half are not.
"""

import hashlib

from benchmarks.tiny_strangers_parts import Build

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


MODELS: dict[str, Build] = {}
