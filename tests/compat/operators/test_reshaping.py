import math

import pytest
import torch

import tpuport
from tpuport import compat

X = torch.arange(24.0).reshape(2, 3, 4) - 7

CASES = {
    "flatten": lambda x: x.flatten(),
    "flatten from": lambda x: x.flatten(1),
    "flatten from the end": lambda x: x.flatten(-2),
    "flatten to": lambda x: x.flatten(0, 1),
    "flatten to from the end": lambda x: x.flatten(0, -2),
    "flatten one": lambda x: x.flatten(1, 1),
    "flatten the last": lambda x: x.flatten(2, 2),
    "flatten a scalar": lambda x: x[0, 0, 0].flatten(),
    "flatten a view": lambda x: x[:, 1:].flatten(1, 2),
    "bits as integers": lambda x: x.view(torch.int32),
    "bits as narrower": lambda x: x.view(torch.bfloat16),
    "bits as wider": lambda x: x.bfloat16().view(torch.float32),
    "parts of complex numbers": lambda x: torch.complex(x, x + 1).view(torch.float32),
    "bits of complex numbers": lambda x: torch.complex(x, x + 1).view(torch.int32),
    "complex numbers of parts": lambda x: x[..., :4].contiguous().view(torch.complex64),
    "padding of a scalar by nothing": lambda x: torch.nn.functional.pad(x[0, 0, 0], ()),
    "unsqueeze in place": lambda x: x.clone().unsqueeze_(1),
    "unsqueeze in place at the end": lambda x: x.clone().unsqueeze_(-1),
    "transpose in place": lambda x: x.clone().transpose_(0, -1),
    "squeeze in place": lambda x: x[:, :1].clone().squeeze_(1),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees(agree, name):
    agree(CASES[name], X, tolerance=0)


def test_take_along_a_dimension(agree):
    indices = torch.randint(0, 4, (2, 3, 5))
    agree(lambda x, i: torch.take_along_dim(x, i, dim=-1), X, indices)
    agree(lambda x, i: x.take_along_dim(i[:1], 2), X, indices)
    agree(lambda x, i: torch.take_along_dim(x, i), X, indices)
    agree(lambda x, i: torch.take_along_dim(x, i[..., :1], dim=1), X, indices.clamp(max=2))
    agree(lambda x, i: torch.take_along_dim(x[:1], i, dim=-1), X, indices)


REPEATS = {
    "flat": lambda x: torch.repeat_interleave(x, 2),
    "method": lambda x: x.repeat_interleave(repeats=3, dim=0, output_size=6),
    "from the end": lambda x: x.repeat_interleave(2, -1),
    "function": lambda x: torch.repeat_interleave(x, 2, dim=1, output_size=6),
    "a view": lambda x: x[:, 1:].repeat_interleave(2, dim=1),
    "each its own": lambda x: torch.repeat_interleave(
        x, torch.tensor([2, 1], device=x.device), dim=0, output_size=3
    ),
}


# torch's parser takes NumPy's names, too.
NAMED = {
    "repeat_interleave": lambda x: x.repeat_interleave(2, axis=-2),
    "argsort": lambda x: torch.argsort(input=x, axis=1, descending=True),
    "tensor_split": lambda x: torch.tensor_split(input=x, sections=2, axis=-1)[0],
    "take_along_dim": lambda x: torch.take_along_dim(input=x, indices=x[:1].long() * 0, axis=0),
    "narrow": lambda x: torch.narrow(input=x, axis=2, start=1, length=2),
    "sum": lambda x: torch.sum(x, axis=1, keepdims=True),
}


@pytest.mark.parametrize("name", NAMED)
def test_takes_names_of_numpy(agree, name):
    agree(NAMED[name], X, tolerance=0)


@pytest.mark.parametrize("name", REPEATS)
def test_repeats(agree, name):
    agree(REPEATS[name], X, tolerance=0)


def test_flatten_refuses_what_torch_refuses():
    with compat.environment():
        ported = compat.wrap(compat.to_jax(X))
        with pytest.raises(IndexError):
            ported.flatten(3)
        with pytest.raises(RuntimeError):
            ported.flatten(2, 1)


def test_what_flatten_leaves_as_it_is_is_the_tensor_itself(agree):
    def function(x):
        x = x.clone()
        x.flatten(1, 1).unsqueeze_(0)
        return x

    agree(function, X)


@pytest.mark.parametrize("dims", [(), (0,), (-1,), ((0, 1),), (1,)])
def test_squeezed_in_place_for_functions_that_torch_takes_apart(agree, dims):
    def function(x):
        x = x.clone().unsqueeze(0)
        x.squeeze_(*dims)
        return x, torch.atleast_3d(x), torch.atleast_1d(x)

    agree(function, X[:1, 0, 0])


def test_flip(agree):
    agree(lambda x: [x.flip(0), x.flip(-1, 1), x.flip([]), x.sum().flip(0), x.sum().flip(-1)], X)


def test_squeeze_in_place_refuses_what_torch_refuses():
    with compat.environment(), pytest.raises(IndexError):
        compat.wrap(compat.to_jax(X)).squeeze_(3)


def test_type_as_leaves_the_tensor_alone(agree):
    def convert(x, y):
        converted = x.type_as(y)
        return x, converted, converted.type_as(x), x.type_as(x), x[0].type_as(y)

    agree(convert, X, torch.zeros(1, dtype=torch.bfloat16))


def test_writes_to_parts_of_complex_numbers_reach_them(agree):
    def write(x):
        z = torch.complex(x, -x)
        z.view(torch.float32)[0].zero_()
        return z

    agree(write, X)


def test_more_padding_than_dimensions_is_torchs_error():
    with compat.environment(), pytest.raises(RuntimeError, match="Padding length should be less"):
        torch.nn.functional.pad(compat.wrap(compat.to_jax(X)), (1,) * 8)


def test_bits_wider_than_jax_has_are_refused():
    with compat.environment(), pytest.raises(tpuport.PortError, match="int64"):
        compat.wrap(compat.to_jax(X)).view(torch.int64)


def test_shape_by_name(agree):
    agree(
        lambda x: [x.reshape(shape=(3, 2)), x.view(size=(6,)), torch.reshape(x, shape=(-1,))],
        torch.arange(6.0),
    )


PARTS = {
    "indices": lambda x: torch.tensor_split(x, [1, 3], -1),
    "more parts than places": lambda x: x.tensor_split(5, dim=1),
    "indices in a tensor on the host": lambda x: torch.tensor_split(x, torch.tensor([1, 2]), 1),
    "a number in a tensor": lambda x: x.tensor_split(torch.tensor(2), 1),
    "indices from the end": lambda x: torch.tensor_split(x, [-2], 2),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts(agree, name):
    agree(lambda x: list(PARTS[name](x)), X, tolerance=0)


def test_parts_are_views(agree):
    def write(x):
        y = x.clone()
        torch.tensor_split(y, 2, 1)[1].zero_()
        y.tensor_split([1], 0)[0].add_(1)
        return y

    agree(write, X)


COUNTS = {
    "on the host": lambda x: torch.repeat_interleave(x, torch.tensor([0, 1, 2]), dim=1),
    "one for all": lambda x: x.repeat_interleave(torch.tensor([2]), 0),
    "flat": lambda x: x[0].repeat_interleave(torch.arange(12)),
    "of a number": lambda x: x[0, 0, 0].repeat_interleave(3),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_repeats(agree, name):
    agree(COUNTS[name], X, tolerance=0)


def test_places_of_repeats(agree):
    agree(lambda n: torch.repeat_interleave(n, output_size=6), torch.tensor([3, 0, 1, 2]), tolerance=0)
    agree(lambda n: torch.repeat_interleave(n), torch.tensor([3, 0, 1, 2]), tolerance=0, jit=False)


@pytest.mark.parametrize(
    ("counts", "options"), [([1, -1, 2], {}), ([1, 2], {}), ([1, 1, 1], {"output_size": 4})]
)
def test_wrong_counts_are_refused(counts, options):
    x = compat.wrap(compat.to_jax(X))
    counts = compat.wrap(compat.to_jax(torch.tensor(counts)))
    with compat.environment(), pytest.raises(RuntimeError):
        torch.repeat_interleave(x, counts, dim=1, **options)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (5, 4)])
def test_pieces(agree, shape):
    """An empty dimension has one piece, whatever its size."""

    def pieces(x):
        return [
            piece
            for dim in (0, -1)
            for function in (torch.split, torch.split_copy, torch.unsafe_split, torch.chunk)
            for piece in function(x, 2, dim)
        ]

    agree(pieces, torch.arange(float(shape[0] * shape[1])).reshape(shape))


@pytest.mark.parametrize("shape", [(1, 1, 0, 0), (0, 2, 6, 6), (2, 2, 6, 9), (3, 6, 3)])
def test_pixels_as_channels(agree, shape):
    """An image without elements stays as it is."""
    image = torch.arange(float(math.prod(shape))).reshape(shape)
    agree(lambda x: torch.nn.functional.pixel_unshuffle(x, 3), image)
