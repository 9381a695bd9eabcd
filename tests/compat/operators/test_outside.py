"""Tensors on the device outside of torchax's environment: used as torch tensors are, or refused with advice."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch

import tpuport
from tpuport import PortError, compat

HOST = torch.arange(6.0).reshape(2, 3)
# What people do with a result, as torch does it with a tensor on the host.
USES = {
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "item": lambda x: x[0, 1].item(),
    "numbers": lambda x: [float(x[0, 0]), int(x.sum()), bool(x[0, 0] == 0)],
    "branch": lambda x: "large" if x.sum() > 3 else "small",
    "numpy": lambda x: x.detach().cpu().numpy().tolist(),
    "array": lambda x: np.asarray(x).tolist(),
    "tolist": lambda x: x.tolist(),
    "rows": lambda x: [len(x), *x],
    "format": lambda x: f"{x.mean()} {x.sum():.2f}",
    "arithmetic": lambda x: [x + 1, 1 + x, x * x, x @ x.T, -x],
    "comparison": lambda x: [x > 2, x == x, torch.equal(x, x)],
    "index": lambda x: [x[0], x[:, 1:], x[x > 2], x[..., None]],
    "write": lambda x: x.clone().fill_(2).add_(1),
    "reductions": lambda x: [x.sum(-1), x.argmax(-1), x.std(), x.norm(), *torch.topk(x, 2)],
    "functions": lambda x: [torch.softmax(x, -1), torch.nn.functional.gelu(x), torch.stack([x, x])],
    "interpolate": lambda x: torch.nn.functional.interpolate(x[None, None], scale_factor=2),
    "where": lambda x: torch.where(x > 2, x, 0),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "copies": lambda x: [
        x,
        x.to(x.dtype, copy=True).add_(1),
        x.to(x, False, True).add_(1),
        x.to(x.dtype) is x,
    ],
    "dtypes": lambda x: [x.bfloat16(), x.to(torch.int32), x.bool()],
    "types": lambda x: [x.type(torch.int32), x.int().type(x.type()), x.type(x.bool().type())],
    "pixels": lambda x: ((x / 5).clamp(0, 1) * 255).to(torch.uint8).cpu().numpy().tolist(),
    "like": lambda x: [torch.zeros_like(x), x.new_ones(3)],
    "nonzero": lambda x: x.nonzero(),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "deepcopy": copy.deepcopy,
}


def _on_host(result):
    """The same with its tensors on the host."""
    if isinstance(result, list):
        return [_on_host(item) for item in result]
    if isinstance(result, torch.Tensor):
        return tpuport.to_cpu(result)
    return result


@pytest.mark.parametrize("use", USES)
def test_a_result_is_used_as_a_torch_tensor_is(use):
    reference = _on_host(USES[use](HOST))
    result = _on_host(USES[use](compat.wrap(compat.to_jax(HOST))))
    if isinstance(reference, (list, torch.Tensor)):
        torch.testing.assert_close(result, reference)
    else:
        assert result == reference


def test_what_is_on_the_host_afterwards_is_an_ordinary_tensor():
    result = compat.wrap(compat.to_jax(HOST))
    assert type(result.cpu()) is torch.Tensor
    assert type(pickle.loads(pickle.dumps(result))) is torch.Tensor
    file = io.BytesIO()
    torch.save({"x": result}, file)
    file.seek(0)
    assert torch.equal(torch.load(file)["x"], HOST)


def test_a_copy_on_the_host_shares_nothing_with_the_device():
    result = compat.wrap(compat.to_jax(HOST))
    result.cpu().zero_()
    assert torch.equal(result.cpu(), HOST)


def test_printed_as_on_any_device():
    result = compat.wrap(compat.to_jax(HOST[0]))
    assert repr(result) == str(result) == "tensor([0., 1., 2.], device='jax:0')"


MADE_ON_DEVICE = {
    "to": lambda device: HOST.to(device),
    "to dtype": lambda device: HOST.to(device, torch.bfloat16),
    "zeros": lambda device: torch.zeros(2, 3, device=device),
    "full": lambda device: torch.full((2,), 3.0, device=device),
    "arange": lambda device: torch.arange(2, 10, 2, device=device).view(2, 2),
    "arange to a named end": lambda device: torch.arange(end=4, device=device),
    "eye": lambda device: torch.eye(2, 3, device=device).flatten(),
    "linspace": lambda device: torch.linspace(0, 1, 3, device=device),
    "empty_like": lambda device: torch.empty_like(HOST, device=device).zero_(),
    "module": lambda device: torch.nn.LayerNorm(3).to(device)(HOST.to(device)),
    "module made there": lambda device: torch.nn.LayerNorm(3, device=device).weight,
}


@pytest.mark.parametrize("make", MADE_ON_DEVICE)
def test_made_on_the_device_or_moved_there(make):
    result = MADE_ON_DEVICE[make]("jax")
    assert compat.is_ported(result)
    reference = MADE_ON_DEVICE[make]("cpu")
    torch.testing.assert_close(_on_host(result.detach()), _on_host(reference.detach()))
    with compat.environment():
        inside = MADE_ON_DEVICE[make]("jax")
    torch.testing.assert_close(_on_host(inside.detach()), _on_host(reference.detach()))


def test_the_name_of_a_type_is_that_of_the_device():
    y = HOST.to("jax")
    assert (y.type(), y.to(torch.int32).type()) == ("torch.jax.FloatTensor", "torch.jax.IntTensor")
    assert compat.is_ported(y.type("torch.cuda.HalfTensor"))
    assert not compat.is_ported(y.type("torch.HalfTensor"))
    cast = tpuport.compile(lambda x: (x * 2).int().type(x.type()))(HOST)
    torch.testing.assert_close(cast.cpu(), (HOST * 2).int().type(HOST.type()))


FILLED = {
    "tensor": lambda device: torch.tensor([[1, 2], [3, 4]], device=device),
    "tensor of a dtype": lambda device: torch.tensor([1, 2.5], device=device, dtype=torch.bfloat16),
    "number": lambda device: torch.tensor(3.5, device=device),
    "as_tensor": lambda device: torch.as_tensor([True, False], device=device),
    "array": lambda device: torch.as_tensor(np.arange(3, dtype=np.float32), device=device),
    "new_tensor": lambda device: torch.ones(2).to(device).new_tensor([1, 2]),
    "written to": lambda device: torch.tensor([1.0, 2.0], device=device).unsqueeze_(0).add_(1),
}


@pytest.mark.parametrize("make", FILLED)
def test_values_from_python_reach_the_device(make):
    """torch copies these by its own kernels, which would leave zeros."""
    result = FILLED[make]("jax")
    assert compat.is_ported(result)
    torch.testing.assert_close(_on_host(result), _on_host(FILLED[make]("cpu")))
    with compat.environment():
        inside = FILLED[make]("jax")
    torch.testing.assert_close(_on_host(inside), _on_host(FILLED[make]("cpu")))


def test_tensors_without_memory_are_copied_to_as_before():
    meta = torch.empty(2, 3, device="meta")
    assert meta.copy_(torch.ones(3)) is meta
    with pytest.raises(RuntimeError, match="must match the size"):
        meta.copy_(torch.ones(4))


def test_a_model_is_taken_back_as_from_any_device(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = LlamaForCausalLM(config).eval()
    ids = torch.tensor([[3, 4]])
    reference = model(ids).logits
    tpuport.port(model)
    model.save_pretrained(tmp_path)
    assert torch.equal(LlamaForCausalLM.from_pretrained(tmp_path)(ids).logits, reference)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    again = LlamaForCausalLM(config).eval()
    again.load_state_dict(torch.load(tmp_path / "weights.pt"))
    assert torch.equal(again(ids).logits, reference)
    assert torch.equal(model.cpu()(ids).logits, reference)
    expected = again.generate(ids, max_new_tokens=3, do_sample=False)
    assert torch.equal(model.generate(ids, max_new_tokens=3, do_sample=False), expected)


def test_a_tensor_of_the_host_among_those_of_the_device_is_named():
    device, host = compat.wrap(compat.to_jax(torch.ones(2, 3))), torch.zeros(2, 3)
    with compat.environment():
        with pytest.raises(
            PortError, match=r"where: torch\.float32 \[2, 3\] on the host\n.*x\.to\(\"jax\"\)"
        ):
            device + host
        assert (device + host.to("jax")).shape == (2, 3)


def test_a_module_on_the_host_that_compiled_code_calls_is_to_be_ported() -> None:
    compiled = tpuport.compile(lambda x, module: module(x))
    with pytest.raises(PortError, match=r"weights on the host: module = tpuport\.port\(module\)"):
        compiled(torch.ones(2, 3), torch.nn.Linear(3, 2))


@pytest.mark.parametrize("index", [torch.tensor(1), torch.tensor([1, 0]), torch.tensor([True, False])])
def test_a_tensor_of_the_host_that_one_of_the_device_indexes_is_named(index):
    host, place = torch.zeros(2, 3), compat.wrap(compat.to_jax(index))
    with compat.environment():
        with pytest.raises(PortError, match=r"where: torch\.float32 \[2, 3\] on the host"):
            host[place]
        assert host.to("jax")[place].shape == host[index].shape


def test_a_tensor_of_one_element_on_the_host_has_its_shape():
    device = compat.wrap(compat.to_jax(HOST))
    assert device.index_select(0, torch.tensor([1])).tolist() == [HOST[1].tolist()]
    assert (device + torch.ones(1, 1, 1)).shape == (1, 2, 3)
    assert (device.int() + torch.tensor(1.0)).dtype == torch.float32


DEVICES = ("cuda", "cuda:0", "jax", "jax:0", 0, torch.device("cuda", 0))


@pytest.mark.parametrize("device", DEVICES, ids=repr)
def test_what_is_on_the_device_stays_there(device):
    tensor = compat.wrap(compat.to_jax(HOST))
    for moved in (
        tensor.to(device),
        tensor.to(device, non_blocking=True),
        tensor.to(device=device),
        tensor.cuda(),
    ):
        assert compat.is_ported(moved)
        assert torch.equal(moved.cpu(), HOST)
    assert tensor.to(device, torch.bfloat16).dtype == torch.bfloat16
    assert not tensor.is_pinned()
    assert tensor.get_device() == tensor.device.index


def test_in_compiled_code_cuda_is_where_the_program_runs():
    def move(x):
        made = HOST.cuda(), HOST.cuda(0), HOST.cuda(torch.device("cuda"), non_blocking=True)
        return [x + tensor for tensor in (*made, HOST.cuda(device="cuda:0"), HOST.to("cuda"))]

    for result in tpuport.compile(move)(HOST.to("jax")):
        assert torch.equal(result.cpu(), 2 * HOST)
    with pytest.raises(tpuport.PortError, match="must be cuda device"):
        tpuport.compile(lambda x: x + HOST.cuda("cpu"))(HOST.to("jax"))
    with pytest.raises(tpuport.PortError, match="no GPU here"):
        HOST.cuda()


@pytest.mark.parametrize("options", [{}, {"dtype": torch.bfloat16}], ids=repr)
def test_a_tensor_without_values(options):
    for tensor in (HOST, compat.wrap(compat.to_jax(HOST))):
        moved = tensor.to("meta", **options)
        assert tensor.to(moved).is_meta
        assert moved.is_meta
        assert not compat.is_ported(moved)
        assert (moved.shape, moved.dtype) == (HOST.shape, options.get("dtype", HOST.dtype))


def test_data_is_another_tensor():
    tensor = compat.wrap(compat.to_jax(HOST.clone()))
    data = tensor.data
    tensor.transpose_(0, 1).add_(1)
    assert data.shape == HOST.shape
    assert torch.equal(data.cpu(), HOST + 1)


def test_data_of_a_tensor():
    weight = torch.nn.Parameter(compat.wrap(compat.to_jax(HOST.clone())))
    weight.data.mul_(2)
    weight.data[0] = 7
    assert weight.tolist() == [[7, 7, 7], [6, 8, 10]]
    view = weight.data.view(-1)
    weight.data = compat.wrap(compat.to_jax(torch.ones(2)))
    assert weight.tolist() == [1, 1]
    # A view goes on with the memory that the tensor had.
    view.add_(1)
    assert (weight.tolist(), view.tolist()) == ([1, 1], [8, 8, 8, 7, 9, 11])
    with pytest.raises(PortError, match=r'x\.data = y\.to\("jax"\)'):
        weight.data = torch.ones(2)


@pytest.mark.filterwarnings("ignore:os.fork")
def test_workers_of_a_data_loader_cannot_use_the_device():
    data = torch.utils.data.TensorDataset(compat.wrap(compat.to_jax(HOST)))
    assert torch.equal(next(iter(torch.utils.data.DataLoader(data)))[0].cpu(), HOST[:1])
    with pytest.raises(PortError, match=r"keep data sets on the host"):
        next(iter(torch.utils.data.DataLoader(data, num_workers=1, timeout=20)))


def test_a_copied_model_is_a_model():
    model = tpuport.port(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).eval())
    model[1].weight = model[0].bias
    model[0].weight.note = "mine"
    copied = copy.deepcopy(model)
    assert all(isinstance(parameter, torch.nn.Parameter) for parameter in copied.parameters())
    assert copied[0].weight.requires_grad == model[0].weight.requires_grad
    assert copied[1].weight is copied[0].bias
    assert copied[0].weight.note == "mine"
    with torch.no_grad():
        model[0].bias.zero_()
    assert copied[0].bias.abs().sum() > 0
    expected = tpuport.compile(copied)(HOST)
    torch.testing.assert_close(tpuport.to_cpu(copied)(HOST), tpuport.to_cpu(expected))


def test_swapped_tensors_take_their_attributes_and_views_along():
    outputs = []
    for device in ("cpu", "jax"):
        # torch's own swaps tensors of the host only if they have gradients.
        first, second = (torch.full((size,), 1.0, device=device, requires_grad=True) for size in (3, 2))
        first.note = "mine"
        torch.utils.swap_tensors(first, second)
        with torch.no_grad():
            first.add_(1)
        outputs.append([first.tolist(), second.tolist(), second.note, hasattr(first, "note")])
    assert outputs[0] == outputs[1]
    first, second = HOST.to("jax"), torch.zeros(2, device="jax")
    view = first[0]
    torch.utils.swap_tensors(first, second)
    view.fill_(7)
    assert second.tolist() == [[7, 7, 7], [3, 4, 5]]
    assert first.tolist() == [0, 0]


def test_the_data_of_a_parameter_is_no_parameter():
    """`torch.nn.utils.spectral_norm` assigns `weight.data` in the parameter's place."""
    host, model = torch.nn.Linear(3, 3), tpuport.port(torch.nn.Linear(3, 3))
    for module in (host, model):
        torch.nn.utils.spectral_norm(module)
        module.plain = module.bias.data
        module.plain.fill_(2)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in host.named_parameters()]
    assert model.bias.tolist() == [2, 2, 2]
    # Each device draws its own first vectors.
    model.load_state_dict(host.state_dict())
    for is_training in (False, True, True):
        with torch.no_grad():
            result = model.train(is_training)(HOST)
            torch.testing.assert_close(tpuport.to_cpu(result), host.train(is_training)(HOST))


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda x: x.to_sparse(), r"_to_sparse does not run on the device\n  fix: .*x\.cpu\(\)"),
        (lambda x: x.pin_memory(), "only a tensor of the host can be pinned"),
        (lambda x: x.apply_(lambda value: value + 1), "cannot work on a tensor that is on the device"),
        (torch.from_dlpack, "cannot work on a tensor that is on the device"),
    ],
)
def test_what_does_not_work_says_so(use, message):
    with pytest.raises(PortError, match=message):
        use(compat.wrap(compat.to_jax(HOST)))


def test_torchax_has_its_own_methods_back_when_disabled():
    tensor = compat.wrap(compat.to_jax(torch.ones(2)))
    tpuport.disable()
    with pytest.raises(AssertionError, match="enable_globally"):
        tensor.abs()
