"""Tiny models of packages that were fixed by name for a sixth trial, before anything of them was fetched.

See `benchmarks.tiny_strangers`. The disagreements of one half of the packages are read after the first figures, those
of the other half are not.
"""

import hashlib

PACKAGES = (
    "agilerl ai2-olmo allennlp-models anemoi-models audioseal azula batch-face bert-score bindsnet brevitas "
    "catalyst cebra cellpose charformer-pytorch coca-pytorch craft-text-detector ctgan DALL-E deeprobust "
    "deeptab deepxde deformable-attention denoiser DI-engine diaparser diffsptk diffwave DISTS-pytorch "
    "donut-python dynamic-network-architectures electra-pytorch elegantrl en-transformer eole fairchem-core "
    "fastcoref fastNLP flamingo-pytorch flowtorch fuxictr geomloss gigagan-pytorch glom-pytorch "
    "h-transformer-1d halonet-pytorch hanlp higher hippynn hourglass-transformer-pytorch hpsv2 "
    "human-body-prior ibm-fms image-reward infini-transformer-pytorch iTransformer kraken lambda-networks "
    "laplace-torch lava-dl libauc loralib ltp ludwig make-a-video-pytorch mantis-tsfm mattersim "
    "maverick-coref mega-pytorch microsoft-aurora mirasol-pytorch mlm-pytorch monai-generative mushroom-rl "
    "musiclm-pytorch neuralprophet neurodiffeq nnmnkwii nnunetv2 noisereduce nougat-ocr ogb opacus "
    "open-flamingo optimum-quanto palm-rlhf-pytorch parti-pytorch PEER-pytorch pesto-pitch "
    "piano-transcription-inference piqa pix2tex point-transformer-pytorch ponder-transformer ptwt pygod pyiqa "
    "pypose pytext-nlp pytorch-frame pytorch-kinematics pytorch-minimize pytorch-optimizer "
    "pytorch-partial-crf pytorch-pretrained-bert pytorch-transformers pytorch-wavelets pytorchcv "
    "q-transformer qpth realesrgan rectified-flow-pytorch recurrent-memory-transformer-pytorch replay-rec "
    "retinaface-pytorch rl-games roma rsl-rl-lib rtdl_revisiting_models rudalle scgpt "
    "segmentation-models-pytorch-3d sequence-models simple-hierarchical-transformer sinabs "
    "sinkhorn-transformer smplpytorch smplx sru stylegan2-pytorch tabdpt tabm taming-transformers "
    "tape-proteins texar-pytorch theseus-ai timesfm timesformer-pytorch tirex-ts tntorch "
    "torch-audiomentations torch-dftd torch-geometric-signed-directed torch-geometric-temporal "
    "torch-uncertainty TorchCRF torchdrug torchgan torchio torchopt torchphysics torchquad torchquantum "
    "trankit transformer-lens transformers4rec transparent-background unbabel-comet video-diffusion-pytorch "
    "vision-aided-loss voxelmorph wav2clip xuance zennit zetascale"
).split()


def is_read(package: str) -> bool:
    """Whether a package is in the half whose disagreements are read."""
    return hashlib.sha256(package.lower().encode()).digest()[0] % 2 == 0
