"""Views of tensors: a write through one reaches the tensor it views, and every other
view of it, as in torch.

A jax array cannot be changed, so each tensor on the device has an array of its own and
a view is a computed copy. What torch shares through memory is restored here: tensors
that view one another belong to one `Storage`. After a write to one of them, the array
of the storage is rebuilt with the new values in it, and the others are computed from
that again. Nothing is computed for views that are only read, and XLA drops what a
compiled program recomputes without need.

Whether an operation gives a view, and which elements of it overlap, is torch's own
decision: it runs on twins of the tensors on the meta device, which have strides. A
tensor that is not a view is contiguous unless torch says otherwise.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch

from tpuport.compat import memory_layouts
from tpuport.compat.convert import is_ported
from tpuport.compat.view_steps import (
    VIEWS,
    VIEWS_IN_PLACE,
    Step,
    make_step,
    on_twins,
    strided_step,
)
from tpuport.compat.view_writes import WRITES_THROUGH_VIEWS, written_by_name
from tpuport.errors import PortError
from tpuport.internals.torch_internals import overload_name, schema_of, torch_pytree
from tpuport.internals.torchax_internals import array_of, own_array, set_array

# A torchax tensor; importing its class here would import torchax before its versions
# are checked.
Ported = Any

_aten = torch.ops.aten
_OVERLAP = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    "Please clone() the tensor before performing the operation."
)

# The writes of a number that torch allows to elements that share memory.
_FILLS = {_aten.fill_.Scalar, _aten.zero_.default}

# Of addresses, as of a GPU's.
_ALIGNMENT = 512


class Storage:
    """What tensors that view one another share: the array that all of them are computed
    from.

    Attributes:
        array: None while a single tensor is left, so that the array's memory is free.
        layout: a tensor on the meta device that has the array's elements where torch
            has them in memory.
        aliases: the tensors.
        is_quantized: whether they show a quantised weight, which is computed for each
            reader.
    """

    def __init__(
        self, array: jax.Array, layout: torch.Tensor, is_quantized: bool = False
    ) -> None:
        self.is_quantized = is_quantized
        self.array: jax.Array | None = array
        self.layout = layout
        self.aliases: list[weakref.ref] = []

    def add(self, tensor: Ported) -> None:
        self.aliases.append(weakref.ref(tensor, self._remove))

    def remove(self, tensor: Ported) -> None:
        self.aliases[:] = [
            reference for reference in self.aliases if reference() is not tensor
        ]

    def _remove(self, reference: weakref.ref) -> None:
        self.aliases.remove(reference)
        if len(self.aliases) == 1:
            self.array = None


class Memory:
    """What stands for the memory of tensors that view one another.

    Attributes:
        address: a number as that of no other memory; 0 as long as nobody has asked.
            Nothing is stored there.
    """

    next_address = 1 << 46

    def __init__(self) -> None:
        self.address = 0


@dataclass
class Alias:
    """A tensor's part in a storage; its attribute `_alias`.

    Attributes:
        storage: that the tensor shares.
        steps: from the array of the storage to the tensor's.
        twin: a tensor on the meta device with the strides that this one has in torch.
        array: the tensor's, when it was last in step with the storage.
    """

    storage: Storage
    steps: tuple[Step, ...]
    twin: torch.Tensor
    array: jax.Array

    def __reduce__(self) -> tuple[type, tuple]:
        # A copy of a tensor is not a view of anything.
        return type(None), ()


def link(view: Ported, source: Ported, step: Step, twin: torch.Tensor) -> None:
    """Declare a new tensor a view of another."""
    view._memory = _memory_of(source)
    alias = alias_of(source)
    alias.storage.add(view)
    view._alias = Alias(alias.storage, (*alias.steps, step), twin, array_of(view))


def twin(tensor: Ported) -> torch.Tensor:
    """A tensor on the meta device of the tensor's shape, dtype and strides in torch."""
    alias = getattr(tensor, "_alias", None)
    if alias is not None:
        return alias.twin
    return on_twins(torch.empty, tensor.shape, dtype=tensor.dtype, device="meta")


def lay_out(tensor: Ported, strides: Sequence[int]) -> None:
    """Give a new tensor, which has been contiguous, the strides that it has in
    torch.
    """
    layout = on_twins(
        torch.empty_strided, tensor.shape, strides, dtype=tensor.dtype, device="meta"
    )
    storage = Storage(array_of(tensor), layout)
    storage.add(tensor)
    # Nothing else refers to it yet.
    storage.array = None
    tensor._alias = Alias(storage, (), layout, array_of(tensor))


def _memory_of(tensor: Ported) -> Memory:
    memory = getattr(tensor, "_memory", None)
    if memory is None:
        memory = tensor._memory = Memory()
    return memory


def address(tensor: Ported) -> int:
    """A number for the memory that the tensor has in torch: its views have the same,
    also after writes; 0 if empty.
    """
    memory, size = _memory_of(tensor), twin(tensor).untyped_storage().nbytes()
    if memory.address == 0 and size > 0:
        memory.address = Memory.next_address
        Memory.next_address += -(-size // _ALIGNMENT) * _ALIGNMENT
    return memory.address


def check_writable(tensor: Ported, *, fills: bool = False) -> None:
    """Called before a write, which may fill the tensor with one number.

    Raises:
        RuntimeError: elements of an expanded view share memory, so that torch refuses
            too.
        PortError: it is a view that a write cannot be put back through, or shows a
            quantised weight.
    """
    refuse_quantized(tensor)
    alias = getattr(tensor, "_alias", None)
    if alias is None:
        return
    if has_overlap(tensor) and not fills:
        raise RuntimeError(_OVERLAP)
    if len(alias.storage.aliases) == 1:
        return
    lossy = next((step for step in alias.steps if step.write is None), None)
    if lossy is None:
        return
    # One row of an expanded tensor: its elements have each a place of their own, which
    # the single view does not say.
    if all(step.has_known_places for step in alias.steps):
        step = strided_step(alias.storage.layout, alias.twin, of_equals=fills)
        if step.write is not None:
            alias.steps = (step,)
            return
    raise PortError(
        f"a write through {lossy.name} cannot reach the tensor that it views",
        fix=f"write to a clone of the {lossy.name}, and compute the tensor from it",
    )


def has_overlap(tensor: Ported) -> bool:
    """Whether several elements of a tensor are the same element of what it views, as
    rows of an expanded tensor are.
    """
    alias = getattr(tensor, "_alias", None)
    if alias is None:
        return False
    sizes_and_strides = zip(alias.twin.shape, alias.twin.stride(), strict=True)
    return any(size > 1 and stride == 0 for size, stride in sizes_and_strides)


def refuse_quantized(tensor: Ported) -> None:
    """PortError for what shows a quantised weight, also where nothing else refers to
    the weight any more.
    """
    if _is_quantized(tensor):
        raise PortError(
            "a quantised weight cannot be written to",
            where=f"a tensor {list(tensor.shape)}",
            fix="change the weights first (merge adapters, for example), and quantise after that",
        )


def _is_quantized(tensor: Ported) -> bool:
    alias = getattr(tensor, "_alias", None)
    return getattr(tensor, "quantized", None) is not None or (
        alias is not None and alias.storage.is_quantized
    )


def propagate(tensor: Ported) -> None:
    """After a write to a tensor: put the new values into its storage and all that view
    it.
    """
    alias = getattr(tensor, "_alias", None)
    if alias is None or alias.array is array_of(tensor):
        return
    storage = alias.storage
    if array_of(tensor).shape != alias.array.shape:
        # It was given other memory.
        leave(tensor)
        return
    alias.array = array_of(tensor)
    if storage.array is None:
        # The only tensor left, whose strides stay.
        return
    storage.array = _write_back(storage.array, alias.steps, array_of(tensor))
    for reference in storage.aliases:
        other = reference()
        if other is not None and other is not tensor:
            set_array(other, _read(storage.array, other._alias.steps))
            other._alias.array = array_of(other)


def may_share_memory(tensor: Any) -> bool:
    """Whether any other tensor could have memory in common with a value."""
    if not is_ported(tensor):
        return isinstance(tensor, torch.Tensor)
    alias = getattr(tensor, "_alias", None)
    return alias is not None and len(alias.storage.aliases) > 1


def may_overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors, on the host or the device, have memory in common; True if it
    is hard to tell.
    """
    first_alias, second_alias = (
        getattr(first, "_alias", None),
        getattr(second, "_alias", None),
    )
    if first_alias is not None and second_alias is not None:
        return (
            first_alias.storage is second_alias.storage
            and memory_layouts.layouts_meet(first_alias.twin, second_alias.twin)
        )
    on_host = all(
        isinstance(tensor, torch.Tensor) and not is_ported(tensor)
        for tensor in (first, second)
    )
    if (
        not on_host
        or first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
    ):
        return False
    return memory_layouts.layouts_meet(first, second)


def alias_of(tensor: Ported) -> Alias:
    """The tensor's part in a storage that has its array; a storage of its own if there
    is none.
    """
    alias = getattr(tensor, "_alias", None)
    if (
        alias is None
        or alias.storage.array is None
        or alias.array is not array_of(tensor)
    ):
        strides = twin(tensor)
        if alias is not None:
            alias.storage.remove(tensor)
        storage = Storage(array_of(tensor), strides, _is_quantized(tensor))
        storage.add(tensor)
        alias = tensor._alias = Alias(storage, (), strides, array_of(tensor))
    return alias


def leave(tensor: Ported) -> None:
    """Let a tensor share memory with no other from now on."""
    tensor._memory = None
    if getattr(tensor, "_alias", None) is None:
        return
    tensor._alias.storage.remove(tensor)
    tensor._alias = None


def substitute_array(tensor: Ported, array: jax.Array) -> None:
    """Let a tensor have another array with the same elements. It still views what it
    viewed.
    """
    assert (array.shape, array.dtype) == (
        array_of(tensor).shape,
        array_of(tensor).dtype,
    )
    alias = getattr(tensor, "_alias", None)
    if alias is not None and alias.array is array_of(tensor):
        alias.array = array
    set_array(tensor, array)


@contextlib.contextmanager
def exchanged(first: torch.Tensor, second: torch.Tensor) -> Iterator[None]:
    """In the block, whose body lets two tensors change their attributes, none of their
    storages refers to them.
    """
    tensors = (first, second)
    aliases = [getattr(tensor, "_alias", None) for tensor in tensors]
    for tensor, alias in zip(tensors, aliases, strict=True):
        if alias is not None:
            alias.storage.remove(tensor)
    try:
        yield
    finally:
        for tensor in tensors:
            alias = getattr(tensor, "_alias", None)
            if alias is not None:
                alias.storage.add(tensor)


def _read(array: jax.Array, steps: Sequence[Step]) -> jax.Array:
    for step in steps:
        array = step.read(array)
    return array


def _write_back(
    array: jax.Array, steps: Sequence[Step], values: jax.Array
) -> jax.Array:
    if not steps:
        return values
    first, *others = steps
    assert first.write is not None  # by `check_writable`
    return first.write(array, _write_back(first.read(array), others, values))


# --- operators ---


def dispatch(
    run: Callable[[Any, tuple, dict], Any], func: Any, args: tuple, kwargs: dict
) -> Any:
    """Run an operator on torchax tensors; link its results if they are views, and
    propagate what it wrote.

    Args:
        run: torchax's own dispatch, given the operator, positional and keyword
            arguments.
        func: an operator or a function of torch.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    packet = getattr(func, "overloadpacket", func)
    if packet in VIEWS:
        return _dispatch_view(run, func, args, kwargs)
    if packet in VIEWS_IN_PLACE:
        return _dispatch_view_in_place(run, func, args, kwargs)
    if not WRITES_THROUGH_VIEWS.works():
        if any(map(may_share_memory, written_by_name(func, args, kwargs))):
            WRITES_THROUGH_VIEWS.require()
        return run(func, args, kwargs)
    # A tensor that becomes another view is not written to.
    if not _written_positions(func) or packet is _aten.as_strided_:
        return run(func, args, kwargs)
    if func in _FILLS and getattr(args[0], "_alias", None) is not None:
        return _fill(run, *args)
    written = list(_written_arguments(func, args, kwargs))
    for tensor in written:
        check_writable(tensor)
    result = run(func, args, kwargs)
    for tensor in written:
        propagate(tensor)
    return result


def _fill(
    run: Callable[[Any, tuple, dict], Any],
    tensor: Ported,
    number: int | float | complex | bool = 0,
) -> Ported:
    """Write one number to a tensor whose elements may share memory."""
    check_writable(tensor, fills=True)
    set_array(tensor, run(_aten.full_like.default, (tensor, number), {}).jax())
    propagate(tensor)
    return tensor


def _dispatch_view(
    run: Callable[[Any, tuple, dict], Any], func: Any, args: tuple, kwargs: dict
) -> Any:
    result = run(func, args, kwargs)
    if not args or not _has_own_array(args[0]):
        return result
    source = args[0]
    viewed = twin(source)
    try:
        twins = on_twins(func, viewed, *args[1:], **kwargs)
    except RuntimeError:
        # A reshape of what has other strides than torchax thinks, which torch copies.
        return result
    views = torch_pytree.tree_leaves(result)
    for index, (view, view_twin) in enumerate(
        zip(views, torch_pytree.tree_leaves(twins), strict=True)
    ):
        if view is not source and _has_own_array(view):
            step = make_step(run, func, args, kwargs, index, viewed, view_twin)
            link(view, source, step, view_twin)
    return result


def _dispatch_view_in_place(
    run: Callable[[Any, tuple, dict], Any], func: Any, args: tuple, kwargs: dict
) -> Any:
    tensor = args[0]
    alias = alias_of(tensor)
    result = run(func, args, kwargs)
    packet = VIEWS_IN_PLACE[func.overloadpacket]
    # transpose_ has a single overload where transpose has several.
    overload = (
        overload_name(func)
        if overload_name(func) in packet.overloads()
        else packet.overloads()[0]
    )
    view = getattr(packet, overload)
    view_twin = on_twins(view, alias.twin, *args[1:], **kwargs)
    step = make_step(run, view, args, kwargs, 0, alias.twin, view_twin)
    tensor._alias = Alias(
        alias.storage, (*alias.steps, step), view_twin, array_of(tensor)
    )
    if len(alias.storage.aliases) == 1:
        alias.storage.array = None
    return result


def _has_own_array(tensor: Any) -> bool:
    """Whether a value is a torchax tensor; a mask that is computed on demand is not."""
    return own_array(tensor) is not None


@functools.cache
def _written_positions(func: Any) -> tuple[tuple[int, str], ...]:
    """(position, name) of the arguments that an operator writes to, by its schema."""
    schema = schema_of(func)
    if schema is None:
        return ()
    arguments = enumerate(schema.arguments)
    return tuple(
        (position, argument.name)
        for position, argument in arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _written_arguments(func: Any, args: tuple, kwargs: dict) -> Iterator[Ported]:
    for position, name in _written_positions(func):
        argument = args[position] if position < len(args) else kwargs.get(name)
        yield from filter(_has_own_array, torch_pytree.tree_leaves(argument))
