"""One activation of a function: its names, where it stands, and what it tells the rules."""

import ast
from typing import TYPE_CHECKING

from tpuport.lint.abstract_values import Value, join
from tpuport.lint.events import Event
from tpuport.lint.modules import ClassInfo, FunctionInfo, ModuleInfo

if TYPE_CHECKING:
    from tpuport.lint.interpreter.machine import Machine

Environment = dict[str, Value]


class Frame:
    """What is known while a body is interpreted.

    Attributes:
        machine: the interpreter as a whole.
        module: the module whose names are global here.
        info: the function, or None for a module's or class's own expressions.
        owner: the class that `super()` starts after.
        receiver: what `self` is, and `self_name`, what it is called; None in functions.
        env: value by name. Attributes whose value is known better here than elsewhere stand under `self.x`.
        parent: the enclosing function's frame, for closures.
        emitting: whether rules hear of what happens here (traced code of a linted file).
        entry: this is an entry point's own frame.
        returned, yielded: join of what came out so far; None: nothing.
        exits: for each loop being interpreted, the environments at its `break`s and `continue`s.
        building: attributes of an object whose `__init__` this is (or is called by), by name.
        depth: number of frames below.
        statement: the statement being interpreted; raising: it is a `raise`.
    """

    __slots__ = (
        "building", "depth", "emitting", "entry", "env", "exits", "info", "machine", "module", "owner", "parent",
        "raising", "receiver", "returned", "self_name", "statement", "yielded",
    )  # fmt: skip

    def __init__(
        self,
        machine: "Machine",
        module: ModuleInfo,
        info: FunctionInfo | None = None,
        owner: ClassInfo | None = None,
        receiver: Value | None = None,
        parent: "Frame | None" = None,
        depth: int = 0,
    ) -> None:
        self.machine = machine
        self.module = module
        self.info = info
        self.owner = owner
        self.receiver = receiver
        self.self_name: str | None = None
        self.env: Environment = {}
        self.parent = parent
        self.emitting = False
        self.entry = False
        self.raising = False
        self.statement: ast.stmt | None = None
        self.returned: Value | None = None
        self.yielded: Value | None = None
        self.exits: list[list[Environment]] = []
        self.building: Environment | None = None
        self.depth = depth

    @property
    def qualname(self) -> str:
        """The function's qualified name, "" outside functions."""
        return self.info.qualname if self.info else ""

    def name(self, name: str) -> Value:
        """What a name is here."""
        frame: Frame | None = self
        while frame is not None:
            value = frame.env.get(name)
            if value is not None:
                return value
            frame = frame.parent
        return self.machine.global_name(self.module, name)

    def tell(self, event: Event) -> None:
        """Give an event to the rules."""
        self.machine.hear(self, event)

    def give(self, value: Value) -> None:
        """Note a returned value."""
        self.returned = value if self.returned is None else join(self.returned, value)


def path_of(node: ast.AST) -> str | None:
    """`a`, `self.x`, `a.b.c` as a key of an environment; None for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = path_of(node.value)
        return None if base is None else f"{base}.{node.attr}"
    return None


def forget(env: Environment, path: str) -> None:
    """Drop what was known about attributes of a name that is bound anew."""
    stale = [key for key in env if "." in key and key.startswith(path + ".")]
    for key in stale:
        del env[key]


def merge(one: Environment, other: Environment) -> Environment:
    """The environment after two branches. A name bound in one only keeps that value: using it means it was taken."""
    if one is other:
        return one
    result = dict(one)
    for name, value in other.items():
        mine = result.get(name)
        if mine is None:
            if "." not in name:
                result[name] = value
        elif mine is not value:
            result[name] = join(mine, value)
    for name in one:
        if "." in name and name not in other:
            del result[name]
    return result
