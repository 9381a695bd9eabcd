"""Tiny models of further popular packages, fixed by name for a tenth trial before anything of them was fetched.

As for the ninth, these are, to our knowledge of downloads and stars, the most used packages whose main export is a
network that people port (of detection, segmentation, text in images, poses, depth, restoration, speech, music,
language, embeddings, diffusion, proteins, molecules, weather, forecasts, products or robots), that the index has,
and that no earlier trial, corpus, test or page has. See `benchmarks.tiny_strangers`. The disagreements of one half
of the packages are read after the first figures, those of the other half are not.
"""

import hashlib

from benchmarks.tiny_strangers_parts import Build

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


MODELS: dict[str, Build] = {}
