"""Which rotary tables a program needs, found before it is compiled.

The function is traced as far as its first transformer block, with every call of a rotary module recorded. A call whose
result depends on nothing but shapes and plain values is done again on the host, in torch, and its result kept. So is a
call with tensors that the model makes of nothing but constants, such as grids of positions: their values are computed
from the trace.
"""

import contextlib
import dataclasses
import itertools
import logging
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import jax
import torch
from jax.core import eval_jaxpr
from jax.interpreters import partial_eval

from tpuport import compat
from tpuport.rotary.finding import Arguments, Shape, by_shape
from tpuport.rotary.hosting import Host, ValuesRead

logger = logging.getLogger("tpuport")

Finder = Callable[[torch.nn.Module], dict[str, torch.nn.Module]]

# Modules that were said to be computed inside of the trace, once each.
_told: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


class _Seen(BaseException):
    """Enough of the function has been traced. Not an Exception, which code of a model might catch."""


@dataclasses.dataclass(frozen=True)
class Need:
    """One call of a rotary module that a table can serve.

    Attributes:
        place: which of the program's models.
        name: of the rotary module in it.
        call: which call of that module, from 0.
        arguments: with `Shape`s for tensors whose values do not matter.
        key: equal for calls of one module that one table serves.
        shapes_decide: whether every call with this signature can have the table, or this one alone.
    """

    place: int
    name: str
    call: int
    arguments: Arguments
    key: Hashable
    signature: Hashable
    shapes_decide: bool


@dataclasses.dataclass
class Call:
    """One call of a rotary module, as it was traced.

    Attributes:
        arguments: with torchax tensors that hold traced values.
        number: which call of the module, from 0.
        served: whether shapes were enough to do it on the host.
    """

    place: int
    name: str
    host: Host
    arguments: Arguments
    signature: Hashable
    number: int
    served: bool = False

    def shapes(self) -> Arguments:
        """The arguments with `Shape`s for tensors."""
        leaves = self.arguments.leaves
        return self.arguments.replaced(
            {n: Shape(tuple(leaves[n].shape), leaves[n].dtype) for n in self.arguments.tensors}
        )


class _Recorder:
    """Takes the place of the forward of rotary modules, and ends the trace at the first block after them."""

    def __init__(self, models: Sequence[torch.nn.Module], find: Finder) -> None:
        self.found = [
            (place, name, module)
            for place, model in enumerate(models)
            for name, module in find(model).items()
        ]
        self.hosts = {id(module): Host(module) for _, _, module in self.found}
        self.blocks = [block for model in models for block in _blocks(model)]
        self.calls: list[Call] = []

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for place, name, module in self.found:
                stack.enter_context(instead(module, self._forward(place, name, module)))
            for block in self.blocks:
                handle = block.register_forward_pre_hook(self._at_block)
                stack.callback(handle.remove)
            yield

    def _at_block(self, *_: Any) -> None:
        called = {(call.place, call.name) for call in self.calls}
        if all((place, name) in called for place, name, _ in self.found):
            raise _Seen

    def _forward(self, place: int, name: str, module: torch.nn.Module) -> Callable[..., Any]:
        own = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            arguments = Arguments(args, kwargs)
            number = sum((call.place, call.name) == (place, name) for call in self.calls)
            call = Call(place, name, self.hosts[id(module)], arguments, arguments.signature(), number)
            self.calls.append(call)
            try:
                output = call.host(call.shapes())
            except ValuesRead:
                return own(*args, **kwargs)
            call.served = True
            return _on_device(output)

        return forward

    def tensors(self) -> list[Any]:
        """The tensors given to calls whose shapes were not enough, in order."""
        return [
            compat.as_jax(leaf) if compat.is_ported(leaf) else compat.to_jax(leaf)
            for call in self.calls
            if not call.served
            for leaf in (call.arguments.leaves[place] for place in call.arguments.tensors)
        ]


def _on_device(output: Any) -> Any:
    """A host module's output where a traced one's would be; its values do not matter, nothing is run with them."""
    return jax.tree.map(
        lambda leaf: compat.wrap(compat.to_jax(leaf)) if isinstance(leaf, torch.Tensor) else leaf, output
    )


def _blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The longest list of modules in the model: its transformer blocks."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return list(max(lists, key=len, default=[]))


@contextlib.contextmanager
def instead(module: torch.nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let `forward` be the forward of one module."""
    own = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


@dataclasses.dataclass
class Probed:
    """What a trace has shown.

    Attributes:
        calls: of rotary modules, in order.
        program: its outputs are the tensors of the calls that were not served, in order.
    """

    calls: list[Call]
    program: Any

    def outputs(self) -> list[dict[int, int]]:
        """For each call, from the places of its tensors to the numbers of the program's outputs."""
        numbers = itertools.count()
        return [
            {} if call.served else {place: next(numbers) for place in call.arguments.tensors}
            for call in self.calls
        ]


def probe(
    models: Sequence[torch.nn.Module], traced: Callable[..., Any], arguments: tuple, find: Finder = by_shape
) -> Probed:
    """Trace a function as far as the first block after its rotary modules, and record their calls.

    Args:
        models: those that the function uses.
        traced: called with `arguments`, a pytree of arrays, as it will be when it is compiled.
        find: the modules that count, by name.
    """
    recorder = _Recorder(models, find)

    def function(*arrays: Any) -> list[Any]:
        recorder.calls.clear()
        with contextlib.suppress(_Seen):
            traced(*arrays)
        return recorder.tensors()

    with recorder.installed():
        return Probed(recorder.calls, jax.make_jaxpr(function)(*arguments))


def needs(models: Sequence[torch.nn.Module], traced: Callable[..., Any], arguments: tuple) -> list[Need]:
    """The tables that the program of a traced function needs; arguments as `probe` has them."""
    if not any(by_shape(model) for model in models):
        return []
    found = probe(models, traced, arguments)
    known = constant_outputs(found.program)
    served = [
        (call, _need(call, numbers, known))
        for call, numbers in zip(found.calls, found.outputs(), strict=True)
    ]
    _tell([call for call, need in served if need is None], models)
    return [need for _, need in served if need is not None]


def _need(call: Call, numbers: dict[int, int], known: dict[int, jax.Array]) -> Need | None:
    """What the call needs, with the values that are known of its tensors; None where those are not enough."""
    values = {place: _wide(known[number]) for place, number in numbers.items() if number in known}
    arguments = call.shapes().replaced(values)
    if not call.served:
        try:
            call.host(arguments)
        except ValuesRead:
            return None
    return Need(call.place, call.name, call.number, arguments, arguments.key(), call.signature, call.served)


def _wide(array: jax.Array) -> torch.Tensor:
    """Integers as torch has them on the host."""
    tensor = compat.to_torch(array)
    return tensor.long() if tensor.dtype is torch.int32 else tensor


def constant_outputs(program: Any) -> dict[int, jax.Array]:
    """The outputs of a traced program that do not depend on its inputs, by number, with their values."""
    jaxpr = program.jaxpr
    depends = {id(variable) for variable in jaxpr.invars}
    for equation in jaxpr.eqns:
        if any(id(variable) in depends for variable in equation.invars):
            depends.update(id(variable) for variable in equation.outvars)
    constant = [number for number, variable in enumerate(jaxpr.outvars) if id(variable) not in depends]
    return outputs(program, constant, [None] * len(jaxpr.invars))


def outputs(program: Any, numbers: list[int], inputs: list[Any]) -> dict[int, jax.Array]:
    """Some outputs of a traced program, by number, computed from the inputs that they depend on."""
    if not numbers:
        return {}
    wanted = [number in numbers for number in range(len(program.jaxpr.outvars))]
    smaller, used = partial_eval.dce_jaxpr(program.jaxpr, wanted)
    needed = [value for value, is_used in zip(inputs, used, strict=True) if is_used]
    results = eval_jaxpr(smaller, program.consts, *needed)
    return dict(zip(numbers, results, strict=True))


def _tell(calls: list[Call], models: Sequence[torch.nn.Module]) -> None:
    for call in calls:
        module = models[call.place].get_submodule(call.name)
        if module not in _told:
            _told.add(module)
            logger.info(
                "%s (%s) depends on values given to the program, and is computed inside of it",
                call.name, type(module).__name__,
            )  # fmt: skip
