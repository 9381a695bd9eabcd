"""What rules hear of: events of the interpreter in traced code, and of the scanner in
all code.

An event has the syntax node and the abstract values of its parts. Rules never walk a
file's tree themselves.
"""

import ast
import dataclasses
from typing import Any

from tpuport.lint.abstract_values import Value


@dataclasses.dataclass(slots=True)
class Event:
    """Base: `node` is where a finding would be."""

    node: ast.AST


@dataclasses.dataclass(slots=True)
class Call(Event):
    """A call in traced code.

    Attributes:
        name: dotted name of a library function ("torch.nonzero",
            "torch.nn.functional.one_hot", "numpy.array", "builtins.int", "math.sqrt",
            "einops.rearrange"), or the bare name of a method of a tensor or another
            value ("item"), "forward" for a layer of torch that is called. Of
            `F.relu(x)` and `x.relu()` the first has the dotted name. "" for functions
            and methods of the linted code, and if the callee is not known.
        receiver: what the method belongs to, else None.
        args, keywords: values of the arguments; `*args` are spread if known, `**kwargs`
            are dropped.
        result: what the call returns.
        certain: nothing in the function decides whether the call happens.
    """

    name: str
    receiver: Value | None
    args: list[Value]
    keywords: dict[str, Value]
    result: Value
    certain: bool = True

    @property
    def call(self) -> ast.Call:
        """The syntax node with its type."""
        assert isinstance(self.node, ast.Call)
        return self.node


@dataclasses.dataclass(slots=True)
class Truth(Event):
    """A value whose truth decides what Python does next.

    Attributes:
        value: the value.
        construct: "if", "while", "assert", "and", "or", "not", "conditional
            expression", "comprehension".
        statement: the statement that it is in, if known.
    """

    value: Value
    construct: str
    statement: ast.stmt | None = None


@dataclasses.dataclass(slots=True)
class Iteration(Event):
    """A loop or comprehension over `value`; `zip` and `enumerate` count as loops."""

    value: Value


@dataclasses.dataclass(slots=True)
class Subscript(Event):
    """`base[index]`.

    Attributes:
        base: what is indexed.
        indices: the index, or the elements of the index tuple; a slice is
            `Static("slice")`.
        store: it is assigned to.
        operator: the operator of `base[index] += value`, else None.
        statement: the assignment, if `store`.
        value: what is assigned, if `store`.
    """

    base: Value
    indices: list[Value]
    store: bool = False
    operator: ast.operator | None = None
    statement: ast.stmt | None = None
    value: Value | None = None


@dataclasses.dataclass(slots=True)
class SliceBound(Event):
    """The lower bound, upper bound or step of a slice of `base`; `node` is the
    bound.
    """

    base: Value
    value: Value


@dataclasses.dataclass(slots=True)
class Membership(Event):
    """`item in container`, and `not in`."""

    item: Value
    container: Value


@dataclasses.dataclass(slots=True)
class Formatting(Event):
    """A tensor that becomes text: an f-string's part, an operand of `%`; not inside
    `raise`.

    Attributes:
        value: what is formatted.
        has_spec: there is a format (`{x:.2f}`, `%d`), which needs a number.
    """

    value: Value
    has_spec: bool = False


@dataclasses.dataclass(slots=True)
class Refusal(Event):
    """An assertion that fails on a TPU, or a `raise` under a condition that holds
    there.

    Attributes:
        test: the condition.
        missing: it is about a package that needs a GPU, whose import has failed.
    """

    test: ast.expr
    missing: bool


@dataclasses.dataclass(slots=True)
class Arithmetic(Event):
    """A binary or unary operation on a tensor (`right` is None if unary)."""

    left: Value
    operator: ast.operator | ast.unaryop
    right: Value | None
    result: Value


@dataclasses.dataclass(slots=True)
class Comparison(Event):
    """A comparison with a tensor: `left < right`."""

    left: Value
    right: Value


@dataclasses.dataclass(slots=True)
class AttributeStore(Event):
    """`base.name = value`.

    Attributes:
        base: what gets the attribute.
        name: the attribute.
        value: what is stored.
        in_container: `self.name[key] = value` or `self.name.append(value)` rather than
            the attribute itself.
    """

    base: Value
    name: str
    value: Value
    in_container: bool = False


@dataclasses.dataclass(slots=True)
class FunctionEntry(Event):
    """A function of the linted code is traced.

    Attributes:
        info: `modules.FunctionInfo` (`node`, `qualname`, `decorators`: dotted names).
        entry: it is an entry point (`forward` of a module, or explicitly compiled).
        parameters: values by parameter name.
    """

    info: Any
    entry: bool
    parameters: dict[str, Value]


@dataclasses.dataclass(slots=True)
class Return(Event):
    """`return value` of a traced function; `info` and `entry` as in `FunctionEntry`."""

    value: Value
    entry: bool
    info: Any = None


# --- events of the scanner, which sees every line of a file, traced or not, and knows
# no values ---


@dataclasses.dataclass(slots=True)
class Import(Event):
    """`import name` or `from module import name` anywhere in a file; `name` is the full
    dotted name.

    Attributes:
        guarded: inside `try` with an except that catches ImportError, or under an `if`
            (availability checks, `TYPE_CHECKING`): the program can do without it.
        at_import: it runs when the file is imported (not inside a function).
        own: the linted code itself has a package of that name.
    """

    name: str
    guarded: bool
    at_import: bool
    own: bool = False


@dataclasses.dataclass(slots=True)
class Use(Event):
    """A dotted library name, used or called, anywhere in a file, resolved through the
    file's imports.

    Attributes:
        name: "torch.cuda.synchronize", "torch.compile",
            "torch.distributed.init_process_group"; for a method of an unknown object
            ".cuda", ".pin_memory" (with the leading dot).
        call: the call node if it is called, else None.
        at_import: it runs when the file is imported (module and class bodies,
            decorators, default values).
        in_init: it is in the `__init__` of an `nn.Module` subclass, or in what that
            calls in the same class.
        traced: it is in a function that is traced.
        guarded: under an `if` or a `try`; `tried`: under a `try`.
        decorator: it is (the function of) a decorator.
        checked: under an `if` that asks for the GPU or the library:
            `torch.cuda.is_available()`, `x.is_cuda`, `device.type == "cuda"`,
            `is_xformers_available()`.
    """

    name: str
    call: ast.Call | None
    at_import: bool
    in_init: bool
    traced: bool
    guarded: bool
    tried: bool
    decorator: bool = False
    checked: bool = False


@dataclasses.dataclass(slots=True)
class Text(Event):
    """A string constant that is an argument or a compared or assigned value: "cuda",
    "cuda:0".

    Attributes: as in `Use`, and role: "argument", "keyword NAME", "default", "compare",
        "assign" (to what is called a device) or "other". callee: the dotted name of the
        call that it is an argument of (`.to` for a method), else "".
    """

    text: str
    role: str
    callee: str
    at_import: bool
    in_init: bool
    traced: bool
    guarded: bool
    tried: bool
    checked: bool = False


@dataclasses.dataclass(slots=True)
class Definition(Event):
    """A function of a file, traced or not, for what the definition itself says
    (defaults, decorators).
    """

    info: Any
    traced: bool


@dataclasses.dataclass(slots=True)
class ModuleClass(Event):
    """An `nn.Module` subclass of a file.

    Attributes:
        info: `modules.ClassInfo`.
        attributes: what `__init__` sets (`self.x = ...`), by name.
        assignments: nodes of these assignments, by name.
    """

    info: Any
    attributes: dict[str, Value]
    assignments: dict[str, ast.AST]
