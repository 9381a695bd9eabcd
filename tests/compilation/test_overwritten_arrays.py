"""What a compiled function overwrites is written in place: caches that are arguments, buffers, tensors of its state."""

from typing import Any

import jax
import pytest
import torch
from jax.sharding import NamedSharding, PartitionSpec

import tpuport
from tpuport import compat
from tpuport.errors import PortError

SHAPE = (2, 16, 8)
BYTES = 4 * 2 * 16 * 8


class Cache:
    def __init__(self) -> None:
        self.k = torch.zeros(SHAPE, device="jax")
        self.position = torch.zeros((), dtype=torch.int32, device="jax")


def append(new: torch.Tensor, cache: Cache) -> torch.Tensor:
    cache.k.index_copy_(1, cache.position + torch.arange(1, device=new.device), new)
    cache.position += 1
    return cache.k.sum()


class Remembers(torch.nn.Module):
    """Has its cache in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(SHAPE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.k.index_copy_(1, torch.zeros(1, dtype=torch.int64, device=x.device), x)
        return self.k.sum()


NEW = torch.ones(2, 1, 8)


@pytest.fixture(autouse=True)
def enabled() -> None:
    tpuport.enable()


def pointer(tensor: Any) -> int:
    return compat.as_jax(tensor).unsafe_buffer_pointer()


def aliased_bytes(function: Any, *arguments: Any) -> int:
    memory: Any = function.lower(*arguments).compile().memory_analysis()
    return memory.alias_size_in_bytes


def test_a_cache_stays_in_its_memory_from_the_first_call_on() -> None:
    step, cache = tpuport.compile(append), Cache()
    before = pointer(cache.k)
    sums = [float(step(NEW, cache)) for _ in range(3)]
    assert sums == [16, 32, 48]
    assert int(cache.position) == 3
    assert pointer(cache.k) == before
    assert step.program.compilations == 1
    # The keys, and the position of four bytes.
    assert aliased_bytes(step, NEW, cache) == BYTES + 4


def test_a_buffer_stays_in_its_memory() -> None:
    model = tpuport.port(Remembers())
    step = tpuport.compile(model)
    before = pointer(model.k)
    assert float(step(NEW)) == float(step(NEW)) == 16
    assert pointer(model.k) == before
    assert aliased_bytes(step, NEW) == BYTES


def test_a_tensor_of_the_state_stays_in_its_memory() -> None:
    cache = Cache()
    step = tpuport.compile(lambda new: append(new, cache))
    before = pointer(cache.k)
    assert [float(step(NEW)), float(step(NEW))] == [16, 32]
    assert pointer(cache.k) == before
    assert aliased_bytes(step, NEW) == BYTES + 4


def share_array(cache: Cache) -> Any:
    return compat.as_jax(cache.k)


def share_clone(cache: Cache) -> Any:
    # torchax gives the clone the same array, as arrays cannot be written to.
    return cache.k.clone()


def share_view(cache: Cache) -> Any:
    return cache.k.detach()


@pytest.mark.parametrize(("share", "after"), [(share_array, 0), (share_clone, 0), (share_view, 16)])
def test_who_else_has_the_array_sees_what_torch_shows(share: Any, after: int) -> None:
    step, cache = tpuport.compile(append), Cache()
    other = share(cache)
    step(NEW, cache)
    assert float(other.sum()) == after
    assert float(cache.k.sum()) == 16
    del other
    step(NEW, cache)
    # The same program, which copies nothing once there is no other.
    assert step.program.compilations == 1


def test_two_tensors_that_share_an_array_are_two_afterwards() -> None:
    def write(one: Cache, other: Cache) -> None:
        one.k += 1
        other.k += 2

    one, other = Cache(), Cache()
    other.k = one.k.clone()
    tpuport.compile(write)(one, other)
    assert (float(one.k[0, 0, 0]), float(other.k[0, 0, 0])) == (1, 2)


def test_a_write_that_is_refused_leaves_the_tensors() -> None:
    cache, other = Cache(), Cache()
    other.k = cache.k[:, :3]

    def write(one: Cache, two: Cache) -> torch.Tensor:
        one.k += 1
        return two.k.sum()

    with pytest.raises(PortError, match="shares memory"):
        tpuport.compile(write)(cache, other)
    assert float(cache.k.sum()) == float(other.k.sum()) == 0


def test_a_function_that_draws_and_overwrites_is_compiled_once() -> None:
    def noisy(cache: Cache) -> torch.Tensor:
        cache.k += torch.rand_like(cache.k)
        return cache.k.sum()

    step, cache = tpuport.compile(noisy), Cache()
    first = float(step(cache))
    second = float(step(cache)) - first
    assert first != second
    assert step.program.compilations == 1


def test_a_cache_on_several_devices_stays_in_their_memory() -> None:
    mesh = tpuport.create_mesh(dp=2, devices=jax.devices()[:2])
    cache = Cache()
    for name, spec in (("k", PartitionSpec("dp")), ("position", PartitionSpec())):
        array = jax.device_put(compat.as_jax(getattr(cache, name)), NamedSharding(mesh, spec))
        setattr(cache, name, compat.wrap(array))
    pointers = [shard.data.unsafe_buffer_pointer() for shard in compat.as_jax(cache.k).addressable_shards]
    step = tpuport.compile(append)
    assert [float(step(NEW, cache)) for _ in range(2)] == [16, 32]
    after = [shard.data.unsafe_buffer_pointer() for shard in compat.as_jax(cache.k).addressable_shards]
    assert after == pointers


def append_by_where(new: torch.Tensor, cache: Cache) -> torch.Tensor:
    columns = torch.arange(16, device=new.device)[None, :, None]
    cache.k = torch.where(columns == cache.position, new, cache.k)
    cache.position = cache.position + 1
    return cache.k.sum()


def append_by_cat(new: torch.Tensor, cache: Cache) -> torch.Tensor:
    cache.k = torch.cat([cache.k[:, 1:], new], dim=1)
    cache.position = cache.position + 1
    return cache.k.sum()


def append_by_copy(new: torch.Tensor, cache: Cache) -> torch.Tensor:
    cache.k = cache.k.index_copy(1, cache.position + torch.arange(1, device=new.device), new)
    cache.position = cache.position + 1
    return cache.k.sum()


@pytest.mark.parametrize("in_state", [False, True])
@pytest.mark.parametrize("append", [append_by_where, append_by_cat, append_by_copy])
def test_a_cache_whose_tensors_are_replaced_stays_in_its_memory(append: Any, in_state: bool) -> None:
    cache = Cache()
    step = tpuport.compile(append)
    arguments: tuple[Any, ...] = (NEW, cache)
    if in_state:
        step, arguments = tpuport.compile(lambda new: append(new, cache)), (NEW,)
    # The first call, in which jax compiles, may have to copy.
    sums = [float(step(*arguments))]
    before = pointer(cache.k), pointer(cache.position)
    sums += [float(step(*arguments)) for _ in range(3)]
    assert sums == [16, 32, 48, 64]
    assert int(cache.position) == 4
    assert step.program.compilations == 1
    assert aliased_bytes(step, *arguments) == BYTES + 4
    if append is not append_by_cat:
        assert (pointer(cache.k), pointer(cache.position)) == before


class Layered:
    """Keys and values of several layers in lists, as caches often have them, all of one form."""

    def __init__(self) -> None:
        self.k = [torch.zeros(SHAPE, device="jax") for _ in range(2)]
        self.v = {layer: torch.zeros(SHAPE, device="jax") for layer in range(2)}


def test_each_of_several_tensors_of_one_form_gets_its_own_memory() -> None:
    def update(cache: Layered) -> torch.Tensor:
        columns = torch.arange(16, device="jax")[None, :, None]
        for layer in range(2):
            cache.v[layer] = torch.where(columns == layer, 1.0 + layer, cache.v[layer])
            cache.k[layer] = torch.where(columns == layer, 3.0 + layer, cache.k[layer])
        return torch.zeros(SHAPE, device="jax")  # of the same form, too

    step, cache = tpuport.compile(update), Layered()
    step(cache)
    pointers = [pointer(tensor) for tensor in (*cache.k, *cache.v.values())]
    step(cache)
    assert [pointer(tensor) for tensor in (*cache.k, *cache.v.values())] == pointers
    assert [float(tensor.max()) for tensor in (*cache.k, *cache.v.values())] == [3, 4, 1, 2]
    assert aliased_bytes(step, cache) == 4 * BYTES
    assert "copy(" not in step.lower(cache).compile().as_text()


def keep_tensor(cache: Cache) -> torch.Tensor:
    return cache.k


def keep_view(cache: Cache) -> torch.Tensor:
    return cache.k.view(2, -1)


def keep_in_tuple(cache: Cache) -> Any:
    return (cache.k,)[0]


def keep_in_object(cache: Cache) -> torch.Tensor:
    cache.former = cache.k  # type: ignore[attr-defined]
    return cache.k


@pytest.mark.parametrize("in_state", [False, True])
@pytest.mark.parametrize(
    "keep", [keep_tensor, keep_view, share_clone, share_view, keep_in_tuple, keep_in_object]
)
def test_who_has_a_tensor_that_is_replaced_keeps_what_it_had(keep: Any, in_state: bool) -> None:
    cache = Cache()
    step = tpuport.compile(append_by_where)
    arguments: tuple[Any, ...] = (NEW, cache)
    if in_state:
        step, arguments = tpuport.compile(lambda new: append_by_where(new, cache)), (NEW,)
    step(*arguments)
    former = keep(cache)
    step(*arguments)
    assert float(former.sum()) == 16
    assert float(cache.k.sum()) == 32
    assert not hasattr(cache, "former") or float(cache.former.sum()) == 16
    del former
    step(*arguments)
    assert float(cache.k.sum()) == 48


def test_a_tensor_of_two_objects_that_one_replaces_stays_in_the_other() -> None:
    one, other = Cache(), Cache()
    other.k = one.k

    def replace(one: Cache, other: Cache) -> torch.Tensor:
        one.k = one.k + 1
        return other.k.sum()

    step = tpuport.compile(replace)
    assert float(step(one, other)) == float(step(one, other)) == 0
    assert (float(one.k.mean()), float(other.k.mean())) == (2, 0)


def test_a_tensor_of_the_host_that_is_replaced_keeps_what_it_had() -> None:
    cache = Cache()
    cache.k = host = torch.zeros(SHAPE)
    step = tpuport.compile(append_by_where)
    step(NEW, cache)
    assert float(host.sum()) == 0
    assert float(step(NEW, cache)) == 32


def functional(new: torch.Tensor, past: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    return [(k.index_fill(1, torch.tensor([0], device="jax"), 1), v + new) for k, v in past]


def past_of(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.zeros(SHAPE, device="jax"), torch.zeros(SHAPE, device="jax")) for _ in range(count)]


def test_a_donated_argument_gives_its_memory_to_the_result() -> None:
    step, past = tpuport.compile(functional, donate="past"), past_of(2)
    pointers = [pointer(tensor) for pair in past for tensor in pair]
    for _ in range(3):
        past = step(NEW, past)
    assert [pointer(tensor) for pair in past for tensor in pair] == pointers
    assert [float(tensor.sum()) for pair in past for tensor in pair] == [16, 3 * 256] * 2
    assert step.program.compilations == 1
    assert aliased_bytes(step, NEW, past) == 4 * BYTES
    # Without it nothing is: the caller has the tensors.
    plain = tpuport.compile(functional)
    assert aliased_bytes(plain, NEW, past) == 0


@pytest.mark.parametrize(
    "use",
    [
        lambda tensor: tensor + 1, lambda tensor: torch.cat([tensor, tensor]), lambda tensor: tensor.cpu(), print,
        lambda tensor: tensor[0, 0, 0].item(), lambda tensor: tensor.tolist(), lambda tensor: tensor.clone(),
        lambda tensor: tensor.add_(1), lambda tensor: tensor.numpy(), tpuport.to_cpu,
        lambda tensor: tpuport.compile(append)(tensor, Cache()), lambda tensor: bool((tensor == 0).all()),
    ],
)  # fmt: skip
def test_a_donated_tensor_that_is_used_says_so(use: Any) -> None:
    past = past_of(1)
    ((k, _),) = past
    other = past[0][1].clone()
    tpuport.compile(functional, donate=["past.0"])(NEW, past)
    assert k.shape == SHAPE
    with pytest.raises(PortError, match="was donated to an earlier call of functional") as caught:
        use(k)
    assert caught.value.where == "past.0.0"
    # It shared an array with a tensor that was donated, and is another.
    assert float(other.sum()) == 0


def test_only_what_is_named_is_donated_and_only_what_a_result_can_take() -> None:
    def step(x: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        return state["a"] + state["b"] + x.sum()

    state = {name: torch.ones(SHAPE, device="jax") for name in "ab"}
    x = torch.ones(3, device="jax")
    assert float(tpuport.compile(step, donate=["x", "state.b"])(x, state).mean()) == 5
    assert float(x.sum()) == 3
    assert float(state["a"].mean()) == 1
    with pytest.raises(PortError, match="donated"):
        state["b"].sum()
    with pytest.raises(PortError, match="no argument of this call is called past"):
        tpuport.compile(step, donate="past")(x, {name: torch.ones(2) for name in "ab"})
