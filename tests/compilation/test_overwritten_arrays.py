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
