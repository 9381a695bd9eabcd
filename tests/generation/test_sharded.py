"""Greedy decoding on meshes of virtual devices: the tokens of one device, and of transformers on the CPU."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax.sharding import Mesh
from transformers import StoppingCriteria

import tpuport
from tpuport.compilation.programs import compiled_program
from tpuport.generation import decoder
from tpuport.generation.decoding_loop import CHUNK

NEW = 24
slow = pytest.mark.slow


def mesh_of(sizes: dict[str, int]) -> Mesh:
    return tpuport.create_mesh(**sizes, devices=jax.devices()[: int(np.prod(list(sizes.values())))])


@pytest.fixture(scope="module")
def expected(make_pair: Callable) -> Callable[..., torch.Tensor]:
    """A function (family, ids, mask) to the tokens that transformers and one device give."""
    known: dict[str, torch.Tensor] = {}

    def tokens(family: str, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if family not in known:
            reference, ported = make_pair(family)
            options = {"max_new_tokens": NEW, "do_sample": False}
            known[family] = reference.generate(ids, attention_mask=mask, **options)
            assert torch.equal(tpuport.generate(ported, ids, mask, **options), known[family])
        return known[family]

    return tokens


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> list[decoder.State]:
    """What each call of a compiled program gave, in order."""
    seen: list[decoder.State] = []
    run = compiled_program._run

    def watched(*args: Any) -> Any:
        seen.append(run(*args))
        return seen[-1]

    monkeypatch.setattr(compiled_program, "_run", watched)
    return seen


def local(array: jax.Array) -> tuple[int, ...]:
    """What one device holds of an array."""
    return array.sharding.shard_shape(array.shape)


# The mesh, and what a device holds of the cache's 3 rows (filled up to a multiple of dp) and 2 key/value heads.
MESHES = [
    pytest.param("llama", {"tp": 2}, (3, 1), id="llama tp=2", marks=slow),
    pytest.param("llama", {"dp": 2, "tp": 2}, (2, 1), id="llama dp=2 tp=2"),
    pytest.param("llama", {"dp": 4}, (1, 2), id="llama dp=4", marks=slow),
    pytest.param("llama", {"tp": 8}, (3, 2), id="llama tp=8", marks=pytest.mark.slow),
    pytest.param("mixtral", {"dp": 2, "tp": 2}, (2, 1), id="mixtral dp=2 tp=2", marks=slow),
    pytest.param("mixtral", {"tp": 2}, (3, 1), id="mixtral tp=2", marks=slow),
    pytest.param("mixtral", {"dp": 4}, (1, 2), id="mixtral dp=4", marks=slow),
    pytest.param("mixtral", {"tp": 4}, (3, 2), id="mixtral tp=4", marks=slow),
]


@pytest.mark.parametrize(("family", "sizes", "held"), MESHES)
def test_the_tokens_of_one_device(
    family: str,
    sizes: dict[str, int],
    held: tuple[int, int],
    make_pair: Callable,
    prompts: tuple,
    expected: Callable,
    states: list[decoder.State],
) -> None:
    wanted = expected(family, *prompts)
    states.clear()
    _, ported = make_pair(family, mesh=mesh_of(sizes))
    tokens = tpuport.generate(ported, *prompts, max_new_tokens=NEW)
    assert torch.equal(tokens, wanted)
    assert len(states) == 3, (
        "the prompt, the loop without a step, which finds what cannot be traced, and the rest"
    )
    for state in states:
        for layer in state.cache.layers:
            for array in (layer.keys, layer.values):
                assert local(array) == (*held, *array.shape[2:])
        # What several processes read must be whole on every device.
        assert state.tokens.is_fully_replicated
        assert state.finished.is_fully_replicated
    states.clear()
    assert torch.equal(tpuport.generate(ported, *prompts, max_new_tokens=NEW), wanted)
    assert len(states) == 2, "the prompt and the rest"


class Never(StoppingCriteria):
    """Ends nothing, so that the loop runs in chunks."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.zeros(len(input_ids), dtype=torch.bool)


def test_one_compilation_serves_every_chunk(
    make_pair: Callable, prompts: tuple, expected: Callable, states: list[decoder.State]
) -> None:
    """A sharding that changes between the chunks would compile again, unseen by a count of traces."""
    compiled: list[str] = []
    original, ported = make_pair("llama", mesh=mesh_of({"dp": 2, "tp": 2}))
    options = {"max_new_tokens": 3 * CHUNK, "eos_token_id": []}
    count = functools.partial(_count, compiled)
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        tokens = tpuport.generate(ported, *prompts, stopping_criteria=[Never()], **options)
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert torch.equal(tokens, original.generate(prompts[0], attention_mask=prompts[1], **options))
    assert len(states) == 5, "the prompt, the loop without a step, and three chunks"
    # Random keys and the like are compiled for whichever test of a process needs them first.
    programs = [name for name in compiled if "ForCausalLM" in name]
    assert programs == ["jit(LlamaForCausalLM_prefill)", "jit(LlamaForCausalLM_decode)"]


def _count(compiled: list[str], event: str, seconds: float, **kwargs: Any) -> None:
    if event.endswith("backend_compile_duration"):
        compiled.append(kwargs["fun_name"])
