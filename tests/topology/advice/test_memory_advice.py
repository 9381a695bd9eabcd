"""Rules about memory: tiles, caches, logits, and what is left."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
import torch

from tpuport.topology import Prefill
from tpuport.topology.advice import advise

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
MIB = 1 << 20


def test_volumes_that_fill_no_tiles(programs) -> None:
    mesh = programs(dp=4)

    def total(weights, volumes):
        return (volumes * volumes).sum()

    # The last two dimensions in tiles of 8 x 128: 72 x 128 for each 65 x 65.
    [finding] = advise(mesh.evidence(total, {}, mesh.array((3, 65, 65, 65, 65), dtype=jnp.float32)))
    assert finding.rule == "TPC008"
    assert "(argument volumes)" in finding.message
    assert finding.cost == 3 * 65**2 * (72 * 128 - 65**2) * 4
    assert mesh.found(total, {}, mesh.array((3 * 65**4,), dtype=jnp.float32)) == []


@pytest.mark.slow  # the volumes above, by the same rule
def test_images_that_fill_tiles_are_the_compilers_to_order(programs) -> None:
    """The compiler keeps images by channels for a convolution into patches: 256 MiB that no shape ends."""
    mesh = programs(dp=4)

    def patches(weights, images):
        return jax.lax.conv(images.astype(jnp.bfloat16), weights["patch.weight"], (16, 16), "VALID")

    weights = {"patch.weight": mesh.array((512, 3, 16, 16))}
    evidence = mesh.evidence(patches, weights, mesh.array((8, 3, 512, 512), dtype=jnp.float32))
    padded = [one for each in evidence.compiled.instructions if not each.is_fused for one in each.results]
    assert any(one.dims == (8, 3, 512, 512) and one.tiled_nbytes > 8 * one.nbytes for one in padded)
    assert [one.rule for one in advise(evidence) if one.rule == "TPC008"] == []


def decode(weights, cache, x):
    cache = jax.lax.dynamic_update_slice(cache, x, (0, 0, 7, 0))
    return cache, (cache * x).sum((2, 3)) @ weights["out.weight"]


@pytest.fixture(scope="module")
def cached(programs):
    mesh = programs(tp=4)
    cache = mesh.array((2, 8, 1024, 128), None, "tp")
    return (
        mesh,
        ({"out.weight": mesh.array((8, 1024), None, "tp")}, cache, mesh.array((2, 8, 1, 128), None, "tp")),
        cache,
    )


def test_a_cache_that_is_not_donated(cached) -> None:
    mesh, arguments, cache = cached
    [finding] = advise(mesh.evidence(decode, *arguments, cache=(cache,), task="decode"))
    assert finding.rule == "TPC009"
    assert "1 array of the cache, 1 MiB a device, is not donated" in finding.message
    assert finding.cost == 2 * 2 * 8 * 1024 * 128 * 2 / 4
    assert mesh.found(decode, *arguments, cache=(cache,), task="decode", donated=(1,)) == []


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_a_donated_cache_that_comes_back_in_another_dtype(cached) -> None:
    mesh, arguments, cache = cached

    def widening(weights, cache, x):
        cache, out = decode(weights, cache, x)
        return cache.astype(jnp.float32), out

    [finding] = advise(mesh.evidence(widening, *arguments, cache=(cache,), task="decode", donated=(1,)))
    assert finding.rule == "TPC009"
    assert "results take over only 0 bytes of its 1 MiB a device" in finding.message


class Scoring(torch.nn.Module):
    """Stands for a model whose head has a weight [V, E]."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(512, 8192, bias=False, device="meta")

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.head


def prompted(mesh):
    """The weights, the prompt and what else the evidence of a prefill has."""
    options = {"task": "prefill", "model": Scoring(), "inputs": {"batch": 1, "length": 1024}}
    return {"head.weight": mesh.array((8192, 512), "tp", None)}, mesh.array((1, 1024, 512)), options


def test_logits_of_a_whole_prompt(programs) -> None:
    mesh = programs(tp=4)
    weights, x, options = prompted(mesh)

    def every(weights, x):
        logits = x @ weights["head.weight"].T
        return logits[:, -1], jax.nn.softmax(logits).max(-1)

    [finding] = advise(mesh.evidence(every, weights, x, **options))
    assert finding.rule == "TPC012"
    assert "logits [1, 1024, 8192] bfloat16 for 1,024 positions, 4 MiB" in finding.message
    assert finding.cost == 1024 * 8192 * 2 / 4


@pytest.mark.slow  # the decode step of test_compiling.py has the logits of one position, and no advice
def test_logits_of_one_position_are_all_right(programs) -> None:
    mesh = programs(tp=4)
    weights, x, options = prompted(mesh)
    assert mesh.found(lambda weights, x: x[:, -1] @ weights["head.weight"].T, weights, x, **options) == []


@pytest.mark.slow  # the head of one position above, which is no finding either
def test_an_expert_of_the_vocabularys_width_is_no_head(programs) -> None:
    mesh = programs(tp=4)
    x = mesh.array((1, 1024, 512))
    options = {"task": "prefill", "model": Scoring(), "inputs": {"batch": 1, "length": 1024}}

    def as_wide(weights, x):
        return jax.nn.relu(x @ weights["up.weight"].T).max(1) @ weights["up.weight"]

    weights = {"up.weight": mesh.array((8192, 512), "tp", None)}
    assert mesh.found(as_wide, weights, x, **options) == []


@pytest.fixture(scope="module")
def plain(programs):
    mesh = programs(tp=4)
    weights = {"a.weight": mesh.array((1024, 1024), None, "tp")}
    return mesh.evidence(lambda weights, x: x @ weights["a.weight"], weights, mesh.array((8, 1024)))


@pytest.mark.parametrize(
    ("used", "expected"), [(0.94, []), (0.96, ["TPC016"]), (1.0, ["TPC016"]), (1.01, [])]
)
def test_little_headroom_is_below_five_percent(plain, used, expected) -> None:
    """The compiled program with other figures: one that fills a chip so exactly would take minutes."""
    memory = plain.report.memory
    changed = dataclasses.replace(memory, used=int(used * memory.capacity), temporaries=5 << 30)
    evidence = dataclasses.replace(plain, report=dataclasses.replace(plain.report, memory=changed))
    findings = advise(evidence)
    assert [one.rule for one in findings] == expected
    for one in findings:
        assert "of 31.2 GiB are used" in one.message
        assert "the largest part is temporaries, 5 GiB" in one.message


def test_a_program_that_does_not_fit_gets_no_headroom(plain) -> None:
    memory = dataclasses.replace(plain.report.memory, used=None)
    evidence = dataclasses.replace(
        plain, program=None, report=dataclasses.replace(plain.report, memory=memory)
    )
    assert advise(evidence) == ()


@pytest.mark.slow
def test_a_prefill_of_transformers_keeps_one_position(advice, llama) -> None:
    assert "TPC012" not in [finding.rule for finding in advice(llama, Prefill(batch=1, length=256))]
