"""The TPUs that can be compiled for, with the figures behind estimates and the pages
that state them.
"""

import json
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from tpuport.base.mappings import group_by
from tpuport.hardware import GENERATIONS, Generation
from tpuport.hardware.listing import slice_rows
from tpuport.hardware.slices import listed_slices
from tpuport.topology.reports import quantities
from tpuport.topology.reports.text_layout import table

SCHEMA: Final = 1
_FIGURES: Final = {
    "hbm": "HBM",
    "bf16": "bf16",
    "hbm_bandwidth": "HBM bandwidth",
    "ici": "interconnect",
}


def listing() -> RenderableType:
    """Tables of generations, of their slices, and of the pages that state their
    figures.
    """
    figures = table(
        "TPU", ">HBM", ">bf16", ">HBM bandwidth", ">interconnect", ">devices"
    )
    slices = table("TPU", "slices, and their chips")
    sources = table("TPU", "figures", "page")
    for name, generation in GENERATIONS.items():
        figures.add_row(
            name,
            quantities.memory_size(generation.hbm.value),
            quantities.rate(generation.bf16.value, "FLOP"),
            quantities.rate(generation.hbm_bandwidth.value, "B"),
            quantities.rate(generation.ici.value, "B"),
            str(generation.devices),
        )
        slices.add_row(name, ", ".join(_slices_of(name)))
        for page, labels in _figures_by_page(generation).items():
            sources.add_row(name, ", ".join(labels), page)
    return Group(
        Text("Of one chip; the interconnect over all links, both ways", style="bold"), figures,
        Text("\nSlices that Google's pages list: v5e:2x4 is the one of 8 chips. Larger ones of v4, v5p and tpu7x are "
             "multiples of 4x4x4", style="bold"), slices,
        Text("\nWho states the figures", style="bold"), sources,
    )  # fmt: skip


def as_json() -> str:
    """The slices as JSON."""
    return json.dumps({"schema": SCHEMA, "topologies": slice_rows()}, indent=2) + "\n"


def _slices_of(generation: str) -> list[str]:
    """Layouts with their chips: "2x4 (8)"."""
    return [
        f"{candidate.layout} ({candidate.chips:,})"
        for candidate in listed_slices()
        if candidate.generation.name == generation
    ]


def _figures_by_page(generation: Generation) -> dict[str, list[str]]:
    """The labels of the figures that each page states."""
    # Most pages state several figures.
    figures = group_by(_FIGURES, lambda figure: generation.sources[figure])
    return {page: [_FIGURES[name] for name in names] for page, names in figures.items()}
