"""The tables for a terminal: what they say, how wide they are, and the units."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tpuport.topology.reports import quantities, topology_list
from tpuport.topology.reports.text import render_results

NO_MEMORY = dict.fromkeys((*quantities.MEMORY_PARTS, "used"))


def shown(renderable, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, markup=False, emoji=False).print(renderable)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120])
def test_it_says_what_was_found_in_the_width_there_is(results, splits, width: int) -> None:
    text = shown(render_results(results, splits), width)
    assert max(map(len, text.splitlines())) <= width
    whole = " ".join(text.split())
    for said in (
        "fits: 10.12 of 15.75 GiB a chip",
        "does not fit: 21.50 of 15.75 GiB a chip",
        "cannot be compiled: a tensor's value decides",
        "6.74 billion parameters",
        "no mesh was given",
        "2.16 ms, bound by memory",
        "estimate",
        "14,815 a second",
        "all-reduce tp 64 16.8 MB llama/modeling_llama.py:248",
        "bf16[32,32000] fusion",
        "xla x32",
        "TPC001 width-sharded-activations",
        "shard the embedding over the vocabulary",
        "/srv/me/model.py:12, in forward",
        "TPU101",
        "write torch.where",
        "lower 1.20 s, compile 6.60 s",
        "dp=8",
        "a step 3.00 ms, 1.39 x the roofline",
        "matrix units 1.20 ms for the same products at their peak; a step is 2.50 x",
        "tokens 10,667 a second",
        "MFU 6.5%",
        "cycles 87.5% by the schedules of the compiled program, the rest by the compiler's own estimates",
    ):
        assert said in whole, said


def test_the_peak_of_the_matrix_units_is_no_measure_of_a_step_that_leaves_them_idle(results) -> None:
    results[0].report["profile"]["matrix_units"] = 2.9e-5
    assert "matrix units" not in shown(render_results(results[:1]), 120)


def test_what_does_not_fit_shows_no_figures_of_a_program(results) -> None:
    text = shown(render_results(results[1:2]), 100)
    assert "Roofline" not in text
    assert "Collectives" not in text
    assert "What the compiler wanted to keep" in text
    assert "too much" in text


def test_bars_are_as_long_as_their_part(results) -> None:
    lines = shown(render_results(results[:1]), 100).splitlines()
    [cache] = [line for line in lines if line.strip().startswith("cache")]
    assert cache.count("█") == round(8 / 15.75 * 24)


def test_splits_that_were_not_tried_are_told_with_the_reason(results, splits) -> None:
    text = " ".join(shown(render_results(results[:1], splits), 120).split())
    assert "Left out for llama decode on v5e:2x4: sp=4 (does not divide 6 tokens); dp=2 (is <img" in text
    assert "sp=4 tp=2" not in text


def test_what_looks_like_markup_is_text(results) -> None:
    results[0].report["collectives"][0]["kind"] = "[red]all[/red] :smile:"
    assert "[red]all[/red] :smile:" in shown(render_results(results), 120)


def test_topologies_are_listed_with_their_figures_and_pages() -> None:
    text = " ".join(shown(topology_list.listing(), 110).split())
    for said in ("v5e 16.0 GiB 197 TFLOP/s 819 GB/s", "2x4 (8)", "https://", "interconnect", "tpu7x"):
        assert said in text, said


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (quantities.memory_size(0), "0 B"),
        (quantities.memory_size(1023), "1023 B"),
        (quantities.memory_size(1 << 30), "1.00 GiB"),
        (quantities.optional(quantities.memory_size, None, missing="unknown"), "unknown"),
        (quantities.traffic(1.5e9), "1.50 GB"),
        (quantities.flops(2.5e13), "25.0 TFLOP"),
        (quantities.rate(8.19e11, "B"), "819 GB/s"),
        (quantities.duration(0.00216), "2.16 ms"),
        (quantities.duration(0.0), "0 s"),
        (quantities.duration(75.0), "75.0 s"),
        (quantities.long_duration(59.4), "59.4 s"),
        (quantities.long_duration(59.6), "1 min 0 s"),
        (quantities.long_duration(370.2), "6 min 10 s"),
        (quantities.long_duration(7510), "2 h 5 min"),
        (quantities.plain_number(14814.8), "14,815"),
        (quantities.plain_number(3.217), "3.22"),
        (quantities.number_in_words(6_738_415_616), "6.74 billion"),
        (quantities.number_in_words(999), "999"),
        (quantities.title("llama", "v6e:2x2", {"task": "decode"}), "llama, decode on v6e:2x2"),
        (quantities.title("llama decode", "v6e:2x2", {"task": "decode"}), "llama decode on v6e:2x2"),
        (quantities.title("vae", "v6e:2x2", {"task": "forward"}), "vae on v6e:2x2"),
        (quantities.title("llama", "v6e:2x2", None), "llama on v6e:2x2"),
        (quantities.mesh_name({"dp": 1, "sp": 2, "tp": 4}), "sp=2 tp=4"),
        (quantities.mesh_name({"dp": 1, "sp": 1, "tp": 1}), "one device"),
        (quantities.used_memory({"used": 1 << 20, "capacity": 1 << 34}), "1.00 MiB of 16.00 GiB"),
        (quantities.used_memory({"used": None, "capacity": 1 << 34}), "more than the 16.00 GiB"),
        (quantities.memory_parts({**NO_MEMORY, "used": 10, "weights": 3, "code": 4})["other"], 3),
        ("other" in quantities.memory_parts({**NO_MEMORY, "weights": 3}), False),
        (quantities.memory_unit("v6e"), "chip"),
        (quantities.memory_unit("tpu7x"), "device"),
    ],
)
def test_units(made: object, expected: object) -> None:
    assert made == expected


@given(st.floats(1, 1e17))
def test_a_scaled_number_is_the_number_to_three_digits(value: float) -> None:
    scales = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
    shown, unit = quantities.traffic(value).split(" ")
    read = float(shown.replace(",", "")) * scales[unit.removesuffix("B")]
    assert read == pytest.approx(value, rel=0.006) or abs(read - value) <= 0.5


def test_one_sentence_is_said_once_and_one_device_is_one(results, splits) -> None:
    text = shown(render_results(results, splits), 120)
    assert text.count("a tensor's value decides") == 1
    assert text.index("Mesh splits") < text.index("fits: 10.12")
    assert quantities.mesh_name({"dp": 1, "sp": 1, "tp": 1}, 1) == "one device"
    assert quantities.mesh_name({"dp": 2, "sp": 1, "tp": 4}, 8) == "dp=2 tp=4 over 8 devices"
    assert quantities.compiled_inputs({"inputs": {"length": "8", "max_cache_len": "None"}}) == {"length": "8"}


def test_elementwise_products_are_explained() -> None:
    others = {"int8_flops": 0, "fp8_flops": 0, "pass_flops": 0}
    elementwise = {**others, "flops": 4.2e9, "model_flops": 1.9e9, "product_flops": 2e8}
    assert "twice" in quantities.operations(elementwise)
    products = {**others, "flops": 2.0e9, "model_flops": 1.9e9, "product_flops": 1.9e9}
    assert quantities.operations(products, per=" a device") == "2.00 GFLOP a device"


@pytest.mark.parametrize(
    ("field", "reason"),
    [("expanded_flops", "multiplied by all experts"), ("digit_flops", "multiplied digit by digit")],
)
def test_products_beyond_those_of_the_model_have_a_reason(field, reason) -> None:
    costs = {"model_flops": 1e9, "product_flops": 3e9, "expanded_flops": 0.0, "digit_flops": 0.0}
    text = quantities.model_operations({**costs, field: 2e9})
    assert text == f"1.00 GFLOP; the program's products are 3.00 times that, as few rows are {reason}"
