"""No message counts "1 errors"."""

import ast
from pathlib import Path

import tpuport
from tpuport.base.plurals import count_noun

# The number is never 1 there, or the words are torch's own.
KNOWN = {
    "attention/tuning/bundle_cache.py", "compat/operators/construction.py", "compat/operators/index_bounds.py",
    "compat/operators/reshaping.py", "topology/reports/html_sections.py", "verification/check_target.py",
    "sharding/specs.py", "checkpoint/loading.py",
}  # fmt: skip


def test_one_thing_is_singular() -> None:
    assert (count_noun(1, "error"), count_noun(0, "error"), count_noun(1234, "error")) == (
        "1 error", "0 errors", "1,234 errors",
    )  # fmt: skip


def test_lengths_before_nouns_are_counted_by_the_helper() -> None:
    root = Path(tpuport.__file__).parent
    counting = set()
    for file in root.rglob("*.py"):
        source = file.read_text()
        if "{len(" not in source:
            continue
        for text in ast.walk(ast.parse(source)):
            if isinstance(text, ast.JoinedStr) and _counts_a_plural(text):
                counting.add(str(file.relative_to(root)))
    assert counting <= KNOWN


def _counts_a_plural(text: ast.JoinedStr) -> bool:
    """Whether `{len(x)}` is followed by a word that ends in s."""
    for part, following in zip(text.values, text.values[1:], strict=False):
        if not isinstance(part, ast.FormattedValue) or not isinstance(following, ast.Constant):
            continue
        is_length = isinstance(part.value, ast.Call) and ast.unparse(part.value.func) == "len"
        words = str(following.value).split()
        if (
            is_length
            and str(following.value).startswith(" ")
            and words
            and words[0].rstrip(",:;.").endswith("s")
        ):
            return True
    return False
