"""Numbers of things in messages, and lists of them."""

from collections.abc import Sequence


def count_noun(number: int, noun: str) -> str:
    """`1 error`, `1,234 errors`."""
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"


def is_or_are(number: int) -> str:
    """The verb after a number of things."""
    return "is" if number == 1 else "are"


def list_some(headline: str, items: Sequence[str], most: int = 20) -> str:
    """A headline, a line for each of the first items, and how many others there are."""
    shown = [headline, *items[:most]]
    if len(items) > most:
        shown.append(f"and {len(items) - most} more")
    return "\n  - ".join(shown)
