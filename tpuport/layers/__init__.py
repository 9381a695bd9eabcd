"""Identical blocks of a model: their weights stacked, and one of them traced in a loop for all."""

from tpuport.layers.choice import Verdict, succeeded, worthwhile
from tpuport.layers.scanning import Declined, Scanned, ScannedFunction, scanned
from tpuport.layers.scopes import marked
from tpuport.layers.stacks import Stack, lists_of, stacked, stacks, unstacked
from tpuport.layers.storage import StackedWeight, kept, stack_layers, unstack_layers

__all__ = [
    "Declined", "Scanned", "ScannedFunction", "Stack", "StackedWeight", "Verdict", "kept", "lists_of", "marked",
    "scanned", "stack_layers", "stacked", "stacks", "succeeded", "unstack_layers", "unstacked", "worthwhile",
]  # fmt: skip
