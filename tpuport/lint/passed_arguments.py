"""The values that a call passes, by position and by name."""

from typing import NamedTuple

from tpuport.lint.abstract_values import UNKNOWN, Function, Value


class Arguments(NamedTuple):
    """The values of a call's arguments.

    Attributes:
        positional: in order; what `*iterable` of unknown length passes is one of them.
        keywords: by name.
        is_counted: whether there are as many positional arguments as `positional` has.
        is_open: whether others may be passed by name: `f(x, **kwargs)`.
    """

    positional: list[Value]
    keywords: dict[str, Value]
    is_counted: bool = True
    is_open: bool = False

    @property
    def first(self) -> Value:
        """The first positional argument, `UNKNOWN` if there is none."""
        return self.get(0)

    def get(self, position: int, *names: str, default: Value = UNKNOWN) -> Value:
        """An argument by position, or by the first of its names that is given."""
        if position < len(self.positional):
            return self.positional[position]
        for name in names:
            if name in self.keywords:
                return self.keywords[name]
        return default

    @property
    def is_empty(self) -> bool:
        """Whether the call has no arguments."""
        return not self.positional and not self.keywords

    def without_first(self) -> "Arguments":
        """What the first argument gets if it is called, or its method."""
        return Arguments(
            self.positional[1:], self.keywords, self.is_counted, self.is_open
        )

    def functions(self) -> list[Function]:
        """The arguments that are functions of the linted code, in order."""
        values = (*self.positional, *self.keywords.values())
        return [value for value in values if isinstance(value, Function)]

    @property
    def first_function(self) -> Function | None:
        """The first positional argument that is a function of the linted code."""
        return next(
            (value for value in self.positional if isinstance(value, Function)), None
        )
