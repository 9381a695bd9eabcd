"""Compiled programs that check their indices raise what torch raises on the CPU, with the line of the code."""

import jax
import pytest
import torch
import transformers
from jax.sharding import NamedSharding, PartitionSpec
from torch.nn import functional

import tpuport
from tests.compat.operators.test_index_bounds import ALONG, VALUES, X
from tpuport import compat
from tpuport.compat.operators import index_bounds


@pytest.fixture(autouse=True)
def enabled() -> None:
    tpuport.enable()


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize(
    "name",
    # tests/compat/operators/test_index_bounds.py has each of them.
    [pytest.param(name, marks=[pytest.mark.slow] if number % 3 else []) for number, name in enumerate(ALONG)],
)
def test_every_operator_raises_torchs_error(name: str) -> None:
    function = ALONG[name]
    step = tpuport.compile(lambda x, i, v: function(x, i, v), check_indices=True)
    for index in (2, 3, -3, -4):
        host = torch.tensor([index])
        try:
            expected = function(X, host, VALUES)
        except (IndexError, RuntimeError) as error:
            # torch also says where in the index it is, and counts dimensions among those with index tensors.
            text = str(error).splitlines()[0].removeprefix("Index 0 of ").split(" for dimension")[0]
            with pytest.raises(type(error)) as caught:
                step(X, host, VALUES)
            message, _, line = str(caught.value).partition("\n  where: ")
            assert message.startswith(text)
            assert "test_index_bounds.py, line" in line
        else:
            got = step(X, host, VALUES)
            torch.testing.assert_close(tpuport.to_cpu(got), expected, check_dtype=False)
    assert step.program.compilations == 1


def test_targets_that_do_not_count_may_be_outside() -> None:
    step = tpuport.compile(functional_loss, check_indices=True)
    scores = torch.randn(3, 4)
    torch.testing.assert_close(
        tpuport.to_cpu(step(scores, torch.tensor([0, -100, 3]))),
        functional_loss(scores, torch.tensor([0, -100, 3])),
    )
    with pytest.raises(IndexError, match=r"Target 4 is out of bounds"):
        step(scores, torch.tensor([0, -100, 4]))


def functional_loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores, targets)


def table_of(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x[index] + x.index_select(0, index)


def test_programs_without_the_option_are_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    index = torch.tensor([0, 2])
    plain = tpuport.compile(table_of).lower(X, index).as_text()
    assert tpuport.compile(table_of, check_indices=True).lower(X, index).as_text() != plain
    monkeypatch.setattr(index_bounds, "check_range", lambda *args, **options: None)
    assert tpuport.compile(table_of).lower(X, index).as_text() == plain


def test_the_environment_asks_for_checks_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    index = torch.tensor([0, 3])
    tpuport.compile(table_of)(X, index)
    monkeypatch.setenv("TPUPORT_CHECK_INDICES", "1")
    with pytest.raises(IndexError, match="index 3 is out of bounds for dimension 0 with size 3"):
        tpuport.compile(table_of)(X, index)
    tpuport.compile(table_of, check_indices=False)(X, index)


KNOWN = {
    "a tensor of the host": lambda x, index: x[torch.tensor([index])],
    "a list": lambda x, index: x[[index]],
    "a number": lambda x, index: x[index],
    "a selection": lambda x, index: x.select(0, index),
    "a constant": lambda x, index: x.index_select(0, torch.full((1,), index)),
}


@pytest.mark.parametrize("index", [3, pytest.param(-4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    # A list becomes a tensor of the host, and a selection is what a number asks for.
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in ("a list", "a selection") else [])
        for name in KNOWN
    ],
)
def test_an_index_that_is_known_always_raises(name: str, index: int) -> None:
    with pytest.raises(IndexError):
        tpuport.compile(lambda x: KNOWN[name](x, index))(X)


class Cache:
    def __init__(self) -> None:
        self.k = torch.zeros(4, 2, device="jax")


def test_after_an_error_the_callers_objects_are_as_before() -> None:
    def write(cache: Cache, position: torch.Tensor) -> torch.Tensor:
        cache.k.index_copy_(0, position, torch.ones(1, 2, device="jax"))
        return cache.k.sum()

    step, cache = tpuport.compile(write, check_indices=True), Cache()
    assert float(step(cache, torch.tensor([3]))) == 2
    with pytest.raises(IndexError, match="index 4 is out of bounds"):
        step(cache, torch.tensor([4]))
    assert float(cache.k.sum()) == 2
    assert float(step(cache, torch.tensor([0]))) == 4


SIZES = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0, "eos_token_id": None,
}  # fmt: skip


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()


class Layer(torch.nn.Module):
    """Adds the rows of a table that an index names, so that the check is inside of the loop over layers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(4, 8))

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + self.table.index_select(0, index))


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, index)
        return x


def test_in_a_loop_over_layers() -> None:
    torch.manual_seed(0)
    host = Layers().eval()
    x, index = torch.randn(2, 8), torch.tensor([0, 3])
    with torch.no_grad():
        expected = host(x, index)
    step = tpuport.compile(tpuport.port(host), scan_layers=True, check_indices=True)
    torch.testing.assert_close(tpuport.to_cpu(step(x, index)), expected, atol=1e-6, rtol=0)
    assert step.scanned, step.declined
    with pytest.raises(IndexError, match=r"(?s)index out of range in self.*test_checked_indices.py, line"):
        step(x, index + 1)


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_in_a_model_on_a_mesh_and_in_generation(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUPORT_CHECK_INDICES", "1")
    mesh = tpuport.create_mesh(dp=2, tp=2, devices=jax.devices()[:4]) if devices == 4 else None
    ids = torch.randint(1, 32, (4, 6), generator=torch.Generator().manual_seed(0))
    host = model()
    with torch.no_grad():
        expected = host(input_ids=ids, use_cache=False).logits
        tokens = host.generate(ids, max_new_tokens=3, do_sample=False)  # type: ignore[operator]
    ported = tpuport.port(host, mesh=mesh)
    step = tpuport.compile(lambda ids: ported(input_ids=ids, use_cache=False).logits)
    if mesh is not None:
        array = jax.device_put(compat.to_jax(ids), NamedSharding(mesh, PartitionSpec("dp")))
        torch.testing.assert_close(tpuport.to_cpu(step(compat.wrap(array))), expected, atol=1e-5, rtol=0)
    with pytest.raises(IndexError, match="index out of range in self"):
        step(ids + 31)
    torch.testing.assert_close(tpuport.to_cpu(step(ids)), expected, atol=1e-5, rtol=0)
    got = tpuport.generate(ported, input_ids=ids, max_new_tokens=3, do_sample=False)
    torch.testing.assert_close(tpuport.to_cpu(got), tokens, check_dtype=False)
