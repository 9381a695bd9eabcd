"""Programs whose gradients torch's autograd records.

A forward pass is captured while autograd records over the tracers, and its engine then
runs backward from the results, in the same capture. That makes two programs: the
forward pass gives the results and those values on the way that the backward pass reads,
its residuals; the backward pass takes these and the gradients of the results.

For the caller a call is one node of autograd, so that what is computed around it, hooks
of parameters and the accumulation in `.grad` are torch's own.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from tpuport import compat
from tpuport.compat.jaxprs import constants_as_inputs, find_dependencies
from tpuport.compilation.programs.capture import Captured
from tpuport.compilation.programs.flat_program import FlatProgram
from tpuport.compilation.programs.residuals import recompute
from tpuport.compilation.shared_tensors import Slot
from tpuport.errors import PortError


class Recorded(NamedTuple):
    """The tensors of a call whose gradients autograd records, by slot."""

    slots: tuple[Slot, ...]


class Backward(NamedTuple):
    """A backward pass.

    Attributes:
        program: takes the residuals, then the gradient of each root; gives those
            gradients that there are.
        roots: which of the tensors among the results (`result_tensors`) have gradients.
        has_gradient: for each of `Recorded.slots`, whether any root depends on it.
        sources: where each residual is: ("input", number of an input of the forward
            pass) or ("result", number of a result of it).
    """

    program: ClosedJaxpr
    roots: tuple[int, ...]
    has_gradient: tuple[bool, ...]
    sources: tuple[tuple[str, int], ...] = ()


def result_tensors(output: Any) -> list[torch.Tensor]:
    """The tensors in what a function returns, in the same order after each call."""
    leaves = jax.tree.leaves(output, is_leaf=_is_tensor)
    return list(filter(_is_tensor, leaves))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def recorded_tensors(
    recorded: Recorded | None,
    weights: Sequence[Mapping[str, torch.Tensor]],
    tensors: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """Traced. The tensors whose gradients autograd records, which require them now.

    Args:
        recorded: which these are; None if there are none.
        weights: of each model, by name.
        tensors: by the numbers of slots.
    """
    slots = () if recorded is None else recorded.slots
    return [
        (
            tensors[slot] if isinstance(slot, int) else weights[slot[0]][slot[1]]
        ).requires_grad_()
        for slot in slots
    ]


def run_backward(
    output: Any, inputs: Sequence[torch.Tensor]
) -> tuple[Backward, list[Any]]:
    """Traced. Let autograd run backward from what a function has returned.

    Args:
        output: of the function.
        inputs: the tensors whose gradients are asked for.

    Returns:
        The backward pass, and its residuals.
    """
    tensors = result_tensors(output)
    roots = tuple(
        number for number, tensor in enumerate(tensors) if tensor.requires_grad
    )
    has_gradient: tuple[bool, ...] = ()

    def backward(cotangents: list[jax.Array]) -> list[jax.Array]:
        nonlocal has_gradient
        gradients = torch.autograd.grad(
            [tensors[number] for number in roots],
            inputs,
            [
                compat.wrap(array, tensors[number].dtype)
                for number, array in zip(roots, cotangents, strict=True)
            ],
            allow_unused=True,
        )
        has_gradient = tuple(gradient is not None for gradient in gradients)
        return [
            compat.as_jax(gradient) for gradient in gradients if gradient is not None
        ]

    arrays = [compat.as_jax(tensors[number]) for number in roots]
    forms = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    # What the engine reads of the forward pass are constants of this trace.
    traced = jax.make_jaxpr(backward)(forms) if roots else jax.make_jaxpr(list)([])
    residuals, program = constants_as_inputs(traced)
    has_gradient = has_gradient or (False,) * len(inputs)
    return Backward(program, roots, has_gradient), residuals


def divide(
    captured: Captured, backward: Backward, count: int
) -> tuple[Captured, Backward]:
    """The forward pass, which returns what the backward pass reads and has not
    otherwise, and the backward pass with its sources.

    Args:
        captured: a function that returns results and residuals.
        count: of the arrays among the results.
    """
    body = captured.program.jaxpr
    residuals = recompute(body, body.outvars[count:], backward.program)
    places = {
        variable: ("result", number)
        for number, variable in enumerate(body.outvars[:count])
        if not isinstance(variable, Literal)
    }
    # A result that is an input would be a copy.
    places |= {
        variable: ("input", number) for number, variable in enumerate(body.invars)
    }
    returned = [variable for variable in residuals.kept if variable not in places]
    places |= {
        variable: ("result", count + number) for number, variable in enumerate(returned)
    }
    program = ClosedJaxpr(
        body.replace(outvars=[*body.outvars[:count], *returned]),
        captured.program.consts,
    )
    results = (captured.results[0], [variable.aval for variable in returned])
    return (
        captured.changed(program)._replace(results=results),
        backward._replace(
            program=residuals.program,
            sources=tuple(places[variable] for variable in residuals.kept),
        ),
    )


class Results(list):
    """The results of a forward pass.

    Attributes:
        residuals: what the backward pass reads.
    """

    residuals: list[Any]


class RecordedProgram(FlatProgram):
    """A forward pass, with its backward pass.

    Args:
        name, captured, checks_indices: as of `FlatProgram`.
        backward: with sources.
        count_of_results: without what the forward pass returns for the backward pass.
        inputs: for each of `Recorded.slots` the number of its input.

    Attributes:
        backward: as above.
        saved: for each residual which of `Recorded.slots` it is, or None.
    """

    def __init__(
        self,
        name: str,
        captured: Captured,
        backward: Backward,
        count_of_results: int,
        inputs: Sequence[int],
        *,
        checks_indices: bool,
    ) -> None:
        super().__init__(name, captured, (), checks_indices=checks_indices)
        self.backward = backward
        self._count_of_results = count_of_results
        slots = {number: slot for slot, number in enumerate(inputs)}
        self.saved = [
            slots.get(number) if kind == "input" else None
            for kind, number in backward.sources
        ]
        self._dependencies = find_dependencies(
            backward.program, first=len(backward.sources)
        )
        # By which of the roots are given a gradient.
        self._pulls: dict[tuple[bool, ...], FlatProgram] = {}

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """As `FlatProgram`'s; the results have residuals."""
        given = super().__call__(arrays)
        results = Results(given[: self._count_of_results])
        results.residuals = [
            arrays[number] if kind == "input" else given[number]
            for kind, number in self.backward.sources
        ]
        return results

    @property
    def is_pure(self) -> bool:
        # Whoever drops results would drop the residuals of the run that counts.
        return False

    def pull(
        self, residuals: Sequence[Any], cotangents: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """The gradients of the tensors that ask for one; None for those on which no
        root with a gradient depends.

        Args:
            cotangents: of each root.
        """
        is_given = tuple(cotangent is not None for cotangent in cotangents)
        if is_given not in self._pulls:
            self._pulls[is_given] = self._compile(is_given)
        given = [compat.to_jax(tensor) for tensor in cotangents if tensor is not None]
        arrays = iter(self._pulls[is_given]([*residuals, *given]))
        gradients: list[torch.Tensor | None] = []
        dependencies = iter(self._dependencies)
        for has_gradient in self.backward.has_gradient:
            is_made = has_gradient and self._is_made(next(dependencies), is_given)
            gradients.append(compat.wrap(next(arrays)) if is_made else None)
        return gradients

    @staticmethod
    def _is_made(roots: frozenset[int], is_given: tuple[bool, ...]) -> bool:
        return any(is_given[root] for root in roots)

    def _compile(self, is_given: tuple[bool, ...]) -> FlatProgram:
        """The backward pass from some of the roots."""
        program = self.backward.program
        if not all(is_given):
            program = self._from_some_roots(is_given)
        name = f"{self.name}_backward"
        captured = Captured.of_program(name, program)
        return FlatProgram(name, captured, (), checks_indices=False)

    def _from_some_roots(self, is_given: tuple[bool, ...]) -> ClosedJaxpr:
        program, first = self.backward.program, len(self.backward.sources)
        evaluate = jaxpr_as_fun(program)
        forms = program.in_avals
        made = [
            number
            for number, roots in enumerate(self._dependencies)
            if self._is_made(roots, is_given)
        ]

        def run(arrays: Sequence[Any]) -> list[Any]:
            rest = iter(arrays[first:])
            cotangents = [
                next(rest) if given else jnp.zeros(form.shape, form.dtype)
                for given, form in zip(is_given, forms[first:], strict=True)
            ]
            # The compiler drops what is multiplied by these zeros.
            results = evaluate(*arrays[:first], *cotangents)
            return [results[number] for number in made]

        given = [
            form
            for form, is_input in zip(forms, (True,) * first + is_given, strict=True)
            if is_input
        ]
        arguments = [jax.ShapeDtypeStruct(form.shape, form.dtype) for form in given]
        return jax.make_jaxpr(run)(arguments)

    def attach(
        self, output: Any, results: Any, tensors: Sequence[torch.Tensor]
    ) -> None:
        """Let autograd know where the results of a call come from.

        Args:
            output: what the function returned.
            results: `Results` of the run.
            tensors: that ask for gradients, in the order of `Recorded.slots`.
        """
        if self.backward.roots:
            given = result_tensors(output)
            roots = [given[number] for number in self.backward.roots]
            _Call.apply(_Run(self, results.residuals, roots), *tensors)


class _Run:
    """A run of a forward pass.

    Attributes:
        residuals: None once autograd has them.
        roots: None once they are attached.
    """

    def __init__(
        self,
        program: RecordedProgram,
        residuals: Sequence[Any],
        roots: list[torch.Tensor],
    ) -> None:
        self.program = program
        self.residuals: Sequence[Any] | None = residuals
        self.roots: list[torch.Tensor] | None = roots


class _Call(torch.autograd.Function):
    """A call as a node: its results are made already."""

    @staticmethod
    def forward(ctx: Any, run: _Run, *tensors: torch.Tensor) -> Any:
        ctx.program = run.program
        ctx.set_materialize_grads(False)
        residuals, run.residuals = run.residuals, None
        roots, run.roots = run.roots, None
        assert residuals is not None
        assert roots is not None
        # As tensors, which autograd frees after the backward pass. Of those that the
        # caller has it notices writes in between.
        saved = zip(run.program.saved, residuals, strict=True)
        ctx.save_for_backward(
            *(
                compat.wrap(residual) if number is None else tensors[number]
                for number, residual in saved
            )
        )
        return tuple(roots)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, /, *cotangents: torch.Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        residuals = list(map(compat.to_jax, ctx.saved_tensors))
        return None, *ctx.program.pull(residuals, cotangents)


class _Refused(torch.autograd.Function):
    """A call whose gradients are unknown."""

    @staticmethod
    def forward(
        ctx: Any, error: Exception, results: list[torch.Tensor], anchor: torch.Tensor
    ) -> Any:
        ctx.error = error
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        raise ctx.error


def refuse_gradients(output: Any, error: Exception) -> None:
    """Let a backward pass from a result raise why there is none."""
    results = [
        tensor for tensor in result_tensors(output) if tensor.is_floating_point()
    ]
    if results:
        anchor = torch.zeros((), requires_grad=True)
        _Refused.apply(error, results, anchor)


class NotRecorded(PortError):
    """The gradients of a call cannot be recorded."""


def check_weights(names: Sequence[str], arrays: Collection[str]) -> None:
    """NotRecorded if weights whose gradients are asked for are rows of stacked arrays.

    Args:
        names: of the weights.
        arrays: names of the arrays of the model.
    """
    stacked = set(names).difference(arrays)
    if stacked:
        raise NotRecorded(
            "blocks whose weights are stacked, to run in a loop, have no gradients of their own",
            where=", ".join(sorted(stacked)[:4]),
            fix="leave out scan_layers=True, and call tpuport.compilation.layers.unstack_layers(model)",
        )
