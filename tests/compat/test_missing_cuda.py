"""Code that names CUDA where there is none: one sentence, of the kinds of error that libraries catch."""

import pytest
import safetensors.torch
import torch

import tpuport

HOST = torch.ones(2)
USES = {
    "cuda": lambda: HOST.cuda(),
    "to": lambda: HOST.to("cuda"),
    "index": lambda: HOST.to("cuda:1", non_blocking=True),
    "factory": lambda: torch.zeros(2, device="cuda"),
    "tensor": lambda: torch.tensor([1], device=torch.device("cuda")),
    "module": lambda: torch.nn.Linear(2, 2).cuda(),
    "module to": lambda: torch.nn.Linear(2, 2).to("cuda"),
    "synchronize": lambda: torch.cuda.synchronize(),
    "current_device": lambda: torch.cuda.current_device(),
    "set_device": lambda: torch.cuda.set_device(0),
    "event": lambda: torch.cuda.Event(enable_timing=True).record(),
    "stream": lambda: torch.cuda.Stream(),
    "device": lambda: torch.cuda.device(0).__enter__(),
    "peak": lambda: torch.cuda.reset_peak_memory_stats(),
    "summary": lambda: torch.cuda.memory_summary(),
    "generator": lambda: torch.Generator("cuda"),
    "generator by name": lambda: torch.Generator(device="cuda:0"),
    "safetensors": lambda: safetensors.torch.load_file("weights.safetensors", device="cuda"),
    "safetensors by device": lambda: safetensors.torch.load_file(
        "x.safetensors", device=torch.device("cuda")
    ),
    "safetensors by index": lambda: safetensors.torch.load_model(HOST, "weights.safetensors", device=0),
}


@pytest.mark.parametrize("use", USES)
def test_the_remedy_is_named(use):
    with pytest.raises(tpuport.PortError, match=r"there is no GPU here(?s:.)*x\.to\(\"jax\"\)") as raised:
        USES[use]()
    assert isinstance(raised.value, AssertionError)
    assert isinstance(raised.value, RuntimeError)
    assert "not compiled" not in str(raised.value)


def test_safetensors_reads_to_the_host(tmp_path):
    safetensors.torch.save_file({"x": HOST}, tmp_path / "x.safetensors")
    assert torch.equal(safetensors.torch.load_file(tmp_path / "x.safetensors", device="cpu")["x"], HOST)
    with pytest.raises(tpuport.PortError, match="leave device= out"):
        safetensors.torch.load_file(tmp_path / "x.safetensors", device=torch.device("jax:0"))


def test_questions_are_answered_as_without_a_gpu():
    assert not torch.cuda.is_available()
    assert torch.cuda.device_count() == 0
    assert not torch.cuda.is_bf16_supported()
    assert torch.cuda.memory_allocated() == 0
    torch.cuda.empty_cache()
    torch.cuda.manual_seed_all(0)
    with torch.device("meta"):
        assert torch.ones(2).is_meta


def test_torch_speaks_for_itself_when_disabled():
    tpuport.disable()
    with pytest.raises((AssertionError, RuntimeError)) as raised:
        HOST.cuda()
    assert not isinstance(raised.value, tpuport.PortError)
    with pytest.raises(RuntimeError) as raised:
        torch.cuda.Event().record()
    assert not isinstance(raised.value, tpuport.PortError)
