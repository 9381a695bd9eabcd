"""What a program is made for, as text: the kinds that warnings tell apart."""


class ShapeText(str):
    """The description of a tensor; the description of any other argument is a plain
    string.
    """

    __slots__ = ()


class HostText(str):
    """The description of a tensor whose values are a part of the program."""

    __slots__ = ()


class CounterText(str):
    """The description of a number that a cache of a library keeps."""

    __slots__ = ()


class StateText(str):
    """The description of a value that is not an argument, such as an attribute of a
    module.
    """

    __slots__ = ()
