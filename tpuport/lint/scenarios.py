"""The ways in which an entry point is called, and which of them each finding belongs
to.

A function is first interpreted once for all calls: an optional argument may be given or
not. Where that finds something, or loses something (a number in one call and a tensor
in another say nothing together), the function is interpreted for single calls too: with
all optional arguments, with none, with a cache alone, with all but one. A cache that is
given is one of fixed shape, as in every step of tpuport's generation: its
`get_seq_length()` is a tensor.

A model that another one calls is interpreted in these calls only, unless all of them
pass the opposite of a flag's default: then with the default too.
"""

import ast
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tpuport.lint.abstract_values import (
    FALSE,
    GIVEN_CACHE,
    NONE,
    TRUE,
    KeyValueCache,
    Value,
    class_of,
    tensor,
    without_none,
)
from tpuport.lint.findings import Finding
from tpuport.lint.interpreter.call_record import Record
from tpuport.lint.interpreter.tracing_interpreter import TracingInterpreter
from tpuport.lint.modules import FunctionInfo

# Beyond so many optional arguments, calls with all but one of them would take long and
# tell little.
_MOST_SINGLED_OUT: Final = 6

# What `tpuport.generate` gives a model in each step beside the tokens and the cache, if
# the model takes it.
_STEP_INPUTS: Final = frozenset(
    "attention_mask position_ids decoder_attention_mask decoder_position_ids".split()
)

# What schedulers call the moment that a step starts from.
_TIMESTEP: Final = re.compile("timesteps?|t|sigma")

_Findings = dict[tuple[Any, ...], Finding]


def interpret(
    interpreter: TracingInterpreter, info: FunctionInfo, receiver: Value | None
) -> Record:
    """What an entry point results in, each finding with the call that it needs, if not
    all calls have it.
    """
    declared = interpreter.declared_parameters(info, receiver)
    record = interpreter.interpret_call(info, receiver, declared)
    optional = _optional_parameters(info, declared)
    if not optional or not (record.findings or record.lost):
        return record

    def probe(arguments: Iterable[str]) -> Record:
        """What a call results in if only these optional arguments are given."""
        chosen = {
            name: _given(declared[name]) if name in arguments else NONE
            for name in optional
        }
        return interpreter.interpret_call(info, receiver, {**declared, **chosen})

    def call(arguments: Iterable[str]) -> _Findings:
        result = probe(arguments)
        record.absorb(result)
        return result.findings

    caches = [name for name in optional if isinstance(declared[name], KeyValueCache)]
    with_all, without = call(optional), call(())
    # A step of generation: from the tokens alone, and as tpuport's decoders call
    # models.
    with_cache = call(caches) if caches else {}
    passed = [name for name in optional if name in _STEP_INPUTS]
    in_loop = call([*caches, *passed]) if caches and passed else with_cache
    if caches:
        # The first call of a generation, in which models make a cache of their own.
        call([name for name in optional if name not in caches])
    always = with_all.keys() & without.keys()
    with_all_but = _CallsWithout(optional, lambda names: probe(names).findings)
    with_first: dict[int, _Findings] = {0: without, len(optional): with_all}
    for key in record.findings.keys() - always:
        if key in with_cache and key not in without:
            scenario = f"in a step with a static cache as `{caches[0]}`"
            if key not in in_loop:
                scenario += f", without {' and '.join(f'`{name}`' for name in passed)}"
        elif len(optional) <= _MOST_SINGLED_OUT:
            scenario = _scenario(key, with_all, without, with_all_but)
        elif key in with_all:
            count = _fewest_arguments(
                key, with_first, lambda count: probe(optional[:count]).findings
            )
            scenario = f"with `{optional[count - 1]}`"
        else:
            scenario = "without optional arguments" if key in without else ""
        if scenario:
            finding = record.findings[key]
            record.findings[key] = dataclasses.replace(
                finding, scenario=f"{info.qualname} {scenario}"
            )
    return record


def interpret_defaults(
    interpreter: TracingInterpreter, info: FunctionInfo, receiver: Value | None
) -> Record:
    """What a model that others call results in with the defaults of its flags, which
    none of these calls leaves.
    """
    record = Record()
    flags = _flags(info)
    if not flags:
        return record
    calls = [dict(values) for values in interpreter.calls_of(info, class_of(receiver))]
    for name, default in flags.items():
        if all(call[name].constant is (not default) for call in calls):
            for call in calls[:_MOST_SINGLED_OUT]:
                own = interpreter.interpret_call(
                    info, receiver, call | {name: TRUE if default else FALSE}
                )
                record.absorb(
                    _in_scenario(own, f"{info.qualname} with `{name}={default}`")
                )
    return record


def _flags(info: FunctionInfo) -> dict[str, bool]:
    """The parameters whose default is true or false, with that default."""
    constants = {
        name: default.value
        for name, default in info.defaults.items()
        if isinstance(default, ast.Constant)
    }
    return {name: value for name, value in constants.items() if isinstance(value, bool)}


def interpret_loop(
    interpreter: TracingInterpreter,
    info: FunctionInfo,
    receiver: Value | None,
    known: _Findings,
) -> Record:
    """What the models result in that a loop of the host calls, for findings that no
    other call has.
    """
    record = interpreter.interpret_loop(info, receiver)
    for key in record.findings.keys() - known.keys():
        finding = record.findings[key]
        record.findings[key] = dataclasses.replace(
            finding, scenario=finding.scenario or info.qualname
        )
    return record


def interpret_step(
    interpreter: TracingInterpreter, info: FunctionInfo, receiver: Value
) -> Record:
    """What a scheduler's step results in that is compiled: with any timestep, and with
    a tensor as the timestep.

    A loop on the host passes tensors as the timestep too, whatever the annotation says:
    one of `scheduler.timesteps`.
    """
    declared = interpreter.declared_parameters(info, receiver)
    record = Record()
    with_any = interpreter.interpret_call(info, receiver, declared)
    record.absorb(_in_scenario(with_any, f"{info.qualname} in a compiled loop"))
    without = dict.fromkeys(_optional_parameters(info, declared), NONE)
    for name in filter(_TIMESTEP.fullmatch, declared):
        timestep = {name: tensor(ndim=0)}
        with_tensor = interpreter.interpret_call(
            info, receiver, {**declared, **timestep}
        )
        with_tensor.absorb(
            interpreter.interpret_call(
                info, receiver, {**declared, **without, **timestep}
            )
        )
        for key in with_any.findings:
            with_tensor.findings.pop(key, None)
        record.absorb(
            _in_scenario(
                with_tensor,
                f"{info.qualname} in a compiled loop, with a tensor as `{name}`",
            )
        )
    return record


def _in_scenario(record: Record, scenario: str) -> Record:
    """The record, each finding of it with the scenario."""
    for key, finding in record.findings.items():
        record.findings[key] = dataclasses.replace(finding, scenario=scenario)
    return record


def _optional_parameters(
    info: FunctionInfo, declared: Mapping[str, Value]
) -> list[str]:
    """The parameters whose default is None, apart from the main input, which some calls
    pass by another name.
    """
    parameters = [parameter.arg for parameter in info.named_parameters]
    main_input = next(
        (name for name in parameters if name not in {"self", "cls"}), None
    )
    return [
        name
        for name in parameters
        if name != main_input
        and _is_none(info.defaults.get(name))
        and declared[name] != NONE
    ]


def _is_none(default: ast.expr | None) -> bool:
    return isinstance(default, ast.Constant) and default.value is None


def _given(value: Value) -> Value:
    if isinstance(value, KeyValueCache):
        return GIVEN_CACHE
    return without_none(value)


def _fewest_arguments(
    key: tuple[Any, ...],
    with_first: dict[int, _Findings],
    call: Callable[[int], _Findings],
) -> int:
    """With how many of the optional arguments, in their order, a finding appears that
    it needs the last of.

    Args:
        key: of a finding that no call without arguments has.
        with_first: the findings of calls by the number of arguments, which grows: for
            none and for all at first.
        call: makes the call with so many.
    """
    lowest, highest = 0, max(with_first)
    while highest - lowest > 1:
        middle = (lowest + highest) // 2
        if middle not in with_first:
            with_first[middle] = call(middle)
        if key in with_first[middle]:
            highest = middle
        else:
            lowest = middle
    return highest


class _CallsWithout:
    """The findings of the calls with all optional arguments but one, each of which is
    made when its findings are asked for.
    """

    def __init__(
        self, optional: list[str], call: Callable[[list[str]], _Findings]
    ) -> None:
        self._optional = optional
        self._call = call
        self._findings: dict[str, _Findings] = {}

    def first(self, has: Callable[[_Findings], bool]) -> str:
        """The first argument without which the findings have a property; "" if there is
        none.
        """
        return next((name for name in self._optional if has(self._without(name))), "")

    def _without(self, name: str) -> _Findings:
        if name not in self._findings:
            others = [other for other in self._optional if other != name]
            self._findings[name] = self._call(others)
        return self._findings[name]


def _scenario(
    key: tuple[Any, ...],
    with_all: _Findings,
    without: _Findings,
    with_all_but: _CallsWithout,
) -> str:
    """The calls that have a finding, as they follow the function's name; "" if that is
    not known.
    """
    if key in with_all:
        needed = with_all_but.first(lambda findings: key not in findings)
        return f"with `{needed}`" if needed else "with optional arguments"
    excluded = with_all_but.first(lambda findings: key in findings)
    if excluded:
        return f"without `{excluded}`"
    return "without optional arguments" if key in without else ""
