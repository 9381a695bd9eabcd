"""Dense masks of attention that a model writes out itself, and whether a traced program says how they are made."""

from typing import Any, Final

# Comparisons of positions, joined; of anything else the values may be whatever they like.
_READ: Final = frozenset(
    "add and broadcast_in_dim convert_element_type copy eq expand_dims ge gt iota le lt mul ne neg not or reshape "
    "select_n slice squeeze stop_gradient sub transpose".split()
)
_SPREADING: Final = frozenset("broadcast_in_dim convert_element_type copy expand_dims not reshape".split())


def unknown_mask(jaxpr: Any, queries: int, keys: int) -> str | None:
    """The form [.., Q, T] of a mask on scores whose making is not a comparison of positions; None where none is found.

    Args:
        jaxpr: of the program; nested ones are looked into.
        queries, keys: of the scores.
    """
    return _Masks((queries, keys)).unknown(jaxpr)


class _Masks:
    """Looks at the scores of one form, where variables of nested jaxprs are those that they are given."""

    def __init__(self, form: tuple[int, int]) -> None:
        self._form = form
        self._makers: dict[Any, Any] = {}
        self._given: dict[Any, Any] = {}

    def unknown(self, jaxpr: Any) -> str | None:
        self._makers |= {made: one for one in jaxpr.eqns for made in one.outvars}
        for equation in jaxpr.eqns:
            mask = self._mask_of(equation)
            if mask is not None and not self._is_read(mask):
                return f"{list(mask.aval.shape)} {mask.aval.dtype}"
            for inner in [] if _selects(equation) else _nested(equation):
                if len(inner.invars) == len(equation.invars):
                    self._given |= dict(zip(inner.invars, equation.invars, strict=True))
                if (found := self.unknown(inner)) is not None:
                    return found
        return None

    def _mask_of(self, equation: Any) -> Any:
        """What says who sees whom, before it was spread over heads and rows."""
        is_added = equation.primitive.name == "add"
        if not (is_added or _selects(equation)) or _form(equation.outvars[0]) != self._form:
            return None
        operands = equation.invars if is_added else equation.invars[:1]
        found = [one for one in map(self._before_spread, operands) if _form(one) == self._form]
        smallest = min(found, key=lambda one: one.aval.size, default=None)
        # Of a sum, both may be scores.
        is_mask = smallest is not None and not (
            is_added and smallest.aval.size == equation.outvars[0].aval.size
        )
        return smallest if is_mask else None

    def _before_spread(self, variable: Any) -> Any:
        while True:
            variable = self._outer(variable)
            maker = self._maker(variable)
            if (
                maker is None
                or maker.primitive.name not in _SPREADING
                or _form(maker.invars[0]) != self._form
            ):
                return variable
            variable = maker.invars[0]

    def _is_read(self, mask: Any) -> bool:
        """Whether all that it is made of are comparisons of positions, or of what an argument numbers."""
        waiting, seen = [mask], set()
        while waiting:
            one = self._outer(waiting.pop())
            if hasattr(one, "val") or one in seen or not one.aval.shape:
                continue
            seen.add(one)
            maker = self._maker(one)
            if _form(one) == self._form if maker is None else not _compares(maker):
                return False
            waiting += [] if maker is None else maker.invars
        return True

    def _outer(self, variable: Any) -> Any:
        while not hasattr(variable, "val") and variable in self._given:
            variable = self._given[variable]
        return variable

    def _maker(self, variable: Any) -> Any:
        return None if hasattr(variable, "val") else self._makers.get(variable)


def _selects(equation: Any) -> bool:
    return equation.primitive.name == "select_n" or equation.params.get("name") == "_where"


def _compares(equation: Any) -> bool:
    """Whether an equation, or all of a call's, is of those that can be read."""
    inner = _nested(equation)
    return all(map(_compares, inner[0].eqns)) if inner else equation.primitive.name in _READ


def _nested(equation: Any) -> list[Any]:
    values = (getattr(value, "jaxpr", value) for value in equation.params.values())
    return [one for one in values if hasattr(one, "eqns")]


def _form(variable: Any) -> tuple[int, ...]:
    """The last two dimensions; none of what has fewer."""
    shape = tuple(getattr(variable.aval, "shape", ()))
    return shape[-2:] if len(shape) > 1 else ()
