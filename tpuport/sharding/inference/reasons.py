"""Why a weight is divided, or why every device has all of it, in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpuport.jaxprs import source_frames
from tpuport.sharding.inference.choosing import Choice, Cut, template
from tpuport.sharding.inference.factors import Dimension, leading_leaf, leaves
from tpuport.sharding.inference.operations import Operation, Value
from tpuport.sharding.inference.program import Program
from tpuport.sharding.inference.sharding_flow import Transfer

# Frames of these are not where the model's author decided anything.
_LIBRARIES = ("/site-packages/torch/", "/site-packages/torchax/", "/site-packages/jax/", "/tpuport/", "<")


# How many weights, or reasons, are named.
_NAMED = 2


class Reasons:
    """Explains the decisions of a choice."""

    def __init__(self, program: Program, choice: Choice) -> None:
        self.program = program
        self.choice = choice
        # Factors along which something is divided, and those inside of what is.
        self.divided = {
            leading_leaf(value.dimensions[divided.dimension]) for value, divided in choice.settled.items()
        }
        self.inside = {
            leaf
            for name, cut in choice.cuts.items()
            for leaf in list(leaves(program.weights[name].dimensions[cut.dimension]))[1:]
        }

    def explain(self, name: str) -> str:
        """The reason for the decision on a weight."""
        cut = self.choice.cuts.get(name)
        if cut is not None:
            return self._why_divided(name, cut)
        value = self.program.weights[name]
        if value not in self.program.users:
            return "whole: this call does not use it"
        if len(value.shape) < 2:
            return "whole: small"
        reasons = list(dict.fromkeys(self._why_whole(name, value)))[:_NAMED]
        return f"whole: {'; '.join(reasons) or 'nothing to divide'}"

    def _why_divided(self, name: str, cut: Cut) -> str:
        count = self._count(name, cut)
        sums = [transfer for transfer in cut.candidate.sums if name in transfer.weights]
        own = [transfer for transfer in sums if self._ends_at(transfer, name)]
        if not sums:
            reason = f"{count} of a result that stays divided"
        elif own and own[0].operation.name == "gather":
            reason = f"{count} of a table, one all-reduce of what is looked up"
        elif own:
            reason = f"sums up {count}, one all-reduce"
        else:
            reason = f"{count}, summed up by {self._ending(sums, cut)}"
        if cut.is_dealt:
            reason += "; holds several parts, which are dealt anew: separate weights would not be"
        return reason

    def _count(self, name: str, cut: Cut) -> str:
        shape = self.program.weights[name].shape
        if not cut.candidate.is_heads:
            return f"{shape[cut.dimension]} features"
        if cut.units is not None:
            return f"{cut.units} heads"
        return f"{shape[cut.dimension]} heads or experts"

    def _ends_at(self, transfer: Transfer, name: str) -> bool:
        """Whether the sum is that of this weight's own product."""
        return not self._forms(name).isdisjoint(transfer.operation.inputs)

    def _forms(self, name: str) -> set[Value]:
        """A weight, and what it becomes before it meets another array: transposed, cast, or repeated."""
        forms = [self.program.weights[name]]
        for value in forms:
            users = [self.program.operations[index] for index in self.program.users.get(value, ())]
            forms += [output for user in users if len(user.inputs) == 1 for output in user.outputs]
        return set(forms)

    def _ending(self, sums: list[Transfer], cut: Cut) -> str:
        """The weights whose products the sums are."""
        names = [
            template(name)
            for name in cut.candidate.seeds
            if any(self._ends_at(transfer, name) for transfer in sums)
        ]
        return " and ".join(list(dict.fromkeys(names))[:_NAMED]) or "the next product"

    def _why_whole(self, name: str, value: Value) -> Iterator[str]:
        """A reason for each dimension that is known to be impossible, or not worth it."""
        refused = self.choice.refused.get(name, {})
        for index, dimension in enumerate(value.dimensions):
            special = self._why_not_leading(dimension)
            if special:
                yield f"dimension {index} {special}"
            elif index in refused:
                yield f"dimension {index} {self._why_refused(refused[index].operation)}"
        for candidate in self.choice.rejected:
            if name in candidate.seeds and candidate.seeds[name] not in refused:
                yield f"dimension {candidate.seeds[name]} would cost more than it saves"

    def _why_refused(self, operation: Operation) -> str:
        site = _site(operation.equation)
        if operation.name == "reshape" and len(operation.outputs[0].shape) < len(operation.inputs[0].shape):
            # What torch does with the batch and the heads of a product of four dimensions.
            return (
                f"is joined with another{site}: scaled_dot_product_attention and einsum keep batch and heads apart, "
                "and torch.matmul of four dimensions does not"
            )
        return f"is needed whole by {operation.name}{site}"

    def _why_not_leading(self, dimension: Dimension) -> str | None:
        factors = list(leaves(dimension))
        if len(factors) > 1 and not self.divided.isdisjoint(factors[1:]):
            order = " x ".join(str(factor.size) for factor in factors)
            [inner] = [factor.size for factor in factors[1:] if factor in self.divided][:1]
            return f"is {order}, where only the {inner} could be divided: reorder it with them first"
        if factors and factors[0] in self.inside:
            return f"is one head of {factors[0].size}, which all devices share"
        return None


def _site(equation: Any) -> str:
    for file, line, _ in source_frames(equation):
        if not any(part in file for part in _LIBRARIES):
            return f" ({file.rpartition('/')[2]}:{line})"
    return ""
