"""Parsing arguments of commands: an error is a sentence with what to do."""

import argparse
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from tpuport.errors import PortError


class UsageError(PortError):
    """Arguments that a command does not take; the exit code is 2."""


class CommandParser(argparse.ArgumentParser):
    """A parser of one command. Options cannot be abbreviated, so that new ones cannot
    change what a script means.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Called by argparse with what is wrong."""
        # "argument --jobs/-j: expected one argument", or a message without an option.
        match = re.fullmatch(
            r"(?:argument (?P<where>[^:]+): )?(?P<what>.*)", message, re.DOTALL
        )
        assert match is not None
        where, what = match["where"], match["what"]
        unknown: list[str] = []
        if what.startswith("unrecognized"):
            unknown = re.findall(r"--[\w-]+", what)
        # A short option is not a spelling mistake of a long one.
        known = [
            option for option in self._option_string_actions if option.startswith("--")
        ]
        fix = f"{closest(unknown, known)}{self.prog} --help shows the options"
        raise UsageError(what, where=where, fix=fix)


def closest(names: Iterable[str], known: Iterable[str]) -> str:
    """A question such as "did you mean X? " for names that resemble known ones, else
    "".
    """
    # Only after a mistake: `tpuport lint` should start fast.
    import difflib

    candidates = list(known)
    matches = [
        match
        for name in names
        for match in difflib.get_close_matches(name, candidates, n=1)
    ]
    if not matches:
        return ""
    return f"did you mean {' and '.join(matches)}? "


def positive_integer(text: str) -> int:
    """The type of an option that is a number from 1 on."""
    # Not `int` alone, which takes "1_000" as well.
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def non_negative_integer(text: str) -> int:
    """The type of an option that is a number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def number(text: str) -> float:
    """The number that a text is; nan, with which every comparison is false, if it is
    none.
    """
    try:
        return float(text)
    except ValueError:
        return math.nan


def seconds(text: str) -> float:
    """The type of a timeout, of at least one second."""
    value = number(text)
    # Also refuses nan.
    if not value >= 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds, 1 or more"
        )
    return value
