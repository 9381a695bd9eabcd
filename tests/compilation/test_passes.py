"""Each pass leaves the results of a captured program as they were."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.extend.core import jaxpr_as_fun
from transformers import LlamaConfig, LlamaForCausalLM

import tpuport
from tpuport import compat
from tpuport.compilation import layers
from tpuport.compilation.programs import passes
from tpuport.compilation.programs.capture import Captured, capture
from tpuport.compilation.programs.passes import Draft, Overwritable
from tpuport.compilation.programs.program_inputs import ProgramInputs


def draft_of(function: Callable[[list[Any]], Any], arrays: Sequence[Any], **options: Any) -> Draft:
    captured = capture(function, arrays, "f", checks_indices=False)
    inputs = ProgramInputs.of([], arrays, [])
    return Draft(captured, Overwritable(inputs, arrays, first_of_state=len(arrays), **options))


def run(captured: Captured, arrays: Sequence[Any], keys: Sequence[Any] = ()) -> list[np.ndarray]:
    return [np.asarray(result) for result in jaxpr_as_fun(captured.program)(*arrays, *keys)]


def draw(x: jax.Array) -> Any:
    with compat.environment():
        return compat.as_jax(torch.rand_like(compat.wrap(x))) + x


def test_the_order_is_what_the_page_says() -> None:
    assert [each.__name__ for each in passes.PASSES] == [
        "loop_equal_blocks", "drop_unused_inputs", "donate_overwritten",
    ]  # fmt: skip
    for each in passes.PASSES:
        assert f"`{each.__name__}`" in (passes.__doc__ or "")


def test_unused_keys_and_dead_code_go() -> None:
    def function(arrays: list[Any]) -> Any:
        x, _ = arrays
        draw(x)
        return jnp.sin(x) * 2

    arrays = [jnp.arange(3.0), jnp.ones(2)]
    draft = draft_of(function, arrays)
    assert draft.captured.key_inputs == (0,)
    dropped = passes.drop_unused_inputs(draft)
    assert dropped.captured.key_inputs == ()
    # The generator moves on as in torch, though the number is for nothing.
    assert dropped.captured.draws == ((None, 1),)
    assert len(dropped.captured.program.in_avals) == 2
    [expected] = run(draft.captured, arrays, [np.zeros((64, 2), np.uint32)])
    [actual] = run(dropped.captured, arrays)
    np.testing.assert_array_equal(actual, expected)


def test_used_keys_stay() -> None:
    draft = draft_of(lambda arrays: draw(arrays[0]), [jnp.zeros(3)])
    dropped = passes.drop_unused_inputs(draft)
    assert dropped.captured.key_inputs == (0,)
    keys = [np.arange(128, dtype=np.uint32).reshape(64, 2)]
    np.testing.assert_array_equal(
        run(dropped.captured, [jnp.zeros(3)], keys)[0], run(draft.captured, [jnp.zeros(3)], keys)[0]
    )


def test_a_tensor_that_the_user_gives_is_donated_to_a_result_of_its_form() -> None:
    arrays = [jnp.zeros((2, 3)), jnp.zeros(4)]
    draft = draft_of(lambda arrays: (arrays[0] + 1, arrays[1].sum()), arrays, given=(0, 1))
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
