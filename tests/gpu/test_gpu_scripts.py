"""The GPU shim around scripts: "cuda" as the TPU, and torch.distributed over one device."""

import pytest
import safetensors.torch
import torch

import tpuport
from tpuport import PortError, compat

X = torch.arange(6.0).reshape(2, 3)


@pytest.fixture
def device():
    with tpuport.gpu_shim(device="jax") as shim:
        yield shim
    torch.set_default_device(None)
    # torch 2.9 fails at a device that is None.
    vars(torch._GLOBAL_DEVICE_CONTEXT).clear()


USES = {
    "cuda": lambda: X.cuda() * 2,
    "to": lambda: X.to("cuda:0", non_blocking=True) * 2,
    "number": lambda: X.to(torch.cuda.current_device()) * 2,
    "pinned": lambda: X.pin_memory().cuda(non_blocking=True) * 2,
    "factory": lambda: torch.arange(6.0, device="cuda").view(2, 3) * 2,
    "tensor": lambda: torch.tensor(X.tolist(), device=torch.device("cuda")) * 2,
    "mixed": lambda: X.cuda() + torch.tensor(X.tolist(), device="cuda"),
}


@pytest.mark.parametrize("use", USES)
def test_cuda_means_the_tpu(device, use):
    assert torch.cuda.is_available()
    result = USES[use]()
    assert compat.is_ported(result)
    assert torch.equal(result.cpu(), X * 2)
    assert device.calls


@pytest.mark.parametrize("named", ["cuda", "cuda:0", 0])
@pytest.mark.parametrize("place", ["jax", "cpu"])
def test_safetensors_are_loaded_where_cuda_is(place, named, tmp_path):
    path = tmp_path / "model.safetensors"
    expected = {"x": X, "half": X.bfloat16(), "ids": torch.tensor([3, -1])}
    safetensors.torch.save_file(expected, path)
    tpuport.enable()
    try:
        with tpuport.gpu_shim(device=place):
            loaded = safetensors.torch.load_file(path, device=named)
        with pytest.raises(PortError, match="no GPU here"):
            safetensors.torch.load_file(path, device=named)
        on_host = {name: tensor.cpu() for name, tensor in loaded.items()}
    finally:
        tpuport.disable()
    assert on_host.keys() == expected.keys()
    for name, tensor in loaded.items():
        assert compat.is_ported(tensor) == (place == "jax")
        # Integers of 64 bits have 32 on the device.
        is_exact = name != "ids"
        torch.testing.assert_close(on_host[name], expected[name], check_dtype=is_exact, rtol=0, atol=0)


def test_a_model_moves_as_a_whole(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()).eval()
    expected = model(X)
    model = model.cuda()
    assert all(map(compat.is_ported, model.parameters()))
    with torch.no_grad(), torch.autocast("cuda", enabled=False):
        torch.testing.assert_close(model(X.cuda()).cpu(), expected)
    torch.testing.assert_close(tpuport.to_cpu(tpuport.compile(model)(X)), expected)


def test_the_default_device(device):
    torch.set_default_device("cuda")
    assert compat.is_ported(torch.ones(2))


def test_time_and_memory(device):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with pytest.raises(RuntimeError, match="must be recorded"):
        start.elapsed_time(end)
    start.record()
    (X.cuda() @ X.T.cuda()).sum()
    end.record()
    torch.cuda.synchronize()
    assert end.query()
    assert 0 < start.elapsed_time(end) < 60_000
    assert torch.cuda.memory_allocated() >= 0
    assert torch.cuda.get_device_properties(0).name == "cpu"


def test_autocast_is_followed(device):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (X.cuda() @ X.T.cuda()).dtype == torch.bfloat16


def test_draws_of_a_generator(device):
    draws = [torch.randn(3, generator=torch.Generator("cuda").manual_seed(1), device="cuda") for _ in "ab"]
    assert torch.equal(draws[0].cpu(), draws[1].cpu())


def test_the_host_has_its_own_after_the_shim():
    with tpuport.gpu_shim(device="jax"):
        pass
    assert not torch.cuda.is_available()
    with pytest.raises((AssertionError, RuntimeError)):
        X.cuda()


def test_another_device_is_refused():
    with pytest.raises(PortError, match="cannot mean 'tpu'"):
        tpuport.gpu_shim(device="tpu")


def test_more_processes_than_one_are_refused(monkeypatch):
    import torch.distributed as dist

    monkeypatch.setenv("WORLD_SIZE", "2")  # as torchrun
    with tpuport.gpu_shim():
        with pytest.raises(PortError, match=r"2 processes are started(?s:.)*create_mesh\(dp=2\)"):
            dist.init_process_group("nccl")
        with pytest.raises(PortError, match="4 processes"):
            dist.init_process_group("nccl", world_size=4, rank=0)
        assert not dist.is_initialized()
        dist.init_process_group("nccl", world_size=1, rank=0)
        assert dist.is_initialized()
        dist.destroy_process_group()
        assert not dist.is_initialized()


def test_meshes_and_wrappers_of_one_device():
    with tpuport.gpu_shim():
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
        from torch.distributed.tensor import Shard, distribute_tensor
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
        from torch.nn.parallel import DistributedDataParallel

        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (dist.get_world_size(), 1), mesh_dim_names=("dp", "tp"))
        assert (mesh.size(), mesh["tp"].size(), mesh["tp"].ndim, mesh.shape) == (1, 1, 1, (1, 1))
        assert mesh.get_local_rank("dp") == 0
        with pytest.raises(KeyError, match="'pp'"):
            mesh["pp"]
        model = torch.nn.Linear(3, 4).cuda()
        expected = model(X)
        assert parallelize_module(model, mesh["tp"], ColwiseParallel()) is model
        assert fully_shard(model, mesh=mesh["dp"]) is model
        for wrapper in (DistributedDataParallel, FullyShardedDataParallel):
            wrapped = wrapper(model, device_ids=[0])
            assert torch.equal(wrapped(X), expected)
            assert wrapped.module is model
        assert distribute_tensor(X, mesh["tp"], [Shard(0)]) is X
        with pytest.raises(PortError, match=r"mesh of 8 processes(?s:.)*create_mesh\(dp=2, tp=4\)"):
            init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
    assert torch.distributed.init_device_mesh is not init_device_mesh
