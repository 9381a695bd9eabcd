"""One record for each generation of TPU: what a chip can do at most, who says so, and
what jax and libtpu call it.

To add a generation, add an entry to `GENERATIONS`, and its measured block sizes as
`attention/data/NAME.json` (from `tpuport tune attention --save`), or name the
generation whose measurements serve it.

Figures are a chip's, as they are published. What jax calls a device is a chip, or half
of one (`Generation.devices`); `DeviceShare` has the figures of one device. Bytes and
bytes a second are plain: 1 GB is 1e9 bytes, 1 GiB is 2**30.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any, Final

from tpuport.errors import PortError

MIB: Final = 1 << 20
GIB: Final = 1 << 30
_DOCS: Final = "https://docs.cloud.google.com/tpu/docs/"
# The JAX scaling book: "How to Think About TPUs", and "Sharded Matrices and How to
# Multiply Them".
SCALING_BOOK: Final = "https://jax-ml.github.io/scaling-book/tpus"
COLLECTIVES: Final = "https://jax-ml.github.io/scaling-book/sharding"


@dataclasses.dataclass(frozen=True)
class Figure:
    """A published number.

    Attributes:
        unit: "bytes", "bytes/s", "FLOP/s" or "s".
        source: the page that states it.
        note: what a reader of the number should know.
    """

    value: float
    unit: str
    source: str
    note: str = ""


@dataclasses.dataclass(frozen=True)
class DeviceShare:
    """What one device has of its chip: bytes of HBM, bf16 FLOP/s, bytes of HBM a
    second. Links belong to the chip.
    """

    hbm: float
    bf16: float
    hbm_bandwidth: float


_HOP: Final = Figure(
    1e-6, "s", COLLECTIVES, '"typically around 1us", for every generation'
)

# A product of two matrices of 4096 x 4096 in blocks of 128: 32,768 steps of a kernel
# take 11.47 ms there, of which its schedule explains 3.51 ms, and in each step it
# starts two copies.
_COPY_START: Final = Figure(
    0.12e-6, "s", "https://docs.jax.dev/en/latest/pallas/tpu/matmul.html",
    "what a measurement on v5e leaves for each copy; taken for every generation",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """What is known of one generation.

    Attributes:
        name: tpuport's and libtpu's name, such as "v5e".
        title: Google's name.
        page: Google's page that describes it.
        kinds: the `device_kind` of its devices in jax; libtpu's versions disagree.
        accelerator_types: what comes before the dash of an accelerator type such as
            v5litepod-8, besides `name`.
        block_sizes: the generation whose `attention/data/NAME.json` the attention
            kernel's block sizes come from.
        hbm: bytes a chip.
        bf16: dense FLOP/s a chip.
        int8, fp8: the same for these dtypes, None if no page states it.
        hbm_bandwidth: bytes a second a chip, reads and writes together.
        ici: bytes a second a chip, over all links, both ways together.
        link: bytes a second over one link to one neighbour, one way.
        hop: seconds that a hop over a link takes, however little it carries.
        copy_start: seconds of the core that it takes a kernel to start a copy between
            memories.
        on_chip: bytes a second between the devices of one chip, one way; None if a chip
            is one device.
        cores: TensorCores a chip.
        devices: devices a chip, as libtpu and jax show them.
        dimensions: of the torus.
        wraps: a dimension of a slice closes to a ring if it is a multiple of this (in
            three dimensions: if all are).
        pod: chips of the largest slice.
        program_hbm: bytes of a device that the compiler lets one program use: the most
            that arguments, outputs and code of a program took that still compiled,
            found by bisection.
        vmem: bytes of vector memory a core.
        fusion_vmem: bytes of it that one fusion may take in a program; None leaves that
            to the compiler.
        multiplies_rows_by_matrix: whether products of a single row are for the matrix
            units; else the compiler chooses.
        bytes_per_cycle: that one core reads from HBM: published bandwidth over
            published clock.
        flops_per_cycle: of bf16 products that the matrix units of one core start in a
            cycle: two for each of their cells, four units of 128 x 128 cells until v5p;
            v6e and tpu7x have two units of 256 x 256, into which a bundle puts two rows
            each.
    """

    name: str
    title: str
    page: str
    kinds: tuple[str, ...]
    accelerator_types: tuple[str, ...] = ()
    block_sizes: str
    hbm: Figure
    bf16: Figure
    int8: Figure | None = None
    fp8: Figure | None = None
    hbm_bandwidth: Figure
    ici: Figure
    link: Figure
    hop: Figure = _HOP
    copy_start: Figure = _COPY_START
    on_chip: Figure | None = None
    cores: int
    devices: int
    dimensions: int
    wraps: int
    pod: int
    program_hbm: int
    vmem: int
    fusion_vmem: int | None = None
    multiplies_rows_by_matrix: bool = False
    bytes_per_cycle: int
    flops_per_cycle: int

    @property
    def clock(self) -> float:
        """Cycles a second of a core: the published peak over what the matrix units
        start in a cycle.
        """
        return self.bf16.value / (self.cores * self.flops_per_cycle)

    @property
    def device(self) -> DeviceShare:
        """A device's share of the chip."""
        return DeviceShare(
            self.hbm.value / self.devices,
            self.bf16.value / self.devices,
            self.hbm_bandwidth.value / self.devices,
        )

    @property
    def figures(self) -> dict[str, Figure]:
        """The published figures by name."""
        return {
            name: value
            for name, value in vars(self).items()
            if isinstance(value, Figure)
        }

    @property
    def sources(self) -> dict[str, str]:
        """The page of each published figure, by the figure's name."""
        return {name: figure.source for name, figure in self.figures.items()}


def _page(name: str) -> str:
    return _DOCS + name


def _figure(unit: str, value: float | int, source: str, note: str) -> Figure:
    """A figure whose source is a URL, or the name of one of Google's pages."""
    if "/" not in source:
        source = _page(source)
    return Figure(float(value), unit, source, note)


def _bytes(gib: float | int, source: str, note: str = "") -> Figure:
    return _figure("bytes", gib * GIB, source, note)


def _flops(tera: float | int, source: str, note: str = "") -> Figure:
    return _figure("FLOP/s", tera * 1e12, source, note)


def _rate(giga: float | int, source: str, note: str = "") -> Figure:
    return _figure("bytes/s", giga * 1e9, source, note)


_LINK_NOTE: Final = (
    "what the book computes with; half of Google's figure for all links, divided by "
    "their number, is 11% more"
)

GENERATIONS: Final[dict[str, Generation]] = {
    generation.name: generation
    for generation in (
        Generation(
            name="v4", title="TPU v4", page=_page("v4"),
            kinds=("TPU v4",),
            block_sizes="v4",
            hbm=_bytes(32, "v4"),
            bf16=_flops(275, "v4"),
            int8=_flops(275, "v4"),
            hbm_bandwidth=_rate(1200, "v4"),
            ici=_rate(540, SCALING_BOOK, "6 links, both ways, at the book's rate: Google's page for v4 has no figure"),
            link=_rate(45, SCALING_BOOK),
            cores=2, devices=1, dimensions=3, wraps=4, pod=4096,
            program_hbm=31485 * MIB,
            vmem=16 * MIB,
            # Its vector unit makes weights in eight bits wide one by one: a layer of
            # Llama-2-7B takes 84 us in int8 instead of 147, and 123 in bfloat16 instead
            # of 130.
            multiplies_rows_by_matrix=True,
            bytes_per_cycle=585,
            flops_per_cycle=1 << 17,
        ),
        Generation(
            name="v5e", title="TPU v5e", page=_page("v5e"),
            kinds=("TPU v5 lite", "TPU v5e"),
            accelerator_types=("v5litepod", "v5lite"),
            block_sizes="v5e",
            hbm=_bytes(16, "v5e", 'given as "16 GB"; the compiler has 15.75 GiB of 16'),
            bf16=_flops(197, "v5e"),
            int8=_flops(393, "v5e"),
            hbm_bandwidth=_rate(819, "v5e", "another version of the page has 800 GiB/s"),
            ici=_rate(400, "v5e"),
            link=_rate(45, SCALING_BOOK, _LINK_NOTE),
            cores=1, devices=1, dimensions=2, wraps=16, pod=256,
            program_hbm=16126 * MIB,
            vmem=128 * MIB,
            bytes_per_cycle=546,
            flops_per_cycle=1 << 17,
        ),
        Generation(
            name="v5p", title="TPU v5p", page=_page("v5p"),
            kinds=("TPU v5", "TPU v5p"),
            block_sizes="v5p",
            hbm=_bytes(96, "v5p", "the page's table has 95, which leaves out what the runtime keeps"),
            bf16=_flops(459, "v5p"),
            int8=_flops(918, SCALING_BOOK),
            fp8=_flops(459, "v5p"),
            hbm_bandwidth=_rate(2765, "v5p"),
            ici=_rate(1200, "v5p"),
            link=_rate(90, SCALING_BOOK, _LINK_NOTE),
            cores=2, devices=1, dimensions=3, wraps=4, pod=6144,
            program_hbm=98041 * MIB,
            vmem=64 * MIB,
            bytes_per_cycle=790,
            flops_per_cycle=1 << 17,
        ),
        Generation(
            name="v6e", title="TPU v6e (Trillium)", page=_page("v6e"),
            kinds=("TPU v6 lite", "TPU v6e"),
            block_sizes="v6e",
            hbm=_bytes(32, "tpu7x", 'v6e\'s own page says "32 GB"'),
            bf16=_flops(918, "v6e"),
            int8=_flops(1836, "v6e"),
            fp8=_flops(918, "tpu7x"),
            hbm_bandwidth=_rate(1638, "v6e"),
            ici=_rate(800, "v6e"),
            link=_rate(90, SCALING_BOOK, _LINK_NOTE),
            cores=1, devices=1, dimensions=2, wraps=16, pod=256,
            program_hbm=31996 * MIB,
            vmem=128 * MIB,
            # By default 32 MiB. With more, products of thousands of rows are computed
            # in larger blocks: one of 18,900 x 13,824 and 13,824 x 5,120 takes 3.3 ms
            # instead of 4.3. 64 MiB gain 3% more, and take longer to compile.
            fusion_vmem=48 * MIB,
            # As on v4: 156 us instead of 189 on one chip, and 267 in bfloat16 instead
            # of 283. On v5e the same layer in bfloat16 takes 561 us instead of 533, on
            # v5p 60 instead of 58.
            multiplies_rows_by_matrix=True,
            bytes_per_cycle=937,
            flops_per_cycle=1 << 19,
        ),
        Generation(
            name="tpu7x", title="TPU7x (Ironwood)", page=_page("tpu7x"),
            kinds=("TPU7x", "TPU v7x"),
            accelerator_types=("v7x",),
            # Nothing was measured for it; v6e has the most similar units.
            block_sizes="v6e",
            hbm=_bytes(192, "tpu7x"),
            bf16=_flops(2307, "tpu7x"),
            fp8=_flops(4614, "tpu7x"),
            hbm_bandwidth=_rate(7380, "tpu7x"),
            ici=_rate(1200, "tpu7x"),
            link=_rate(90, SCALING_BOOK, _LINK_NOTE),
            on_chip=_rate(540, "tpu7x", '"six times faster than a 1D inter-chip interconnect (ICI) link"'),
            cores=2, devices=2, dimensions=3, wraps=4, pod=9216,
            program_hbm=97020 * MIB,
            vmem=64 * MIB,
            bytes_per_cycle=1600,
            flops_per_cycle=1 << 19,
        ),
    )
}  # fmt: skip

# What a program is tuned for if it is for no TPU in particular.
_DEFAULT: Final = "v6e"
_BY_KIND: Final = {
    kind: name for name, generation in GENERATIONS.items() for kind in generation.kinds
}
_assumed: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "tpuport_generation", default=None
)


def generation_of_kind(kind: str) -> str | None:
    """The name of the generation whose devices have this `device_kind`; None for
    another device.
    """
    return _BY_KIND.get(kind)


def check_generation(name: str) -> str:
    """The name itself.

    Raises:
        PortError: there is no such generation.
    """
    if name not in GENERATIONS:
        raise PortError(
            f'there is no generation of TPU called "{name}"',
            where="generation",
            fix=f"use one of {', '.join(GENERATIONS)}",
        )
    return name


@contextlib.contextmanager
def assume_generation(name: str) -> Iterator[None]:
    """Tune programs that are traced inside for this generation, whatever devices this
    machine has.

    Raises:
        PortError: there is no such generation.
    """
    token = _assumed.set(check_generation(name))
    try:
        yield
    finally:
        _assumed.reset(token)


def assumed_generation() -> str | None:
    """The generation that programs are traced for without a device; None outside of
    `assume_generation`.
    """
    return _assumed.get()


def local_generation() -> str | None:
    """The generation of the default device; None if it is no TPU, or an unknown one."""
    import jax

    device: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if not hasattr(device, "device_kind"):  # None, or the name of a platform
        device = jax.local_devices(backend=device)[0]
    return generation_of_kind(device.device_kind)


def target_generation() -> str:
    """The generation that programs are tuned for: the assumed one, the default
    device's, or v6e without a TPU.
    """
    return _assumed.get() or local_generation() or _DEFAULT
