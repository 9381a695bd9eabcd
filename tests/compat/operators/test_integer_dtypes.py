"""Integers of 32 and 64 bits have torch's dtype, wherever they come from and go."""

import copy
import pickle

import jax
import pytest
import torch
from torch import nn

import tpuport
from tpuport import PortError, compat

WIDE = torch.arange(6).reshape(2, 3)
NARROW = WIDE.int()
INDEX = torch.tensor([1, 0])

FORMS = {
    "arithmetic": lambda w, n: [w + 1, n + 1, w + n, n * n, n // 2, n / 2, n + w.sum(), w[0, 0] + n, n + True],
    "conversions": lambda w, n: [w.int(), n.long(), w.to(n), n.to(w), n.to(torch.int64), w.type_as(n), n.float().int()],
    "reductions": lambda w, n: [n.sum(), n.prod(), n.amax(0), n.max(0)[0], n.max(0)[1], n.argmax(), n.cumsum(0)],
    "views": lambda w, n: [n[0], n[:, 1:], n.t(), n.view(3, 2), n.reshape(-1), n[None], n.expand(4, 2, 3), n.detach()],
    "selections": lambda w, n: [n[INDEX.to(n.device)], n.gather(0, w % 2), n.flip(0), n.unbind()[1]],
    "sorting": lambda w, n: [*n.sort(), *n.topk(2), n.argsort()],
    "joining": lambda w, n: [torch.cat([n, n]), torch.cat([n, w]), torch.stack([n, n]), torch.where(n > 1, n, 0)],
    "new": lambda w, n: [
        torch.zeros_like(n), n.new_zeros(2), n.new_tensor([1]), torch.full_like(w, 3, dtype=torch.int32),
        torch.zeros(2, dtype=torch.int32, device=n.device), torch.arange(3, device=n.device),
        torch.arange(3, device=n.device, dtype=torch.int32), torch.tensor([1, 2], device=n.device),
        torch.full((2,), n[0, 1], device=n.device), torch.full((2,), n[0, 1] > 0, device=n.device),
    ],
    "composed": lambda w, n: [
        n.clone(), n.contiguous(), n.repeat_interleave(2), n.tril(), torch.bucketize(n, n[0], out_int32=True),
    ],
    "bits": lambda w, n: [n.float().view(torch.int32), n.view(torch.float32), n.view(torch.int16), w.view(torch.int64)],
    "asked": lambda w, n: [w.sum(dtype=torch.int32), n.softmax(0, dtype=torch.float32), n.prod(0, dtype=torch.int64)],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_results_have_torchs_dtypes(agree, form):
    agree(FORMS[form], WIDE, NARROW)


def test_results_whose_sizes_are_values(agree):
    agree(lambda n: [n[n > 2], n.nonzero(), *torch.unique(n, return_inverse=True)], NARROW, jit=False)


def test_draws():
    for dtype in (torch.int32, torch.int64):
        assert torch.randint(3, (2,), dtype=dtype, device="jax").dtype == dtype
        assert torch.randint_like(torch.zeros(2, dtype=dtype, device="jax"), 3).dtype == dtype


def test_writes_keep_the_dtype(agree):
    def write(wide, narrow):
        view = narrow[1:]
        view += wide[:1]
        narrow[0, 0] = 7
        narrow.mul_(2)
        return [wide, narrow, view]

    agree(write, WIDE, NARROW)


def test_code_that_asks_takes_torchs_branch():
    def ask(ids, offsets):
        wide = ids + 10 if ids.dtype == torch.int64 else ids
        return wide, offsets + 100 if offsets.dtype == torch.int32 else offsets

    compiled = tpuport.compile(ask)
    for ids, offsets in ((WIDE, NARROW), (NARROW, WIDE), (WIDE.to("jax"), NARROW.to("jax"))):
        for result, expected in zip(compiled(ids, offsets), ask(ids.cpu(), offsets.cpu()), strict=True):
            torch.testing.assert_close(result.cpu(), expected)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("narrow", torch.arange(3, dtype=torch.int32))
        self.register_buffer("wide", torch.arange(3))
        self.position = torch.zeros((), dtype=torch.int32)

    def forward(self, ids):
        self.position = self.position + 1
        self.narrow.add_(self.position)
        return [self.narrow.clone(), self.wide.clone(), self.position, self.narrow + ids]


def test_state_of_a_model_keeps_its_dtypes():
    model = Counting()
    reference = copy.deepcopy(model)
    ported = tpuport.port(model)
    ported.position = ported.position.to("jax")
    step = tpuport.compile(ported)
    for _ in range(3):
        for result, expected in zip(step(INDEX[:1]), reference(INDEX[:1]), strict=True):
            torch.testing.assert_close(result.cpu(), expected)
    assert step.program.compilations == 1
    host = tpuport.to_cpu(ported)
    torch.testing.assert_close(dict(host.named_buffers()), dict(reference.named_buffers()))


def test_a_tensor_of_the_state_with_another_dtype_makes_another_program():
    state = {"count": torch.zeros((), dtype=torch.int64, device="jax")}
    step = tpuport.compile(lambda x: x + 10 if state["count"].dtype == torch.int64 else x)
    assert int(step(torch.tensor(1))) == 11
    state["count"] = state["count"].int()
    assert int(step(torch.tensor(1))) == 1


def test_host_and_back():
    for tensor in (WIDE, NARROW):
        ported = tensor.to("jax")
        for host in (
            ported.cpu(), tpuport.to_cpu(ported), torch.from_numpy(ported.numpy()), copy.deepcopy(ported).cpu(),
            pickle.loads(pickle.dumps(ported)),
        ):  # fmt: skip
            torch.testing.assert_close(host, tensor)
        assert str(ported).replace(", device='jax:0'", "") == str(tensor)
        assert (ported.element_size(), ported.type()) == (
            tensor.element_size(), tensor.type().replace("torch.", "torch.jax."),
        )  # fmt: skip


def test_with_wide_arrays():
    with jax.enable_x64(True):
        wide, narrow = WIDE.to("jax"), NARROW.to("jax")
        assert [compat.to_jax(x).dtype.name for x in (wide, narrow)] == ["int64", "int32"]
        assert [x.dtype for x in (wide, narrow, narrow + 1, narrow.sum())] == [
            torch.int64, torch.int32, torch.int32, torch.int64,
        ]  # fmt: skip


@pytest.mark.parametrize(
    "read",
    [
        lambda w, n: w.view(torch.float32), lambda w, n: w.view(torch.int32), lambda w, n: n.float().view(torch.int64),
    ],
)  # fmt: skip
def test_bits_that_the_device_does_not_have(read):
    with pytest.raises(PortError, match="32 bits a number"):
        read(WIDE.to("jax"), NARROW.to("jax"))


@pytest.mark.parametrize(
    "fill",
    [
        lambda w: torch.full_like(w, 2**31), lambda w: w.new_full((2,), -(2**31) - 1), lambda w: w.fill_(2**40),
        lambda w: torch.full((2,), 2**31, device="jax"), lambda w: w.masked_fill(w > 1, torch.iinfo(w.dtype).max),
    ],
)  # fmt: skip
def test_values_that_32_bits_do_not_hold(fill):
    with pytest.raises(PortError, match="integers have 32 bits there"):
        fill(WIDE.to("jax"))
