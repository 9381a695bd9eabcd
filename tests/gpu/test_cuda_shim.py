"""The GPU shim on a research repository as people write them, which cannot be imported without a GPU."""

import importlib
import logging
import sys
import textwrap
import threading
import types

import pytest
import torch
import torch.distributed.fsdp
import torch.distributed.tensor.parallel

import tpuport
from tpuport import PortError, gpu
from tpuport.gpu.stand_ins import PACKAGES

FILES = {
    "researchrepo/__init__.py": """
        from .model import Model
    """,
    "researchrepo/constants.py": """
        import torch
        import torch.distributed as dist

        CAPABILITY = torch.cuda.get_device_capability()
        BF16 = torch.cuda.is_bf16_supported()
        NAME = torch.cuda.get_device_name(0)
        DEVICE = torch.device("cuda")
        MEMORY = torch.cuda.get_device_properties(DEVICE).total_memory
        torch.cuda.set_device(0)
        torch.backends.cuda.enable_flash_sdp(False)
        torch.set_default_device("cuda")
        START = torch.cuda.Event(enable_timing=True)
        STREAM: torch.cuda.Stream | None = torch.cuda.Stream()
        dist.init_process_group(backend="nccl", init_method="env://")
        RANK, WORLD = dist.get_rank(), dist.get_world_size()
        READY = dist.is_initialized()
        dist.barrier()
    """,
    "researchrepo/layers.py": """
        import torch
        import torch.nn as nn
        from torch.cuda.amp import autocast as old_autocast
        from flash_attn import flash_attn_func, flash_attn_varlen_func
        from flash_attn.bert_padding import unpad_input
        import flash_attn.layers.rotary
        import xformers.ops as xops
        from apex.normalization import FusedLayerNorm
        from .constants import DEVICE, CAPABILITY

        try:
            import flash_attn_interface
            FA3 = True
        except ImportError:
            FA3 = False

        FREQUENCIES = torch.zeros(3, device="cuda") + torch.arange(3, device=torch.device("cuda", 0))
        SCALE = torch.ones(()).cuda()
        OTHER = torch.full((2,), 7.0).to("cuda:0", torch.bfloat16).to(0)
        LEGACY = torch.cuda.FloatTensor([1, 2])
        TYPED = torch.ones(2, dtype=torch.float64).type("torch.cuda.FloatTensor")
        PINNED = torch.empty(2, pin_memory=True).pin_memory()
        NOISE = torch.randn(2, generator=torch.Generator(device="cuda").manual_seed(0), device=DEVICE)
        with torch.device("cuda"):
            INSIDE = torch.eye(2)

        class Bias(xops.fmha.attn_bias.AttentionBias):
            pass

        class Attention(nn.Module):
            def __init__(self, width, heads):
                super().__init__()
                self.heads = heads
                self.qkv = nn.Linear(width, 3 * width, device="cuda")
                self.norm = FusedLayerNorm(width)
                self.register_buffer("table", torch.arange(4.0, device=torch.cuda.current_device()))

            @torch.cuda.amp.autocast()
            def forward(self, x):
                q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
                q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in (q, k, v))
                return flash_attn_func(q, k, v, causal=True).flatten(2)

            @torch.autocast("cuda", dtype=torch.bfloat16)
            def packed(self, x):
                x, indices, lengths, longest, _ = unpad_input(x, torch.ones(x.shape[:2]))
                qkv = (t.unflatten(-1, (self.heads, -1)) for t in self.qkv(self.norm(x)).chunk(3, -1))
                return flash_attn_varlen_func(*qkv, lengths, lengths, longest, longest, causal=True).flatten(1)
    """,
    "researchrepo/model.py": """
        import torch
        from .constants import DEVICE
        from .layers import Attention

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.block = Attention(8, 2).cuda()
                self.scaler = torch.nn.Parameter(torch.ones(1, device=DEVICE))
                self.to(DEVICE)
                torch.cuda.synchronize()

            def forward(self, x):
                return self.scaler * self.block(x)
    """,
}


@pytest.fixture
def repository(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("researchrepo")]:
        del sys.modules[name]
    torch.set_default_device(None)
    # torch 2.9 fails at a device that is None.
    vars(torch._GLOBAL_DEVICE_CONTEXT).clear()


def state():
    """Everything of the process that the shim touches."""
    holders = (
        torch, torch.amp, torch.cuda, torch.cuda.nvtx, torch.cuda.profiler, torch.cuda.amp, torch.distributed,
        torch.backends.cuda,
    )  # fmt: skip
    packages = {name for name in sys.modules if name.partition(".")[0] in PACKAGES}
    backends = torch.backends.cuda.flash_sdp_enabled(), torch.get_default_device(), torch.get_default_dtype()
    depth = torch._C._len_torch_function_stack(), torch.is_autocast_enabled("cpu")
    return [dict(vars(holder)) for holder in holders], list(sys.meta_path), packages, backends, depth


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_the_repository_needs_a_gpu(repository):
    with pytest.raises((AssertionError, RuntimeError)):
        importlib.import_module("researchrepo")


def test_the_repository_imports_builds_and_runs(repository):
    before = state()
    with tpuport.gpu_shim() as shim:
        import researchrepo
        from researchrepo import constants, layers

        model = researchrepo.Model()
    assert state()[1:] == before[1:]
    assert all(now == then for now, then in zip(state()[0], before[0], strict=True))
    assert constants.CAPABILITY == (8, 0)
    assert (constants.RANK, constants.WORLD, constants.READY, layers.FA3) == (0, 1, True, True)
    tensors = [value for value in vars(layers).values() if isinstance(value, torch.Tensor)]
    tensors += [*model.parameters(), *model.buffers()]
    assert len(tensors) > 10
    assert {tensor.device.type for tensor in tensors} == {"cpu"}
    assert layers.OTHER.dtype == torch.bfloat16
    assert layers.LEGACY.tolist() == [1.0, 2.0]
    assert layers.TYPED.dtype == torch.float32
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    assert torch.equal(model(x), model.scaler * reference(model.block, x))
    torch.testing.assert_close(model.block.packed(x), reference(model.block, x).flatten(0, 1))
    with pytest.raises(PortError, match=r"flash_attn\.layers\.rotary\.apply_rotary_emb is a stand-in"):
        layers.flash_attn.layers.rotary.apply_rotary_emb(x)
    assert shim.calls


def reference(block, x):
    q, k, v = block.qkv(torch.nn.functional.layer_norm(x, (8,), block.norm.weight, block.norm.bias)).chunk(
        3, -1
    )
    q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out.transpose(1, 2).flatten(2)


def test_each_rewritten_call_is_logged_once_with_its_line(repository, caplog):
    with caplog.at_level(logging.INFO, logger="tpuport"), tpuport.gpu_shim() as shim:
        import researchrepo

        researchrepo.Model()
        first = list(shim.calls)
        researchrepo.Model()
        assert shim.calls == first
    lines = {}
    for name, text in FILES.items():
        for number, line in enumerate(textwrap.dedent(text).splitlines(), 1):
            lines[str(repository / name), number] = line
    values = {
        call.name: lines[call.file, call.line].strip()
        for call in shim.calls
        if (call.file, call.line) in lines
    }
    expected = {
        "torch.cuda.get_device_capability": "CAPABILITY = torch.cuda.get_device_capability()",
        "torch.distributed.get_rank": "RANK, WORLD = dist.get_rank(), dist.get_world_size()",
        "torch.backends.cuda.enable_flash_sdp": "torch.backends.cuda.enable_flash_sdp(False)",
        "torch.set_default_device": 'torch.set_default_device("cuda")',
        "torch.cuda.amp.autocast": "@torch.cuda.amp.autocast()",
        "torch.autocast('cuda')": '@torch.autocast("cuda", dtype=torch.bfloat16)',
        "import flash_attn": "from flash_attn import flash_attn_func, flash_attn_varlen_func",
        "import xformers.ops": "import xformers.ops as xops",
        "Tensor.cuda": "self.block = Attention(8, 2).cuda()",
        "eye on a CUDA device": "INSIDE = torch.eye(2)",
        "torch.cuda.synchronize": "torch.cuda.synchronize()",
    }
    assert {name: values.get(name) for name in expected} == expected
    assert all((call.file, call.line) in lines for call in shim.calls), shim.calls
    logged = [record.getMessage() for record in caplog.records if record.getMessage().startswith("gpu shim")]
    assert logged == [f"gpu shim: {call}" for call in shim.calls]


def test_all_is_put_back_after_an_exception(repository):
    before = state()
    (repository / "researchrepo/broken.py").write_text("from . import layers\n1 / 0\n")
    with pytest.raises(ZeroDivisionError), tpuport.gpu_shim():
        importlib.import_module("researchrepo.broken")
    now = state()
    assert now[1:] == before[1:]
    assert all(one == other for one, other in zip(now[0], before[0], strict=True))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("flash_attn")
    with pytest.raises((AssertionError, RuntimeError)):
        torch.cuda.current_device()
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(2, device="cuda")


def test_names_kept_from_the_shim_behave_as_without_it():
    with tpuport.gpu_shim() as shim:
        from torch.cuda import get_device_capability
        from torch.distributed import get_rank

        assert (get_device_capability(), get_rank()) == ((8, 0), 0)
        generator, cast = torch.Generator, torch.autocast
        assert isinstance(generator("cuda"), generator)
        count = len(shim.calls)
    with pytest.raises((AssertionError, RuntimeError)):
        get_device_capability()
    with pytest.raises(ValueError, match="process group"):
        get_rank()
    with pytest.raises(RuntimeError):
        generator("cuda")
    with cast("cpu", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    assert len(shim.calls) == count


def test_what_is_not_listed_behaves_as_before():
    with tpuport.gpu_shim() as shim:
        with pytest.raises(ModuleNotFoundError, match="vllm"):
            import vllm  # noqa: F401
        with pytest.raises((AssertionError, RuntimeError, AttributeError)):
            torch.cuda._sleep(1)
        assert not torch.cuda.is_available()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
        assert torch.zeros(2, device="meta").is_meta
        assert torch.ones(2).to("cpu", torch.float64).dtype == torch.float64
        assert shim.calls == []


def test_the_whitelist_is_what_is_answered():
    listed = gpu.whitelist()
    names = {f"torch.{name}" for name in ("load", "set_default_device", "autocast", "Generator")}
    assert names <= set(listed["functions"])
    assert {"torch.cuda.synchronize", "torch.distributed.get_rank"} <= set(listed["functions"])
    before = {name: resolved(name) for name in listed["functions"]}
    with tpuport.gpu_shim():
        assert [name for name, former in before.items() if resolved(name) is former] == []
        for name in listed["imports"]:
            assert importlib.import_module(name)


def resolved(name):
    value = torch
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


def test_the_user_allows_more(monkeypatch):
    mine = types.ModuleType("minelib")
    mine.probe, mine.version = lambda: 1 / 0, None
    monkeypatch.setitem(sys.modules, "minelib", mine)
    former = mine.probe
    with tpuport.gpu_shim(allow=["absent_kernels", "minelib:probe"]) as shim:
        from absent_kernels.fast import attention

        assert mine.probe() is None
        assert {call.name for call in shim.calls} >= {"import absent_kernels.fast", "minelib.probe"}
        with pytest.raises(PortError, match=r"absent_kernels\.fast\.attention is a stand-in"):
            attention()
    assert mine.probe is former
    assert "absent_kernels" not in sys.modules
    with tpuport.gpu_shim(allow={"minelib:version": "12.4", "minelib:probe": lambda: 3}):
        assert (mine.version, mine.probe()) == ("12.4", 3)
    assert mine.version is None
    with (
        pytest.raises(PortError, match="cannot be imported"),
        tpuport.gpu_shim(allow=["no_such_library:name"]),
    ):
        pass
    assert not torch._C._len_torch_function_stack()


def test_available_where_code_insists():
    with tpuport.gpu_shim(available=True):
        assert torch.cuda.is_available()
        assert torch.zeros(2, device="cuda").device.type == "cpu"
    assert not torch.cuda.is_available()


def test_enable_and_disable_and_one_at_a_time():
    before = state()
    shim = tpuport.gpu_shim()
    shim.enable()
    shim.enable()
    with pytest.raises(PortError, match="on already"):
        tpuport.gpu_shim().enable()
    assert torch.cuda.current_device() == 0
    shim.disable()
    shim.disable()
    now = state()
    assert now[1:] == before[1:]
    assert all(one == other for one, other in zip(now[0], before[0], strict=True))


def test_disabled_inside_of_another_mode():
    shim = tpuport.gpu_shim().enable()
    with torch.device("meta"):
        shim.disable()
        assert torch.ones(2).is_meta
    assert not torch.ones(2).is_meta


def test_another_thread_may_end_it():
    shim = tpuport.gpu_shim().enable()
    thread = threading.Thread(target=shim.disable)
    thread.start()
    thread.join()
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(2, device="cuda")
    with tpuport.gpu_shim():
        assert torch.zeros(2, device="cuda").device.type == "cpu"
    assert not torch._C._len_torch_function_stack(), "what the other thread had to leave is gone"


def test_an_installed_package_wins(tmp_path, monkeypatch):
    (tmp_path / "sageattention.py").write_text("sageattn = 'the real one'\n")
    monkeypatch.syspath_prepend(tmp_path)
    with tpuport.gpu_shim():
        import sageattention

        assert sageattention.sageattn == "the real one"
        with pytest.raises(ModuleNotFoundError):
            import sageattention.more
    assert "sageattention" in sys.modules
    del sys.modules["sageattention"]


def test_a_checkpoint_of_a_gpu_loads_on_the_cpu(tmp_path):
    torch.save({"weight": torch.ones(2)}, tmp_path / "weights.pt")
    with tpuport.gpu_shim():
        for where in (None, "cuda", torch.device("cuda:0"), {"cuda:0": "cuda:0"}):
            assert torch.load(tmp_path / "weights.pt", map_location=where)["weight"].tolist() == [1, 1]
