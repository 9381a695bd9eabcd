"""Tiny models of packages that were fixed by name for a seventh trial, before anything of them was fetched.

See `benchmarks.tiny_strangers`. The disagreements of one half of the packages are read after the first figures, those
of the other half are not.
"""

import hashlib

PACKAGES = (
    "ablang adan-pytorch advertorch aft-pytorch agent-attention-pytorch anny astrophot attn-res "
    "auto-lirpa autoregressive-diffusion-pytorch beam-search-bb beat-this betty-ml bi-lstm-crf "
    "bidirectional-cross-attention biva-pytorch bottleneck-transformer-pytorch bpnet-lite braincog "
    "CALM-pytorch came-pytorch causalflows caustics cbloss chirho complex-valued-transformer "
    "complexPyTorch complextorch coordinate-descent-attention coral-pytorch dadaptation deep-phonemizer "
    "diffdrr dinosaur-torch discrete-key-value-bottleneck-pytorch e2cnn easy-tpp easyfsl ebmkit "
    "ensemble-boxes evotorch ezgatr fast-pytorch-kmeans fastmri feedback-transformer-pytorch "
    "fft-conv-pytorch floydnet focal-loss-torch foolbox g-mlp-pytorch gated-state-spaces-pytorch "
    "goat-attention gotennet-pytorch grafx holonomy-lib hqq hypll info-nce-pytorch isab-pytorch "
    "jet-pytorch kmeans-pytorch kron-torch lampe ledidi lru-pytorch machin mbrl memformer mermaid mgiou "
    "minGRU-pytorch monotonicnetworks mpc mpm-pytorch mrpro multivae music2latent nam-pt normflowpy "
    "optami palm-pytorch parameterfree perceiver-io perfusion-pytorch pomegranate position-encoding POT "
    "pro-gan-pth prodigyopt prototorch pvae pycave pygmtools pyharmx pykernsformer pymde pysdtw pyt-crf "
    "pytorch-adapt pytorch-beam-search pytorch-gmm pytorch-ignite pytorch-lattice pytorch-mppi "
    "pytorch-tree-lstm pytorchyolo quad-torch quantus ranking-metrics-torch rin-pytorch rising rockpool "
    "rssmlite s5-pytorch saev schedulefree simplicial-attention sixdrepnet softadapt spacecutter "
    "speculative-decoding speechtokenizer spline-resize swyft syndrilla tabicl tad-dftd3 tad-dftd4 "
    "tad-mctc tangermeme tangram-sc tednet token-shift-gpt torch-cfd torch-choice torch-dct torch-ga "
    "torch-geometric-median torch-hd torch-image-interpolation torch-interpol torch-kf torch-kmeans "
    "torch-log-wmse torch-mimicry torch-optimizer torch-pesq torch-pruning torch-sim-atomistic "
    "torch-spatiotemporal torch-stft torch-tps torch-treecrf torchattacks torchbnn torchcam torchcast "
    "torchcvnn torchdr torcheeg torcheval torchfcpe torchflow torchgfn torchmd torchnodo torchot torchreg "
    "torchregister torchsparseattn torchsurv torchsynth torchtsetlin torchtt torchtuples torchxlstm "
    "transformer-in-transformer triplettorch tslearn xitorch"
).split()


def is_read(package: str) -> bool:
    """Whether a package is in the half whose disagreements are read."""
    return hashlib.sha256(package.lower().encode()).digest()[0] % 2 == 0
