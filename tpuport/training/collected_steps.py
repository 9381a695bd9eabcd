"""A call of an operator that was collected, and what it gives."""

from collections.abc import Hashable, Sequence
from typing import Any, Final, NamedTuple

import jax
import torch

from tpuport import compat
from tpuport.compat import deferral
from tpuport.internals.torch_internals import OpOverload, schema_of
from tpuport.training.pending_tensors import form_of


class _Tensor(NamedTuple):
    """A tensor on the device, by its number in the collection."""

    number: int


class _Float(NamedTuple):
    """A number of Python, by its number in the collection."""

    number: int


class Step:
    """A call of an operator.

    Attributes:
        operator: of torch.
        args, kwargs: with a `Tensor` and a `Float` for each tensor and number.
    """

    __slots__ = ("args", "kwargs", "operator")

    Tensor = _Tensor
    Float = _Float

    def __init__(
        self, operator: OpOverload, args: tuple, kwargs: tuple[tuple[str, Any], ...]
    ) -> None:
        self.operator = operator
        self.args = args
        self.kwargs = kwargs

    @property
    def key(self) -> Hashable:
        """Equal for equal calls. 1, 1.0 and True are different."""
        return self.operator, _typed(self.args), _typed(self.kwargs)

    def run(self, tensors: Any, floats: Sequence[Any]) -> Any:
        """Traced. What the operator gives.

        Args:
            tensors: by number.
            floats: arrays without dimensions.
        """

        def given(value: Any, kind: str) -> Any:
            match value:
                case _Tensor():
                    return tensors[value.number]
                case _Float() if "Tensor" in kind:
                    return compat.wrap(floats[value.number])
                case _Float():
                    return deferral.TracedFloat.of(floats[value.number])
                case tuple() if type(value) is tuple:
                    return [given(part, kind) for part in value]
            return value

        arguments = schema_of(self.operator).arguments
        kinds = {argument.name: str(argument.type) for argument in arguments}
        args = [
            given(value, kind)
            for value, kind in zip(self.args, kinds.values(), strict=False)
        ]
        kwargs = {name: given(value, kinds[name]) for name, value in self.kwargs}
        return self.operator(*args, **kwargs)


class Form(NamedTuple):
    """A new tensor: the form of its array, and its dtype."""

    aval: jax.ShapeDtypeStruct
    dtype: torch.dtype


class Outcome(NamedTuple):
    """What a step does.

    Attributes:
        results: the number of an argument or the `Form` of a new tensor; a list of
            these; None.
        written: the numbers of the arguments that it writes to.
    """

    results: Any
    written: tuple[int, ...]


# Of a step whose operator decides by its numbers.
NEEDS_NUMBERS: Final = Outcome(None, ())


class StepKey(NamedTuple):
    """What decides what a step gives."""

    step: Hashable
    forms: tuple[Hashable, ...]

    @classmethod
    def of(cls, step: Step, tensors: Sequence[Any]) -> "StepKey":
        """The key of a step with these tensors, in order."""
        forms = map(form_of, tensors)
        return cls(step.key, tuple((form.shape, form.dtype) for form in forms))


def try_step(step: Step, tensors: Sequence[Any], floats: Sequence[float]) -> Outcome:
    """What a step gives, found out without running it.

    Args:
        tensors, floats: by number; all of the collection.

    Raises:
        Exception: torch's, for arguments that it refuses.
    """
    numbers = list(dict.fromkeys(numbers_in((step.args, step.kwargs))))
    outcome = NEEDS_NUMBERS

    def run(arrays: list[Any], floats: list[Any]) -> tuple[()]:
        nonlocal outcome
        given = {
            number: compat.wrap(array, tensors[number].dtype)
            for number, array in zip(numbers, arrays, strict=True)
        }
        results = step.run(given, floats)
        known = {id(tensor): number for number, tensor in given.items()}
        written = [
            number
            for (number, tensor), array in zip(given.items(), arrays, strict=True)
            if compat.as_jax(tensor) is not array
        ]
        outcome = Outcome(_described(results, known), tuple(written))
        return ()

    forms = [form_of(tensors[number]) for number in numbers]
    with compat.environment(), torch.no_grad(), deferral.deferring(None):
        try:
            jax.eval_shape(run, forms, list(floats))
        except jax.errors.ConcretizationTypeError:
            if not any(
                type(part) is _Float for part in _leaves((step.args, step.kwargs))
            ):
                raise
    return outcome


def _described(value: Any, known: dict[int, int]) -> Any:
    if isinstance(value, list | tuple):
        return [_described(part, known) for part in value]
    if value is None or id(value) in known:
        return known.get(id(value))
    array = compat.as_jax(value)
    return Form(jax.ShapeDtypeStruct(array.shape, array.dtype), value.dtype)


def _typed(value: Any) -> Hashable:
    if type(value) is tuple:
        return tuple(map(_typed, value))
    return value if type(value) in (_Tensor, _Float) else (type(value), value)


def _leaves(value: Any) -> list[Any]:
    if type(value) in (tuple, list):
        return [leaf for part in value for leaf in _leaves(part)]
    return [value]


def numbers_in(value: Any) -> list[int]:
    """The numbers of the tensors among arguments of a step, in order."""
    return [leaf.number for leaf in _leaves(value) if type(leaf) is _Tensor]


def tensors_in(value: Any) -> list[Any]:
    """The tensors on the device among arguments of a call, in tuples and lists."""
    return [leaf for leaf in _leaves(value) if compat.is_ported(leaf)]
