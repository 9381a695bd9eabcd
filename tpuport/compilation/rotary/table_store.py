"""Rotary tables on the device: kept from call to call, arguments of programs, and
looked up inside of a trace.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import logging
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import torch
from jax.sharding import Mesh

from tpuport import compat
from tpuport.base.temporary import temporary_attributes
from tpuport.checkpoint import model_mesh, port_count
from tpuport.checkpoint.device_layout import replicated_sharding, scatter
from tpuport.compat.tracing import trace_lock
from tpuport.compilation.rotary.rotary_modules import CallArguments, HostModule
from tpuport.compilation.rotary.table_needs import TableNeed, find_table_needs
from tpuport.objects.static_values import Identity, exact_key
from tpuport.patches.complex_rotary import pair_as_complex

logger = logging.getLogger("tpuport")

# A table's name among the arguments of a program begins with this; weights are beside
# it.
_PREFIX = "rotary table:"
# Tables kept for each module; a shape that comes back after as many others has its
# table made again.
_MAX_TABLES = 8
_tables: weakref.WeakKeyDictionary[torch.nn.Module, "OrderedDict[_TableKey, Table]"] = (
    weakref.WeakKeyDictionary()
)
# Tables of a batch of one and of two are often equal, and some are large. An array
# lives as long as a table has it.
_arrays: weakref.WeakValueDictionary[Hashable, jax.Array] = (
    weakref.WeakValueDictionary()
)


class _TableKey(NamedTuple):
    """What a table was made for: the port of the model, its mesh, the call, and what
    the module computes from.
    """

    port_count: int
    mesh: Mesh
    call: Hashable
    module: Hashable


class Leaf(NamedTuple):
    """One leaf of a module's output: a tensor as one array, a complex one as two, or a
    plain value itself.
    """

    kind: Literal["real", "complex", "plain"]
    value: Hashable = None


@dataclasses.dataclass(frozen=True)
class TableForm:
    """What a table is beside its arrays.

    Attributes:
        tree: the structure of the module's output.
        leaves: of the output.
        signature: of the calls that the table serves.
        shapes_decide: whether it serves every call with this signature, or only the one
            that it was made for.
    """

    tree: Any
    leaves: tuple[Leaf, ...]
    signature: Hashable
    shapes_decide: bool


@dataclasses.dataclass(frozen=True)
class Table:
    """The output of one call of a rotary module. A pytree; its arrays are real."""

    arrays: tuple[Any, ...]
    form: TableForm

    @property
    def nbytes(self) -> int:
        """Bytes on each device."""
        return sum(array.nbytes for array in self.arrays)

    def serves(self, signature: Hashable, is_same_call: bool) -> bool:
        """Whether this is the output of a call.

        Args:
            signature: of the call's arguments.
            is_same_call: whether it is the module's call with the number that the table
                was made for.
        """
        return self.form.signature == signature and (
            self.form.shapes_decide or is_same_call
        )

    def output(self) -> Any:
        """Traced. What the module would have returned, with tensors on the device."""
        arrays = iter(self.arrays)
        leaves: list[Any] = []
        for leaf in self.form.leaves:
            match leaf.kind:
                case "real":
                    leaves.append(compat.wrap(next(arrays)))
                case "complex":
                    leaves.append(pair_as_complex(next(arrays), next(arrays)))
                case "plain":
                    leaves.append(leaf.value)
        return jax.tree_util.tree_unflatten(self.form.tree, leaves)


jax.tree_util.register_dataclass(Table, data_fields=["arrays"], meta_fields=["form"])


def table_for(model: torch.nn.Module, need: TableNeed) -> Table:
    """The table of one call, on the model's mesh; made now if it is not kept."""
    module = model.get_submodule(need.module.name)
    mesh: Any = model_mesh(model)
    key = _TableKey(port_count(model), mesh, need.key, _module_key(module))
    tables = _tables.setdefault(module, OrderedDict())
    # The model has been ported again, perhaps to other devices.
    outdated = [other for other in tables if other[:2] != key[:2]]
    for other in outdated:
        del tables[other]
    if key not in tables:
        output = HostModule(module)(need.arguments)
        tables[key] = table = _make_table(output, mesh, need)
        logger.info(
            "rotary table of %s (%s): %s, %.1f MB on each device", need.module.name, type(module).__name__,
            ", ".join(str(tuple(array.shape)) for array in table.arrays), table.nbytes / 1e6,
        )  # fmt: skip
    # The least recently used is the first to be evicted.
    tables.move_to_end(key)
    return tables[key]


def _module_key(module: torch.nn.Module) -> Hashable:
    """A key of the attributes of a module, and of the arrays in its buffers."""
    parts = []
    for part in module.modules():
        attributes = {
            name: value
            for name, value in vars(part).items()
            if not name.startswith("_")
        }
        arrays = tuple(
            Identity(compat.as_jax(buffer)) for buffer in part.buffers(recurse=False)
        )
        parts.append((type(part), exact_key(attributes), arrays))
    return tuple(parts)


def _make_table(output: Any, mesh: Mesh, need: TableNeed) -> Table:
    """The table of what a module returned on the host: any structure of tensors and
    plain values.
    """
    values, tree = jax.tree_util.tree_flatten(output)
    arrays: list[jax.Array] = []
    leaves: list[Leaf] = []
    for value in values:
        if not isinstance(value, torch.Tensor):
            leaves.append(Leaf("plain", value))
        elif value.is_complex():
            arrays += [_put_on_mesh(value.real, mesh), _put_on_mesh(value.imag, mesh)]
            leaves.append(Leaf("complex"))
        else:
            arrays.append(_put_on_mesh(value, mesh))
            leaves.append(Leaf("real"))
    return Table(
        tuple(arrays),
        TableForm(tree, tuple(leaves), need.signature, need.shapes_decide),
    )


def _put_on_mesh(tensor: torch.Tensor, mesh: Mesh) -> jax.Array:
    """A host tensor on every device of the mesh, whole; one array for equal tensors."""
    tensor = tensor.contiguous()
    content: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    key = (mesh, tuple(tensor.shape), tensor.dtype, hashlib.sha256(content).digest())
    array = _arrays.get(key)
    # Not `setdefault`, which would put a second copy on the devices first.
    if array is None:
        _arrays[key] = array = scatter(tensor, tensor.dtype, replicated_sharding(mesh))
    return array


class ProgramTables:
    """The tables that the programs of one function need: found when a program is new,
    passed in every call.
    """

    def __init__(self) -> None:
        self._needs: dict[Hashable, list[TableNeed]] = {}

    def add_to(
        self,
        weights: Sequence[dict[str, Any]],
        key: Hashable,
        models: Sequence[torch.nn.Module],
        function: Callable[..., Any],
        *others: Any,
    ) -> list[dict[str, Any]]:
        """The weights of each model, with the tables for this call beside them.

        A program has the tables of its own shapes among its arguments and no others, so
        that a new shape leaves the programs of other shapes as they are.

        Args:
            weights: of each model, by name.
            key: of the program, equal for equal shapes and static values.
            models: those that the function uses.
            function: what is compiled, called as `function(weights, *others)`.
        """
        # The search traces a part of the model, so it happens once for each program.
        if key not in self._needs:
            self._needs[key] = _try_find_needs(
                models, function, (list(weights), *others)
            )
        needs = self._needs[key]
        return [
            arrays
            | _model_tables(
                model, [need for need in needs if need.module.model == index]
            )
            for index, (model, arrays) in enumerate(zip(models, weights, strict=True))
        ]


def _try_find_needs(
    models: Sequence[torch.nn.Module], function: Callable[..., Any], arguments: tuple
) -> list[TableNeed]:
    try:
        with trace_lock:
            return find_table_needs(models, function, arguments)
    except Exception as error:  # noqa: BLE001 - the program's own trace meets it again, and explains it better
        logger.info(
            "not looked for rotary tables: %s: %.200s", type(error).__name__, error
        )
        return []


def _model_tables(model: torch.nn.Module, needs: list[TableNeed]) -> dict[str, Table]:
    """The tables of one model's calls, by their names among the arguments of the
    program.
    """
    tables = {_argument_name(need): table_for(model, need) for need in needs}
    for name, in_use in Counter(need.module.name for need in needs).items():
        stored = _tables[model.get_submodule(name)]
        # A program may need more than are otherwise worth their memory.
        while len(stored) > max(_MAX_TABLES, in_use):
            stored.popitem(last=False)
    return tables


def _argument_name(need: TableNeed) -> str:
    return f"{_PREFIX}{need.module.name}:{need.call}"


def split_tables(
    arrays: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, dict[str, Table]]]:
    """The arguments of a program for one model as (weights by name, tables by module
    name and number of the call).
    """
    weights = {
        name: array for name, array in arrays.items() if not name.startswith(_PREFIX)
    }
    tables: dict[str, dict[str, Table]] = {}
    for name in arrays.keys() - weights.keys():
        module, _, call = name.removeprefix(_PREFIX).rpartition(":")
        tables.setdefault(module, {})[call] = arrays[name]
    return weights, tables


@contextlib.contextmanager
def use_tables(
    model: torch.nn.Module, tables: Mapping[str, Mapping[str, Table]]
) -> Iterator[None]:
    """Traced. Let rotary modules of the model return their tables, which are as
    `split_tables` returns them.
    """
    with contextlib.ExitStack() as stack:
        for name, tables_by_call in tables.items():
            module = model.get_submodule(name)
            stack.enter_context(
                temporary_attributes(
                    module, forward=_looking_forward(module, tables_by_call)
                )
            )
        yield


def _looking_forward(
    module: torch.nn.Module, tables: Mapping[str, Table]
) -> Callable[..., Any]:
    own_forward = module.forward
    calls = itertools.count()

    def forward(*args: Any, **kwargs: Any) -> Any:
        signature = CallArguments.flatten(args, kwargs).signature()
        # Counted while one program is traced, as the calls were when the tables were
        # made.
        this_call = str(next(calls))
        for call, table in tables.items():
            if table.serves(signature, is_same_call=call == this_call):
                return table.output()
        # Other shapes than those that the trace before compiling met, or values of the
        # program.
        return own_forward(*args, **kwargs)

    return forward
