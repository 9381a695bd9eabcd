"""What people write in their scripts: it works as in torch on the CPU, or says in a sentence what to do."""

import copy
import io
import json
import logging
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

import tpuport
from tpuport import PortError, compat


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.up, self.down = torch.nn.LayerNorm(4), torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x):
        return self.down(F.gelu(self.up(self.norm(x)))) * self.scale


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 1, 2, 1, 0])


@pytest.fixture(scope="module")
def reference():
    with torch.no_grad():
        return Model().eval()(X)


@pytest.fixture(scope="module", autouse=True)
def enabled():
    tpuport.enable()
    yield
    tpuport.disable()


@pytest.fixture(scope="module")
def model():
    return tpuport.port(Model().eval())


@pytest.fixture(scope="module")
def logits(model):
    return tpuport.compile(model)(X)


def assert_same(result, expected):
    assert type(result) is type(expected)
    if isinstance(expected, list):
        assert len(result) == len(expected)
        for one, other in zip(result, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, (float, torch.Tensor)):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    else:
        assert result == expected


def on_host(result):
    if isinstance(result, (list, tuple)):
        return [on_host(item) for item in result]
    if isinstance(result, torch.Tensor):
        return tpuport.to_cpu(result).detach()
    return result


# Of logits [5, 3].
RESULTS = {
    "offset": lambda y: [y[1:].storage_offset(), y.t()[2].storage_offset(), y.clone().storage_offset()],
    "shared": lambda y: y.is_shared(),
    "forced": lambda y: y.numpy(force=True).tolist(),
    "accuracy": lambda y: (y.argmax(-1).cpu() == LABELS).float().mean().item(),
    "loss": lambda y: F.cross_entropy(y, LABELS.to(y.device)).item(),
    "running mean": lambda y: sum(row.sum().item() for row in y) / len(y),
    "f-string": lambda y: f"{y.mean():.3f} {y.max().item():.2f} {y.shape} {y.dtype}",
    "percent": lambda y: "%.3f" % y.sum(),  # noqa: UP031 - a habit
    "print": lambda y: str(y.cpu()),
    "logging": lambda y: logging.LogRecord("x", 20, "", 0, "loss %.3f", (y.mean(),), None).getMessage(),
    "numpy": lambda y: y.detach().cpu().numpy().round(4).tolist(),
    "asarray": lambda y: np.asarray(y).sum(axis=0).round(4).tolist(),
    "stacked in numpy": lambda y: np.stack([np.asarray(row) for row in y]).shape,
    "tolist": lambda y: [round(value, 4) for value in y[0].tolist()],
    "float": lambda y: [float(y[0, 0]), int(y.argmax()), bool(y[0, 0] > y[0, 1])],
    "branch": lambda y: "high" if y[0].max() > 0 else "low",
    "range": lambda y: list(range(int(y.argmax(-1)[0]) + 1)),
    "list index": lambda y: ["a", "b", "c"][y[0].argmax()],
    "sorted": lambda y: [round(value.item(), 4) for value in sorted(y[0])],
    "dict": lambda y: {name: round(value.item(), 4) for name, value in zip("abc", y[0], strict=True)},
    "topk": lambda y: list(torch.topk(y, 2, -1)),
    "softmax": lambda y: [y.softmax(-1), torch.log_softmax(y, dim=-1), (y / 0.7).softmax(-1).cumsum(-1)],
    "mask": lambda y: [y[y > 0], y.masked_fill(y < 0, 0), torch.where(y > 0, y, 0), y.clamp(min=0)],
    "one hot": lambda y: F.one_hot(y.argmax(-1), 3),
    "concatenate": lambda y: [torch.cat([y, y]), torch.stack([y, y]).mean(0), torch.hstack([y, y])],
    "collate": lambda y: torch.utils.data.default_collate([y[0], y[1]]),
    "padding": lambda y: torch.nn.utils.rnn.pad_sequence([y[0], y[1, :2]], batch_first=True),
    "new tensors": lambda y: [torch.zeros_like(y), y.new_ones(2), torch.arange(3, device=y.device)],
    "from lists": lambda y: [torch.tensor([1, 2], device=y.device), torch.as_tensor([1.5], device=y.device)],
    "weights": lambda y: y * torch.tensor([1.0, 2.0, 3.0], device=y.device),
    "in place": lambda y: y.clone().mul_(2).add_(1).clamp_(0),
    "slice write": lambda y: _written(y.clone()),
    "distances": lambda y: [torch.cdist(y, y), F.cosine_similarity(y, y), F.mse_loss(y, y + 1)],
    "quantile": lambda y: [y.std(), y.var(0), y.median(), y.quantile(0.5)],
    "norm": lambda y: [y.norm(), torch.linalg.norm(y, dim=-1), F.normalize(y)],
    "type_as": lambda y: [y.type_as(LABELS), y.to(LABELS.dtype), y.half().float()],
    "size": lambda y: [y.numel(), y.element_size() * y.nelement(), list(y.size()), y.ndim, len(y)],
    "layout": lambda y: [y.stride(), y.is_contiguous(), y.contiguous(), y.t().contiguous()],
    "unpack": lambda y: [*y.unbind(-1), *y.chunk(2, -1), *y.split(2)],
    "save": lambda y: torch.load(_saved({"logits": y}))["logits"],
    "pickle": lambda y: pickle.loads(pickle.dumps(y)),
    "deepcopy": copy.deepcopy,
    "cache": lambda y: list({y: 1}.values()),
    "detach": lambda y: [y.detach().clone(), y.data, y.cpu().detach().requires_grad_().grad],
    "cuda": lambda y: [y.cuda(), y.to("cuda", non_blocking=True)] if y.device.type != "cpu" else [y, y],
    "checkpoint": lambda y: torch.utils.checkpoint.checkpoint(torch.sin, y, use_reentrant=False),
}


def _written(y):
    y[0] = 1
    y[:, -1] += 2
    y[y > 1] = 0
    return y


def _saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("use", RESULTS)
def test_a_result(use, logits, reference):
    assert_same(on_host(RESULTS[use](logits)), on_host(RESULTS[use](reference)))


# Of a model; the same model is used by all, so that each leaves it as it was.
MODELS = {
    "count": lambda m: sum(parameter.numel() for parameter in m.parameters()),
    "size": lambda m: sum(p.nelement() * p.element_size() for p in m.parameters()),
    "names": lambda m: [name for name, _ in m.named_parameters()],
    "print": str,
    "norms": lambda m: [parameter.norm().item() for parameter in m.parameters()],
    "state": lambda m: [m.state_dict()[name] for name in sorted(m.state_dict())],
    "save": lambda m: list(torch.load(_saved(m.state_dict())).values()),
    "host copies": lambda m: [tensor.cpu().clone() for tensor in m.state_dict().values()],
    "reload": lambda m: str(m.load_state_dict({k: v.cpu() for k, v in m.state_dict().items()})),
    "average": lambda m: [0.5 * a + 0.5 * b for a, b in zip(m.parameters(), m.parameters(), strict=True)],
    "deepcopy": lambda m: copy.deepcopy(m).up.weight,
    "memory": lambda m: len({p.data_ptr() for p in m.parameters()}),
    "vector": lambda m: torch.nn.utils.parameters_to_vector(m.parameters()),
    "modes": lambda m: m.train().eval().training,
    "frozen": lambda m: [p.requires_grad_(False).requires_grad for p in m.parameters()],
    "apply": lambda m: m.apply(lambda module: None) is m,
    "data": lambda m: m.up.bias.data.abs().mean().item(),
    "cuda": lambda m: (m.cuda() is m and m.to("cuda:0") is m) if m.scale.device.type != "cpu" else True,
}


@pytest.mark.parametrize("use", MODELS)
def test_a_model(use, model):
    assert_same(on_host(MODELS[use](model)), on_host(MODELS[use](Model().eval())))
    assert all(map(compat.is_ported, model.parameters()))


def test_inference_mode(reference):
    """Operators reach the device undivided there, which autograd takes apart elsewhere."""

    @torch.inference_mode()
    def predict(x):
        return predict.model(x)

    predict.model = tpuport.port(Model().eval())
    assert_same(on_host(predict(X)), reference)
    with torch.inference_mode():
        y = tpuport.compile(predict.model)(X)
        torch.testing.assert_close(y.cpu(), reference)
        assert_same(on_host(F.layer_norm(y, (3,))), F.layer_norm(reference, (3,)))


def test_another_dtype_and_back():
    model, host = tpuport.port(Model().eval()), Model().eval()
    for dtype in (torch.bfloat16, torch.float32, torch.float16, torch.float32):
        model.to(dtype)
        host.to(dtype)
        assert [p.dtype for p in model.parameters()] == [p.dtype for p in host.parameters()]
        assert_same(on_host(model.up.weight), host.up.weight.detach())
    with torch.no_grad():
        assert_same(on_host(model(X)), host(X))
    y = model.up.weight.detach().clone()
    y.data = y.bfloat16()
    assert y.float().dtype == torch.float32


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_torch_compile(model, reference):
    """There is a program already, which torch's compiler leaves alone."""
    with torch.no_grad():
        model(X)
        compilations = model.forward.compiled.program.compilations
        result = torch.compile(model, backend="eager")(X)
        assert model.forward.compiled.program.compilations == compilations
        assert_same(on_host(result), reference)
        module = tpuport.port(Model().eval())
        module.compile(backend="eager")
        assert_same(on_host(module(X)), reference)
        assert_same(on_host(torch.compile(lambda x: model(x) * 2, backend="eager")(X)), reference * 2)


HOST = torch.ones(5, 3)
MIXED = {
    "sum": lambda y: y + HOST,
    "in place": lambda y: HOST.clone().add_(y),
    "device in place": lambda y: y.clone().sub_(HOST),
    "cat": lambda y: torch.cat([HOST, y]),
    "stack": lambda y: torch.stack([y, HOST]),
    "where": lambda y: torch.where(HOST > 0, y, 0),
    "loss": lambda y: F.mse_loss(y, HOST),
    "labels": lambda y: F.cross_entropy(y, LABELS),
    "host indexed": lambda y: HOST[y > 0],
    "written where": lambda y: HOST.clone().__setitem__(y > 0, 0),
    "module": lambda y: torch.nn.Linear(3, 2)(y),
    "product": lambda y: HOST.T @ y,
    "compared": lambda y: torch.equal(y, HOST),
}


@pytest.mark.parametrize("use", MIXED)
def test_both_kinds_of_tensors(use, logits):
    """As between a CPU and a GPU: refused, unless the host's is a number, an index or a target."""
    fix = r"tpuport\.port\(module\)" if use == "module" else r'x\.to\("jax"\)'
    with pytest.raises(PortError, match=rf"all tensors to be on the same device(?s:.)*{fix}"):
        MIXED[use](logits)


def test_what_torch_takes_from_the_host(logits, reference):
    target = torch.zeros(5, 3)
    target[0] = logits[0]
    target[1:].copy_(logits[1:])
    for result in (
        logits * torch.tensor(2.0) / 2,
        logits[torch.arange(5)],
        logits[torch.ones(5, dtype=torch.bool)],
        target,
    ):
        torch.testing.assert_close(on_host(result), reference)


def _with_tangents(model):
    with torch.autograd.forward_ad.dual_level():
        return model(torch.autograd.forward_ad.make_dual(X, X))


REFUSED = {
    "storage": (lambda y, m: y.storage(), "cannot work on a tensor that is on the device"),
    "contents": (lambda y, m: y.untyped_storage().tolist(), r"tpuport\.to_cpu\(x\)"),
    "host cuda": (lambda y, m: HOST.cuda(), r'x\.to\("jax"\)'),
    "host to cuda": (lambda y, m: HOST.to("cuda"), r'x\.to\("jax"\)'),
    "made on cuda": (lambda y, m: torch.zeros(2, device="cuda"), "no GPU here"),
    "synchronize": (lambda y, m: torch.cuda.synchronize(), r"gpu_shim\(device=\"jax\"\)"),
    "sparse": (lambda y, m: y.to_sparse(), r"x\.cpu\(\)"),
    "dlpack": (lambda y, m: torch.from_dlpack(y), r"tpuport\.to_cpu\(x\)"),
    "to dlpack": (lambda y, m: torch.utils.dlpack.to_dlpack(y), r"tpuport\.to_cpu\(x\)"),
    "jit.script": (lambda y, m: torch.jit.script(m), r"tpuport\.to_cpu\(model\)"),
    "first of contents": (lambda y, m: y.untyped_storage()[0], r"tpuport\.to_cpu\(x\)"),
    "elements": (lambda y, m: y.clone().map_(y, lambda a, b: a), r"tpuport\.to_cpu\(x\)"),
    "export": (lambda y, m: torch.export.export(m, (y,)), "on the device"),
    "shared memory": (lambda y, m: m.share_memory(), r"tpuport\.to_cpu\(x\)"),
    "jit.trace": (lambda y, m: torch.jit.trace(m, X), r"tpuport\.to_cpu\(model\)"),
    "vmap": (lambda y, m: torch.func.vmap(m)(X), r"tpuport\.to_cpu\(model\)"),
    "vmap of compiled": (lambda y, m: torch.func.vmap(tpuport.compile(torch.sin))(X), "jax_value_and_grad"),
    "grad": (lambda y, m: torch.func.grad(lambda x: m(x).sum())(X), "jax_value_and_grad"),
    "jvp": (lambda y, m: torch.func.jvp(m, (X,), (X,)), "jax_value_and_grad"),
    "jvp on the device": (lambda y, m: torch.func.jvp(torch.sin, (y,), (y,)), "jax_value_and_grad"),
    "jacobian": (lambda y, m: torch.autograd.functional.jacobian(m, X), "jax_value_and_grad"),
    "dual": (lambda y, m: _with_tangents(m), "jax_value_and_grad"),
    "file of tensors": (lambda y, m: torch.load(_saved([X, X[0]]), map_location=y.device), '"cpu"'),
    "memory of the host": (lambda y, m: setattr(m.up.bias, "data", torch.ones(8)), "x.data = y"),
    "float64": (lambda y, m: torch.softmax(y, -1, dtype=torch.float64), "float32"),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.")
@pytest.mark.parametrize("use", REFUSED)
def test_what_is_refused_names_the_remedy(use, logits, model):
    function, remedy = REFUSED[use]
    with pytest.raises(PortError, match=f"(?s)fix: .*{remedy}|{remedy}.*fix: ") as raised:
        function(logits, model)
    assert len(str(raised.value).splitlines()) <= 3


def test_outputs_of_padding_are_those_of_the_models_own_attention():
    """Left padding, and windows beside full attention: positions of padding see no key, and no token sees them."""
    from transformers import Gemma2Config, Gemma2Model

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, sliding_window=4, attn_implementation="eager",
    )  # fmt: skip
    host = Gemma2Model(config).eval()
    ids = torch.randint(1, 64, (2, 9))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "output_hidden_states": True}
    with torch.no_grad():
        expected = host(**inputs).hidden_states
    result = tpuport.to_cpu(tpuport.port(copy.deepcopy(host))(**inputs)).hidden_states
    for layer, expected_layer in zip(result, expected, strict=True):
        torch.testing.assert_close(layer, expected_layer, rtol=1e-4, atol=1e-4)


def test_torch_distributed(logits):
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(PortError, match=r"tpuport\.create_mesh"):
            dist.init_device_mesh("jax", (1,))
        with pytest.raises(PortError, match="cannot work on a tensor that is on the device"):
            dist.all_reduce(logits)
    finally:
        dist.destroy_process_group()


def test_safetensors(model, tmp_path):
    from safetensors.torch import load_file, save_file

    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    assert torch.equal(load_file(tmp_path / "weights.safetensors")["up.bias"], Model().up.bias)


def test_checkpoints_of_a_gpu(model):
    with pytest.raises(RuntimeError, match=r"map_location=torch\.device"):
        torch.load(_saved(HOST), map_location="cuda")
    assert torch.equal(torch.load(_saved(HOST), map_location="cpu"), HOST)


def test_files_are_loaded_to_the_device():
    shared, integers = torch.ones(2), torch.arange(6)
    tensors = {
        "x": X, "columns": X.t().clone().t(), "shared": shared, "again": shared.detach(), "integers": integers[2:],
        "rest": integers[:2], "half": X.bfloat16(), "weight": torch.nn.Parameter(X * 2), "number": torch.tensor(3.0),
    }  # fmt: skip
    for location in ("jax", torch.device("jax"), compat.wrap(compat.to_jax(X)).device, {"cpu": "jax:0"}):
        loaded = torch.load(_saved(tensors), map_location=location)
        assert all(map(compat.is_ported, loaded.values()))
        assert_same(on_host(list(loaded.values())), on_host(list(tensors.values())))
    assert isinstance(loaded["weight"], torch.nn.Parameter)
    loaded["shared"].add_(1)
    assert loaded["again"].tolist() == [2, 2]


@pytest.mark.parametrize("change", ["load", "assign", "half", "stay", "cpu"])
def test_modules_that_swap_their_tensors(change):
    """torch's coming default: `load_state_dict` and `model.half()` swap parameters with new ones."""
    host, model = Model().eval(), tpuport.port(Model().eval())
    with torch.no_grad():
        model(X)  # which leaves notes of the tensors it used
    weights = {name: tensor * 2 for name, tensor in host.state_dict().items()}
    device = model.scale.device
    changes = {
        "load": lambda module: module.load_state_dict(
            {k: v.to(module.scale.device) for k, v in weights.items()}
        ),
        "assign": lambda module: module.load_state_dict(weights, assign=True),
        "half": lambda module: module.bfloat16().float(),
        "stay": lambda module: module.to(module.scale.device),
        "cpu": lambda module: module.cpu(),
    }
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        for module in (host, model):
            changes[change](module)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert model.scale.device == (device if change in ("load", "half", "stay") else torch.device("cpu"))
    assert isinstance(model.up.weight, torch.nn.Parameter)
    with torch.no_grad():
        assert_same(on_host(model(X)), host(X))


def test_accelerate_prepares_on_the_host():
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    host = Model()
    optimizer = torch.optim.SGD(host.parameters(), lr=0.1)
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X))
    prepared, optimizer, batches = accelerator.prepare(host, optimizer, batches)
    for (x,) in batches:
        accelerator.backward(prepared(x).sum())
        optimizer.step()
    assert not torch.equal(prepared.up.weight, Model().up.weight)
    result = tpuport.compile(tpuport.port(accelerator.unwrap_model(prepared)))(X)
    assert compat.is_ported(result)


def test_the_script_of_the_page(reference, capsys):
    page = Path(__file__).resolve().parents[1] / "docs/habits.md"
    [script] = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    exec(script, {"torch": torch, "Model": Model, "x": X})
    printed = capsys.readouterr().out
    assert printed.startswith(str(reference.argmax(-1).tolist()))


# What worked before and works after: the same text from both processes.
REST_OF_TORCH = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as dist
from torch.nn.attention.flex_attention import flex_attention

child = os.fork()
if not child:
    import tpuport.auto

seen = {}
torch.manual_seed(0)
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x, gathered = torch.randn(4, 3), [torch.zeros(4, 3)]
dist.all_reduce(x), dist.all_gather(gathered, x), dist.broadcast(x, 0), dist.barrier()
seen["gloo"] = [x.tolist(), gathered[0].tolist()]
seen["mesh"] = str(dist.init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))["tp"])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for step in range(2):
    model(x).square().mean().backward()
    optimizer.step(), optimizer.zero_grad()
seen["trained"] = [p.tolist() for p in model.parameters()]
seen["parallel"] = torch.nn.DataParallel(torch.nn.Linear(3, 2))(x).shape
seen["compiled"] = torch.compile(lambda x: (x * 2).relu().sum(), backend="aot_eager")(x).item()
q = torch.randn(1, 2, 16, 8)
seen["flex"] = flex_attention(q, q, q).sum().item()
batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), 2, num_workers=1, pin_memory=True)
seen["batches"] = [batch.tolist() for batch, in batches]
with torch.autocast("cuda", dtype=torch.bfloat16):
    seen["cuda autocast"] = str((x @ x.T).dtype)
with torch.autocast("cpu", dtype=torch.bfloat16):
    seen["cpu autocast"] = str((x @ x.T).dtype)
seen["scaler"] = torch.amp.GradScaler("cuda").is_enabled()
seen["questions"] = [torch.cuda.is_available(), torch.cuda.device_count(), torch.accelerator.is_available()]
seen["stacks"] = [torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()]
seen["meta"] = str(torch.empty(2, 3, device="meta").copy_(torch.ones(3)).shape)
seen["scripted"] = torch.jit.script(torch.nn.Linear(3, 2))(x).shape
seen["vmap"] = torch.func.vmap(torch.func.grad(lambda row: row.square().sum()))(x).tolist()
refused = {"cuda": lambda: x.cuda(), "event": torch.cuda.Event, "current": torch.cuda.current_device}
for name, function in refused.items():
    try:
        function()
    except (AssertionError, RuntimeError):
        seen[name] = "refused"
dist.destroy_process_group()
if child:
    os.waitpid(child, 0)
print(json.dumps(seen), flush=True)
"""


@pytest.mark.slow  # the habits above; test_activation.py has torch on the CPU
def test_the_rest_of_torch_is_left_alone():
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", REST_OF_TORCH]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    # The process without tpuport waits for its copy with tpuport.
    outcomes = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert len(outcomes) == 2, result.stderr[-2000:]
    assert outcomes[0] == outcomes[1]
