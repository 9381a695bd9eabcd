"""Times on real TPUs that are published, of programs in `times_programs`, and what is known of each."""

import dataclasses
from typing import Final

from benchmarks.times_programs import (
    COGVIDEOX_BY_INPUTS,
    COGVIDEOX_BY_OUTPUTS,
    COGVIDEOX_EXP2,
    COGVIDEOX_SPLASH,
    HUNYUAN_EXP2,
    ROWWISE,
    WAN_ATTENTION,
    WAN_RULES,
    WHOLE,
    Program,
    cogvideox,
    flux,
    flux_attention,
    flux_decoder,
    hunyuan,
    hunyuan_one_by_one,
    llama_prompt,
    product,
    splash_kernel,
    wan,
    wan_decoder,
)

_MAXDIFFUSION: Final = "https://github.com/AI-Hypercomputer/maxdiffusion"
_PORTS: Final = "https://github.com/yangwhale/gpu-tpu-pedia/blob/main/tpu"
_JAX_GUIDE: Final = "https://docs.jax.dev/en/latest/pallas/tpu/matmul.html"
_JETSTREAM: Final = "https://github.com/AI-Hypercomputer/jetstream-pytorch/pull/68"


@dataclasses.dataclass(frozen=True)
class Case:
    """A published time.

    Attributes:
        parts: programs, and how often the published time has each; less than never, where others have it in them.
        published: seconds; highest: if several are published, the largest.
        what: the time is of.
        source: the page.
        unknown: what is not known, or cannot be matched.
        doubt: why the configuration is not known well enough to count the case.
        label: the name of the case; that of the first program without.
    """

    parts: tuple[tuple[Program, int], ...]
    published: float
    what: str
    source: str
    unknown: tuple[str, ...] = ()
    highest: float | None = None
    doubt: str = ""
    label: str = ""

    @property
    def name(self) -> str:
        return self.label or self.parts[0][0].name

    @property
    def seconds(self) -> float:
        """As published: the middle, if there are several figures."""
        return (self.published + (self.highest or self.published)) / 2


_VERSIONS: Final = "versions of jax and libtpu"
_OTHER_MODEL: Final = (
    "the publication ran maxdiffusion's own model; here diffusers' model, of the same layers"
)
_REWRITTEN: Final = "their kernel is written anew for this comparison, with the same steps and blocks"


# Its generate_flux.py times one jitted call of all steps and of the decoder, after the text encoders.
_FLAX_DECODER: Final = (
    "the publication's decoder is that of diffusers for Flax; here that for torch, of the same layers"
)


def _flux(
    variant: str,
    slice_name: str,
    topology: str,
    published: float,
    steps: int,
    block: int,
    *unknown: str,
    doubt: str = "",
) -> Case:
    denoiser = flux(variant, slice_name, topology, flux_attention(block))
    return Case(
        ((denoiser, steps), (flux_decoder(topology.partition(":")[0]), 1)), published,
        f"{steps} steps for 4 images of 1024 x 1024, one a chip, and their decoding",
        f"{_MAXDIFFUSION}/blob/main/README.md",
        (_OTHER_MODEL, _FLAX_DECODER, *unknown, _VERSIONS),
        doubt=doubt,
    )  # fmt: skip


# Blocks are those of the configurations, base_flux_schnell.yml and base_flux_dev.yml, which have others for v6e in a
# comment. The second names none, and the code then takes 512.
_LARGE_BLOCKS: Final = (
    "whether the kernel had the blocks that the configuration proposes for v6e, as it has here"
)
_FEW_STEPS: Final = (
    "the page contradicts itself: 4 steps of the same layers and their decoding took 2.2 s on these chips, so 28 take "
    "less than 16 s; the configuration's default was 50 steps"
)


def _wan_v6e(size: str, pixels: tuple[int, int], published: float, highest: float | None = None) -> Case:
    return Case(
        ((wan(f"{size}-v6e-8", "v6e:2x4", pixels, 226, WAN_RULES, WAN_ATTENTION, dp=2, tp=4), 1),), published,
        f"a step with guidance, two rows over dp, 81 frames of {pixels[0]} x {pixels[1]}",
        f"{_PORTS}/Wan2.1/README.md", (_REWRITTEN, _VERSIONS), highest,
    )  # fmt: skip


def _wan_v7x(
    slice_name: str, topology: str, context: int, published: float, highest: float | None = None
) -> Case:
    return Case(
        (
            (wan(f"720p-{slice_name}", topology, (720, 1280), 512, dp=2, sp=context), 50),
            (wan_decoder(), 21),
        ),
        published,
        "50 steps with guidance, two rows over dp, 81 frames of 720 x 1280, text encoder and decoding",
        f"{_MAXDIFFUSION}/pull/359",
        (
            _OTHER_MODEL,
            "the publication ran tokamax's kernels; here tpuport's",
            "the text encoder is in the published time, and not in the estimate",
            "whether decoding was divided over the chips: here every device decodes all of it, frame by frame",
            _VERSIONS,
        ),
        highest,
    )  # fmt: skip


def _hunyuan(name: str, parts: tuple[tuple[Program, int], ...], published: float, *unknown: str) -> Case:
    return Case(
        parts, published, "a step with guidance, two rows on every chip, 121 frames of 720 x 1280",
        f"{_PORTS}/HunyuanVideo-1.5/README.md",
        ("the publication ran the project's own model; here diffusers' model of the same layers", *unknown, _VERSIONS),
        label=f"hunyuan-video-1.5-{name}-v6e-8",
    )  # fmt: skip


_BLOCKS_OF_GUIDE: Final = "the kernel's blocks: here those of the port's guide"
_PARTITIONER: Final = (
    "the partitioner of the publication's jax: here GSPMD, which gathers what some whole weights are multiplied with, "
    "and sums up the products of divided ones; Shardy divides the whole weights again, and makes one program of both"
)
_SMALL, _LARGE = (640, 1280, 61), (768, 1360, 81)


def _cogvideox(
    program: Program,
    published: float,
    page: str,
    *unknown: str,
    highest: float | None = None,
    doubt: str = "",
) -> Case:
    rows = "a step with guidance, two rows" if page == "README.md" else "a step without guidance, one row"
    size = _LARGE if page == "README.md" else _SMALL
    return Case(
        ((program, 1),), published, f"{rows}, {size[2]} frames of {size[0]} x {size[1]}",
        f"{_PORTS}/CogVideoX/{page}", (*unknown, _VERSIONS), highest, doubt,
    )  # fmt: skip


_STAGED: Final = "generate_diffusers_torchax_staged/README.md"
_TWO_RULES: Final = "the port had two sets of rules, and which of them was in force is not said"
_TWO_TIMES: Final = (
    "the port's pages contradict each other: with the same size, kernel and blocks, a step with dp=2 and tp=4 takes "
    "2.31 s by one of them and 1.13 s by the other, in less than the kernel's part of what they say of a single chip"
)


_HOST_CLOCK: Final = (
    "published is {:.2f} ms by the host's clock; {:.2f} ms are subtracted, which products of 1024 x 1024 took: nearly "
    "all of that is waiting for the host"
)


def _product(size: int, blocks: tuple[int, int, int] | None, published: float) -> Case:
    waiting = _SMALL_PRODUCT_SECONDS[blocks]
    return Case(
        ((product(size, blocks), 1),), published - waiting,
        f"a product of two bfloat16 matrices of {size} x {size}",
        _JAX_GUIDE,
        (_HOST_CLOCK.format(published * 1e3, waiting * 1e3), _VERSIONS),
    )  # fmt: skip


# By the kernel's blocks, for matrices of 1024 x 1024.
_SMALL_PRODUCT_SECONDS: Final = {None: 0.000119, (512, 1024, 1024): 0.000127, (128, 128, 128): 0.000298}

CASES: Final = (
    _product(4096, None, 0.000827),
    _product(8192, None, 0.006047),
    _product(4096, (512, 1024, 1024), 0.000889),
    _product(8192, (512, 1024, 1024), 0.006099),
    _product(4096, (128, 128, 128), 0.011772),
    _product(8192, (128, 128, 128), 0.091836),
    Case(
        ((splash_kernel(5, 75_600, 75_776, (3024, 2048, 1024)), 1),), 0.04393,
        "one call of jax's splash kernel: 5 heads of 128, 75,600 queries, 75,776 keys",
        f"{_PORTS}/Wan2.2/docs/wan_tpu_optimization_guide.md", (_VERSIONS,),
    ),
    _flux("dev", "v6e-4", "v6e:2x2", 5.5, 28, 1536, _LARGE_BLOCKS),
    _flux("schnell", "v6e-4", "v6e:2x2", 0.8, 4, 2176, _LARGE_BLOCKS),
    _flux("schnell", "v4-8", "v4:2x2x1", 2.2, 4, 256),
    _flux("dev", "v4-8", "v4:2x2x1", 23.0, 28, 512, doubt=_FEW_STEPS),
    _wan_v6e("720p", (720, 1280), 4.59, 4.60),
    _wan_v6e("480p", (480, 832), 1.26),
    _wan_v7x("v7x-8", "tpu7x:2x2x1", 4, 249.3, 264.2),
    _wan_v7x("v7x-16", "tpu7x:2x2x2", 8, 127.1),
    _hunyuan("rowwise", hunyuan_one_by_one("rowwise", ROWWISE), 8.12, _BLOCKS_OF_GUIDE, _PARTITIONER),
    _hunyuan("replicated", hunyuan_one_by_one("replicated", WHOLE), 7.29, _BLOCKS_OF_GUIDE, _PARTITIONER),
    _hunyuan("exp2", ((hunyuan("exp2", WHOLE, HUNYUAN_EXP2), 1),), 5.81, _REWRITTEN),
    _cogvideox(
        cogvideox("dp2-tp4-v6e-8", "v6e:2x4", _LARGE, 2, COGVIDEOX_BY_INPUTS, COGVIDEOX_EXP2, dp=2, tp=4),
        1.13, "README.md", _REWRITTEN, highest=2.31, doubt=_TWO_TIMES,
    ),
    _cogvideox(
        cogvideox("tp8-v6e-8", "v6e:2x4", _LARGE, 2, COGVIDEOX_BY_INPUTS, COGVIDEOX_EXP2, tp=8),
        1.79, "README.md", _REWRITTEN, doubt=_TWO_TIMES,
    ),
    _cogvideox(
        cogvideox("exp2-v6e-1", "v6e:1x1", _SMALL, 1, COGVIDEOX_BY_INPUTS, COGVIDEOX_EXP2), 2.73, _STAGED, _REWRITTEN
    ),
    _cogvideox(
        cogvideox("splash-v6e-1", "v6e:1x1", _SMALL, 1, COGVIDEOX_BY_INPUTS, COGVIDEOX_SPLASH), 3.38, _STAGED,
        "the kernel's blocks: here the first of the port's two sets",
    ),
    _cogvideox(
        cogvideox("row-v6e-4", "v6e:2x2", _SMALL, 1, COGVIDEOX_BY_OUTPUTS, COGVIDEOX_EXP2, tp=4), 1.07, _STAGED,
        _REWRITTEN, doubt=_TWO_RULES,
    ),
    _cogvideox(
        cogvideox("row-v6e-8", "v6e:2x4", _SMALL, 1, COGVIDEOX_BY_OUTPUTS, COGVIDEOX_EXP2, tp=8), 0.71, _STAGED,
        _REWRITTEN, doubt=_TWO_RULES,
    ),
    Case(
        ((llama_prompt(1024, 8, "v5e:2x4"), 1),), 0.03835, "the prompt of 1,024 tokens", _JETSTREAM, (_VERSIONS,),
        doubt="neither the slice nor the dtype of the weights is said; here eight v5e chips and bfloat16",
    ),
)  # fmt: skip
