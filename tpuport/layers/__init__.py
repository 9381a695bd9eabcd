"""Identical blocks of a model: their weights stacked, and one of them traced in a loop for all."""

from tpuport.layers.scanning import Declined, Scanned, ScannedFunction, scanned
from tpuport.layers.scopes import marked
from tpuport.layers.stacks import Stack, stacked, stacks, unstacked

__all__ = [
    "Declined",
    "Scanned",
    "ScannedFunction",
    "Stack",
    "marked",
    "scanned",
    "stacked",
    "stacks",
    "unstacked",
]
