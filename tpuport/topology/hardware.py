"""What a TPU chip can do at most, by generation, and who says so.

Figures are a chip's, as they are published. What jax calls a device is a chip, or half of one (`Figures.devices`);
`Device` has the share of one. Bytes and bytes a second are plain: 1 GB is 1e9 bytes, 1 GiB is 2**30.
"""

import dataclasses
from typing import Final

GIB: Final = 1 << 30
_DOCS: Final = "https://docs.cloud.google.com/tpu/docs/"
# The JAX scaling book: "How to Think About TPUs", and "Sharded Matrices and How to Multiply Them".
SCALING_BOOK: Final = "https://jax-ml.github.io/scaling-book/tpus"
COLLECTIVES: Final = "https://jax-ml.github.io/scaling-book/sharding"
XPK: Final = "https://github.com/AI-Hypercomputer/xpk/blob/main/src/xpk/core/system_characteristics.py"


@dataclasses.dataclass(frozen=True)
class Figure:
    """A number of a chip's, in `unit`; `source`: the page that states it; `note`: what is to be known of it."""

    value: float
    unit: str
    source: str
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Figures:
    """A generation's.

    Attributes:
        generation: as in `describe.GENERATIONS`; name: Google's, where it is another.
        page: Google's, that describes it.
        hbm: bytes a chip; bf16: dense FLOP/s a chip.
        int8, fp8: the same for these, None where no page states it.
        hbm_bandwidth: bytes a second a chip, reading and writing together.
        ici: bytes a second a chip, over all links, both ways together.
        link: bytes a second over one link to one neighbour, one way.
        hop: seconds that a hop over a link takes, whatever it carries.
        on_chip: bytes a second between the devices of one chip, one way; None where there is one.
        cores: TensorCores a chip; devices: that libtpu and jax show of a chip.
        dimensions: of the torus; wraps: a dimension of the slice closes to a ring where it is a multiple of this (and,
            in three dimensions, all are).
        pod: how many chips a slice has at most.
    """

    generation: str
    name: str
    page: str
    hbm: Figure
    bf16: Figure
    int8: Figure | None
    fp8: Figure | None
    hbm_bandwidth: Figure
    ici: Figure
    link: Figure
    hop: Figure
    on_chip: Figure | None
    cores: int
    devices: int
    dimensions: int
    wraps: int
    pod: int

    @property
    def device(self) -> "Device":
        """A device's share of the chip."""
        parts = self.devices
        return Device(self.hbm.value / parts, self.bf16.value / parts, self.hbm_bandwidth.value / parts)

    @property
    def sources(self) -> dict[str, str]:
        """The page of each figure, by name."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value.source for name, value in fields.items() if isinstance(value, Figure)}


@dataclasses.dataclass(frozen=True)
class Device:
    """A device's share of a chip: bytes of HBM, bf16 FLOP/s, bytes of HBM a second. Links are the chip's."""

    hbm: float
    bf16: float
    hbm_bandwidth: float


def _page(name: str) -> str:
    return _DOCS + name


def _of(unit: str, value: float | int, source: str, note: str = "") -> Figure:
    return Figure(float(value), unit, source if "/" in source else _page(source), note)


def _bytes(gib: float | int, source: str, note: str = "") -> Figure:
    return _of("bytes", gib * GIB, source, note)


def _flops(tera: float | int, source: str, note: str = "") -> Figure:
    return _of("FLOP/s", tera * 1e12, source, note)


def _rate(giga: float | int, source: str, note: str = "") -> Figure:
    return _of("bytes/s", giga * 1e9, source, note)


_LINK_NOTE: Final = (
    "what the book computes with; half of Google's figure for all links, shared out over them, is 11% more"
)
_HOP: Final = Figure(1e-6, "s", COLLECTIVES, '"typically around 1us", for every generation')

FIGURES: Final[dict[str, Figures]] = {
    "v4": Figures(
        "v4", "TPU v4", _page("v4"),
        hbm=_bytes(32, "v4"),
        bf16=_flops(275, "v4"),
        int8=_flops(275, "v4"),
        fp8=None,
        hbm_bandwidth=_rate(1200, "v4"),
        ici=_rate(540, SCALING_BOOK, "6 links, both ways, at the book's rate: Google's page for v4 has no figure"),
        link=_rate(45, SCALING_BOOK),
        hop=_HOP,
        on_chip=None,
        cores=2, devices=1, dimensions=3, wraps=4, pod=4096,
    ),
    "v5e": Figures(
        "v5e", "TPU v5e", _page("v5e"),
        hbm=_bytes(16, "v5e", 'given as "16 GB"; the compiler has 15.75 GiB of 16'),
        bf16=_flops(197, "v5e"),
        int8=_flops(393, "v5e"),
        fp8=None,
        hbm_bandwidth=_rate(819, "v5e", "another version of the page has 800 GiB/s"),
        ici=_rate(400, "v5e"),
        link=_rate(45, SCALING_BOOK, _LINK_NOTE),
        hop=_HOP,
        on_chip=None,
        cores=1, devices=1, dimensions=2, wraps=16, pod=256,
    ),
    "v5p": Figures(
        "v5p", "TPU v5p", _page("v5p"),
        hbm=_bytes(96, "v5p", "the page's table has 95, which leaves out what the runtime keeps"),
        bf16=_flops(459, "v5p"),
        int8=_flops(918, SCALING_BOOK),
        fp8=_flops(459, "v5p"),
        hbm_bandwidth=_rate(2765, "v5p"),
        ici=_rate(1200, "v5p"),
        link=_rate(90, SCALING_BOOK, _LINK_NOTE),
        hop=_HOP,
        on_chip=None,
        cores=2, devices=1, dimensions=3, wraps=4, pod=6144,
    ),
    "v6e": Figures(
        "v6e", "TPU v6e (Trillium)", _page("v6e"),
        hbm=_bytes(32, "tpu7x", 'v6e\'s own page says "32 GB"'),
        bf16=_flops(918, "v6e"),
        int8=_flops(1836, "v6e"),
        fp8=_flops(918, "tpu7x"),
        hbm_bandwidth=_rate(1638, "v6e"),
        ici=_rate(800, "v6e"),
        link=_rate(90, SCALING_BOOK, _LINK_NOTE),
        hop=_HOP,
        on_chip=None,
        cores=1, devices=1, dimensions=2, wraps=16, pod=256,
    ),
    "tpu7x": Figures(
        "tpu7x", "TPU7x (Ironwood)", _page("tpu7x"),
        hbm=_bytes(192, "tpu7x"),
        bf16=_flops(2307, "tpu7x"),
        int8=None,
        fp8=_flops(4614, "tpu7x"),
        hbm_bandwidth=_rate(7380, "tpu7x"),
        ici=_rate(1200, "tpu7x"),
        link=_rate(90, SCALING_BOOK, _LINK_NOTE),
        hop=_HOP,
        on_chip=_rate(540, "tpu7x", '"six times faster than a 1D inter-chip interconnect (ICI) link"'),
        cores=2, devices=2, dimensions=3, wraps=4, pod=9216,
    ),
}  # fmt: skip
