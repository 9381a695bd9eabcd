"""Tiny models of further packages, fixed by name for an eleventh trial before anything of them was fetched.

These are, to our knowledge, packages that many use whose main export is a network that people port (of vision, speech,
music, language, embeddings, molecules, cells, genomes, tables, time series, physics or robots), that the index
has, and that no earlier trial, corpus, test or page has. See `benchmarks.tiny_strangers`. The disagreements of one half
of the packages are read after the first figures, those of the other half are not.
"""

import hashlib

from benchmarks.tiny_strangers_parts import Build

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


MODELS: dict[str, Build] = {}
