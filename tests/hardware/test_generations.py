"""The records of the generations, against what libtpu shows of each, and the generation that programs are tuned for."""

import re

import jax
import jax.numpy as jnp
import pytest

from tpuport.errors import PortError
from tpuport.hardware import (
    GENERATIONS,
    GIB,
    assume_generation,
    compiled,
    described,
    generation_of_kind,
    target_generation,
)


@pytest.mark.parametrize("name", GENERATIONS)
def test_devices_and_dimensions_are_those_that_libtpu_shows(name: str) -> None:
    generation, devices = GENERATIONS[name], described(name).devices
    chips = {tuple(device.coords) for device in devices}
    assert len(devices) == len(chips) * generation.devices
    assert devices[0].num_cores * generation.devices == generation.cores
    assert chips == {(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)}
    assert devices[0].device_kind in generation.kinds


@pytest.mark.parametrize("name", GENERATIONS)
def test_the_compiler_lets_a_program_have_almost_all_of_the_memory(name: str) -> None:
    x = jax.ShapeDtypeStruct((1 << 18, 1 << 18), jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED") as raised:
        compiled(lambda x: x + 1, x, topology=described(name))
    available = re.search(r"available HBM \(([\d.]+)G\)", str(raised.value))
    assert available is not None
    hbm = GENERATIONS[name].device.hbm
    assert 0.95 < float(available[1]) * GIB / hbm <= 1
    assert 0.95 < GENERATIONS[name].program_hbm / hbm <= 1


@pytest.mark.parametrize("name", GENERATIONS)
def test_figures_agree_with_each_other(name: str) -> None:
    generation = GENERATIONS[name]
    assert generation.name == name
    assert generation.device.bf16 * generation.devices == generation.bf16.value
    assert generation.device.hbm_bandwidth * generation.devices == generation.hbm_bandwidth.value
    links = 2 * generation.dimensions * 2 * generation.link.value
    assert 0.89 < links / generation.ici.value <= 1, "the book's rate is a tenth below Google's"
    for peak in (generation.int8, generation.fp8):
        assert peak is None or 1 <= peak.value / generation.bf16.value <= 2


@pytest.mark.parametrize("name", GENERATIONS)
def test_each_figure_has_a_public_source_and_a_unit(name: str) -> None:
    figures = GENERATIONS[name].figures
    assert len(figures) >= 6
    for figure in figures.values():
        assert figure.value > 0
        assert figure.unit in ("bytes", "FLOP/s", "bytes/s", "s")
        assert figure.source.startswith(
            ("https://docs.cloud.google.com/tpu/docs/", "https://jax-ml.github.io/", "https://docs.jax.dev/")
        )
    assert set(GENERATIONS[name].sources) == set(figures)


def test_the_clock_follows_from_the_peak() -> None:
    clocks = {name: generation.clock / 1e9 for name, generation in GENERATIONS.items()}
    # 1.05 GHz is what the paper on v4 (Jouppi et al. 2023) states, and 819 GB/s of v5e are 546 bytes a cycle.
    assert clocks == pytest.approx({"v4": 1.05, "v5e": 1.5, "v5p": 1.75, "v6e": 1.75, "tpu7x": 2.2}, rel=2e-3)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("TPU v4", "v4"), ("TPU v5 lite", "v5e"), ("TPU v5e", "v5e"), ("TPU v5", "v5p"), ("TPU v5p", "v5p"),
        ("TPU v6 lite", "v6e"), ("TPU7x", "tpu7x"), ("TPU v7x", "tpu7x"), ("cpu", None), ("TPU v2", None),
    ],
)  # fmt: skip
def test_generation_of_a_device_kind(kind: str, name: str | None) -> None:
    assert generation_of_kind(kind) == name


def test_the_generation_that_programs_are_tuned_for() -> None:
    assert target_generation() == "v6e", "this machine has no TPU"
    with assume_generation("v5e"):
        assert target_generation() == "v5e"
        with assume_generation("v4"):
            assert target_generation() == "v4"
        assert target_generation() == "v5e"
    assert target_generation() == "v6e"


@pytest.mark.parametrize("kind", ["TPU v5 lite", "TPU v5", "TPU7x"])
def test_the_default_device_decides(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        device_kind = kind

    monkeypatch.setattr("jax.local_devices", lambda backend=None: [Device()])
    assert target_generation() == generation_of_kind(kind)


@pytest.mark.parametrize("name", ["v3", "V6E", ""])
def test_an_unknown_generation_is_refused(name: str) -> None:
    with pytest.raises(PortError, match="use one of v4, v5e, v5p, v6e, tpu7x"), assume_generation(name):
        pass
