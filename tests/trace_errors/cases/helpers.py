"""Functions that models of another file call."""

import functools

import torch
from torch import nn


def checked(function):
    """A decorator between a model and its caller."""

    @functools.wraps(function)
    def wrapper(self, *args, **kwargs):
        if not args and not kwargs:
            raise ValueError("a tensor is missing")
        return function(self, *args, **kwargs)

    return wrapper


def valid_length(lengths):
    """How long the longest row is."""
    longest = lengths.max()
    return int(longest)  # FromHelper TPU204


def through(functions, x):
    """Calls that nobody can follow without running them."""
    for function in functions:
        x = function(x)
    return x


def first_positive(values):
    for value in values:
        if value > 0:  # Unfollowed TPU205
            return value
    return values[0]


class Calling(nn.Module):
    """A model whose code is somewhere else."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Scaling(nn.Module):
    """A model with a tensor that no weight holds."""

    def __init__(self):
        super().__init__()
        self.scale = torch.ones(4)

    def forward(self, x):
        return x * self.scale
