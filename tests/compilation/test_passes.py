"""Each pass leaves the results of a captured program as they were."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tpuport
from tpuport.compilation import layers
from tpuport.compilation.programs import passes
from tpuport.compilation.programs.capture import capture
from tpuport.compilation.programs.passes import Draft, Overwritable
from tpuport.compilation.programs.program_inputs import ProgramInputs


def draft_of(function: Callable[..., Any], arrays: Sequence[Any], **options: Any) -> Draft:
    captured = capture(function, arrays, "f", checks_indices=False)
    inputs = ProgramInputs.of([], arrays, [])
    return Draft(captured, Overwritable(inputs, arrays, first_of_state=len(arrays), **options))


def test_the_order_is_what_the_page_says() -> None:
    assert [each.__name__ for each in passes.PASSES] == [
        "loop_equal_blocks", "donate_overwritten",
    ]  # fmt: skip
    for each in passes.PASSES:
        assert f"`{each.__name__}`" in (passes.__doc__ or "")


def test_a_tensor_that_the_user_gives_is_donated_to_a_result_of_its_form() -> None:
    arrays = [jnp.zeros((2, 3)), jnp.zeros(4)]
    draft = draft_of(lambda x, y: (x + 1, y.sum()), arrays, given=(0, 1))
    donated = passes.donate_overwritten(draft)
    assert donated.donated == (0,)  # no result has the form of the other
    known = passes.donate_overwritten(draft._replace(overwritable=None, donated=(1,)))
    assert known.donated == (1,)


@pytest.mark.parametrize("blocks", [2, 5])
def test_stacked_blocks_become_a_loop(blocks: int) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=blocks, num_attention_heads=2,
        num_key_value_heads=1,
    )  # fmt: skip
    host = LlamaForCausalLM(config).eval()
    ids = torch.arange(6)[None]
    with torch.no_grad():
        expected = host(ids).logits
    model = tpuport.port(host)
    compiled = tpuport.compile(model, scan_layers=True)
    program, arrays = compiled.program_of(ids, use_cache=False)
    assert [scanned.count for scanned in compiled.scanned] == [blocks]
    primitives = [equation.primitive.name for equation in program.captured.program.jaxpr.eqns]
    assert primitives.count("scan") == 1
    logits = program(arrays)[0]
    np.testing.assert_allclose(np.asarray(logits), expected.numpy(), atol=1e-5)
    layers.unstack_layers(model)


def runs_of(function: Callable, *args: Any, **kwargs: Any) -> int:
    """How often compiled code ran in Python, by a count that compiled code cannot put back."""
    from itertools import count

    runs = count()

    def counted(*args: Any, **kwargs: Any) -> Any:
        next(runs)
        return function(*args, **kwargs)

    compiled = tpuport.compile(counted)
    for _ in range(3):
        compiled(*args, **kwargs)
    return next(runs)


class Cache:
    def __init__(self) -> None:
        self.k, self.position = torch.zeros(4, 2).to("jax"), torch.zeros((), dtype=torch.int64).to("jax")


def update(cache: Cache, x: torch.Tensor) -> torch.Tensor:
    cache.k = torch.where(torch.arange(4, device=x.device)[:, None] == cache.position, x, cache.k)
    cache.position = cache.position + 1
    return cache.k.sum()


def test_the_code_runs_once_for_a_program() -> None:
    x = torch.ones(2).to("jax")
    generator = torch.Generator()
    assert runs_of(lambda x: x + 1, x) == 1
    assert runs_of(lambda x: torch.nn.functional.dropout(x) + torch.rand_like(x), x) == 1
    assert runs_of(lambda x, g: x + torch.rand(2, generator=g, device="jax"), x, generator) == 1
    assert runs_of(lambda x: x.add_(1), x) == 1
    assert runs_of(update, Cache(), x) == 1
    batch_norm = tpuport.port(torch.nn.BatchNorm1d(2).train())
    assert runs_of(lambda x: batch_norm(x), torch.ones(3, 2).to("jax")) == 1
