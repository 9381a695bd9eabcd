"""Numbers of things in messages."""


def count_noun(number: int, noun: str) -> str:
    """`1 error`, `1,234 errors`."""
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"


def is_or_are(number: int) -> str:
    """The verb after a number of things."""
    return "is" if number == 1 else "are"
