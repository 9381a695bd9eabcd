"""The generations and slices as rows of data and as the tables of docs/topologies.md.

`python -m tpuport.hardware.listing` writes the tables into the page.
"""

import pathlib
from typing import Any, Final

from tpuport.hardware.generations import GENERATIONS, GIB, Figure, Generation
from tpuport.hardware.slices import Slice, listed_slices

_PAGE: Final = pathlib.Path(__file__).parents[2] / "docs/topologies.md"
_MARK: Final = "python -m tpuport.hardware.listing` -->\n"
_UNITS: Final = {
    "bytes": (GIB, "GiB"),
    "bytes/s": (1e9, "GB/s"),
    "FLOP/s": (1e12, "TFLOP/s"),
    "s": (1e-6, "µs"),
}


def slice_rows() -> list[dict[str, Any]]:
    """A row for each slice that Google's pages list.

    Returns:
        Rows with name, generation, shape, chips, devices; bytes of HBM a chip and a
        device; a chip's FLOP/s in bf16, its bytes a second to HBM, over all links both
        ways, and over one link one way; and the source of each figure.
    """
    return list(map(_row, listed_slices()))


def markdown() -> str:
    """The tables of docs/topologies.md: figures of each generation, slices, and the
    sources of the figures.
    """
    return f"## Figures\n\n{_figures_table()}\n\n## Slices\n\n{_slices_table()}\n\n## Sources\n\n{_sources_table()}"


def _row(candidate: Slice) -> dict[str, Any]:
    generation = candidate.generation
    return {
        "name": candidate.name,
        "generation": generation.name,
        "shape": list(candidate.shape),
        "chips": candidate.chips,
        "devices": candidate.devices,
        "hbm_per_chip": generation.hbm.value,
        "hbm_per_device": generation.device.hbm,
        "peak_bf16": generation.bf16.value,
        "hbm_bandwidth": generation.hbm_bandwidth.value,
        "ici_bandwidth": generation.ici.value,
        "link_bandwidth": generation.link.value,
        "sources": generation.sources,
    }


def _figures_table() -> str:
    header = (
        "a chip of", "HBM", "bf16 TFLOP/s", "int8 TOP/s", "fp8 TFLOP/s", "HBM GB/s", "ICI GB/s, both ways",
        "a link GB/s, one way", "torus", "TensorCores", "devices", "chips at most",
    )  # fmt: skip
    return _table(header, list(map(_figures_row, GENERATIONS.values())))


def _figures_row(generation: Generation) -> tuple[str, ...]:
    def scaled(figure: Figure | None, unit: float | int) -> str:
        if figure is None:
            return ""
        return f"{figure.value / unit:g}"

    return (
        f"[{generation.title}]({generation.page}), `{generation.name}`",
        f"{scaled(generation.hbm, GIB)} GiB",
        *(
            scaled(peak, 1e12)
            for peak in (generation.bf16, generation.int8, generation.fp8)
        ),
        *(
            scaled(rate, 1e9)
            for rate in (generation.hbm_bandwidth, generation.ici, generation.link)
        ),
        f"{generation.dimensions}D",
        str(generation.cores),
        str(generation.devices),
        str(generation.pod),
    )


def _slices_table() -> str:
    rows = [
        (f"`{row['name']}`", str(row["chips"]), str(row["devices"]))
        for row in slice_rows()
    ]
    return _table(("slice", "chips", "devices"), rows)


def _sources_table() -> str:
    rows = []
    for generation in GENERATIONS.values():
        for name, figure in generation.figures.items():
            size, unit = _UNITS[figure.unit]
            value = f"{figure.value / size:g} {unit}"
            rows.append(
                (f"`{generation.name}`", name, value, f"<{figure.source}>", figure.note)
            )
    return _table(("generation", "figure", "value", "source", "note"), rows)


# Padding the columns would change every line when one cell becomes longer.
def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(
        "| " + " | ".join(row) + " |" for row in (header, ("---",) * len(header), *rows)
    )


if __name__ == "__main__":
    text = _PAGE.read_text(encoding="utf-8")
    # What comes before the mark is written by hand.
    introduction = text[: text.index(_MARK) + len(_MARK)]
    _PAGE.write_text(f"{introduction}\n{markdown()}\n", encoding="utf-8")
