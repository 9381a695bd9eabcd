"""The text of a compiled program, read: its computations and their instructions."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tpuport.topology.hlo.array_types import (
    Array,
    parse_arrays,
    search_group,
    tuple_types,
)
from tpuport.topology.hlo.tuple_elements import name_elements

# The first line of a computation, "%add (x: f32[], y: f32[]) -> f32[] {".
_COMPUTATION: Final = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$", re.MULTILINE)
# A line of a computation. The metadata of a kernel has line breaks in it, after which
# come a quote or a brace, as one comes on the line that closes the computation.
_LINE: Final = re.compile(
    r'^ .*(?:\n(?!\}$|\}, execution_thread)["}].*)*', re.MULTILINE
)
# A tuple's type has spaces and parentheses in it, of inner tuples and of tiles, but no
# opcode follows those.
_INSTRUCTION: Final = re.compile(
    r"\s+(ROOT )?%?([\w.-]+) = (\(.*?\)|[^ (][^ ]*) ([a-z][\w-]*)\("
)
_OPERAND: Final = re.compile(r"%([\w.-]+)")
_BARE_OPERAND: Final = re.compile(r"([\w.-]+)(?=,|$)")
# An attribute with a list of names in braces, or with one name.
_CALLEES: Final = re.compile(
    r"\b(calls|to_apply|body|condition|branch_computations|true_computation|false_computation"
    r"|called_computations)=(?:\{([^}]*)\}|%?([\w.-]+))"
)
_NAME: Final = re.compile(r"[\w.-]+")
_PARAMETER_NUMBER: Final = re.compile(r"parameter\((\d+)\)")
_TUPLE_INDEX: Final = re.compile(r"\bindex=(\d+)")
_OP_NAME: Final = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_TARGET: Final = re.compile(r'\bcustom_call_target="([^"]*)"')
_CHANNEL: Final = re.compile(r"\bchannel_id=(\d+)")
_FRAME: Final = re.compile(r"\bstack_frame_id=(\d+)")
_ALIASING: Final = re.compile(r"\boutput_to_operand_aliasing=\{(.*?\))\}")
_ALIASED_RESULT: Final = re.compile(r"\{(\d*)\}: \(\d+,")
# Of what calls computations, the operations that have the results of all of them.
_RETURNING: Final = {"conditional", "call", "fusion", "async-start"}


class Instruction:
    """One line of a program.

    A program may have a hundred thousand of them, so that only what every reader needs
    is read at once; the rest are properties that read the text.

    Attributes:
        name: without its "%".
        operation: its opcode, such as "fusion".
        computation: the name of the computation that it is in.
        is_root: whether its result is the computation's.
        operands: their names.
        calls: the computations that it names, by attribute: {"calls":
            ("fused_computation.1",)}.
        is_fused: whether it is inside of another instruction, such as a fusion or a
            reduction, where only the last result goes to memory.
        rounds: how often a loop's body runs each time that the loop is reached; 1 for
            all other instructions.
        times: how often a step executes it, if the branch that it is in is taken.
    """

    __slots__ = (
        "_end", "_start", "_text", "_type", "calls", "computation", "is_fused", "is_root", "name", "operands",
        "operation", "rounds", "times",
    )  # fmt: skip

    def __init__(self, match: re.Match[str], end: int, computation: str) -> None:
        text = self._text = match.string
        self._start, self._end, self._type = match.start(), end, match.span(3)
        self.name, self.operation, self.computation = match[2], match[4], computation
        self.is_root = match[1] is not None
        self.is_fused, self.rounds, self.times = False, 1, 1
        closing = _closing_parenthesis(text, match.end(), end)
        self.operands: tuple[str, ...] = ()
        if self.operation != "constant":
            self.operands = _operand_names(text[match.end() : closing])
        # Metadata and the backend's configuration are long, and may quote names of
        # computations.
        attributes = (
            text[closing:end].partition("metadata={")[0].partition("backend_config=")[0]
        )
        self.calls: dict[str, tuple[str, ...]] = {}
        for attribute, names, name in _CALLEES.findall(attributes):
            self.calls[attribute] = tuple(_NAME.findall(names or name))

    @property
    def kind(self) -> str:
        """Its opcode; of an instruction that starts something for another to end, the
        opcode of the whole.
        """
        return self.operation.removesuffix("-start")

    @property
    def line(self) -> str:
        """All of its text."""
        return self._text[self._start : self._end]

    @property
    def attributes(self) -> str:
        """The text after its type: opcode, operands and attributes."""
        return self._text[self._type[1] : self._end]

    @property
    def type(self) -> str:
        """The type of its result, as HLO writes it."""
        return self._text[slice(*self._type)]

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of its result, several for a tuple."""
        return parse_arrays(self.type)

    @property
    def results(self) -> tuple[Array, ...]:
        """The arrays that it computes. Of an instruction that starts something, its
        operands are left out.
        """
        if not self.operation.endswith("-start") or self.kind == "all-reduce":
            return self.arrays
        # (operands, results, semaphores), but a copy has (result, operand, semaphores).
        types = tuple_types(self.type)
        if self.kind == "copy":
            return parse_arrays(types[0])
        return parse_arrays(types[:2][-1])  # the only type if there is one

    @property
    def aliased_results(self) -> set[int]:
        """Indices of the results that lie in the memory of an operand, changed or
        not.
        """
        aliasing = search_group(_ALIASING, self.attributes)
        # A result that is not a tuple has the index {}.
        return {int(index or 0) for index in _ALIASED_RESULT.findall(aliasing)}

    @property
    def target(self) -> str:
        """What a custom call runs, such as "tpu_custom_call" for a Pallas kernel; empty
        for anything else.
        """
        # The start of an asynchronous one has a target too. Other lines may only quote
        # one.
        if not self.operation.startswith("custom-call"):
            return ""
        return search_group(_TARGET, self.attributes)

    @property
    def tuple_index(self) -> int:
        """Which element a get-tuple-element takes."""
        return int(search_group(_TUPLE_INDEX, self.attributes, "0"))

    @property
    def op_name(self) -> str:
        """Its origin in the traced function, "jit(step)/while/body/add", or empty. Of a
        parameter: the argument.
        """
        return search_group(_OP_NAME, self.attributes).replace("\\'", "'")

    @property
    def is_kernel(self) -> bool:
        """Whether it is a Pallas kernel, or one that the compiler has made by
        itself.
        """
        return self.target == "tpu_custom_call"

    @property
    def channel(self) -> str:
        """The number that all parts of a collective have in common, or empty."""
        return search_group(_CHANNEL, self.attributes)

    @property
    def frame(self) -> int | None:
        """The number of its stack frame in the program's tables."""
        match = _FRAME.search(self._text, self._type[1], self._end)
        if match is None:
            return None
        return int(match[1])

    @property
    def callees(self) -> tuple[str, ...]:
        """The names of all computations that it runs; of a conditional, the branches,
        of which it runs one.
        """
        return tuple(itertools.chain.from_iterable(self.calls.values()))

    @property
    def result_computations(self) -> tuple[str, ...]:
        """The names of the computations whose results are its own. A reduction only
        applies what it calls.
        """
        if self.operation == "while":
            return self.calls.get("body", ())
        if self.operation in _RETURNING:
            return self.callees
        return ()

    @property
    def parameter_number(self) -> int:
        """Of a parameter: which one of its computation's."""
        return int(search_group(_PARAMETER_NUMBER, self.attributes))

    def positions(self, operand: str) -> tuple[int, ...]:
        """Where among its operands it reads the result of this name."""
        return tuple(
            index for index, name in enumerate(self.operands) if name == operand
        )

    def __repr__(self) -> str:
        return f"{self.name} = {self.type} {self.operation}({', '.join(self.operands)})"


def _closing_parenthesis(text: str, start: int, end: int) -> int:
    """The position of the parenthesis that ends the operands; theirs is opened just
    before `start`.
    """
    closing = text.find(")", start, end)
    if text.find("(", start, closing) < 0:
        return closing
    depth = 1
    for position in range(start, end):
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0:
            return position
    return end


def _operand_names(text: str) -> tuple[str, ...]:
    names = _OPERAND.findall(text)
    # Some versions of XLA write names without "%"; a parameter has its number there.
    if not names and not text.isdigit():
        names = _BARE_OPERAND.findall(text)
    return tuple(names)


class Use(NamedTuple):
    """An instruction that reads a value, and at which of its operands."""

    user: Instruction
    positions: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Computation:
    """Instructions that run together: the program's own, a loop's body, a branch, or
    the inside of a fusion.
    """

    name: str
    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def named(self) -> dict[str, Instruction]:
        """Its instructions by name."""
        return {instruction.name: instruction for instruction in self.instructions}

    @functools.cached_property
    def root(self) -> Instruction:
        """The instruction whose result is the computation's."""
        roots = (
            instruction for instruction in self.instructions if instruction.is_root
        )
        return next(roots, self.instructions[-1])

    @functools.cached_property
    def parameters(self) -> dict[int, Instruction]:
        """Its parameters by number."""
        parameters = (
            instruction
            for instruction in self.instructions
            if instruction.operation == "parameter"
        )
        return {parameter.parameter_number: parameter for parameter in parameters}

    @property
    def results(self) -> list[Instruction]:
        """What makes the elements of its result."""
        if self.root.operation == "tuple":
            return self.operands(self.root)
        return [self.root]

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """The instructions that read each instruction's result."""
        users: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            # An instruction that reads a result twice is one user.
            for operand in dict.fromkeys(instruction.operands):
                users.setdefault(operand, []).append(instruction)
        return users

    def uses(self, name: str) -> Iterator[Use]:
        """Everything that reads a value, by this name or through bitcasts of it; a
        bitcast that is the root too.
        """
        for user in self.users.get(name, ()):
            if user.operation == "bitcast" and not user.is_root:
                yield from self.uses(user.name)
            else:
                yield Use(user, user.positions(name))

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """The instructions whose results one of its instructions reads."""
        return [self.named[name] for name in instruction.operands if name in self.named]

    def skip_bitcasts(self, instruction: Instruction) -> Instruction:
        """The instruction behind any bitcasts of its result."""
        while instruction.operation == "bitcast":
            instruction = self.named[instruction.operands[0]]
        return instruction


class ProgramText(NamedTuple):
    """A program's text in its parts.

    Attributes:
        header: the module's own attributes, and tables of source lines.
        computations: by name; a computation comes before those that call it.
        entry: the name of the computation that is the program.
    """

    header: str
    computations: dict[str, Computation]
    entry: str


def read_text(text: str) -> ProgramText:
    """Split the text of a program into computations. Its instructions have no counts of
    executions yet.
    """
    text = name_elements(text, _LINE, _INSTRUCTION)
    computations: dict[str, Computation] = {}
    entry = ""
    openings = list(_COMPUTATION.finditer(text))
    starts = [opening.start() for opening in openings] + [len(text)]
    for opening, end in zip(openings, starts[1:], strict=True):
        name = opening[2]
        computations[name] = Computation(
            name, tuple(_read_instructions(text, opening.end(), end, name))
        )
        if opening[1]:
            entry = name
    # The last computation is the entry of a text that does not name one, such as a
    # fragment.
    entry = entry or next(reversed(computations), "")
    return ProgramText(text[: starts[0]], computations, entry)


def _read_instructions(
    text: str, start: int, end: int, computation: str
) -> Iterator[Instruction]:
    for line in _LINE.finditer(text, start, end):
        # Comments and attributes of the computation may have lines of their own.
        match = _INSTRUCTION.match(text, *line.span())
        if match is not None:
            yield Instruction(match, line.end(), computation)


def all_instructions(computations: Mapping[str, Computation]) -> list[Instruction]:
    """The instructions of all computations, in the text's order."""
    return [
        instruction
        for computation in computations.values()
        for instruction in computation.instructions
    ]
