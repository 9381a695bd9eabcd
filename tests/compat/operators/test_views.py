"""Writes through views, against torch: what is written through one tensor shows in all that share its memory."""

import copy
import gc
import random

import jax
import pytest
import torch

from tpuport import PortError, compat

VIEWS = {
    "view": lambda x: x.view(-1, x.shape[-1]) if x.is_contiguous() else x.reshape(-1),
    "reshape": lambda x: x.reshape(-1),
    "view_as": lambda x: x.view_as(x),
    "flatten": lambda x: x.flatten(),
    "ravel": lambda x: x.ravel(),
    "unflatten": lambda x: x.unflatten(0, (1, -1)),
    "squeeze": lambda x: x.squeeze(),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "expand": lambda x: x.unsqueeze(0).expand(1, *x.shape),
    "transpose": lambda x: x.transpose(0, -1),
    "permute": lambda x: x.permute(*reversed(range(x.dim()))),
    "movedim": lambda x: x.movedim(0, -1),
    "mT": lambda x: x.mT if x.dim() > 1 else x,
    "slice": lambda x: x[1:],
    "step": lambda x: x[..., ::2],
    "index": lambda x: x[-1],
    "None": lambda x: x[None],
    "scalar tensor": lambda x: x[torch.tensor(0, device=x.device)],
    "narrow": lambda x: x.narrow(0, 0, 1),
    "chunk": lambda x: x.chunk(2, -1)[0],
    "split": lambda x: x.split(1, 0)[-1],
    "tensor_split": lambda x: x.tensor_split(2, -1)[-1],
    "unbind": lambda x: x.unbind(0)[0],
    "diagonal": lambda x: x.diagonal() if x.dim() > 1 else x,
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "real": lambda x: x.real,
    "contiguous": lambda x: x.contiguous(),
}
WRITES = {
    "add_": lambda x: x.add_(1),
    "+=": lambda x: x.__iadd__(1),
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(7),
    "copy_": lambda x: x.copy_(torch.ones_like(x) * 3),
    "clamp_": lambda x: x.clamp_(0, 1),
    "masked_fill_": lambda x: x.masked_fill_(x > 2, 0),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([0], device=x.device), torch.ones_like(x[:1])),
    "integer": lambda x: x.__setitem__(0, 5.0),
    "ellipsis": lambda x: x.__setitem__(Ellipsis, 9.0),
    "index tensor": lambda x: x.__setitem__(torch.tensor([0], device=x.device), 4.0),
    "mask": lambda x: x.__setitem__(x > 1, -1.0),
    "out": lambda x: torch.add(x, 1, out=x),
}


def _write(views, write):
    """A function of a tensor that takes views of views, writes to the last, and gives all of them."""

    def function(x):
        tensors = [x.clone()]
        for view in views:
            tensors.append(VIEWS[view](tensors[-1]))
        # A sibling of the view that is written to.
        tensors.append(tensors[0].transpose(0, 1))
        WRITES[write](tensors[-2])
        return tensors

    return function


X = torch.arange(24.0).reshape(2, 3, 4)


@pytest.mark.parametrize("view", VIEWS)
def test_writes_reach_all_that_share_the_memory(agree, view):
    for write in ("zero_", "+=", "integer"):
        agree(_write([view], write), X, jit=False)


@pytest.mark.parametrize("write", WRITES)
def test_every_write_reaches_all_that_share_the_memory(agree, write):
    for view in ("transpose", "step"):
        agree(_write([view], write), X, jit=False)


@pytest.mark.parametrize("seed", range(8))
def test_views_of_views(agree, seed):
    draw = random.Random(seed)
    views = draw.choices(list(VIEWS), k=draw.choice([2, 3]))
    write = draw.choice(list(WRITES))
    agree(_write(views, write), X)


def test_complex_parts(agree):
    def function(x):
        z = torch.complex(x, x + 1)
        torch.view_as_real(z)[..., 0].mul_(2)
        z.imag.add_(3)
        pairs = torch.stack([x, x], -1)
        torch.view_as_complex(pairs).mul_(2j)
        return torch.view_as_real(z), pairs

    agree(function, X)


def test_views_made_in_place(agree):
    def function(x):
        x = x.clone()
        row = x[0]
        row.t_().unsqueeze_(1).squeeze_(1).transpose_(0, 1).mul_(2)
        return x, row

    agree(function, X)


@pytest.mark.parametrize(
    "duplicate",
    [
        lambda x: x.transpose(0, 2).reshape(-1),
        lambda x: x.transpose(0, 2).flatten(),
        lambda x: x.transpose(0, 2).contiguous(),
        lambda x: x[..., ::2].reshape(-1),
        lambda x: x[..., 1].ravel(),  # of which reshape(-1) is a view
        lambda x: x.clone(),
        lambda x: x[torch.tensor([0, 1], device=x.device)],
        lambda x: x + 0,
    ],
)
def test_a_copy_is_no_view(agree, duplicate):
    def function(x):
        x = x.clone()
        result = duplicate(x)
        result.add_(1)
        return x, result

    agree(function, X)


def test_strides_stay_after_writes(agree):
    def function(x):
        first = x.clone().transpose_(0, 1).mul_(2)
        first.contiguous().add_(1)
        second = (x + 0).transpose(0, 2)
        second.mul_(2)
        second.contiguous().add_(1)
        return first, second

    agree(function, X)


@pytest.mark.usefixtures("small_heap")
def test_layout_outlives_what_is_viewed(agree):
    def function(x):
        transposed = (x + 0).transpose(0, 2)
        gc.collect()
        transposed.reshape(-1).zero_()  # of a copy, though all that it was copied from is gone
        return transposed

    agree(function, X, jit=False)


def test_strides_are_those_of_torch():
    with compat.environment():
        x = X.to("jax")
        assert x.is_contiguous()
        assert x.transpose(0, 2).stride() == (1, 4, 12)
        assert not x.transpose(0, 2).is_contiguous()
        assert x[:, 1:].stride(0) == 12


RESULTS = {
    "arithmetic": lambda x: x * 2 + 1,
    "with another layout": lambda x: x + torch.ones(x.shape, device=x.device),
    "an activation": lambda x: torch.nn.functional.silu(x),
    "a softmax": lambda x: x.softmax(-1),
    "where": lambda x: torch.where(x > 2, x, 0.0),
    "a copy": lambda x: x.clone(),
    "a contiguous copy": lambda x: x.clone(memory_format=torch.contiguous_format),
    "like it": lambda x: torch.zeros_like(x),
    "draws like it": lambda x: torch.rand_like(x),
    "a dtype": lambda x: x.bfloat16(),
    "to a dtype": lambda x: x.to(torch.bfloat16),
    "its own dtype": lambda x: x.to(torch.float32),
    "a sum": lambda x: x.sum(-1),
    "masked": lambda x: x.masked_fill(x > 2, 0.0),
    "a triangle": lambda x: x.tril(),
    "joined": lambda x: torch.cat([x, x]),
    "a product": lambda x: x @ x.mT,
    "a layer norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "expanded": lambda x: x[:, :, :1].expand(x.shape) + 1,
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_have_the_strides_of_torch(name):
    reference = RESULTS[name](X.transpose(0, 2))
    with compat.environment():
        result = RESULTS[name](X.to("jax").transpose(0, 2))
        assert result.stride() == reference.stride()


@pytest.mark.parametrize(
    "read", [lambda y: y.mT.reshape(-1), lambda y: y.reshape(-1), lambda y: y.contiguous()]
)
def test_what_torch_copies_of_a_result_depends_on_its_strides(agree, read):
    def write(x):
        y = x.mT * 2
        part = read(y)
        part.add_(1)
        return [y, part]

    agree(write, X)


ROWS = {
    "in place": lambda wide: wide[1].add_(1),
    "assigned": lambda wide: wide.__setitem__(1, 7.0),
    "a range": lambda wide: wide[1:2].mul_(3),
    "a column of a row": lambda wide: wide[2, :, 1].fill_(5),
    "views of a row": lambda wide: wide[0].transpose(0, 1)[1:].zero_(),
    "of one": lambda wide: wide[:1].add_(1),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_an_expanded_tensor_reaches_all(agree, name):
    def write(x):
        y = x.clone()
        wide = y.expand(3, *y.shape)
        other = y[1:]
        ROWS[name](wide)
        return [y, wide, other]

    agree(write, X[0])


FILLED = {
    "all": lambda wide: wide.fill_(7),
    "of zeros": lambda wide: wide.zero_(),
    "a part": lambda wide: wide[:2, 1:].fill_(5),
    "turned": lambda wide: wide.transpose(0, 2).fill_(3),
    "windows": lambda wide: wide[0].as_strided((2, 3), (1, 1)).fill_(2),
}


@pytest.mark.parametrize("name", FILLED)
def test_a_number_fills_an_expanded_tensor(agree, name):
    """Which torch allows, as all elements that share memory get the same."""

    def write(x):
        y = x.clone()
        wide = y.expand(3, *y.shape)
        alone = x[:1].clone().expand(3, -1, -1)
        for tensor in (wide, alone):
            FILLED[name](tensor)
        y[0] += 1
        return [y, wide, alone]

    agree(write, X[0])


def test_refused_as_in_torch():
    with compat.environment():
        x = torch.zeros(3, 1).to("jax")
        wide = x.expand(3, 4)
        with pytest.raises(RuntimeError, match="single memory location"):
            wide.add_(1)
        with pytest.raises(RuntimeError, match="single memory location"):
            wide[0] = 1
        assert not x.jax().any()
        assert not wide.jax().any()


def test_overlapping_windows_are_refused():
    with compat.environment():
        x = torch.arange(5.0).to("jax")
        windows = x.unfold(0, 2, 1)
        with pytest.raises(PortError, match="unfold"):
            windows.add_(1)
        assert x.tolist() == [*windows[:, 0].tolist(), 4.0]
        windows.zero_()
        assert not x.jax().any()
        assert not windows.jax().any()


@pytest.mark.usefixtures("small_heap")
def test_array_is_free_when_one_tensor_is_left():
    with compat.environment():
        x = torch.arange(5.0).to("jax")
        part = x[1:]
        storage = part._alias.storage
        assert storage.array is not None
        del x
        gc.collect()
        assert storage.array is None
        part.zero_()
        assert part.tolist() == [0, 0, 0, 0]


def test_a_deep_copy_shares_nothing():
    with compat.environment():
        x = torch.arange(5.0).to("jax")
        part = x[1:]
        duplicate = copy.deepcopy(part)
        duplicate.zero_()
        assert x.tolist() == [0, 1, 2, 3, 4]
        assert part.tolist() == [1, 2, 3, 4]


def test_unread_views_cost_a_program_nothing():
    def with_views(x):
        with compat.environment():
            tensor = compat.wrap(x)
            parts = [tensor[index] for index in range(2)]
            tensor.add_(1)
            return tensor.jax(), len(parts)

    def without_views(x):
        return x + 1, 2

    texts = [
        jax.jit(function).lower(X.numpy()).compile().as_text() for function in (with_views, without_views)
    ]
    counts = [text.count(" = f32") for text in texts]
    assert counts[0] == counts[1]


def test_every_pair_is_symmetric(agree):
    """A write to what is viewed shows in its views, and a write to one view in another."""

    def function(x):
        x = x.clone()
        flat, swapped, row = x.view(-1), x.transpose(0, 2), x[1]
        for tensor in (x, flat, swapped, row):
            tensor.mul_(3).add_(1)
        return x, flat, swapped, row

    agree(function, X)


def test_narrow_from_a_place_on_the_device(agree):
    def narrowed(x, start):
        x = x.clone()
        part = x.narrow(1, start, 2)
        part += 10
        return x, part, torch.narrow(x, 0, start - 4, 1)

    agree(narrowed, torch.arange(20.0).reshape(4, 5), torch.tensor(2))


@pytest.mark.parametrize("wrap", [False, True])
def test_the_diagonal_of_a_view_is_filled(agree, wrap):
    def filled(x):
        x = x.clone()
        x[1:3, 1:3].fill_diagonal_(7)
        x.T[:, :3].fill_diagonal_(8, wrap=wrap)
        return x, x.clone().fill_diagonal_(9, wrap=wrap)

    agree(filled, torch.arange(28.0).reshape(7, 4))
    agree(filled, torch.arange(28).reshape(7, 4))


@pytest.mark.parametrize("start", [torch.tensor(True), torch.tensor([1])], ids=["bool", "vector"])
def test_narrow_starts_at_an_integer(start):
    with pytest.raises(RuntimeError, match="start must be an 0-dim integral Tensor"):
        torch.narrow(torch.ones(4, device="jax"), 0, start.to("jax"), 2)
