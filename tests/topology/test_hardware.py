"""Published figures, against what libtpu shows of each generation."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

from tpuport.topology import GENERATIONS, compiled, described
from tpuport.topology.hardware import FIGURES, GIB, Figure


def test_every_generation_has_figures() -> None:
    assert list(FIGURES) == list(GENERATIONS)
    assert all(figures.generation == name for name, figures in FIGURES.items())


@pytest.mark.parametrize("generation", FIGURES)
def test_devices_and_dimensions_are_those_that_libtpu_shows(generation: str) -> None:
    figures, devices = FIGURES[generation], described(generation).devices
    chips = {tuple(device.coords) for device in devices}
    assert len(devices) == len(chips) * figures.devices
    assert devices[0].num_cores * figures.devices == figures.cores, (
        "the cores of a chip, shared out over its devices"
    )
    assert chips == {(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)}


@pytest.mark.parametrize("generation", FIGURES)
def test_the_compiler_lets_a_program_have_almost_all_of_the_memory(generation: str) -> None:
    x = jax.ShapeDtypeStruct((1 << 18, 1 << 18), jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED") as raised:
        compiled(lambda x: x + 1, x, topology=described(generation))
    available = re.search(r"available HBM \(([\d.]+)G\)", str(raised.value))
    assert available is not None
    assert 0.95 < float(available[1]) * GIB / FIGURES[generation].device.hbm <= 1


@pytest.mark.parametrize("generation", FIGURES)
def test_a_devices_share_is_its_part_of_the_chip(generation: str) -> None:
    figures = FIGURES[generation]
    assert figures.device.bf16 * figures.devices == figures.bf16.value
    assert figures.device.hbm_bandwidth * figures.devices == figures.hbm_bandwidth.value


@pytest.mark.parametrize("generation", FIGURES)
def test_the_links_together_are_what_google_says_of_the_chip(generation: str) -> None:
    figures = FIGURES[generation]
    links = 2 * figures.dimensions * 2 * figures.link.value
    assert 0.89 < links / figures.ici.value <= 1, "the book's rate is a tenth below Google's"


@pytest.mark.parametrize("generation", FIGURES)
def test_each_figure_has_a_public_source_and_a_unit(generation: str) -> None:
    figures = FIGURES[generation]
    stated = [value for value in vars(figures).values() if isinstance(value, Figure)]
    assert len(stated) >= 6
    for figure in stated:
        assert figure.value > 0
        assert figure.unit in ("bytes", "FLOP/s", "bytes/s", "s")
        assert figure.source.startswith(
            ("https://docs.cloud.google.com/tpu/docs/", "https://jax-ml.github.io/")
        )
    assert set(figures.sources) == {
        field.name
        for field in dataclasses.fields(figures)
        if isinstance(getattr(figures, field.name), Figure)
    }


def test_lower_precision_is_never_slower() -> None:
    for figures in FIGURES.values():
        for low in (figures.int8, figures.fp8):
            assert low is None or 1 <= low.value / figures.bf16.value <= 2
