"""What XLA is told of a prompt's residual stream, so that it keeps one sum and not every summand.

Shapes: B batch, P prompt columns, E model width.

Of a prompt, only the last column's hidden state is needed in the end, and XLA takes that slice through the sums of the
residual stream. It then has two chains of sums, and the second begins at the embedding once more: every output of
attention and feed-forward stays in memory to the end, [B, P, E] each. For 4,096 columns of Llama-2-7B on eight v5e,
those were 2.1 GB of 2.2 GB of temporaries. A sharding constraint ends a chain, even one that constrains nothing.
And the norm after the last block is given that column alone, where XLA would write and read all of them in float32.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import jax
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpuport import compat


@contextlib.contextmanager
def summed_once(model: torch.nn.Module, mesh: Mesh | None) -> Iterator[None]:
    """Traced. Let what each block of a decoder's lists returns be an array that is kept, and not a chain of sums.

    So is what each linear layer in them is given: gate and up are then one array, where two would be written and read.

    Of what follows the blocks, only the last column is computed.
    """
    if mesh is None:
        yield
        return

    def ended(block: Any, args: Any, output: Any) -> Any:
        if isinstance(output, tuple) and output:
            return (_ended(output[0], mesh), *output[1:])
        return _ended(output, mesh)

    def given(linear: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(_ended(value, mesh) for value in args)

    with contextlib.ExitStack() as stack:
        lists = list(_lists(model))
        for owner, blocks in lists:
            for block in blocks:
                # First of the hooks, so that it is still a part of the block for those who look at its equations.
                stack.callback(block.register_forward_hook(ended, prepend=True).remove)
                for linear in _linears(block):
                    stack.callback(linear.register_forward_pre_hook(given).remove)
            # Of several lists, one may read every column of what comes of another.
            for norm in _norms(owner, blocks) if len(lists) == 1 else ():
                stack.enter_context(_of_the_last_column(norm))
        yield


def _lists(module: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, torch.nn.ModuleList]]:
    """The outermost lists, each with the module that it is a part of."""
    for child in module.children():
        if isinstance(child, torch.nn.ModuleList):
            yield module, child
        else:
            yield from _lists(child)


def _linears(block: torch.nn.Module) -> list[torch.nn.Module]:
    return [module for module in block.modules() if isinstance(module, torch.nn.Linear)]


def _norms(owner: torch.nn.Module, blocks: torch.nn.ModuleList) -> list[torch.nn.Module]:
    """The one norm that stands after the list, working on each column alone; none where there are more."""
    children = list(owner.children())
    after = children[children.index(blocks) + 1 :]
    norms = [child for child in after if re.search(r"(RMS|Layer)_?Norm$", type(child).__name__)]
    return norms if len(norms) == 1 else []


@contextlib.contextmanager
def _of_the_last_column(norm: torch.nn.Module) -> Iterator[None]:
    """Traced. Let [B, P, E] come out of the norm with the last column's result in all columns."""
    columns: list[int] = []

    def cut(module: Any, args: Any) -> Any:
        columns.append(args[0].shape[1] if len(args) == 1 and args[0].ndim == 3 else 0)
        return (args[0][:, -1:],) if columns[-1] else None

    def filled(module: Any, args: Any, output: Any) -> Any:
        count = columns.pop()
        return output.expand(-1, count, -1) if count else None

    handles = norm.register_forward_pre_hook(cut), norm.register_forward_hook(filled)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _ended(value: Any, mesh: Mesh) -> Any:
    """Traced. Hidden states [B, P, E] behind a constraint; anything else as it is."""
    if not isinstance(value, torch.Tensor) or not compat.is_ported(value) or value.ndim != 3:
        return value
    anywhere = NamedSharding(mesh, PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * 3))
    return compat.as_torch(jax.lax.with_sharding_constraint(compat.as_jax(value), anywhere))
