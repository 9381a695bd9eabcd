"""The TPUs that can be compiled for, with the figures that estimates are made from and who states them."""

import json
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from tpuport.hardware import GENERATIONS, Generation
from tpuport.hardware.listing import slice_rows
from tpuport.topology.reports import quantities
from tpuport.topology.reports.text import table

SCHEMA: Final = 1
_SHOWN: Final = {"hbm": "HBM", "bf16": "bf16", "hbm_bandwidth": "HBM bandwidth", "ici": "interconnect"}


def listing() -> RenderableType:
    """Tables of generations, of their slices, and of the pages that state their figures."""
    figures = table("TPU", ">HBM", ">bf16", ">HBM bandwidth", ">interconnect", ">devices")
    for name, one in GENERATIONS.items():
        figures.add_row(
            name,
            quantities.room(one.hbm.value),
            quantities.rate(one.bf16.value, "FLOP"),
            quantities.rate(one.hbm_bandwidth.value, "B"),
            quantities.rate(one.ici.value, "B"),
            str(one.devices),
        )
    shapes = table("TPU", "slices, and their chips")
    for name in GENERATIONS:
        rows = [row for row in slice_rows() if row["generation"] == name]
        shapes.add_row(name, ", ".join(f"{_layout(row)} ({row['chips']:,})" for row in rows))
    sources = table("TPU", "figures", "page")
    for name, one in GENERATIONS.items():
        for page, told in _pages(one).items():
            sources.add_row(name, ", ".join(told), page)
    return Group(
        Text("Of one chip; the interconnect over all links, both ways", style="bold"), figures,
        Text("\nSlices that Google's pages list: v5e:2x4 is the one of 8 chips. Larger ones of v4, v5p and tpu7x are "
             "multiples of 4x4x4", style="bold"), shapes,
        Text("\nWho states the figures", style="bold"), sources,
    )  # fmt: skip


def as_json() -> str:
    """The same as JSON: `hardware.listing.slice_rows` under a schema's number."""
    return json.dumps({"schema": SCHEMA, "topologies": slice_rows()}, indent=2) + "\n"


def _layout(row: dict[str, Any]) -> str:
    return row["name"].partition(":")[2]


def _pages(figures: Generation) -> dict[str, list[str]]:
    """The figures that each page states."""
    found: dict[str, list[str]] = {}
    for name, label in _SHOWN.items():
        found.setdefault(figures.sources[name], []).append(label)
    return found
