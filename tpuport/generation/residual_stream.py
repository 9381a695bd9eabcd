"""Tells XLA how to sum a prompt's residual stream, so that it keeps one sum and not
every summand.

Shapes: B batch, P prompt columns, E model width.

Of a prompt, only the last column's hidden state is needed in the end, and XLA takes
that slice through the sums of the residual stream. It then has two chains of sums, and
the second begins at the embedding once more: every output of attention and feed-forward
stays in memory to the end, [B, P, E] each. For 4,096 columns of Llama-2-7B on eight
v5e, those were 2.1 GB of 2.2 GB of temporaries. A sharding constraint ends a chain,
even one that constrains nothing. The norm after the last block gets that column alone:
XLA would write and read all of them in float32.
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
def summed_once(model: torch.nn.Module, mesh: Mesh) -> Iterator[None]:
    """Traced. End the chain of sums behind each block of a decoder's lists, so that XLA
    keeps the sum as an array.

    The same in front of each linear layer: gate and up then read one array, and XLA
    does not write and read two. In the norm that follows the blocks, only the last
    column is computed.
    """

    def end_chain(block: Any, args: Any, output: Any) -> Any:
        match output:
            case (hidden, *others):
                return (_constrain(hidden, mesh), *others)
        return _constrain(output, mesh)

    def share_input(linear: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(_constrain(value, mesh) for value in args)

    with contextlib.ExitStack() as stack:
        lists = list(_lists(model))
        for owner, blocks in lists:
            for block in blocks:
                # The first of the hooks, so that whoever looks at the block's equations
                # sees it as a part of the block.
                stack.enter_context(
                    block.register_forward_hook(end_chain, prepend=True)
                )
                for linear in _linear_layers(block):
                    stack.enter_context(linear.register_forward_pre_hook(share_input))
            # One list may read every column of what another makes.
            if len(lists) > 1:
                continue
            for norm in _norms(owner, blocks):
                stack.enter_context(_only_last_column(norm))
        yield


def _lists(
    module: torch.nn.Module,
) -> Iterator[tuple[torch.nn.Module, torch.nn.ModuleList]]:
    """The outermost lists, each with its parent."""
    for child in module.children():
        if isinstance(child, torch.nn.ModuleList):
            yield module, child
        else:
            yield from _lists(child)


def _linear_layers(block: torch.nn.Module) -> list[torch.nn.Module]:
    return [module for module in block.modules() if isinstance(module, torch.nn.Linear)]


def _norms(
    owner: torch.nn.Module, blocks: torch.nn.ModuleList
) -> list[torch.nn.Module]:
    """The norm after the list, which works on each column alone; none if there are
    several.
    """
    children = list(owner.children())
    after = children[children.index(blocks) + 1 :]
    norms = [
        child
        for child in after
        if re.search(r"(RMS|Layer)_?Norm$", type(child).__name__)
    ]
    return norms if len(norms) == 1 else []


@contextlib.contextmanager
def _only_last_column(norm: torch.nn.Module) -> Iterator[None]:
    """Traced. Let the norm return [B, P, E] with the last column's result in all
    columns.
    """
    columns: list[int] = []  # of the calls that run, 0 for those that are not cut

    def cut(module: Any, args: Any) -> Any:
        # None of a hook changes nothing.
        if len(args) != 1 or args[0].ndim != 3:
            columns.append(0)
            return None
        columns.append(args[0].shape[1])
        return (args[0][:, -1:],)

    def fill(module: Any, args: Any, output: Any) -> Any:
        count = columns.pop()
        return output.expand(-1, count, -1) if count else None

    # Hooks of torch remove themselves on the way out.
    with norm.register_forward_pre_hook(cut), norm.register_forward_hook(fill):
        yield


def _constrain(value: Any, mesh: Mesh) -> Any:
    """Traced. Hidden states [B, P, E] behind a constraint; anything else unchanged."""
    if (
        not isinstance(value, torch.Tensor)
        or not compat.is_ported(value)
        or value.ndim != 3
    ):
        return value
    anywhere = NamedSharding(mesh, PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * 3))
    return compat.as_torch(
        jax.lax.with_sharding_constraint(compat.as_jax(value), anywhere)
    )
