"""What a model's lines ask of its tensors: an eager run on the CPU, watched.

    with watch([Path(diffusers.__file__).parent]) as seen:
        model(**inputs)
    seen.notes[path][line]  # {"value:__bool__"}

A line is noted when one of its operations could not be traced: it reads a number out of a tensor (`value:...`) or the
shape of its result hangs on the numbers (`shape:...`). Two more kinds are noted and never counted: `write:...` writes
through a boolean mask (the shape is known), and `select:...` indexes by a tensor of no dimensions, which eager torch
reads as a number and torchax does not. Two kinds ask for more on the CPU than under torchax, which prints a tracer's
name for `value:__format__` and `value:__repr__`: they are counted, and can be left out by name. `host:...` is an
operator on a tensor of the host and one of the device, which is counted by itself.

What a line asks of a tensor that was created in the block without `device=`, or computed from such tensors alone, is
not noted: under tpuport it is an ordinary tensor of the host, whose numbers can be read while tracing.

A run takes one side of each condition on a tensor, by the values that random weights give. `watch(roots, opposed=line)`
answers the first such condition on a line with its opposite, so that the code behind the other side runs too.
"""

import ast
import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from tpuport.patches.builtin import PATCHES

COUNTED = ("value", "shape")  # the families that no traced program can run
NEVER = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).resolve()),
)  # a conversion inside torch is its caller's

# Torch's own functions that patches of tpuport replace in traced code.
REPLACED = frozenset(patch.target for patch in PATCHES if patch.target.startswith("torch."))

VALUE_FUNCTIONS = frozenset(
    "__bool__ __int__ __float__ __complex__ __index__ __contains__ __repr__ __format__ __array__ __dlpack__ item "
    "tolist numpy equal allclose is_nonzero".split()
)
TENSOR_FACTORIES = frozenset("tensor as_tensor asarray new_tensor".split())
PACKING = frozenset("_pack_padded_sequence _pad_packed_sequence".split())
SPLITS = frozenset("split split_with_sizes tensor_split hsplit vsplit dsplit".split())
VALUE_OPERATORS = frozenset("_local_scalar_dense equal is_nonzero allclose".split())
SHAPE_OPERATORS = frozenset(
    "nonzero nonzero_numpy argwhere masked_select _unique _unique2 unique_dim unique_consecutive "
    "unique_dim_consecutive bincount _nested_tensor_from_tensor_list _nested_tensor_from_mask "
    "_nested_view_from_jagged".split()
)
# Operators that take a tensor of the host beside one of the device: a copy, an index, sizes.
TAKES_BOTH = frozenset(
    "copy_ index _unsafe_index index_put index_put_ _index_put_impl_ _unsafe_index_put fill_ repeat_interleave "
    "tensor_split set_".split()
)
INDEX_WRITES = frozenset("index_put index_put_ _index_put_impl_ _unsafe_index_put".split())
MASKS = (torch.bool, torch.uint8)
# What torchax leaves on the host if no device is named; other operators compute on the device, of numbers alone too.
FACTORIES = frozenset(
    "lift_fresh zeros ones empty full arange linspace logspace eye empty_strided new_empty new_zeros range "
    "tril_indices triu_indices".split()
)
# They draw on the device, of tensors of the host too.
DRAWS = (
    "rand",
    "normal",
    "bernoulli",
    "multinomial",
    "poisson",
    "binomial",
    "_standard_gamma",
    "_sample_dirichlet",
)
MOVES = frozenset("to type_as cuda".split())


class Verdict(NamedTuple):
    """What a function call asks for, and whether that is the whole of it (its operators are then not looked at)."""

    kinds: tuple[str, ...] = ()
    final: bool = False


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in `value` and in the lists, tuples and slices that it holds."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, slice):
        yield from tensors_in((value.start, value.stop, value.step))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def of_index(index: Any, *, write: bool) -> Verdict:
    """What `x[index]` asks for: masks shape a read, slice bounds are numbers, a 0-dimensional index is a choice."""
    items = index if isinstance(index, tuple) else (index,)
    kinds = set()
    # Beside positions, a mask becomes positions too, and their number is not known.
    beside_positions = any(
        isinstance(item, torch.Tensor) and item.dtype not in MASKS and item.dim() > 0 for item in items
    )
    for item in items:
        if isinstance(item, slice):
            kinds.update("value:slice" for _ in tensors_in(item))
        elif isinstance(item, torch.Tensor) and item.dtype in MASKS:
            kinds.add("write:mask" if write and not beside_positions else "shape:mask")
        elif isinstance(item, torch.Tensor) and item.dim() == 0:
            kinds.add("select:index")
        elif isinstance(item, list) and any(tensors_in(item)):
            kinds.add("value:index")
    return Verdict(tuple(kinds), final=True)


def of_function(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Verdict:
    """What a call of the torch function or method `name` asks for, as far as its arguments tell."""
    if name in ("__getitem__", "__setitem__"):
        return of_index(args[1], write=name == "__setitem__")
    if name in VALUE_FUNCTIONS:
        return Verdict((f"value:{name}",), final=True)
    if name == "one_hot":  # on the CPU it checks the range of its argument, which torchax leaves out
        classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
        return Verdict(("shape:one_hot",) if classes == -1 else (), final=True)
    if name in TENSOR_FACTORIES:
        data = args[int(name == "new_tensor") :] or (kwargs.get("data"),)
        listed = isinstance(data[0], list | tuple) and next(tensors_in(data[0]), None) is not None
        return Verdict((f"value:{name}",) if listed else ())
    if name in SPLITS and any(True for _ in tensors_in((*args[1:], *kwargs.values()))):
        return Verdict((f"shape:{name}",))
    # They read lengths of the host too in a way that no traced program can.
    if name in PACKING:
        return Verdict((f"shape:{name}",), final=True)
    # Eager torch keeps ends that are tensors; without a device, tpuport asks for numbers.
    has_device = kwargs.get("device") is not None
    if name in ("linspace", "logspace") and any(True for _ in tensors_in((*args[:2], *kwargs.values()))):
        return Verdict(() if has_device else (f"value:{name}",))
    # On the CPU it checks what its windows add up to, which tpuport's operator leaves out.
    if name == "istft":
        return Verdict(final=True)
    # On the CPU the fill is read as a number; on a device that is named, torchax broadcasts it.
    if name == "full" and has_device:
        sizes = next(tensors_in((*args[:1], kwargs.get("size"))), None)
        return Verdict(() if sizes is None else ("value:full",), final=True)
    return Verdict()


def of_operator(name: str, overload: str, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[str, ...]:
    """What the ATen operator `name.overload` asks for."""
    if name in VALUE_OPERATORS:
        return (f"value:{name}",)
    if name in SHAPE_OPERATORS:
        return (f"shape:{name}",)
    if name == "repeat_interleave" and overload == "Tensor" and kwargs.get("output_size") is None:
        return ("shape:repeat_interleave",)
    if name in ("index", "_unsafe_index") and masked(args[1]):
        return ("shape:mask",)
    if name in INDEX_WRITES and masked(args[1]):
        return ("write:mask",)
    return ()


def decisive(name: str, args: Sequence[Any]) -> Any:
    """The arguments whose numbers a call asks for: of an index the index, not what is indexed."""
    if name in ("__getitem__", "__setitem__", "index", "_unsafe_index"):
        index = args[1]
        return list(index) if isinstance(index, tuple) else index
    return list(args)


def masked(indices: Any) -> bool:
    """Whether one of the operator's index tensors is a mask."""
    return any(tensor.dtype in MASKS for tensor in tensors_in(list(indices)))


class Line(NamedTuple):
    """A line of a file."""

    path: str
    number: int


class Watched:
    """The record of a watch.

    Attributes:
        notes: By path and line, the kinds of what the line asked for.
        ran: By path, the lines that ran.
        parts: By path, where instructions are that ran, on lines with parts that may be left out (`partial`).
    """

    def __init__(self, roots: Iterable[str | Path]) -> None:
        """Note only code under `roots`: directories or files."""
        self.roots = tuple(str(Path(root).resolve()) for root in roots)
        self.notes: dict[str, dict[int, set[str]]] = {}
        self.ran: dict[str, set[int]] = {}
        self.parts: dict[str, set[Extent]] = {}
        self._inside: dict[str, bool] = {}
        self._unseen: dict[CodeType, set[int]] = {}
        self._partial: dict[str, set[int]] = {}
        self._unseen_parts: dict[CodeType, dict[int, Extent]] = {}

    def inside(self, path: str) -> bool:
        """Whether the code at `path` is the model's: under a root, and neither torch's nor the watch's own."""
        known = self._inside.get(path)
        if known is None:
            known = under(path, self.roots) and not under(path, NEVER)
            self._inside[path] = known
        return known

    def note(self, kinds: Iterable[str]) -> Line | None:
        """Put `kinds` down to the innermost frame of model code that is running, and say which line it is at."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not self.inside(frame.f_code.co_filename):
            if f"{frame.f_globals.get('__name__')}:{frame.f_code.co_qualname}" in REPLACED:
                return None
            frame = frame.f_back
        if frame is None:
            return None
        line = Line(frame.f_code.co_filename, frame.f_lineno)
        self.notes.setdefault(line.path, {}).setdefault(line.number, set()).update(kinds)
        return line

    def trace(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        """Follow a call for `sys.settrace`: only model code, and only until each of its lines has run once."""
        code = frame.f_code
        path = code.co_filename
        if event != "call" or not self.inside(path):
            return None
        if code not in self._unseen:
            lines = {line for _, _, line in code.co_lines() if line}
            self._unseen[code] = lines - {code.co_firstlineno}
            self._unseen_parts[code] = self._instructions(code, lines)
        unseen, unseen_parts = self._unseen[code], self._unseen_parts[code]
        if not unseen and not unseen_parts:
            return None
        ran, parts = self.ran.setdefault(path, set()), self.parts.setdefault(path, set())

        def local(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
            if event == "line":
                ran.add(frame.f_lineno)
                unseen.discard(frame.f_lineno)
            elif event == "opcode" and frame.f_lasti in unseen_parts:
                parts.add(unseen_parts.pop(frame.f_lasti))
            return local

        # Python 3.13 traces instructions only of a frame that has a function for them already.
        frame.f_trace = local
        frame.f_trace_opcodes = bool(unseen_parts)
        return local

    def _instructions(self, code: CodeType, lines: set[int]) -> dict[int, "Extent"]:
        """Where the instructions are that are on lines with parts that may be left out, by their offsets."""
        path = code.co_filename
        if path not in self._partial:
            parts = partial(ast.parse(Path(path).read_text(encoding="utf-8"))) if Path(path).exists() else []
            self._partial[path] = {line for part in parts for line in range(part.line, part.end_line + 1)}
        if not lines & self._partial[path]:
            return {}
        return {
            2 * index: Extent(line, column or 0, end_line or line, end_column or 0)
            for index, (line, end_line, column, end_column) in enumerate(code.co_positions())
            if line in self._partial[path]
        }


class Extent(NamedTuple):
    """From where to where code is: lines, from 1, and columns, from 0."""

    line: int
    column: int
    end_line: int
    end_column: int

    def holds(self, other: "Extent") -> bool:
        """Whether other code lies in this one."""
        return self[:2] <= other[:2] and other[2:] <= self[2:]


def partial(tree: ast.AST) -> list[Extent]:
    """The parts of statements that may not run although the statement does: sides of a condition, what a lambda
    or a comprehension holds.
    """
    parts: list[ast.expr] = []
    for node in ast.walk(tree):
        match node:
            case ast.BoolOp(values=[_, *values]):
                parts += values
            case ast.IfExp(body=body, orelse=orelse):
                parts += (body, orelse)
            case ast.Lambda(body=body):
                parts.append(body)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                parts += (node.elt, *(test for generator in node.generators for test in generator.ifs))
            case ast.DictComp():
                parts += (node.key, node.value)
    return [
        Extent(part.lineno, part.col_offset, part.end_lineno or 0, part.end_col_offset or 0) for part in parts
    ]


def under(path: str, roots: Iterable[str]) -> bool:
    """Whether `path` is one of `roots` or lies in one."""
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


class Host:
    """The tensors of the host: created in the block without a device, or computed from such tensors alone."""

    def __init__(self) -> None:
        self._tensors: Any = WeakTensorKeyDictionary()

    def add(self, value: Any) -> None:
        for tensor in tensors_in(value):
            self._tensors[tensor] = True

    def remove(self, value: Any) -> None:
        for tensor in tensors_in(value):
            self._tensors.pop(tensor, None)

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return tensor in self._tensors

    def has_all(self, value: Any) -> bool:
        """Whether every tensor in a value is of the host, and there is one."""
        tensors = list(tensors_in(value))
        return bool(tensors) and all(tensor in self for tensor in tensors)

    def meets_device(self, operands: Any) -> bool:
        """Whether one operand is of the host and another of the device; a single element counts as a number."""
        tensors = list(tensors_in(operands))
        of_host = [tensor for tensor in tensors if tensor in self]
        return len(of_host) < len(tensors) and any(tensor.numel() != 1 for tensor in of_host)


class FunctionMode(TorchFunctionMode):
    """Sees the calls of torch's functions and methods, and silences the operators of those it can judge itself."""

    def __init__(self, seen: Watched, opposed: Line | None = None) -> None:
        """Note into `seen`; the first condition on a tensor of the line `opposed` gets the opposite answer."""
        super().__init__()
        self.seen = seen
        self.opposed = opposed
        self.quiet = 0
        self.host = Host()
        # Inside a call that names a device.
        self.placing = False
        # How many functions are running, one inside another.
        self.depth = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        verdict = of_function(name, args, kwargs)
        line = None
        if verdict.kinds and not self.host.has_all(decisive(name, args)):
            line = self.seen.note(verdict.kinds)
        was_placing = self.placing
        self.placing |= kwargs.get("device") not in (None, "cpu")
        # It makes a tensor where the one is that it belongs to.
        self.placing |= name == "new_tensor" and args[0] not in self.host
        self.quiet += verdict.final
        self.depth += 1
        try:
            result = func(*args, **kwargs)
        finally:
            self.quiet -= verdict.final
            self.depth -= 1
            is_placed, self.placing = self.placing, was_placing
        if name == "__bool__" and line is not None and line == self.opposed:
            self.opposed = None
            return not result
        self._place(name, args, result, is_placed)
        return result

    def _place(self, name: str, args: Sequence[Any], result: Any, is_placed: bool) -> None:
        """Where the tensors are that no operator created, or that a move leaves as they are."""
        # On the CPU, an index of no dimensions is read as a number, and the operator no longer has it.
        is_selected = name == "__getitem__" and any(x not in self.host for x in tensors_in(args[1]))
        if name == "one_hot" or is_selected:
            self.host.remove(result)
        # What a tensor of the device is written to has its values from there.
        is_write = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        if is_write and args and any(tensor not in self.host for tensor in tensors_in(list(args[1:]))):
            self.host.remove([args[0], getattr(args[0], "_base", None)])
        # Packing and padding fill new tensors: the values from what they get first, the sizes from the sizes.
        if name in PACKING or name == "pad_sequence":
            parts = [result] if name == "pad_sequence" else result
            for part, source in zip(parts, args[: len(parts)], strict=True):
                (self.host.add if self.host.has_all(source) else self.host.remove)(part)
        if name in (*TENSOR_FACTORIES, "from_numpy") and not any(True for _ in tensors_in(list(args))):
            (self.host.remove if is_placed else self.host.add)(result)
        names_device = any(isinstance(part, torch.device) for part in args) or not self.host.has_all(
            list(args)
        )
        if name in MOVES and (is_placed or names_device):
            self.host.remove(result)


class DispatchMode(TorchDispatchMode):
    """Sees the operators, those that torch's own code calls among them."""

    def __init__(self, seen: Watched, functions: FunctionMode) -> None:
        """Note into `seen` while `functions` lets it."""
        super().__init__()
        self.seen = seen
        self.functions = functions

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if not self.functions.quiet:
            kinds = of_operator(name, func._overloadname, args, kwargs)
            if kinds and not self.functions.host.has_all(decisive(name, args)):
                self.seen.note(kinds)
            if name not in TAKES_BOTH and self.functions.host.meets_device([*args, *kwargs.values()]):
                self.seen.note((f"host:{name}",))
        result = func(*args, **kwargs)
        self._place(name, [*args, *kwargs.values()], result)
        return result

    def _place(self, name: str, operands: list[Any], result: Any) -> None:
        """A result is of the host if all its operands are; a new tensor, if a factory makes it without a device."""
        is_new = name == "lift_fresh" or not any(True for _ in tensors_in(operands))
        # No function is running where a class makes a tensor of sizes, `torch.FloatTensor(2, 3)`: on the device.
        is_of_class = name == "empty" and not self.functions.depth
        can_be_new = not self.functions.placing and not is_of_class and name in FACTORIES
        chooses_number = name == "where" and not all(isinstance(x, torch.Tensor) for x in operands)
        is_of_host = can_be_new if is_new else self.functions.host.has_all(operands) and not chooses_number
        is_draw = name.startswith(DRAWS) and not name.endswith("_")
        if is_of_host and not is_draw:
            self.functions.host.add(result)
        else:
            self.functions.host.remove(result)


@contextlib.contextmanager
def watch(roots: Iterable[str | Path], opposed: Line | None = None) -> Iterator[Watched]:
    """Watch the torch code that runs in the block, as far as it comes from files under `roots`.

    Build the model before: its initialisation reads numbers too, and never runs on a device.

    Args:
        roots: Directories (or files) of model code; torch's own code is never noted.
        opposed: A line whose first condition on a tensor gets the opposite of the tensor's truth.

    Yields:
        The record, which fills while the block runs.

    Raises:
        ValueError: If another tracer (a debugger, a coverage tool) is set: it would be lost.
    """
    if sys.gettrace() is not None:
        raise ValueError(
            "watch() needs sys.settrace for itself; run it without a debugger or a coverage tool"
        )
    seen = Watched(roots)
    functions = FunctionMode(seen, opposed)
    sys.settrace(seen.trace)
    try:
        with functions, DispatchMode(seen, functions):
            yield seen
    finally:
        sys.settrace(None)
