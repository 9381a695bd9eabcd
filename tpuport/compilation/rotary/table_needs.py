"""Which rotary tables a program needs, found before it is compiled.

The function is traced as far as its first transformer block, with every call of a
rotary module recorded. A call whose result depends on nothing but shapes and plain
values is done again on the host, in torch, and its result is the table. So is a call
with tensors that the model makes of nothing but constants, such as grids of positions:
their values are computed from the trace.
"""

import contextlib
import dataclasses
import itertools
import logging
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import torch
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr
from jax.interpreters import partial_eval

from tpuport import compat
from tpuport.base.temporary import temporary_attributes
from tpuport.compat import narrowing
from tpuport.compilation.rotary.rotary_modules import (
    CallArguments,
    HostModule,
    ValuesRead,
    find_table_modules,
)

logger = logging.getLogger("tpuport")

# Modules that the log has named as computed inside of a program.
_logged: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


class _TraceEnd(BaseException):
    """Enough of the function has been traced. Not an Exception, which code of a model
    might catch.
    """


class ModuleName(NamedTuple):
    """A rotary module: the index of the model that it is in, and its name there."""

    model: int
    name: str


@dataclasses.dataclass(frozen=True)
class TableNeed:
    """One call of a rotary module that a table can serve.

    Attributes:
        module: the module.
        call: which call of it, from 0.
        arguments: with a `TensorShape` for each tensor whose values do not matter.
        key: equal for calls of one module that one table serves.
        signature: of the call's arguments.
        shapes_decide: whether every call with this signature can have the table, or
            this call alone.
    """

    module: ModuleName
    call: int
    arguments: CallArguments
    key: Hashable
    signature: Hashable
    shapes_decide: bool


@dataclasses.dataclass
class _Call:
    """One call of a rotary module, as it was traced.

    Attributes:
        number: which call of the module, from 0.
        arguments: with torchax tensors that hold traced values.
        signature: of the arguments.
        shapes_decide: whether its shapes were enough to run it on the host.
        outputs: for each of its tensors, by index among the leaves, the output of the
            traced program that it is.
    """

    module: ModuleName
    number: int
    host: HostModule
    arguments: CallArguments
    signature: Hashable
    shapes_decide: bool = False
    outputs: dict[int, int] = dataclasses.field(default_factory=dict)


def find_table_needs(
    models: Sequence[torch.nn.Module], function: Callable[..., Any], arguments: tuple
) -> list[TableNeed]:
    """The tables that the program of a function needs.

    Args:
        models: those that the function uses.
        function: is traced with `arguments`, a pytree of arrays, as it will be when it
            is compiled.
    """
    recorder = _Recorder(models)
    if not recorder.modules:
        return []
    program = recorder.trace(function, arguments)
    constants = _constant_outputs(program)
    needs: list[TableNeed] = []
    for call in recorder.calls:
        need = _table_need(call, constants)
        if need is None:
            _log_module(recorder.modules[call.module], call.module.name)
        else:
            needs.append(need)
    return needs


class _Recorder:
    """Takes the place of the forward of rotary modules, and ends the trace at the first
    block after them.
    """

    def __init__(self, models: Sequence[torch.nn.Module]) -> None:
        self.modules = {
            ModuleName(index, name): module
            for index, model in enumerate(models)
            for name, module in find_table_modules(model).items()
        }
        self.calls: list[_Call] = []
        # Their buffers are copied before the trace puts traced values in their place.
        self._hosts = {
            name: HostModule(module) for name, module in self.modules.items()
        }
        self._blocks = list(
            itertools.chain.from_iterable(map(_transformer_blocks, models))
        )

    def trace(self, function: Callable[..., Any], arguments: tuple) -> ClosedJaxpr:
        """The program up to the first block; its outputs are the tensors of the calls
        that need their values.
        """

        def until_block(*arrays: Any) -> list[Any]:
            # jax may trace a function more than once.
            self.calls.clear()
            with contextlib.suppress(_TraceEnd):
                function(*arrays)
            return self._collect_tensors()

        # The tables are computed on the host, in the dtype that the code asks for.
        with self._installed(), narrowing.silenced():
            return jax.make_jaxpr(until_block)(*arguments)

    @contextlib.contextmanager
    def _installed(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name, module in self.modules.items():
                stack.enter_context(
                    temporary_attributes(
                        module, forward=self._recording_forward(name, module)
                    )
                )
            for block in self._blocks:
                handle = block.register_forward_pre_hook(self._end_at_block)
                stack.callback(handle.remove)
            yield

    def _end_at_block(self, *_: Any) -> None:
        if self.modules.keys() <= {call.module for call in self.calls}:
            raise _TraceEnd

    def _recording_forward(
        self, name: ModuleName, module: torch.nn.Module
    ) -> Callable[..., Any]:
        own_forward = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            arguments = CallArguments.flatten(args, kwargs)
            number = sum(call.module == name for call in self.calls)
            call = _Call(
                name, number, self._hosts[name], arguments, arguments.signature()
            )
            self.calls.append(call)
            try:
                output = call.host(arguments.without_values())
            except ValuesRead:
                return own_forward(*args, **kwargs)
            call.shapes_decide = True
            # Where a traced output would be. Its values do not matter: nothing is run
            # with them.
            return jax.tree.map(_on_device, output)

        return forward

    def _collect_tensors(self) -> list[Any]:
        """The tensors of the calls whose shapes were not enough."""
        arrays: list[Any] = []
        for call in self.calls:
            if call.shapes_decide:
                continue
            for index, tensor in call.arguments.tensors.items():
                call.outputs[index] = len(arrays)
                arrays.append(compat.as_jax(_on_device(tensor)))
        return arrays


def _on_device(leaf: Any) -> Any:
    # Plain values, and what is on the device already, stay.
    if not isinstance(leaf, torch.Tensor) or compat.is_ported(leaf):
        return leaf
    return compat.to_device(leaf)


def _transformer_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The longest list of modules in the model."""
    lists = [
        module for module in model.modules() if isinstance(module, torch.nn.ModuleList)
    ]
    return list(max(lists, key=len, default=()))


def _table_need(call: _Call, constants: dict[int, jax.Array]) -> TableNeed | None:
    """What a call needs, with the values of its tensors that are known; None if those
    are not enough.
    """
    values = {
        index: _as_host_tensor(constants[output])
        for index, output in call.outputs.items()
        if output in constants
    }
    arguments = call.arguments.without_values().replace(values)
    # A trial: the tensors that are still unknown may not matter.
    if not call.shapes_decide:
        try:
            call.host(arguments)
        except ValuesRead:
            return None
    return TableNeed(
        call.module,
        call.number,
        arguments,
        arguments.key(),
        call.signature,
        call.shapes_decide,
    )


def _as_host_tensor(array: jax.Array) -> torch.Tensor:
    """The array in torch, integers as models have them on the host."""
    tensor = compat.to_torch(array)
    # jax computed them in 32 bits.
    if tensor.dtype is torch.int32:
        return tensor.long()
    return tensor


def _constant_outputs(program: ClosedJaxpr) -> dict[int, jax.Array]:
    """The outputs of a traced program that do not depend on its inputs, by number, with
    their values.
    """
    jaxpr = program.jaxpr
    # By id, because literals cannot be hashed.
    dependent = set(map(id, jaxpr.invars))
    for equation in jaxpr.eqns:
        if not dependent.isdisjoint(map(id, equation.invars)):
            dependent.update(map(id, equation.outvars))
    is_constant = [id(output) not in dependent for output in jaxpr.outvars]
    # The rest of the program, which is most of it, is not run.
    constant_part, _ = partial_eval.dce_jaxpr(jaxpr, is_constant)
    values = eval_jaxpr(constant_part, program.consts)
    return dict(
        zip(itertools.compress(itertools.count(), is_constant), values, strict=True)
    )


def _log_module(module: torch.nn.Module, name: str) -> None:
    if module not in _logged:
        _logged.add(module)
        logger.info(
            "%s (%s) depends on values given to the program, and is computed inside of it",
            name, type(module).__name__,
        )  # fmt: skip
