"""Indices outside of their dimension are torch's errors, where they have values."""

import pytest
import torch
from torch.nn import functional

import tpuport
from tpuport.compat.operators import index_bounds

X = torch.arange(12.0).reshape(3, 4)
SCORES = X.log_softmax(-1)
VALUES = torch.full((1, 4), 2.0)


def _written(x, write):
    x = x.clone()
    write(x)
    return x


# Of the tensor and an index of one element, along a dimension of 3.
ALONG = {
    "x[i]": lambda x, i, v: x[i],
    "x[i, 0]": lambda x, i, v: x[i, 0],
    "x[scalar]": lambda x, i, v: x[i[0]],
    "x[:, i]": lambda x, i, v: x.T[:, i],
    "x[i] = v": lambda x, i, v: _written(x, lambda x: x.__setitem__(i, v)),
    "index_put_": lambda x, i, v: _written(x, lambda x: x.index_put_((i,), v[0])),
    "gather": lambda x, i, v: x.gather(0, i[:, None]),
    "scatter": lambda x, i, v: x.scatter(0, i[:, None], 5.0),
    "scatter_": lambda x, i, v: _written(x, lambda x: x.scatter_(0, i[:, None], 5.0)),
    "scatter_add": lambda x, i, v: x.scatter_add(0, i[:, None], v),
    "scatter_reduce": lambda x, i, v: x.scatter_reduce(0, i[:, None], v, "sum"),
    "index_select": lambda x, i, v: x.index_select(0, i),
    "index_add": lambda x, i, v: x.index_add(0, i, v),
    "index_add_": lambda x, i, v: _written(x, lambda x: x.index_add_(0, i, v)),
    "index_copy": lambda x, i, v: x.index_copy(0, i, v),
    "index_fill": lambda x, i, v: x.index_fill(0, i, 1.0),
    "index_reduce": lambda x, i, v: x.index_reduce(0, i, v, "prod"),
    "take": lambda x, i, v: x[0, :3].take(i),
    "put": lambda x, i, v: _written(x[0, :3], lambda x: x.put_(i, v[0, :1])),
    "take_along_dim": lambda x, i, v: x.take_along_dim(i[:, None], 0),
    "flat take_along_dim": lambda x, i, v: x[:, :1].contiguous().take_along_dim(i),
    "embedding": lambda x, i, v: functional.embedding(i, x),
    "embedding_bag": lambda x, i, v: functional.embedding_bag(i[None], x),
    "one_hot": lambda x, i, v: functional.one_hot(i, 3),
    "nll_loss": lambda x, i, v: functional.nll_loss(x[:1, :3], i),
    "cross_entropy": lambda x, i, v: functional.cross_entropy(x[:1, :3], i),
    "cross_entropy of images": lambda x, i, v: functional.cross_entropy(x[None, :, :1], i[None]),
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", ALONG)
def test_an_index_outside_is_torchs_error(name):
    function = ALONG[name]
    for index in (2, 3, -3, -4):
        host = torch.tensor([index])
        arguments = X.to("jax"), host.to("jax"), VALUES.to("jax")
        try:
            expected = function(X, host, VALUES)
        except (IndexError, RuntimeError) as error:
            # torch also says where in the index it is, and counts dimensions among those with index tensors.
            message = str(error).splitlines()[0].removeprefix("Index 0 of ").split(" for dimension")[0]
            with pytest.raises(type(error)) as caught:
                function(*arguments)
            assert message in str(caught.value)
        else:
            result = function(*arguments).cpu()
            torch.testing.assert_close(result, expected.to(result.dtype))


@pytest.mark.parametrize("key", [[0, 7], torch.tensor([0, 7])], ids=["list", "tensor of the host"])
def test_an_index_from_the_host(key):
    for x in (X, X.to("jax")):
        with pytest.raises(IndexError, match="index 7 is out of bounds for dimension 0 with size 3"):
            x[key]


def test_the_first_of_several_indices_outside_is_named():
    for indices in ([5, 9], [9, 5], [0, 4, -5]):
        index = torch.tensor(indices)
        with pytest.raises(IndexError) as expected:
            X[index]
        with pytest.raises(IndexError, match=str(expected.value)):
            X.to("jax")[index.to("jax")]


def test_a_large_index_is_reduced_on_the_device(monkeypatch):
    monkeypatch.setattr(index_bounds, "_COPIED_WHOLE", 2)
    index = torch.tensor([0, 1, 2, 5])
    with pytest.raises(IndexError, match="index 5 is out of bounds"):
        X.to("jax")[index.to("jax")]
    assert index_bounds.extremes(index.to("jax")) == (0, 5)


def test_targets_that_do_not_count():
    target = torch.tensor([0, -100, 2])
    for options in ({}, {"ignore_index": 5}):
        target[1] = options.get("ignore_index", -100)
        expected = functional.cross_entropy(X, target, **options)
        result = functional.cross_entropy(X.to("jax"), target.to("jax"), **options)
        torch.testing.assert_close(result.cpu(), expected)


def test_a_program_has_no_values_to_check():
    rows = tpuport.compile(lambda x, i: x[i])(X, torch.tensor([1, 7]))
    assert rows.cpu().tolist() == [X[1].tolist(), X[2].tolist()]
