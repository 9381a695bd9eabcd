"""Which arrays of a program are in memory together when it holds most of them, by its schedule.

The compiler's text is in the order in which a device runs it. An array is held from the instruction that makes it to
the last that reads it, under whatever names; arguments are not counted.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tpuport.topology.hlo import HBM, Array, Instruction, Program

# Give another name to what is there.
_NAMING: Final = frozenset(
    "bitcast tuple get-tuple-element while optimization-barrier copy-done all-gather-done all-reduce-done"
    " collective-permute-done async-done send-done recv-done add-dependency domain".split()
)
_NOTHING: Final = frozenset("parameter constant after-all partition-id replica-id iota-start".split())


class Held(NamedTuple):
    """An array, the instruction that makes it, and what it takes, as tiles pad it, and its place among the results."""

    array: Array
    instruction: Instruction
    nbytes: int
    place: int


# What a name stands for: of a tuple, each element's arrays; else one element's.
_Value = tuple[frozenset[Held], ...]


def at_peak(program: Program) -> list[Held]:
    """The arrays in HBM at the moment when they take most, largest first; without arguments."""
    held = _at_peak(program, program.entry, {})
    return sorted(held, key=lambda one: -one.nbytes)


def _at_peak(program: Program, name: str, known: dict[str, list[Held]]) -> list[Held]:
    if name not in known:
        known[name] = []
        known[name] = _followed(program, program.computations[name].instructions, known)
    return known[name]


def _followed(
    program: Program, instructions: Sequence[Instruction], known: dict[str, list[Held]]
) -> list[Held]:
    values: dict[str, _Value] = {}
    last = _last_reads(program, instructions, values)
    ending: dict[int, list[Held]] = {}
    for held, place in last.items():
        ending.setdefault(place, []).append(held)
    live: dict[Held, None] = {}
    size, most, best = 0, -1, []
    for place, one in enumerate(instructions):
        # What a branch gives is made in there, so its results are counted after it.
        inside = _inside(program, one, known)
        if inside and size + _size(inside) > most:
            most, best = size + _size(inside), [*live, *inside]
        fresh = _made(one, values)
        live.update(dict.fromkeys(fresh))
        size += _size(fresh)
        if size > most:
            most, best = size, list(live)
        ended = [held for held in ending.get(place, ()) if held in live]
        size -= _size(ended)
        for held in ended:
            del live[held]
    return best


def _size(arrays: Iterable[Held]) -> int:
    return sum(held.nbytes for held in arrays)


def _inside(program: Program, one: Instruction, known: dict[str, list[Held]]) -> list[Held]:
    """What an instruction holds beside all around it; of a conditional, in the branch that holds most."""
    peaks = [_at_peak(program, name, known) for name in _below(one) if name in program.computations]
    return max(peaks, key=_size, default=[])


def _below(one: Instruction) -> list[str]:
    """Computations that an instruction runs while what is around it is held; not those of fusions."""
    if one.operation not in ("while", "conditional", "call", "async-start"):
        return []
    return [name for attribute, names in one.calls.items() if attribute != "condition" for name in names]


def _last_reads(
    program: Program, instructions: Sequence[Instruction], values: dict[str, _Value]
) -> dict[Held, int]:
    """Where each array is read for the last time; fills in what the names stand for."""
    last: dict[Held, int] = {}
    for place, one in enumerate(instructions):
        for operand in one.operands:
            for element in values.get(operand, ()):
                last.update(dict.fromkeys(element, place))
        values[one.name] = _value(program, one, values)
        for element in values[one.name]:
            for held in element:
                last[held] = max(place, last.get(held, place))
        if one.is_root:
            last.update(
                dict.fromkeys((held for element in values[one.name] for held in element), len(instructions))
            )
    return last


def _value(program: Program, one: Instruction, values: dict[str, _Value]) -> _Value:
    """What the name of an instruction stands for."""
    operands = [values.get(name, (frozenset(),)) for name in one.operands]
    if one.operation == "tuple":
        return tuple(frozenset[Held]().union(*operand) for operand in operands)
    if one.operation == "get-tuple-element":
        return _element(one, operands)
    if one.operation == "while" and operands:
        return operands[0]
    if one.operation in _NAMING:
        return (frozenset[Held]().union(*(element for operand in operands for element in operand)),)
    if one.operation in _NOTHING:
        return (frozenset(),)
    written = _written_into(program, one)
    if written is not None and written < len(operands):
        return operands[written]
    fresh = [
        frozenset([Held(array, one, array.tiled_nbytes, place)] if array.space == HBM else [])
        for place, array in enumerate(one.results)
    ]
    if one.operation == "sort":  # in place, where its operand is in HBM as well
        given = [frozenset[Held]().union(*operand) for operand in operands]
        return tuple(old or new for old, new in zip(given, fresh, strict=False))
    return tuple(fresh)


def _element(one: Instruction, operands: list[_Value]) -> _Value:
    number = one.attributes.partition("index=")[2]
    digits = number[: len(number) - len(number.lstrip("0123456789"))]
    whole: _Value = operands[0] if operands else ()
    if digits and int(digits) < len(whole):
        return (whole[int(digits)],)
    return (frozenset[Held]().union(*whole),)


def _written_into(program: Program, one: Instruction) -> int | None:
    """The operand in whose place an instruction writes: one that updates a slice."""
    if one.operation == "dynamic-update-slice":
        return 0
    called = program.callee(one) if one.operation == "fusion" else None
    if called is None or called.root.operation != "dynamic-update-slice":
        return None
    target = called.root.operands[0]
    while (
        (made := called.named.get(target)) is not None
        and made.operation in ("bitcast", "copy")
        and made.operands
    ):
        target = made.operands[0]
    return next((number for number, parameter in called.parameters.items() if parameter.name == target), None)


def _made(one: Instruction, values: dict[str, _Value]) -> list[Held]:
    return [held for element in values[one.name] for held in element if held.instruction is one]
