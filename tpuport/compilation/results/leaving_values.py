"""What a traced function returns, and what it leaves in its arguments and in its state,
taken apart together: what they share is one object after the call, too.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport import compat
from tpuport.compat.convert import NarrowIntegers
from tpuport.compilation.arguments.call_layout import Rebuilt
from tpuport.compilation.results.result_layout import Leaf, Result
from tpuport.compilation.results.state_writes import StateChanges, StateTrace
from tpuport.errors import PortError
from tpuport.internals.torch_internals import is_transformed
from tpuport.objects import object_graph
from tpuport.objects.object_graph import HostArray, Reference
from tpuport.objects.object_parts import PLAIN, is_traced, leads_to
from tpuport.objects.state.state_places import assigning_line
from tpuport.objects.traced_numbers import of_this_trace

_NUMPYS = (np.ndarray, np.generic)


class LeavingValues(object_graph.Flattener):
    """Traced. Takes apart the output of a function, then what it has assigned to its
    state, then the objects of its arguments that it has changed.

    Args:
        rebuilt: the arguments.
        trace: of the state.

    Attributes:
        returned: how many leaves the output has.
        kept: numbers of objects of the arguments that the state has got, by the numbers
            that they have there.
        arrays: of the program's results, in the order in which `forms` has met them.
    """

    def __init__(self, rebuilt: Rebuilt, trace: StateTrace) -> None:
        super().__init__(
            caches_are_leaves=False,
            whole=trace.state.node_numbers,
            known={
                number: value
                for number, value in rebuilt.objects.items()
                if not rebuilt.states[number].is_registered
            },
            first=len(rebuilt.objects),
        )
        self._rebuilt = rebuilt
        self._trace = trace
        # Plain values are compared by value, and one that Python shares says nothing
        # about where it came from.
        self._originals = {
            id(leaf.array if isinstance(leaf, HostArray) else leaf): number
            for number, leaf in enumerate(rebuilt.leaves)
            if id(leaf) not in rebuilt.replaced | rebuilt.given
            and not object_graph.is_plain(leaf)
        }
        # What is assigned to the state: now, and by the number of the leaf.
        self._path: str | None = None
        self._paths: dict[int, str] = {}
        # By the numbers of leaves here, those of the arguments.
        self._originals_met: dict[Any, int] = {}
        self.returned = 0
        self.kept: dict[int, int] = {}
        self.arrays: list[Any] = []

    def add_output(self, output: Any) -> None:
        """Visit what the function returns."""
        self.add_root("the result", output)
        self.returned = len(self.leaves)

    def add_assigned(self, changes: StateChanges) -> None:
        """Visit what the function has assigned to its state."""
        # What the function has made on the host stays there, where the output has it on
        # the device.
        on_host = (*_NUMPYS, HostArray, torch.Tensor)
        self.forget_leaves(
            leaf.source if isinstance(leaf, HostArray) else leaf
            for leaf in self.leaves
            if isinstance(leaf, on_host) and not compat.is_ported(leaf)
        )
        # If objects of the arguments have tensors on the host, the state gets copies of
        # them with others on the device.
        self.forget_known()
        for location, names, _ in changes.assignments:
            self._path = self._trace.state.path(location.node)
            for name in names:
                self._refuse_key(name, self._path)
        for self._path, value in changes.values:
            self.add_root(self._path, value)
        self._path = None
        self.kept = self.recall_known()

    def add_changed(self, numbers: Sequence[int]) -> None:
        """Visit objects of the arguments."""
        # A tensor that is also returned has two forms: on the device, and the caller's
        # own.
        self.forget_leaves(self._rebuilt.leaves)
        for number in numbers:
            self.add_known("an argument", number, self._known[number])

    def _visit(self, value: Any, name: str) -> Reference:
        if self._path is not None and isinstance(value, _NUMPYS):
            return self._visit_leaf(value, name)
        return super()._visit(value, name)

    def _visit_attribute(self, value: Any, name: str) -> Reference:
        if self._path is not None:
            return self._visit(value, name)
        return super()._visit_attribute(value, name)

    def _visit_kind(self, value: Any, kind: str, name: str) -> Reference:
        # Of whatever class, an object with tensors of the trace cannot stay as it is.
        is_other = kind in ("opaque", "library")
        if (
            is_other
            and self._leads_to_traced(value)
            and object_graph.can_be_made(type(value))
        ):
            return self._visit_new_object(value, name)
        if kind == "opaque":
            return self._visit_leaf(value, name)
        return super()._visit_kind(value, kind, name)

    def _visit_object(self, value: Any, name: str, number: int) -> None:
        if isinstance(value, dict):
            for key in dict.keys(value):
                self._refuse_key(key, name)
        super()._visit_object(value, name, number)

    def _new_leaf(self, value: Any, name: str) -> int:
        number = super()._new_leaf(value, name)
        if self._path is not None:
            self._paths[number] = self._path
        return number

    def forms(self, graph: object_graph.Graph) -> list[Leaf]:
        """How each leaf leaves the program.

        Raises:
            PortError: one cannot.
        """
        leaves = enumerate(zip(graph.leaves, graph.names, strict=True))
        return [self._form(number, leaf, name) for number, (leaf, name) in leaves]

    def leaves_kept(self, structure: object_graph.Structure) -> tuple[int, ...]:
        """The numbers of the arguments' leaves that are in `kept` objects."""
        nodes = (node.references for n, node in structure.nodes if n in self.kept)
        met = object_graph.references_in(itertools.chain.from_iterable(nodes))
        return tuple({self._originals_met[n] for n in met if n in self._originals_met})

    def _form(self, number: int, leaf: Any, name: str) -> Leaf:
        path = self._paths.get(number)
        source = leaf.source if isinstance(leaf, HostArray) else leaf
        original = self._originals.get(id(source))
        if original is not None:
            self._originals_met[number] = original
            on_device = number < self.returned or path is not None
            return lambda live: live.original(original, on_device=on_device)
        if isinstance(leaf, torch.Tensor) and path is not None:
            return self._form_in_state(leaf, name, path)
        if path is None and object_graph.is_array(leaf):
            return self._result(leaf)
        node = self._trace.state.node_numbers.get(id(leaf))
        if node is not None:
            return lambda live: live.state.nodes[node]
        if isinstance(source, _NUMPYS) and not self._trace.state.has_array(source):
            array = leaf.array if isinstance(leaf, HostArray) else leaf
            return lambda live: live.copy(array)
        self._refuse_captured(leaf, name, path)
        value = of_this_trace(leaf)
        return lambda live: live.number(value)

    def _form_in_state(self, tensor: torch.Tensor, name: str, path: str) -> Leaf:
        slot = self._trace.slot_of(tensor)
        if slot is not None:
            return lambda live: live.state_tensor(slot)
        number = self._trace.state.host_tensors.find(tensor)
        if number is not None:
            return lambda live: live.state.host_tensors.tensors[number]
        if compat.is_ported(tensor):
            self._check_trace(tensor, name, path)
            return self._result(tensor)
        if is_transformed(tensor):
            self._refuse(
                "a tensor inside of a transformation of torch.func", name, path
            )
        copied = tensor if tensor.is_leaf else tensor.detach()
        return lambda live: live.copy(copied)

    def _check_trace(self, tensor: torch.Tensor, name: str, path: str) -> None:
        try:
            # jax itself knows whether a value belongs to a trace that has ended.
            jnp.copy(compat.as_jax(tensor))
        except jax.errors.UnexpectedTracerError:
            what = "a tensor inside of a loop, a branch or a transformation that jax traces by itself"
            self._refuse(what, name, path)

    def _result(self, value: Any) -> Result:
        self.arrays.append(as_array(value))
        is_parameter = isinstance(value, torch.nn.Parameter)
        requires_grad = value.requires_grad if is_parameter else None
        return Result(len(self.arrays) - 1, requires_grad)

    def _leads_to_traced(self, value: Any) -> bool:
        """Whether a value is, or has, a tensor of the trace that the state has not."""
        return leads_to(
            value,
            lambda tensor: is_traced(tensor) and self._trace.slot_of(tensor) is None,
            without=self._trace.state.node_numbers,
        )

    def _refuse_key(self, key: Any, name: str) -> None:
        if not isinstance(key, PLAIN) and self._leads_to_traced(key):
            self._refuse("a dictionary with a tensor as a key", name, self._path)

    def _refuse_captured(self, value: Any, name: str, path: str | None) -> None:
        """PortError for a value that stays as it is and has tensors of the trace: they
        cannot be replaced by those that the program computes.
        """
        if self._leads_to_traced(value):
            what = f"a {type(value).__name__} that has captured tensors of the trace"
            self._refuse(what, name, path)

    def _refuse(self, what: str, name: str, path: str | None) -> NoReturn:
        if path is None:
            raise PortError(
                f"compiled code returns {what}",
                where=name,
                fix="return the tensors, and make it from them after the call",
            )
        raise PortError(
            f"{name} is assigned {what}, which cannot leave the compiled program",
            where=assigning_line(self._trace.state, path),
            fix="return it from the function, or assign it outside of what is compiled",
        )


def as_array(value: Any) -> Any:
    """The array of a tensor, or of whatever else is one."""
    if not isinstance(value, torch.Tensor):
        return jax.numpy.asarray(value)
    array = compat.to_jax(value)
    return NarrowIntegers(array) if value.dtype is torch.int32 else array
