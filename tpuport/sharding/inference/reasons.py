"""Why a weight is divided, or why every device has all of it, in a sentence."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from tpuport.compat.jaxprs import source_frames
from tpuport.sharding.inference.choosing import Choice, Cut, template
from tpuport.sharding.inference.factors import (
    Dimension,
    Factor,
    leading_leaf,
    leaves,
    size_of,
)
from tpuport.sharding.inference.operations import Operation, Value
from tpuport.sharding.inference.sharding_flow import Transfer, leading_factors
from tpuport.sharding.inference.traced_program import Program
from tpuport.trace_errors.libraries import is_library_file

# How many weights, or reasons, are named: a sentence with more is not read.
_NAMED: Final = 2


class Reasons:
    """Explains the decisions of a choice."""

    def __init__(self, program: Program, choice: Choice) -> None:
        self.program = program
        self.choice = choice
        # Factors along which something is divided, and those inside of what is, such as
        # the features of one head.
        self.divided = leading_factors(choice.settled)
        for factor in self.divided:
            parts = map(leading_leaf, choice.parts.get(factor, ()))
            self.divided |= {part for part in parts if part is not None}
        self.inside: set[Factor] = set()
        for name, cut in choice.cuts.items():
            _, *inside = leaves(program.weights[name].dimensions[cut.dimension])
            self.inside.update(inside)

    def explain(self, name: str) -> str:
        """The reason for the decision on a weight."""
        cut = self.choice.cuts.get(name)
        if cut is not None:
            return self._why_divided(name, cut)
        value = self.program.weights[name]
        if name not in self.program.used_weights():
            return "whole: this call does not use it"
        if len(value.shape) < 2:
            return "whole: small"
        # Dimensions may have one reason between them; a dict keeps the order.
        reasons = list(dict.fromkeys(self._why_whole(name, value)))
        if not reasons:
            return "whole: nothing to divide"
        return f"whole: {'; '.join(reasons[:_NAMED])}"

    def _why_divided(self, name: str, cut: Cut) -> str:
        reason = self._which_sum(name, cut)
        if cut.is_dealt:
            reason += "; holds several parts, which are dealt anew: separate weights would not be"
        return reason

    def _which_sum(self, name: str, cut: Cut) -> str:
        """What is divided, and where it is summed up."""
        count = self._count(name, cut)
        sums = [transfer for transfer in cut.candidate.sums if name in transfer.weights]
        if not sums:
            return f"{count} of a result that stays divided"
        own = [transfer for transfer in sums if self._ends_at(transfer, name)]
        if not own:
            return f"{count}, summed up by {self._ending(sums, cut)}"
        if own[0].operation.name == "gather":
            return f"{count} of a table, one all-reduce of what is looked up"
        return f"sums up {count}, one all-reduce"

    def _count(self, name: str, cut: Cut) -> str:
        """How many of what are divided: features, heads or experts."""
        shape = self.program.weights[name].shape
        if not cut.is_heads:
            return f"{shape[cut.dimension]} features"
        if cut.units is not None:
            return f"{cut.units} heads"
        return f"{shape[cut.dimension]} heads or experts"

    def _ends_at(self, transfer: Transfer, name: str) -> bool:
        """Whether the sum is that of this weight's own product."""
        return not self._forms(name).isdisjoint(transfer.operation.inputs)

    def _forms(self, name: str) -> set[Value]:
        """A weight, and what it becomes before it meets another array: transposed,
        cast, or repeated.
        """
        forms = {self.program.weights[name]}
        pending = list(forms)
        # `pending` grows while it is walked.
        for value in pending:
            alone = [
                user for user in self.program.users_of([value]) if len(user.inputs) == 1
            ]
            outputs = set().union(*(user.outputs for user in alone))
            # A loop may lead back to a form.
            pending += outputs - forms
            forms |= outputs
        return forms

    def _ending(self, sums: list[Transfer], cut: Cut) -> str:
        """The weights whose products the sums are."""
        ends = [
            name
            for name in cut.candidate.seeds
            if any(self._ends_at(transfer, name) for transfer in sums)
        ]
        # One entry for all blocks, in the model's order.
        templates = list(dict.fromkeys(map(template, ends)))
        if not templates:
            return "the next product"
        return " and ".join(templates[:_NAMED])

    def _why_whole(self, name: str, value: Value) -> Iterator[str]:
        """A reason for each dimension that is known to be impossible, or not worth
        it.
        """
        refused = self.choice.refused.get(name, {})
        for index, dimension in enumerate(value.dimensions):
            special = self._why_not_leading(dimension) or self._why_no_part(dimension)
            if special:
                yield f"dimension {index} {special}"
            elif index in refused:
                yield f"dimension {index} {self._why_refused(refused[index].operation)}"
        # Last, as it concerns only dimensions that could be divided.
        for candidate in self.choice.rejected:
            if name in candidate.seeds and candidate.seeds[name] not in refused:
                yield f"dimension {candidate.seeds[name]} would cost more than it saves"

    def _why_refused(self, operation: Operation) -> str:
        site = _site(operation)
        joins = len(operation.outputs[0].shape) < len(operation.inputs[0].shape)
        if operation.name == "reshape" and joins:
            return (
                f"is joined with another{site}, which no view splits again: scaled_dot_product_attention, einsum and "
                "torch.matmul take batch and heads apart"
            )
        return f"is needed whole by {operation.name}{site}"

    def _why_no_part(self, dimension: Dimension) -> str | None:
        """What is special about a part of a dimension that the code takes apart."""
        leading = leading_leaf(dimension)
        parts = self.choice.parts.get(leading, ()) if leading else ()
        for part in parts:
            special = self._why_not_leading(part)
            if special:
                return f"has a part of {size_of(part)} that {special}"
        return None

    def _why_not_leading(self, dimension: Dimension) -> str | None:
        """What is special about a dimension whose leading factor is not one to divide
        by; None if nothing is.
        """
        factors = list(leaves(dimension))
        divisible = [factor for factor in factors[1:] if factor in self.divided]
        if divisible:
            order = " x ".join(str(factor.size) for factor in factors)
            return f"is {order}, where only the {divisible[0].size} could be divided: reorder it with them first"
        if factors and factors[0] in self.inside:
            return f"is one head of {factors[0].size}, which all devices share"
        return None


def _site(operation: Operation) -> str:
    """The line of the model's code that an operation comes from, in parentheses; empty
    if it is not known.
    """
    # Tracebacks in a nested jit end where jax begins to trace it: how it got there is
    # in those of the call.
    frames = map(source_frames, (operation.equation, *operation.enclosing))
    for file, line, _ in itertools.chain.from_iterable(frames):
        # Frames of torch, jax and tpuport are not where the model's author decided
        # anything.
        if not is_library_file(file):
            return f" ({file.rpartition('/')[2]}:{line})"
    return ""
