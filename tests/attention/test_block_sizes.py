"""Block sizes chosen for shapes, and the data files that they are chosen from."""

import json
import subprocess
import sys
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuport.attention import block_sizes as module
from tpuport.attention.block_sizes import Blocks, block_sizes, vmem_limit_bytes
from tpuport.attention.kernel_cost import KernelCall, cycles, vmem_bytes, vmem_limit
from tpuport.errors import PortError
from tpuport.hardware import GENERATIONS, assume_generation
from tpuport.libraries.attention_shapes import NAMED

ONE = {"heads": 8, "head_dim": 128, "value_dim": 128, "dtype": "bfloat16", "masked": False}


DATA = resources.files("tpuport.attention") / "data"
MEASURED = sorted(file.name.removesuffix(".json") for file in DATA.iterdir() if file.name.endswith(".json"))


def data(generation: str) -> dict:
    return json.loads((DATA / f"{generation}.json").read_text())


def test_the_common_generations_are_measured() -> None:
    assert {"v5e", "v5p", "v6e"} <= set(MEASURED) == {tpu.block_sizes for tpu in GENERATIONS.values()}


@settings(max_examples=60, deadline=None)
@given(
    queries=st.integers(1, 120_000), keys=st.integers(1, 120_000), head_dim=st.sampled_from([32, 64, 80, 128, 256]),
    dtype=st.sampled_from(["bfloat16", "float32", "float16"]), generation=st.sampled_from(list(GENERATIONS)),
    mask=st.sampled_from([{}, {"masked": True}, {"masked": True, "right": 0},
                          {"masked": True, "left": 4095, "right": 0}]),
)  # fmt: skip
def test_sizes_that_the_kernel_runs(queries, keys, head_dim, dtype, generation, mask) -> None:
    shape = {"queries": queries, "keys": keys, "head_dim": head_dim, "value_dim": head_dim, "dtype": dtype}
    sizes = block_sizes(**{**ONE, **shape, **mask}, generation=generation)
    assert all(size > 0 and size % 128 == 0 for size in sizes)
    assert sizes.key % sizes.compute == 0
    # No block is larger than the next size above its length.
    assert sizes.query < max(2 * queries, 256)
    assert sizes.key < keys + max(sizes.compute, 128)
    call = KernelCall(8, queries, keys, head_dim, head_dim, 4 if dtype == "float32" else 2)
    smallest = sizes.query * sizes.compute == 128 * 128
    assert smallest or vmem_bytes(call, sizes) <= vmem_limit(generation)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_short_sequence_gets_short_blocks(generation: str) -> None:
    sizes = block_sizes(**ONE, queries=300, keys=300, generation=generation)
    assert sizes.query <= 512
    assert sizes.key <= 512
    assert block_sizes(**ONE, queries=9, keys=77, generation=generation) == (128, 128, 128)


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("length", [4608, 32760, 75600, 111600])
def test_little_is_padded(length: int, generation: str) -> None:
    sizes = block_sizes(**ONE, queries=length, keys=length, generation=generation)
    padded = [-(-length // size) * size for size in (sizes.query, sizes.key)]
    assert padded[0] * padded[1] < 1.05 * length**2


def test_a_window_gets_smaller_blocks_of_keys_than_none() -> None:
    shape = {**ONE, "queries": 32768, "keys": 32768, "masked": True, "generation": "v6e"}
    assert block_sizes(**shape, left=511, right=0).key < block_sizes(**shape).key


def test_what_the_user_asks_for_is_taken() -> None:
    assert block_sizes(**ONE, queries=300, keys=300, blocks=(256, 1024, 512)) == Blocks(256, 1024, 512)


@pytest.mark.parametrize(
    "sizes", [(100, 1024, 512), (256, 1024, 384), (0, 128, 128), (128, 128, 256), (-128, 128, 128)]
)
def test_what_the_kernel_cannot_run_is_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(PortError, match="cannot run with these block sizes") as raised:
        block_sizes(**ONE, queries=300, keys=300, blocks=sizes)
    assert "multiples of 128" in str(raised.value)


def test_vector_memory_that_the_kernel_may_take() -> None:
    with assume_generation("v5e"):
        assert vmem_limit_bytes() == vmem_limit("v5e")
        assert vmem_limit_bytes(needed=30 << 20) == 64 << 20, "the rest is the program's"
        assert vmem_limit_bytes(needed=60 << 20) == vmem_limit("v5e")
    with assume_generation("v4"):
        assert vmem_limit_bytes() == 16 << 20


def test_blocks_of_keys_have_rounds_where_that_saves_copies() -> None:
    # 17 blocks of 6,656 keys pad less than 14 of 8,192, but have no rounds.
    assert block_sizes(**ONE, queries=112_856, keys=112_856, generation="v6e") == (1024, 8192, 512)


def test_generations_differ_where_the_choice_says_so() -> None:
    with assume_generation("v4"):
        inside = block_sizes(**ONE, queries=32768, keys=32768)
    assert inside == block_sizes(**ONE, queries=32768, keys=32768, generation="v4")


@pytest.mark.parametrize("name", ["v3", "V6E", ""])
def test_an_unknown_generation_is_refused(name: str) -> None:
    with pytest.raises(PortError, match="v5e"):
        block_sizes(**ONE, queries=1, keys=1, generation=name)


def test_few_sizes_are_tried_for_long_keys_and_the_choice_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Blocks] = []

    def cost(call: KernelCall, blocks: Blocks, *others: object) -> int | float:
        tried.append(blocks)
        return cycles(call, blocks, *others)

    monkeypatch.setattr(module, "cycles", cost)
    module._choose_measured.cache_clear()
    chosen = [
        block_sizes(**{**ONE, "masked": True}, queries=100_003, keys=100_003, right=0) for _ in range(3)
    ]
    # For each size of a step that was measured, at most the blocks of 8192 keys that chunks of 128 make.
    assert 0 < len(tried) == len(set(tried)) <= 64 * len({(sizes.query, sizes.compute) for sizes in tried})
    assert max(sizes.key for sizes in tried) == 8192
    assert len(set(chosen)) == 1
    tried.clear()
    block_sizes(**{**ONE, "masked": True}, queries=100_003, keys=1_000_003, right=0)
    assert max(sizes.key for sizes in tried) == 8192, "longer keys try no more"


def test_importing_it_imports_no_jax() -> None:
    # The package above it may import what it likes.
    code = (
        "import sys, types, importlib.util as u; p = types.ModuleType('tpuport.attention');"
        "import tpuport; p.__path__ = [tpuport.__path__[0] + '/attention']; sys.modules[p.__name__] = p;"
        "import tpuport.attention.block_sizes; assert not {'jax', 'numpy', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("generation", MEASURED)
def test_files_say_what_made_them(generation: str) -> None:
    file = data(generation)
    assert file["generation"] == generation
    assert file["command"].startswith(f"tpuport tune attention --topology {generation}")
    assert set(file["versions"]) == {"jax", "jaxlib", "libtpu"}
    assert file["date"] > "2026"
    assert {shape["shape"]["name"] for shape in file["shapes"]} == set(NAMED)
    assert all(f"--shape {name}" in file["command"] for name in NAMED)


@pytest.mark.parametrize("generation", MEASURED)
@pytest.mark.parametrize("name", NAMED)
def test_the_default_is_within_3_percent_of_the_best_found(name: str, generation: str) -> None:
    (searched,) = (one for one in data(generation)["shapes"] if one["shape"]["name"] == name)
    shape = NAMED[name]
    chosen = block_sizes(
        heads=shape.batch * shape.heads, queries=shape.queries, keys=shape.keys, head_dim=shape.head_dim,
        value_dim=shape.head_dim, dtype=searched["dtype"], masked=shape.causal, right=0 if shape.causal else None,
        generation=generation,
    )  # fmt: skip
    assert list(chosen) == searched["chosen"]["blocks"], "the file was made with other defaults"
    best = searched["candidates"][0]
    assert best["cycles"] == min(candidate["cycles"] for candidate in searched["candidates"])
    assert searched["chosen"]["cycles"] <= 1.03 * best["cycles"]
    assert searched["measured"] >= 30


@pytest.mark.slow
def test_the_compiler_still_schedules_what_the_file_says() -> None:
    from tpuport.attention.tuning.bundle_compiler import kernel_bundles
    from tpuport.attention.tuning.search import Task

    (searched,) = (one for one in data("v6e")["shapes"] if one["shape"]["name"] == "flux-4608")
    chosen = searched["chosen"]
    tail = 4608 % chosen["blocks"][1] != 0
    kind = Task(NAMED["flux-4608"], "bfloat16").kind
    arguments = kind | {"blocks": chosen["blocks"], "tail": tail, "generation": "v6e"}
    found = kernel_bundles("tpuport.attention.tuning.search:program", arguments, "v6e")
    assert found.kernels[0].bundles == pytest.approx(chosen["bundles"], rel=0.01)
