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
import bisect
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
    calls = _Calls(interpreter, info, receiver)
    record = calls.make_usual()
    calls.add_scenarios(record.findings)
    return record


def findings_with_scenarios(
    interpreter: TracingInterpreter,
    info: FunctionInfo,
    receiver: Value | None,
    findings: _Findings,
) -> _Findings:
    """Findings of an entry point that another one calls, each as its own calls have it,
    if they have it.
    """
    calls = _Calls(interpreter, info, receiver)
    if not calls.optional or findings.keys() <= calls.always:
        return findings
    known = calls.make_usual().findings
    own = {key: known[key] for key in findings.keys() & known.keys()}
    calls.add_scenarios(own)
    return findings | own


class _Calls:
    """The calls of an entry point, by which of its optional arguments they give.

    Attributes:
        optional: the names of all of them; caches: of those that are caches.
    """

    def __init__(
        self,
        interpreter: TracingInterpreter,
        info: FunctionInfo,
        receiver: Value | None,
    ) -> None:
        self._interpreter = interpreter
        self._info = info
        self._receiver = receiver
        self._declared = interpreter.declared_parameters(info, receiver)
        self.optional = _optional_parameters(info, self._declared)
        self.caches = [
            name
            for name in self.optional
            if isinstance(self._declared[name], KeyValueCache)
        ]
        self._step_inputs = [name for name in self.optional if name in _STEP_INPUTS]
        self._records: dict[tuple[Value, ...], Record] = {}

    def make_usual(self) -> Record:
        """What any call results in, where an optional argument may be given or not; and
        if that is something, what single calls result in too.
        """
        record = self._interpreter.interpret_call(
            self._info, self._receiver, self._declared
        )
        if self.optional and (record.findings or record.lost):
            for arguments in self._usual:
                record.absorb(self.make(arguments))
        return record

    def make(self, arguments: Iterable[str]) -> Record:
        """What a call results in if only these optional arguments are given."""
        chosen: dict[str, Value] = {
            name: _given(self._declared[name]) if name in arguments else NONE
            for name in self.optional
        }
        call = tuple(chosen.values())
        if call not in self._records:
            self._records[call] = self._interpreter.interpret_call(
                self._info, self._receiver, {**self._declared, **chosen}
            )
        return self._records[call]

    @property
    def _usual(self) -> list[list[str]]:
        """The single calls that a function is interpreted for."""
        calls = [self.optional, []]
        if self.caches:
            # A step of generation, as tpuport's decoders call models and from the
            # tokens alone; and the first call, in which models make a cache of their
            # own.
            calls += [self.caches, self._step, self._without(self.caches)]
        return calls

    @property
    def _step(self) -> list[str]:
        return [*self.caches, *self._step_inputs]

    def _without(self, names: list[str]) -> list[str]:
        return [name for name in self.optional if name not in names]

    @property
    def always(self) -> set[Any]:
        """The keys of the findings that calls with all optional arguments and with none
        have.
        """
        return self.make(self.optional).findings.keys() & self.make([]).findings.keys()

    def add_scenarios(self, findings: _Findings) -> None:
        """Add to each finding the call that it needs, if not all calls have it."""
        if not findings or not self.optional:
            return
        for key in findings.keys() - self.always:
            scenario = f"{self._info.qualname} {self._scenario(key)}"
            findings[key] = dataclasses.replace(findings[key], scenario=scenario)

    def _scenario(self, key: tuple[Any, ...]) -> str:
        """The calls that have a finding, as they follow the function's name."""

        def has(arguments: list[str]) -> bool:
            return key in self.make(arguments).findings

        if self.caches and has(self.caches) and not has([]):
            scenario = f"in a step with a static cache as `{self.caches[0]}`"
            if has(self._step):
                return scenario
            inputs = " and ".join(f"`{name}`" for name in self._step_inputs)
            return f"{scenario}, without {inputs}"
        is_with_all = has(self.optional)
        if len(self.optional) <= _MOST_SINGLED_OUT:
            decisive = (
                name
                for name in self.optional
                if has(self._without([name])) != is_with_all
            )
            name = next(decisive, "")
            if name:
                return f"with `{name}`" if is_with_all else f"without `{name}`"
        elif is_with_all:
            count = _fewest(
                len(self.optional), lambda count: has(self.optional[:count])
            )
            return f"with `{self.optional[count - 1]}`"
        if is_with_all:
            return "with optional arguments"
        if has([]):
            return "without optional arguments"
        return "with some optional arguments"


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


def _fewest(most: int, has: Callable[[int], bool]) -> int:
    """The smallest number up to `most` that has something which `most` has, and 0 has
    not, where all larger ones have it too.
    """
    return bisect.bisect_left(range(most), True, lo=1, key=has)
