"""What every part of the interpreter works with: the frame of a running function, and
the interpreter's interface.

Expressions call functions, functions run statements, statements evaluate expressions.
That recursion goes through `Interpreter` and `Frame`, so that the modules that handle
the parts need not import each other.
"""

import ast
from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Mapping as HandlersByType
from typing import Any, Final

from tpuport.lint.abstract_values import (
    CONFIG,
    INT,
    NONE,
    STATIC,
    STR,
    UNKNOWN,
    Function,
    Instance,
    Mapping,
    Sequence,
    Static,
    Tensor,
    Value,
    tensor,
)
from tpuport.lint.events import Event
from tpuport.lint.interpreter.class_facts import Classes, Evaluator
from tpuport.lint.interpreter.computed_names import known_ends
from tpuport.lint.interpreter.masked_reads import MaskedRead
from tpuport.lint.joins import (
    join,
    join_all,
    join_optional,
)
from tpuport.lint.modules import ClassInfo, FunctionInfo, ModuleInfo
from tpuport.lint.passed_arguments import Arguments
from tpuport.lint.project import Project
from tpuport.lint.work import WorkLimitError, meter

# Values by name; what is known of attributes is stored under paths such as "self.x".
Environment = dict[str, Value]

# The field of an object that is a list, for what it holds as one.
ELEMENTS: Final = "[]"
_STATIC_ELEMENTS: Final[dict[str, Value]] = {"shape": INT, "config": CONFIG, "str": STR}


class Interpreter(Evaluator):
    """What the parts of the interpreter may ask of the whole.

    Attributes:
        project: finds modules.
        options: `analysis.Options`.
        classes: facts about classes.
        constructs: a constructor is interpreted for what it demands of packages that
            need a GPU.
        trusts_all: all code is trusted as a library's: a model derived from one's runs.
        changed_receiver: the object of the method that was called last, as the method
            leaves it; None if unchanged.
        route: qualified names of the functions that are being interpreted, the
            outermost first.
        expression_handlers: by syntax class, a function that evaluates such an
            expression in a frame.
        statement_handlers: by syntax class, a function that executes such a statement
            in a frame, and returns False if control does not reach the next statement.
    """

    project: Project
    options: Any
    classes: Classes
    constructs: bool = False
    trusts_all: bool = False
    changed_receiver: Value | None = None
    route: list[str]
    expression_handlers: HandlersByType[type[ast.AST], Callable[["Frame", Any], Value]]
    statement_handlers: HandlersByType[
        type[ast.AST], Callable[["Frame", Any], bool | None]
    ]

    @abstractmethod
    def apply(
        self, frame: "Frame", callee: Value, arguments: Arguments, node: ast.Call
    ) -> Value:
        """What calling a value returns. Rules hear of library calls."""

    @abstractmethod
    def call_function(
        self, caller: "Frame", function: Function, arguments: Arguments
    ) -> Value:
        """What calling a function of the linted code returns."""

    @abstractmethod
    def remembered(self, key: Any, run: Callable[[], Value]) -> Value:
        """What a part gives; of a key that has been run, what that gave and found."""

    @abstractmethod
    def call_declared(
        self, caller: "Frame", function: Function, entry: bool = False
    ) -> Value:
        """Interpret a function that something unknown calls, of which only the
        definition is known.

        Args:
            caller: the frame of the call.
            function: the function.
            entry: it gets an entry point's own arguments, so its parameters' names
                count as evidence too.
        """

    @abstractmethod
    def build(
        self,
        init: FunctionInfo,
        instance: Instance,
        attributes: Environment,
        arguments: Arguments | None = None,
        caller: "Frame | None" = None,
    ) -> None:
        """Interpret a constructor, which sets `attributes`; without arguments, by its
        declared parameters.
        """

    @abstractmethod
    def global_name(self, module: ModuleInfo, name: str) -> Value:
        """A module-level or built-in name."""

    @abstractmethod
    def resolve_binding(self, value: Value) -> Value:
        """The value itself; for a name that another module binds to an expression, the
        expression's value.
        """

    @abstractmethod
    def report_read(self, read: MaskedRead) -> None:
        """Count the findings of a read by a mask."""

    @abstractmethod
    def report(
        self, event: Event, module: ModuleInfo, function: str
    ) -> MaskedRead | None:
        """Ask the rules about an event in a function, by the function's qualified name.
        If it is a read by a mask whose findings do not count yet, return it.
        """


class Frame:
    """What is known while a body is interpreted.

    Attributes:
        interpreter: the interpreter as a whole.
        module: the module whose names are global names.
        info: the function, or None for expressions of a module or class.
        qualname: the function's qualified name, "" outside functions.
        owner: the class that `super()` starts after.
        receiver: what `self` is; `self_name`: what the parameter is called. None in
            functions.
        env: values by name. `self.x` is a key too if more is known of it in this body
            than elsewhere.
        parent: the enclosing function's frame, for closures.
        emitting: whether rules hear of what happens (traced code of a linted file).
        entry: this is the frame of an entry point itself.
        host: this is a loop of the host, which is not traced, but calls models that
            are.
        returned, yielded: join of all that was returned or yielded so far; None if
            nothing was.
        conditions: by the name that an assignment gives its answer to, a condition and
            what the names in it were then.
        exits: for each loop that is being interpreted, the environments at its `break`s
            and `continue`s.
        receivers: `self` at each end of a method that may change its object; None in
            all other frames.
        building: attributes by name of the object whose `__init__` this is, or which
            calls this.
        depth: number of frames below this one.
        statement: the statement that is being interpreted; `raising`: it is a `raise`.
        handled: number of `try` statements around it that handle its errors.
        doubts: number of conditions around it that may turn out either way, and of
            `try`s.
        outside: names of functions around this one that it binds itself.
    """

    __slots__ = (
        "building", "conditions", "depth", "doubts", "emitting", "entry", "env", "exits", "handled", "host", "info",
        "interpreter", "module", "outside", "owner", "parent", "qualname", "raising", "receiver", "receivers",
        "returned", "self_name", "statement", "yielded",
    )  # fmt: skip

    def __init__(
        self,
        interpreter: Interpreter,
        module: ModuleInfo,
        info: FunctionInfo | None = None,
        parent: "Frame | None" = None,
        depth: int = 0,
    ) -> None:
        self.interpreter = interpreter
        self.module = module
        self.info = info
        self.owner: ClassInfo | None = None
        self.qualname = ""
        if info is not None:
            self.owner, self.qualname = info.owner, info.qualname
        self.receiver: Value | None = None
        self.receivers: list[Value] | None = None
        self.self_name: str | None = None
        self.env: Environment = {}
        self.parent = parent
        self.emitting = False
        self.entry = False
        self.host = False
        self.raising = False
        self.statement: ast.stmt | None = None
        self.returned: Value | None = None
        self.yielded: Value | None = None
        self.conditions: dict[str, tuple[ast.expr, Environment]] = {}
        self.exits: list[list[Environment]] = []
        self.building: Environment | None = None
        self.depth = depth
        self.doubts = 0
        self.handled = 0
        self.outside: list[str] = []

    def evaluate(self, node: ast.expr) -> Value:
        """What an expression may be. Rules hear of the events in it."""
        meter.units += 1
        handler = self.interpreter.expression_handlers.get(type(node))
        if handler is None:
            return UNKNOWN
        return handler(self, node)

    def evaluate_optional(self, node: ast.expr | None) -> Value:
        """What `return` or `yield` gets: None if nothing is written."""
        if node is None:
            return NONE
        return self.evaluate(node)

    def evaluate_silently(self, node: ast.expr) -> Value:
        """What an expression may be, without events."""
        # A class in `isinstance`, say, was or will be evaluated with events elsewhere.
        emitting, self.emitting = self.emitting, False
        try:
            return self.evaluate(node)
        finally:
            self.emitting = emitting

    def execute(self, body: list[ast.stmt]) -> bool:
        """Interpret statements; False if control does not reach their end.

        Raises:
            WorkLimitError: the file has taken too much work.
        """
        handlers = self.interpreter.statement_handlers
        for statement in body:
            self.statement = statement
            if meter.is_exhausted:
                raise WorkLimitError(
                    str(self.module.path),
                    statement.lineno,
                    tuple(self.interpreter.route),
                )
            handler = handlers.get(type(statement))
            # What follows a `return` or `raise` never runs, so rules must not hear of
            # it.
            if handler is not None and handler(self, statement) is False:
                return False
        return True

    def lookup(self, name: str) -> Value:
        """What a name means in this frame."""
        frame: Frame | None = self
        # Enclosing functions come before the module; class bodies are not scopes of
        # their methods.
        while frame is not None:
            value = frame.env.get(name)
            if value is not None:
                return value
            frame = frame.parent
        return self.interpreter.global_name(self.module, name)

    def is_self(self, node: ast.AST) -> bool:
        """Whether an expression is the method's `self`."""
        return isinstance(node, ast.Name) and node.id == self.self_name

    def is_building(self, value: Value | None) -> bool:
        """Whether this frame is inside the constructor of that object, and sees only
        what is set so far.
        """
        return self.building is not None and value == self.receiver

    def set_by_name(self, name: Value, node: ast.expr, value: Value) -> None:
        """Set an attribute of the object that is being constructed, by the value of its
        name or by how that is written.

        One attribute, `layer0`, stands for all of `f"layer{i}"`.
        """
        if self.building is None:
            return
        if isinstance(name.constant, str):
            self.building[name.constant] = value
            return
        start, end = known_ends(node)
        if start or end:
            pattern = f"{start}0{end}"
            self.building[pattern] = join_optional(self.building.get(pattern), value)

    def report(self, event: Event) -> MaskedRead | None:
        """Let the rules hear of an event, if this frame's events count."""
        if self.emitting:
            return self.interpreter.report(event, self.module, self.qualname)
        return None

    @property
    def hears_of_packages(self) -> bool:
        """Whether the rules hear of what this frame demands of packages that need a
        GPU.
        """
        return self.emitting or self.interpreter.constructs

    def report_package(self, event: Event) -> None:
        """Let the rules hear of a demand for a package that needs a GPU."""
        if self.hears_of_packages:
            self.interpreter.report(event, self.module, self.qualname)

    @property
    def is_certain(self) -> bool:
        """Whether the statement runs whenever the function does."""
        return self.doubts == 0 and self.returned is None

    def add_returned(self, value: Value) -> None:
        """Add a value to those that the function may return."""
        match self.returned, value:
            # `return False` where there is nothing to compare yet: whoever asks for the
            # answer asks the tensor.
            case (Static(kind="bool"), Tensor(host=False)) | (
                Tensor(host=False),
                Static(kind="bool"),
            ):
                self.returned = value if isinstance(value, Tensor) else self.returned
            case _:
                self.returned = join_optional(self.returned, value)

    def add_end(self) -> None:
        """Note what `self` is where control leaves the method."""
        if self.receivers is not None and self.self_name in self.env:
            self.receivers.append(self.env[self.self_name])

    def add_yielded(self, value: Value) -> None:
        """Add a value to those that the generator may yield."""
        self.yielded = join_optional(self.yielded, value)

    def define_function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    ) -> Function:
        """A function defined inside this frame's function."""
        info = FunctionInfo(node, self.module, self.owner, self.qualname)
        # Its free names are looked up when it is called, by what this frame has then.
        info.closure = self
        return Function(info)

    def element_of(self, iterated: Value) -> Value:
        """An element of the value that is iterated."""
        match iterated:
            case Tensor():
                ndim = max(iterated.ndim - 1, -1)
                return tensor(
                    iterated.dtype,
                    iterated.exact,
                    ndim,
                    view=True,
                    origin=iterated.origin or "element",
                    host=iterated.host,
                )
            case Sequence(items=(_, *_) as items):
                return join_all(items)
            case Sequence():
                return iterated.element
            case Static():
                return _STATIC_ELEMENTS.get(iterated.kind, STATIC)
            case Mapping():
                return STATIC
            case Instance():
                return self._element_of_instance(iterated)
            case _:
                return UNKNOWN

    def entered(self, manager: Value) -> Value:
        """What `with manager as x` binds."""
        match manager:
            # What a generator gives, whose function `contextlib.contextmanager`
            # decorates.
            case Sequence(kind="iterator"):
                return self.element_of(manager)
            case Instance(info=info) if (
                self.interpreter.classes.method(info, "__enter__") is not None
            ):
                return self._call_method(manager, "__enter__")
            case _:
                return manager

    def _element_of_instance(self, iterated: Instance) -> Value:
        elements = dict(iterated.fields).get(ELEMENTS)
        if elements is not None:
            return self.element_of(elements)
        iterator = self._call_method(iterated, "__iter__")
        # An iterator returns itself, and each element by another method.
        if isinstance(iterator, Instance):
            return self._call_method(iterator, "__next__")
        return self.element_of(iterator)

    def _call_method(self, receiver: Instance, name: str) -> Value:
        """What a method without arguments returns; `UNKNOWN` if there is none of that
        name.
        """
        method = self.interpreter.classes.method(receiver.info, name)
        if method is None:
            return UNKNOWN
        return self.interpreter.call_function(
            self, Function(method, receiver), Arguments([], {})
        )


# --- environments ---


def copy_environment(env: Environment) -> Environment:
    """The same values by name, to be changed apart from these."""
    meter.units += len(env) >> 4
    return dict(env)


def path_of(node: ast.AST) -> str | None:
    """`a`, `self.x`, `a.b.c` as a key of an environment; None for any other
    expression.
    """
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        return ".".join([node.id, *reversed(attributes)])
    return None


def tuple_elements(node: ast.expr) -> list[ast.expr]:
    """The parts of an index, `a, b`, or a single expression as the only part."""
    return node.elts if isinstance(node, ast.Tuple) else [node]


def forget_attributes(env: Environment, path: str) -> None:
    """Drop what is known of a name's attributes, when the name is bound to another
    object.
    """
    meter.units += len(env) >> 4
    prefix = path + "."
    for key in [key for key in env if key.startswith(prefix)]:
        del env[key]


def merge(left: Environment, right: Environment) -> Environment:
    """The environment after two branches.

    A name that only one branch binds keeps its value: code that uses the name means
    that this branch ran. An attribute that only one branch sets is forgotten: the other
    branch leaves what the object had before.
    """
    if left is right:
        return left
    meter.units += len(left) + len(right) >> 3
    result = left | right
    for name in left.keys() & right.keys():
        # Checked first, since branches leave most names alone.
        if left[name] is not right[name]:
            result[name] = join(left[name], right[name])
    for name in left.keys() ^ right.keys():
        if "." in name:
            del result[name]
    return result


def merge_optional(merged: Environment | None, env: Environment) -> Environment:
    """`merge` with the environments of branches before, which is None for the first
    branch.
    """
    return env if merged is None else merge(merged, env)


def set_receiver(frame: Frame, function: Function, values: Environment) -> None:
    """What `self` is called in a frame, and what it is."""
    if frame.parent is not None:
        frame.self_name, frame.receiver = frame.parent.self_name, frame.parent.receiver
    elif frame.owner is not None and values and not function.info.is_a("staticmethod"):
        # The first parameter, whatever the method calls it.
        frame.self_name = next(iter(values))
        frame.receiver = function.bound or values[frame.self_name]
