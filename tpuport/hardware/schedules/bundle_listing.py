"""Reads the listing of a kernel's bundles: what its scalar unit computes, and where it
branches.

A TPU core executes one bundle of instructions a cycle. The listing has a line for each:

      0x633   : > { %p14_p7 = scmp.ge.s32.totalorder %s17_s22, 13 } /* End region 3 */
      0x634   :  { %16 = sbr.rel (!%p14_p7) target = $region1261 }

Comments of a bundle may go on in further lines.

Vector instructions take the same time whatever they compute, so that only scalar
instructions are kept: they decide how often a bundle is executed.
"""

import re
from typing import Final, NamedTuple

# Address, label such as "LB" for a loop's body, one ">" for each loop around it, and
# the instructions.
_BUNDLE: Final = re.compile(
    r"^ *(?:0x[0-9a-f]+|0) +(?:[A-Z]{2})? *:[ >]*\{", re.MULTILINE
)
# Most bundles have none of this: vector instructions alone, which nothing more is read
# of.
_RELEVANT: Final = re.compile(r"region|dma\.|= sst |%[sp]\d+_[sp]\d+ = ")
# "Start region 12" and "Start/End empty region 12": where a branch to it goes.
_REGION: Final = re.compile(r"Start(?:/End empty)? region (\d+)")
_COMMENT: Final = re.compile(r"/\*.*?\*/", re.DOTALL)
# Where two cores share the work of a chip, each runs the same code, and computes its
# part from its number.
_CORE_NUMBER: Final = re.compile(r"= sld \[smem:\[#allocation\w+\]\] /\* core id \*/")
# "%p14_p7 = scmp.ge.s32.totalorder %s17_s22, 13": the value p14 in the register p7.
_SCALAR: Final = re.compile(r"%([sp]\d+)_([sp]\d+) = ([a-z_]+)([\w.]*)(.*)", re.DOTALL)
_SPILL: Final = re.compile(
    r"%\d+ = sst (\[smem:\[#allocation\w+_spill\]\]) %([sp]\d+)_[sp]\d+"
)
_BRANCH: Final = re.compile(
    r"sbr\.rel (?:\((!?)%([sp]\d+)_[sp]\d+\) )?target = \$region(\d+)"
)
# "dma.hbm_to_vmem [thread:$0]  (!%p857_p9), ...", but not the instruction that waits
# for one.
_COPY: Final = re.compile(
    r"= dma\.(?!done)[\w.]+(?: \[[^\]]*\])?\s*(?:\((!?)%([sp]\d+)_[sp]\d+\))?"
)
# "(!%p3_p0)" or "(!%p3_p0, %s188_s1)" before the operands: a condition, and the result
# where it does not hold.
_GUARD: Final = re.compile(r"\s*\((!?)%([sp]\d+)_[sp]\d+(?:, ([^)]*))?\),?")


class Guard(NamedTuple):
    """The condition under which an instruction has an effect.

    Attributes:
        predicate: the value that decides; negated: whether it must be false.
    """

    predicate: str
    negated: bool


class ScalarInstruction(NamedTuple):
    """An instruction of the scalar unit, or the spill of a register.

    Attributes:
        result: the value that it defines ("s17"), or the place in memory of a spill.
        register: where that value is, which is how a loop hands it to its next round;
            empty for a spill.
        operation: "scmp", "sadd" and so on; variant: what follows it, such as
            ".ge.s32.totalorder".
        operands: names of values, numbers, or other text, which stands for an address.
        guard: None if it always has an effect; otherwise: the operand that is the
            result if the guard does not hold.
    """

    result: str
    register: str
    operation: str
    variant: str
    operands: tuple[str, ...]
    guard: Guard | None = None
    otherwise: str = ""


class Branch(NamedTuple):
    """A jump to the start of a region; `guard` is None if it is always taken."""

    region: str
    guard: Guard | None


class Bundle(NamedTuple):
    """What a core does in one cycle, as far as it matters for how often it does it.

    Attributes:
        instructions: of the scalar unit.
        branch: the branch, if there is one.
        regions: those that start here.
        copies: for each copy that is started between memories, its condition, or None.
    """

    instructions: tuple[ScalarInstruction, ...]
    branch: Branch | None
    regions: tuple[str, ...]
    copies: tuple[Guard | None, ...] = ()


_VECTORS_ALONE: Final = Bundle((), None, ())


def read_listing(text: str) -> list[Bundle]:
    """The bundles of a kernel in the order of their addresses."""
    starts = list(_BUNDLE.finditer(text))
    ends = [*(start.start() for start in starts[1:]), len(text)]
    return [
        _read_bundle(text[start.end() : end])
        for start, end in zip(starts, ends, strict=False)
    ]


def _read_bundle(text: str) -> Bundle:
    if _RELEVANT.search(text) is None:
        return _VECTORS_ALONE
    regions = tuple(_REGION.findall(text))
    text = _CORE_NUMBER.sub("= smov 0", text)
    # Comments may quote anything, and separators are not in them once they are gone.
    code = _COMMENT.sub("", text)
    instructions = [
        instruction.strip(" {}\n")
        for instruction in code.split(";;")
        if "%" in instruction
    ]
    scalars = map(_read_scalar, instructions)
    branch = _BRANCH.search(code)
    return Bundle(
        tuple(scalar for scalar in scalars if scalar is not None),
        None if branch is None else _read_branch(branch),
        regions,
        tuple(map(_read_copy, _COPY.finditer(code))),
    )


def _read_copy(match: re.Match[str]) -> Guard | None:
    negation, predicate = match.groups()
    return None if predicate is None else Guard(predicate, bool(negation))


def _read_branch(match: re.Match[str]) -> Branch:
    negation, predicate, region = match.groups()
    if predicate is None:
        return Branch(region, None)
    return Branch(region, Guard(predicate, bool(negation)))


def _read_scalar(text: str) -> ScalarInstruction | None:
    """None for an instruction of another unit."""
    spill = _SPILL.match(text)
    if spill is not None:
        return ScalarInstruction(spill[1], "", "sst", "", (spill[2],))
    match = _SCALAR.match(text)
    if match is None:
        return None
    result, register, operation, variant, rest = match.groups()
    guard, otherwise = None, ""
    condition = _GUARD.match(rest)
    if condition is not None:
        guard = Guard(condition[2], bool(condition[1]))
        otherwise = _operand(condition[3] or "")
        rest = rest[condition.end() :]
    operands = tuple(map(_operand, rest.split(","))) if rest.strip() else ()
    return ScalarInstruction(
        result, register, operation, variant, operands, guard, otherwise
    )


def _operand(text: str) -> str:
    """The value "s17" of "%s17_s22"; numbers and addresses stay as they are."""
    text = text.strip()
    if text.startswith("%"):
        return text[1:].partition("_")[0]
    return text
