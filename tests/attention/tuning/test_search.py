"""Searching block sizes: what is compiled, ranked and kept. The compiler is a formula where it is not the real one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from tpuport.attention import block_sizes
from tpuport.attention.block_sizes import rank_blocks
from tpuport.attention.kernel_cost import Blocks, Row, cycles
from tpuport.attention.tuning import data_file
from tpuport.attention.tuning.bundle_cache import Measurements, cache_file, versions
from tpuport.attention.tuning.bundle_compiler import Compilation, Compiler, kernel_bundles
from tpuport.attention.tuning.bundle_schedule import KernelBundles
from tpuport.attention.tuning.search import Search, Task, search, search_all, search_to_json, steps_to_json
from tpuport.attention.tuning.search import program as search_program
from tpuport.compat.jaxprs import walk_equations
from tpuport.errors import PortError
from tpuport.hardware import GENERATIONS
from tpuport.libraries.attention_shapes import NAMED, Shape, parse_shape

LARGE = Shape("large", 1, 4, 4, 9000, 9000, 128)
FAST = (1024, 512)  # the formula's best sizes of queries and chunks


class Formula(Compiler):
    """A compiler whose schedules are a formula, and which fails where it is told to."""

    def __init__(self, fails: Callable[[Blocks], str | None] = lambda _: None) -> None:
        self.fails = fails
        self.asked: list[dict[str, Any]] = []

    def count(self, function: str, arguments: dict[str, Any]) -> Compilation:
        self.asked.append(arguments)
        blocks = Blocks(*arguments["blocks"])
        failure = self.fails(blocks)
        if failure is not None:
            return Compilation((), failure, failure == "died", 0.1)
        slow = 1 + (blocks.query != FAST[0]) / 10 + (blocks.compute != FAST[1]) / 10
        whole = int(200 + blocks.query * blocks.key / 500 * slow)
        parts = (50, whole, whole + 500, 70) if arguments["band"] != "none" else (50, 70)
        fixed = 100 if arguments["band"] != "none" else whole
        kernel = KernelBundles("tpuport_flash", fixed + sum(parts), parts, {"MXU": 0.5})
        return Compilation((kernel,), None, False, 0.1)


def searched(task: Task, file: Path, compiler: Formula | None = None) -> Search:
    return search(task, "v6e", Measurements(compiler or Formula(), file))


@pytest.mark.parametrize("causal", [False, True])
def test_the_fastest_comes_first(causal: bool, tmp_path: Path) -> None:
    task = Task(LARGE, "bfloat16", causal=causal)
    found = searched(task, tmp_path / "kept")
    assert (found.best.blocks.query, found.best.blocks.compute) == FAST
    assert [candidate.cycles for candidate in found.candidates] == sorted(
        candidate.cycles for candidate in found.candidates
    )
    assert found.failures == {}
    assert found.default in [candidate.blocks for candidate in found.candidates], (
        "today's choice is measured, too"
    )


def test_steps_are_those_of_the_kernel_s_grid(tmp_path: Path) -> None:
    found = searched(Task(LARGE, "bfloat16"), tmp_path / "kept")
    one = found.of(Blocks(1024, 4096, 512))
    assert one is not None
    assert one.steps == 4 * 9 * 3
    whole = 200 + int(1024 * 4096 / 500)
    assert one.bundles == whole + 120
    # All keys of a head fit into memory together, so that they are copied once.
    copied = (2 + 3 * 9) * 0.12e-6 * GENERATIONS["v6e"].clock
    assert one.cycles == pytest.approx(4 * (9 * 120 + 27 * whole + copied))


def test_padding_to_blocks_counts(tmp_path: Path) -> None:
    found = searched(Task(LARGE, "bfloat16"), tmp_path / "kept")
    # 9,000 keys are nearly 18 chunks of 512, in three blocks of six.
    assert found.best.blocks.key in {3072, 4608}


def test_a_tail_is_compiled_as_one(tmp_path: Path) -> None:
    compiler = Formula()
    searched(Task(LARGE, "bfloat16"), tmp_path / "kept", compiler)
    assert any(asked["tail"] for asked in compiler.asked)
    compiler = Formula()
    searched(Task(Shape("even", 1, 4, 4, 4096, 4096, 128), "bfloat16"), tmp_path / "even", compiler)
    assert not any(asked["tail"] for asked in compiler.asked if 4096 % asked["blocks"][1] == 0)


def test_what_does_not_compile_is_counted_by_reason(tmp_path: Path) -> None:
    def fails(blocks: Blocks) -> str | None:
        if blocks.query >= 1536:
            return "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 29.03M of 16.00M"
        return "Mosaic has no such layout" if blocks.compute == 128 else None

    found = searched(Task(LARGE, "bfloat16"), tmp_path / "kept", Formula(fails))
    assert set(found.failures) == {"does not fit into vector memory", "Mosaic has no such layout"}
    assert found.failures["does not fit into vector memory"] >= 8
    assert all(
        candidate.blocks.query < 1536 and candidate.blocks.compute != 128 for candidate in found.candidates
    )


def test_nothing_compiles(tmp_path: Path) -> None:
    with pytest.raises(PortError, match=r"none of .* block sizes compiles: no room"):
        searched(Task(LARGE, "bfloat16"), tmp_path / "kept", Formula(lambda _: "no room"))


def test_what_will_be_chosen_was_compiled_and_is_nearly_the_best(tmp_path: Path) -> None:
    found = searched(Task(LARGE, "bfloat16", causal=True), tmp_path / "kept")
    chosen = found.of(found.choice)
    assert chosen is not None
    assert chosen.cycles <= 1.02 * found.best.cycles


def test_tasks_know_what_the_others_measured(tmp_path: Path) -> None:
    tasks = [
        Task(LARGE, "bfloat16"),
        Task(NAMED["wan2.1-75600"], "bfloat16"),
        Task(LARGE, "bfloat16", causal=True),
    ]
    compiler = Formula()
    first, second, causal = search_all(tasks, "v6e", Measurements(compiler, tmp_path / "kept"))
    assert first.rows == second.rows
    assert first.rows != causal.rows
    asked = [json.dumps(one) for one in compiler.asked]
    assert len(asked) == len(set(asked)), "nothing is compiled twice"


def test_a_short_shape_takes_few_candidates(tmp_path: Path) -> None:
    compiler = Formula()
    searched(Task(Shape("short", 1, 1, 1, 100, 77, 64), "bfloat16"), tmp_path / "kept", compiler)
    assert len(compiler.asked) <= 12
    assert all(asked["blocks"][0] == 128 for asked in compiler.asked)


def test_a_search_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    def interrupt(_: Blocks) -> None:
        if len(first.asked) == 10:
            raise KeyboardInterrupt

    first = Formula(interrupt)
    task = Task(LARGE, "bfloat16")
    with pytest.raises(KeyboardInterrupt):
        searched(task, tmp_path / "kept", first)
    second = Formula()
    found = searched(task, tmp_path / "kept", second)
    whole = Formula()
    assert found == searched(task, tmp_path / "other", whole)
    assert len(second.asked) == len(whole.asked) - 9
    third = Formula()
    assert searched(task, tmp_path / "kept", third) == found
    assert third.asked == []


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "kept"
    task = Task(LARGE, "bfloat16")
    found = searched(task, file)
    file.write_text(file.read_text()[:-20])
    compiler = Formula()
    assert searched(task, file, compiler) == found
    assert len(compiler.asked) == 1
    again = Formula()
    searched(task, file, again)
    assert again.asked == []


def test_a_refusal_is_kept_and_a_crash_is_not(tmp_path: Path) -> None:
    def fails(blocks: Blocks) -> str | None:
        return {1536: "no room", 2048: "died"}.get(blocks.query)

    task = Task(LARGE, "bfloat16")
    searched(task, tmp_path / "kept", Formula(fails))
    compiler = Formula(fails)
    searched(task, tmp_path / "kept", compiler)
    assert {asked["blocks"][0] for asked in compiler.asked} == {2048}


def test_what_is_kept_is_for_one_kernel_and_one_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = cache_file("v6e:2x2")
    assert file.is_relative_to(tmp_path / "tpuport" / "tune")
    assert file != cache_file("v5e:2x2")
    assert file == cache_file("v6e:2x2")
    monkeypatch.setattr("tpuport.attention.tuning.bundle_cache.versions", lambda: {"jax": "9"})
    assert file != cache_file("v6e:2x2")


def test_the_lines_predict_what_lies_between(tmp_path: Path) -> None:
    found = searched(Task(LARGE, "bfloat16"), tmp_path / "kept")
    (row,) = (row for row in found.rows if (row.query, row.compute) == FAST)
    assert row.step(6).whole == pytest.approx(200 + 1024 * 3072 / 500, abs=2)
    (costed,) = (
        one for one in rank_blocks(Task(LARGE, "bfloat16").call, tuple(found.rows), "v6e")
        if one.blocks == (1024, 3072, 512)
    )  # fmt: skip
    assert costed.cycles == pytest.approx(
        cycles(Task(LARGE, "bfloat16").call, costed.blocks, row.step(6), "v6e")
    )


def test_a_data_file_is_read_as_it_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [
        Task(LARGE, "bfloat16"),
        Task(LARGE, "bfloat16", causal=True),
        Task(NAMED["flux-4608"], "bfloat16"),
    ]
    found = [searched(task, tmp_path / "kept") for task in tasks]
    data = json.loads(data_file.format_data(data_file.build_data(found, "v6e", "the command")))
    assert (data["generation"], data["command"], data["versions"]) == ("v6e", "the command", versions())
    assert [grid["has_band"] for grid in data["grids"]] == [False, True], "one of each kind"
    assert [Row.from_json(row) for row in data["grids"][1]["rows"]] == found[1].rows
    assert [one["shape"]["name"] for one in data["shapes"]] == ["large", "large", "flux-4608"]
    for cached in (block_sizes._measurements, block_sizes._parse_rows, block_sizes._choose_measured):
        monkeypatch.setattr(block_sizes, cached.__name__, cached.__wrapped__)
    monkeypatch.setattr(block_sizes, "_measurements", lambda _: data)
    for one in found[:2]:
        assert one.task.default("v6e") == one.choice


def test_results_as_data(tmp_path: Path) -> None:
    found = searched(Task(LARGE, "bfloat16", window=512), tmp_path / "kept")
    data = json.loads(json.dumps(search_to_json(found)))
    assert data["window"] == 512
    assert data["candidates"][0]["blocks"] == list(found.best.blocks)
    assert len(data["candidates"]) == 10
    assert data["measured"] == len(found.candidates)
    assert data["default"]["blocks"] == list(found.default)
    assert steps_to_json(found)["has_band"]


def test_tasks_say_what_is_masked() -> None:
    assert not Task(LARGE, "bfloat16").has_band
    causal, window = Task(LARGE, "bfloat16", causal=True), Task(LARGE, "bfloat16", window=100)
    assert (causal.left, causal.right) == (None, 0)
    assert (window.left, window.right) == (99, 0)
    segments = Task(LARGE, "float32", padding="segment_ids")
    assert segments.call.masked
    assert segments.call.itemsize == 4
    assert not Task(LARGE, "bfloat16", padding="exact").call.masked


@pytest.mark.parametrize("name", NAMED)
def test_named_shapes(name: str) -> None:
    shape = parse_shape(name)
    assert shape.name == name
    assert shape.head_dim == 128
    assert shape.causal == name.startswith("llama")


def test_numbers_are_a_shape() -> None:
    assert parse_shape("1, 32,8,8192,4096,64") == Shape("1, 32,8,8192,4096,64", 1, 32, 8, 8192, 4096, 64)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("flux", "neither a known name nor six numbers"), ("1,2,3", "six numbers"), ("", "six numbers"),
        ("1,8,8,a,8,8", "six numbers"), ("1,8,8,-5,8,8", "six numbers"), ("1,8,8,0,8,8", "at least 1"),
        ("1,8,3,8,8,8", "3 key/value heads do not divide 8"),
    ],
)  # fmt: skip
def test_a_text_that_is_not_a_shape(text: str, why: str) -> None:
    with pytest.raises(PortError, match=why) as raised:
        parse_shape(text)
    assert "flux-4608" in str(raised.value)


PROGRAM = "tpuport.attention.tuning.search:program"
KINDS = [
    {"band": "none", "padding": "none", "tail": False},
    {"band": "none", "padding": "exact", "tail": True},
    {"band": "none", "padding": "segment_ids", "tail": False},
    {"band": "causal", "padding": "none", "tail": False},
    {"band": "window", "padding": "none", "tail": True},
]


def test_a_step_that_is_measured_has_one_block_of_keys() -> None:
    """Where memory has room for several, a call would compute them in a loop, whose body the schedule has once."""
    kind = Task(LARGE, "bfloat16").kind
    function, arguments = search_program(**kind, blocks=[2048, 1024, 512], tail=False, generation="v6e")
    equations = [visit.equation for visit in walk_equations(jax.make_jaxpr(function)(*arguments))]
    (call,) = [equation for equation in equations if equation.primitive.name == "pallas_call"]
    assert call.params["grid_mapping"].grid == (2, 4, 4, 4)


@pytest.mark.slow  # test_bundle_compiler.py has the real compiler
def test_the_real_compiler_schedules_the_sections_that_costs_count() -> None:
    with Compiler("v5e", timeout=120.0) as compiler:
        for kind in KINDS:
            arguments = {
                "head_dim": 64,
                "dtype": "bfloat16",
                "blocks": [128, 256, 128],
                "generation": "v5e",
                **kind,
            }
            compilation = compiler.count(PROGRAM, arguments)
            assert compilation.failure is None
            (kernel,) = compilation.kernels
            assert kernel.name == "tpuport_flash"
            assert len(kernel.sections) == (2 if kind["band"] == "none" else 4), kind
            assert 0 < sum(kernel.sections) < kernel.bundles


@pytest.mark.slow
def test_a_step_is_the_same_at_any_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "long_program.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "from tpuport.attention.flash_kernel import flash_kernel\n"
        "def long(length):\n"
        "    q, k = (jax.ShapeDtypeStruct((2, heads, length, 128), jnp.bfloat16) for heads in (4, 2))\n"
        "    return (lambda q, k, v: flash_kernel(q, k, v, scale=0.1, blocks=(512, 1024, 512))), (q, k, k)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with Compiler("v5e", timeout=120.0) as compiler:
        sizes = {"blocks": [512, 1024, 512], "tail": False, "generation": "v5e"}
        ours = Task(LARGE, "bfloat16").kind | sizes
        (short,) = compiler.count(PROGRAM, ours).kernels
        for length in (8192, 32768):
            (long,) = compiler.count("long_program:long", {"length": length}).kernels
            assert long.bundles == pytest.approx(short.bundles, rel=0.01), length


@pytest.mark.slow  # the real compiler has counted the same program above
def test_one_program_in_one_call() -> None:
    arguments = {
        "head_dim": 64,
        "dtype": "bfloat16",
        "blocks": [128, 128, 128],
        "generation": "v6e",
        **KINDS[0],
    }
    assert kernel_bundles(PROGRAM, arguments, "v6e").kernels[0].bundles > 0
