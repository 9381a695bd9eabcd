"""Traced programs (jaxprs): their equations, the jaxprs that equations run, and the
code that equations come from.

Everything that reads a jaxpr goes through this module, so that the forms of jax's own
control flow are known in it alone: which parameter of an equation has a jaxpr, and
which operand becomes which argument of it.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from jax.extend import core
from jax.extend.core import ClosedJaxpr, Jaxpr, Var
from jax.interpreters import partial_eval

# A JaxprEqn, or what jax has in its place while it traces, whose operands are tracers.
Equation = Any
Kind = Literal["call", "branch", "scan", "while body", "while condition", "kernel"]
Entry = TypeVar("Entry")


class SubJaxpr(NamedTuple):
    """A jaxpr that an equation runs: the callee of a call, a branch, a part of a loop,
    or a Pallas kernel.

    The results of a call, a branch or the body of a `while` are the results of the
    equation, in order. Of a `scan`, the first `len(carries)` results are the carried
    values, and each of the others is one row of a result.

    Attributes:
        kind: how the equation runs it.
        jaxpr: the jaxpr itself.
        consts: the values of `jaxpr.constvars`; empty if the jaxpr is not closed.
        operands: the operand of the equation behind each of `jaxpr.invars`. Empty if
            the arguments are not operands: the references that `run_scoped` allocates,
            the blocks of a kernel.
        carries: the arguments that change from one iteration to the next; `operands`
            has their first values.
        rows: the arguments that are one row of their operand in each iteration.
        times: how often one run of the equation runs it; 1 if that is decided at run
            time.
    """

    kind: Kind
    jaxpr: Jaxpr
    consts: tuple[Any, ...]
    operands: tuple[Any, ...]
    carries: range = range(0)
    rows: range = range(0)
    times: int = 1


class Visit(NamedTuple):
    """An equation that `walk_equations` has reached.

    Attributes:
        equation: as it was traced.
        times: how often the program runs it, from the lengths of the scans around it.
        is_leaf: whether no equation inside of it follows. Kernels are leaves.
    """

    equation: Equation
    times: int
    is_leaf: bool


class Producer(NamedTuple):
    """The equation that makes a variable, and the variable's index among its
    results.
    """

    equation: Equation
    output: int


def open_jaxpr(jaxpr: ClosedJaxpr | Jaxpr) -> Jaxpr:
    """The jaxpr without its constants."""
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def walk_equations(jaxpr: ClosedJaxpr | Jaxpr, times: int = 1) -> Iterator[Visit]:
    """Every equation of a program, each before those inside of it, but for the
    equations of kernels.

    All branches are visited, and so are the condition and the body of a loop.
    """
    for equation in open_jaxpr(jaxpr).eqns:
        # A kernel's body works on blocks of its operands, step by step of a grid: it is
        # not part of the program.
        inner = [body for body in sub_jaxprs(equation) if body.kind != "kernel"]
        yield Visit(equation, times, not inner)
        for sub_jaxpr in inner:
            yield from walk_equations(sub_jaxpr.jaxpr, times * sub_jaxpr.times)


def sub_jaxprs(equation: Equation) -> tuple[SubJaxpr, ...]:
    """The jaxprs among an equation's parameters, in their order."""
    match equation.primitive.name:
        case "scan":
            return (_scan_body(equation),)
        case "while":
            return _while_parts(equation)
        case "pallas_call":
            return (_sub_jaxpr("kernel", equation.params["jaxpr"], ()),)
        case "cond":
            operands = tuple(equation.invars[1:])
            return tuple(
                _sub_jaxpr("branch", branch, operands)
                for branch in equation.params["branches"]
            )
    # Any other primitive with a jaxpr is a call: jit, remat, custom_vjp, shard_map.
    callees = _jaxprs_in(tuple(equation.params.values()))
    return tuple(
        _sub_jaxpr("call", callee, tuple(equation.invars)) for callee in callees
    )


def callee(equation: Equation) -> SubJaxpr | None:
    """The jaxpr of a nested call (`jit`, `custom_jvp_call`, `shard_map`, ...), whose
    arguments are the operands.

    None if the equation is not a call: a loop, a branch, a kernel, or a plain
    operation.
    """
    for candidate in sub_jaxprs(equation):
        has_operands = len(candidate.operands) == len(candidate.jaxpr.invars)
        if candidate.kind == "call" and has_operands:
            return candidate
    return None


def run_operations(
    closed: ClosedJaxpr, arguments: Sequence[Any]
) -> Generator[tuple[Equation, list[Any]], None, list[Any]]:
    """Carry out a program operation by operation, where calls are taken apart; gives
    each with its results, and returns the program's.

    Outside of a trace each is compiled by itself, so that the compiler joins none with
    another, but for the operations inside of loops and branches.
    """
    body = closed.jaxpr
    variables = (*body.constvars, *body.invars)
    values = dict(zip(variables, (*closed.consts, *arguments), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for equation in body.eqns:
        operands = list(map(read, equation.invars))
        called = callee(equation)
        # Each device has a part of the operands of `shard_map`.
        if called is not None and equation.primitive.name != "shard_map":
            inner = ClosedJaxpr(called.jaxpr, called.consts)
            results = yield from run_operations(inner, operands)
        else:
            given = (a for a in equation.invars if not isinstance(a, core.Literal))
            variables = list(dict.fromkeys(given))
            alone = body.replace(
                constvars=[],
                invars=variables,
                outvars=equation.outvars,
                eqns=[equation],
            )
            results = core.jaxpr_as_fun(ClosedJaxpr(alone, []))(
                *map(values.get, variables)
            )
            yield equation, results
        values.update(zip(equation.outvars, results, strict=True))
    return list(map(read, body.outvars))


def replace_sub_jaxprs(
    equation: Equation, replace: Callable[[ClosedJaxpr], ClosedJaxpr]
) -> Equation:
    """The equation with `replace` applied to each closed jaxpr among its parameters."""

    def replaced(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return replace(value)
        if isinstance(value, tuple):
            return tuple(map(replaced, value))
        return value

    return equation.replace(
        params={name: replaced(value) for name, value in equation.params.items()}
    )


def without_dead_code(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with all of its arguments, and without the equations that no result
    and no effect depends on.
    """
    body, _ = partial_eval.dce_jaxpr(closed.jaxpr, used_outputs=True, instantiate=True)
    return ClosedJaxpr(body, closed.consts)


def constants_as_inputs(closed: ClosedJaxpr) -> tuple[list[Any], ClosedJaxpr]:
    """The constants of a program, and the program that takes them first."""
    body = closed.jaxpr
    inputs = [*body.constvars, *body.invars]
    return list(closed.consts), ClosedJaxpr(
        body.replace(constvars=[], invars=inputs), []
    )


def find_dependencies(closed: ClosedJaxpr, first: int) -> list[frozenset[int]]:
    """For each result of a program, which of its inputs from number `first` on it may
    depend on; the first of these is 0.
    """
    body = closed.jaxpr
    known: dict[Any, frozenset[int]] = {
        variable: frozenset([number])
        for number, variable in enumerate(body.invars[first:])
    }

    def of(atoms: Sequence[Any]) -> frozenset[int]:
        variables = (atom for atom in atoms if not isinstance(atom, core.Literal))
        found: frozenset[int] = frozenset()
        return found.union(*(known.get(variable, found) for variable in variables))

    for equation in body.eqns:
        inputs = of(equation.invars)
        if inputs:
            known.update(dict.fromkeys(equation.outvars, inputs))
    return [of([variable]) for variable in body.outvars]


def keep_used_arguments(closed: ClosedJaxpr) -> tuple[tuple[int, ...], ClosedJaxpr]:
    """The numbers of the arguments that a result or an effect of the program depends
    on, and the program of these alone.
    """
    count = len(closed.jaxpr.outvars)
    body, is_used = partial_eval.dce_jaxpr(closed.jaxpr, used_outputs=[True] * count)
    used = tuple(number for number, used in enumerate(is_used) if used)
    return used, ClosedJaxpr(body, closed.consts)


def producers(jaxpr: Jaxpr) -> dict[Var, Producer]:
    """The producer of each variable that an equation of the jaxpr makes; nested
    equations make others.
    """
    return {
        variable: Producer(equation, output)
        for equation in jaxpr.eqns
        for output, variable in enumerate(equation.outvars)
    }


def lookup(table: Mapping[Any, Entry], variable: Any) -> Entry | None:
    """The entry of a variable; None for a literal, which cannot be hashed."""
    if isinstance(variable, core.Literal):
        return None
    return table.get(variable)


def argument_names(closed: ClosedJaxpr) -> tuple[str, ...]:
    """The names that jax gives the arguments of a traced program, "weights['embed']";
    empty if it has none.
    """
    return tuple(map(str, closed.jaxpr.debug_info.arg_names or ()))


def source_frames(equation: Equation) -> list[tuple[str, int, str]]:
    """(file, line, function) of the Python frames that an equation was traced in, the
    innermost first.
    """
    traceback = equation.source_info.traceback
    # jax makes some equations itself, without a traceback.
    if traceback is None:
        return []
    return [
        (frame.file_name, frame.line_num, frame.function_name)
        for frame in traceback.frames
    ]


def _jaxprs_in(value: Any) -> Iterator[ClosedJaxpr | Jaxpr]:
    if isinstance(value, ClosedJaxpr | Jaxpr):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _jaxprs_in(item)


def _sub_jaxpr(
    kind: Kind, jaxpr: ClosedJaxpr | Jaxpr, operands: tuple[Any, ...], **loop: Any
) -> SubJaxpr:
    consts: tuple[Any, ...] = ()
    if isinstance(jaxpr, ClosedJaxpr):
        consts, body = tuple(jaxpr.consts), jaxpr.jaxpr
    else:
        body = jaxpr
    # What has other arguments than the equation has operands allocates its arguments
    # itself.
    if len(body.invars) != len(operands):
        operands = ()
    return SubJaxpr(kind, body, consts, operands, **loop)


def _scan_body(equation: Equation) -> SubJaxpr:
    """The operands are constants, the first carry, and arrays of which the body gets a
    row at a time.

    How many of each an equation has, releases of jax write in different ways.
    """
    jaxpr = equation.params["jaxpr"]
    body = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    outputs = zip(equation.outvars, body.outvars, strict=True)
    carries = sum(_rank(outer) == _rank(inner) for outer, inner in outputs)
    inputs = zip(equation.invars, body.invars, strict=True)
    first_row = sum(_rank(outer) == _rank(inner) for outer, inner in inputs)
    return _sub_jaxpr(
        "scan", jaxpr, tuple(equation.invars), times=int(equation.params["length"]),
        carries=range(first_row - carries, first_row), rows=range(first_row, len(equation.invars)),
    )  # fmt: skip


def _rank(atom: Any) -> int:
    return len(getattr(atom.aval, "shape", ()))


def _while_parts(equation: Equation) -> tuple[SubJaxpr, SubJaxpr]:
    """The operands are constants of the condition, constants of the body, and the first
    state of both.
    """
    params = equation.params
    first_of_body = params["cond_nconsts"]
    first_state = first_of_body + params["body_nconsts"]
    of_condition, of_body = (
        equation.invars[:first_of_body],
        equation.invars[first_of_body:first_state],
    )
    # Both parts get all of it, after their own constants.
    state = equation.invars[first_state:]

    def part(kind: Kind, jaxpr: ClosedJaxpr, constants: list[Any]) -> SubJaxpr:
        carries = range(len(constants), len(constants) + len(state))
        return _sub_jaxpr(kind, jaxpr, (*constants, *state), carries=carries)

    return (
        part("while condition", params["cond_jaxpr"], of_condition),
        part("while body", params["body_jaxpr"], of_body),
    )
