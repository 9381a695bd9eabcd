"""A compiled program's text, read: its computations, their instructions, and how often each runs in a step."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator
from typing import Final

<<<<<<< HEAD
from tpuport.topology.compile_report import Source
from tpuport.topology.hlo.shapes import Array, arrays, elements
from tpuport.topology.hlo.sources import Frames
from tpuport.topology.kernels.calls import Cost
=======
from tpuport.topology.hlo.array_types import Array, arrays, elements
from tpuport.topology.hlo.source_lines import Frames
from tpuport.topology.kernels.kernel_calls import KernelCost
from tpuport.topology.report import Source
>>>>>>> 996991f (Name the modules and functions of hlo and kernels by their subjects)

_COMPUTATION: Final = re.compile(r"(ENTRY )?%?([\w.-]+) \(")
# The type of a tuple has spaces in it, and parentheses of tuples and tiles; no opcode follows those.
_INSTRUCTION: Final = re.compile(r"\s+(ROOT )?%?([\w.-]+) = (\(.*?\)|[^ (][^ ]*) ([a-z][\w-]*)\(")
_GOES_ON: Final = ('"', "}")
_OPERAND: Final = re.compile(r"%([\w.-]+)")
_BARE_OPERAND: Final = re.compile(r"([\w.-]+)(?=,|$)")
_CALLED: Final = re.compile(
    r"\b(calls|to_apply|body|condition|branch_computations|true_computation|false_computation"
    r"|called_computations)=(?:\{([^}]*)\}|%?([\w.-]+))"
)
_NUMBER: Final = re.compile(r"parameter\((\d+)\)")
_OP_NAME: Final = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_FRAME: Final = re.compile(r"\bstack_frame_id=(\d+)")
_CHANNEL: Final = re.compile(r"\bchannel_id=(\d+)")
_START: Final = 'custom_call_target="AsyncCollectiveStart"'
_ALIASING: Final = re.compile(r"\boutput_to_operand_aliasing=\{(.*?\))\}")
_ALIASED: Final = re.compile(r"\{(\d*)\}: \(\d+,")
_BRANCHES: Final = ("branch_computations", "true_computation", "false_computation")
# Where a source is looked for when an instruction has none: what they give is what their operand is.
_PASSING: Final = {
    "all-gather", "all-reduce", "all-to-all", "async", "bitcast", "collective-permute", "convert", "copy",
    "get-tuple-element", "reduce-scatter", "reshape", "slice", "transpose",
}  # fmt: skip


class Instruction:
    """One line of a program.

    Attributes:
        name: without its "%".
        operation: its opcode, such as "fusion".
        computation: the name of the one that it stands in; is_root: whether its result is the computation's.
        operands: their names.
        calls: computations that it names, by attribute: {"calls": ("fused_computation.1",)}.
        is_fused: whether it is a part of another instruction, such as a fusion or a reduction, where nothing is kept in
            memory but the end.
        rounds: of a loop: how often its body runs when the loop is reached; else 1.
        times: how often a step executes it, if the branch that it stands in is taken.
    """

    __slots__ = (
        "_end", "_start", "_text", "_type", "calls", "computation", "is_fused", "is_root", "name", "operands",
        "operation", "rounds", "times",
    )  # fmt: skip

    def __init__(self, found: re.Match[str], end: int, computation: str) -> None:
        text = self._text = found.string
        self._start, self._end, self._type = found.start(), end, found.span(3)
        self.name, self.operation, self.computation = found[2], found[4], computation
        self.is_root = found[1] is not None
        self.is_fused, self.rounds, self.times = False, 1, 1
        closed = _closed(text, found.end(), end)
        self.operands: tuple[str, ...] = ()
        if self.operation != "constant":
            self.operands = _operands(text[found.end() : closed])
        self.calls: dict[str, tuple[str, ...]] = {}
        stop = text.find("metadata={", closed, end)
        stop = text.find("backend_config=", closed, end) if stop < 0 else stop
        for called in _CALLED.finditer(text, closed, end if stop < 0 else stop):
            names = called[2].split(",") if called[3] is None else [called[3]]
            self.calls[called[1]] = tuple(name.strip().lstrip("%") for name in names if name.strip())

    @property
    def line(self) -> str:
        """All of its text."""
        return self._text[self._start : self._end]

    @property
    def attributes(self) -> str:
        """The text after its type and its opcode."""
        return self._text[self._type[1] : self._end]

    @property
    def type(self) -> str:
        """Of its result, as HLO writes it."""
        return self._text[slice(*self._type)]

    @property
    def arrays(self) -> tuple[Array, ...]:
        """Of its result, several for a tuple."""
        return arrays(self.type)

    @property
    def results(self) -> tuple[Array, ...]:
        """What it makes: of one that starts a work, the work's result, without operands and semaphores."""
        kind = self.operation.removesuffix("-start")
        if kind == self.operation or kind == "all-reduce":
            return self.arrays
        parts = elements(self.type)
        return arrays(parts[0 if kind == "copy" or len(parts) == 1 else 1])

    @property
    def aliased(self) -> set[int]:
        """Places of those results that are an operand, changed or not."""
        found = _ALIASING.search(self._text, self._type[1], self._end)
        return {int(place or 0) for place in _ALIASED.findall(found[1])} if found else set()

    @property
    def op_name(self) -> str:
        """Where it comes from in the traced function, "jit(step)/while/body/add"; empty where the text is silent."""
        found = _OP_NAME.search(self._text, self._type[1], self._end)
        return found[1] if found else ""

    @property
    def frame(self) -> int | None:
        """Its stack frame, as `Program` numbers them."""
        found = _FRAME.search(self._text, self._type[1], self._end)
        return int(found[1]) if found else None

    @property
    def branches(self) -> tuple[str, ...]:
        """Of a conditional: its computations."""
        return tuple(name for attribute in _BRANCHES for name in self.calls.get(attribute, ()))

    def __repr__(self) -> str:
        return f"{self.name} = {self.type} {self.operation}({', '.join(self.operands)})"


def _closed(text: str, start: int, end: int) -> int:
    """Where the parenthesis of the operands, opened just before `start`, is closed."""
    closed = text.find(")", start, end)
    if text.find("(", start, closed) < 0:
        return closed
    depth = 1
    for place in range(start, end):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    return end


def _operands(text: str) -> tuple[str, ...]:
    found = _OPERAND.findall(text)
    return tuple(found or (_BARE_OPERAND.findall(text) if text and not text.isdigit() else ()))


@dataclasses.dataclass(frozen=True, eq=False)
class Computation:
    """Instructions that run together: the program's own, a loop's body, a branch, or the inside of a fusion."""

    name: str
    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def named(self) -> dict[str, Instruction]:
        """Its instructions by name."""
        return {one.name: one for one in self.instructions}

    @functools.cached_property
    def root(self) -> Instruction:
        """The one whose result is the computation's."""
        return next((one for one in self.instructions if one.is_root), self.instructions[-1])

    @functools.cached_property
    def parameters(self) -> dict[int, Instruction]:
        """Its parameters by number."""
        found = (
            (one, _NUMBER.search(one.attributes)) for one in self.instructions if one.operation == "parameter"
        )
        return {int(number[1]): one for one, number in found if number}

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """The instructions that read each instruction's result."""
        found: dict[str, list[Instruction]] = {}
        for one in self.instructions:
            for operand in dict.fromkeys(one.operands):
                found.setdefault(operand, []).append(one)
        return found

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """Of one of its instructions."""
        return [self.named[name] for name in instruction.operands if name in self.named]


class Program:
    """A compiled program.

    Attributes:
        text: as `jax.stages.Compiled.as_text` gives it.
        computations: by name; a computation comes before those that call it.
        entry: the name of that which is the program.
        instructions: of all computations, in the text's order.
        kernel_costs: of Pallas kernels by name, what was counted of one execution.
    """

    def __init__(self, text: str, header: int, computations: dict[str, Computation], entry: str) -> None:
        self.text, self.computations, self.entry = text, computations, entry
        self.instructions = tuple(one for found in computations.values() for one in found.instructions)
        self._header = header
        self.kernel_costs: dict[str, KernelCost] = {}

    @functools.cached_property
    def header(self) -> str:
        """What stands before the computations: the module's own attributes, then tables of source lines."""
        return self.text[: self._header]

    @functools.cached_property
    def _frames(self) -> Frames:
        return Frames(self.header)

    def source(self, instruction: Instruction) -> Source | None:
        """The line of the model's code, or the user's, that an instruction comes from.

        One of which the compiler does not say where it comes from has its operand's where it only moves it, and a
        fusion has that of its result.
        """
        for _ in range(8):
            if (frame := instruction.frame) is not None:
                return self._frames.source(frame)
            following = self._where_from(instruction)
            if following is None:
                return None
            instruction = following
        return None

    def _where_from(self, instruction: Instruction) -> Instruction | None:
        if called := self.callee(instruction):
            return called.root
        operation = instruction.operation.removesuffix("-start").removesuffix("-done")
        # What is put into another array says more of both than the other does.
        place = 0 if operation in _PASSING else 1 if operation == "dynamic-update-slice" else None
        if place is None or len(instruction.operands) <= place:
            return None
        return self.computations[instruction.computation].named.get(instruction.operands[place])

    @functools.cached_property
    def callers(self) -> dict[str, Instruction]:
        """By computation, one that it is the inside of: a fusion, or what runs beside what follows."""
        return {name: one for one in self.instructions for name in one.calls.get("calls", ())}

    @functools.cached_property
    def _channels(self) -> set[str]:
        """Of the collectives that a fusion starts, which others carry on and end."""
        starts = (
            one for one in self.instructions if one.operation == "custom-call" and _START in one.attributes
        )
        found = (_CHANNEL.search(operand.attributes) for one in starts for operand in self.operands(one))
        return {channel[1] for channel in found if channel}

    def stage(self, instruction: Instruction) -> str | None:
        """Of a collective in one of several fusions that do it bit by bit: "start", or "later".

        None for one that is not, and for anything but a collective.
        """
        channel = _CHANNEL.search(instruction.attributes) if instruction.is_fused and self._channels else None
        if channel is None or channel[1] not in self._channels:
            return None
        users = self.computations[instruction.computation].users.get(instruction.name, ())
        return "start" if any(_START in one.attributes for one in users) else "later"

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """The instructions whose results an instruction takes."""
        return self.computations[instruction.computation].operands(instruction)

    def callee(self, instruction: Instruction, attribute: str = "calls") -> Computation | None:
        """The computation that an instruction names."""
        names = instruction.calls.get(attribute, ())
        return self.computations.get(names[0]) if names else None

    def total(self, cost: Callable[[Instruction], float], loops: bool = True) -> float:
        """The sum over what a step executes; of a conditional, the branch that costs most.

        Args:
            cost: of one execution of an instruction, without the computations that it calls.
            loops: False counts the body of a loop once.
        """
        return self._total(self.entry, cost, loops, {})

    def _total(
        self, name: str, cost: Callable[[Instruction], float], loops: bool, known: dict[str, float]
    ) -> float:
        """Of one computation, run once."""
        if name not in known:
            known[name] = 0.0
            known[name] = sum(
                cost(one) + (self._below(one, cost, loops, known) if one.calls else 0.0)
                for one in self.computations[name].instructions
            )
        return known[name]

    def _below(
        self, caller: Instruction, cost: Callable[[Instruction], float], loops: bool, known: dict[str, float]
    ) -> float:
        """Of the computations that an instruction runs."""
        branches = [
            self._total(name, cost, loops, known) for name in caller.branches if name in self.computations
        ]
        others = (name for one in caller.calls if one not in _BRANCHES for name in caller.calls[one])
        inner = sum(self._total(name, cost, loops, known) for name in others if name in self.computations)
        return max(branches, default=0.0) + inner * (caller.rounds if loops else 1)

    def executed_instructions(self, cost: Callable[[Instruction], float]) -> Iterator[Instruction]:
        """The instructions of a step, those inside of fusions too; of a conditional, the branch that costs most."""
        known: dict[str, float] = {}
        self._total(self.entry, cost, True, known)
        wanted, waiting = {self.entry}, [self.entry]
        while waiting:
            for one in self.computations[waiting.pop()].instructions:
                fresh = [name for name in self._ways(one, known) if name in known and name not in wanted]
                wanted.update(fresh)
                waiting += fresh
        return (one for one in self.instructions if one.computation in wanted)

    @staticmethod
    def _ways(instruction: Instruction, known: dict[str, float]) -> Iterator[str]:
        """The computations that it runs."""
        branches = [name for name in instruction.branches if name in known]
        if branches:
            yield max(branches, key=lambda name: known[name])
        for attribute, names in instruction.calls.items():
            if attribute not in _BRANCHES:
                yield from names


def _end(text: str, start: int) -> int:
    """Where the line that begins here ends; metadata of kernels is text of several lines, and a part of its own."""
    end = text.find("\n", start)
    if text.startswith(" ", start):
        while end >= 0 and text.startswith(_GOES_ON, end + 1) and not _closes(text, end + 1):
            end = text.find("\n", end + 1)
    return len(text) if end < 0 else end


def _closes(text: str, start: int) -> bool:
    """Whether a line ends a computation."""
    return text.startswith(("}\n", "}, execution_thread"), start) or (
        text.startswith("}", start) and start + 1 == len(text)
    )


def read(text: str) -> Program:
    """The program of a text, in which each instruction runs once as yet."""
    computations: dict[str, Computation] = {}
    name, entry, header, inside = "", "", len(text), []
    start = 0
    while start < len(text):
        end = _end(text, start)
        if text.startswith(" ", start):
            if name and (found := _INSTRUCTION.match(text, start, end)):
                inside.append(Instruction(found, end, name))
        elif text.endswith("{", start, end) and (opened := _COMPUTATION.match(text, start, end)):
            header, name, inside = min(header, start), opened[2], []
            entry = name if opened[1] else entry
        elif _closes(text, start) and inside:
            computations[name], name = Computation(name, tuple(inside)), ""
        start = end + 1
    return Program(text, header, computations, entry or next(reversed(computations), ""))
