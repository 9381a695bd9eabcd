"""The pages of the documentation, found by themselves, and what is in them: blocks, and code within sentences."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"(?P<indent> *)```(?P<info>[^`]*)")


class Block(NamedTuple):
    """A fenced block.

    Attributes:
        page: its file, from the root of the repository.
        line: of its first line of text, from 1.
        language: the first word behind the fence, "" if there is none.
        text: what it holds, without the indentation of its fence.
    """

    page: str
    line: int
    language: str
    text: str

    @property
    def head(self) -> str:
        """Its first line, by which lists of exceptions name it."""
        return self.text.partition("\n")[0].strip()


def find_pages() -> list[str]:
    """All pages of the repository, but what environments and programs have written below it."""
    files = [*ROOT.glob("*.md")]
    for directory in ROOT.iterdir():
        if directory.is_dir() and not directory.name.startswith(".") and directory.name != "site":
            files += directory.rglob("*.md")
    return sorted(str(file.relative_to(ROOT)) for file in files if "node_modules" not in file.parts)


def read_blocks(page: str) -> list[Block]:
    """The blocks of a page, in their order.

    Raises:
        ValueError: a block does not end.
    """
    blocks, opened = [], None
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        fence = _FENCE.fullmatch(line)
        if fence is None:
            continue
        if opened is None:
            opened = number, fence
            continue
        first, opening = opened
        indent = len(opening["indent"])
        text = "".join(f"{inner[indent:]}\n" for inner in lines[first : number - 1])
        language = (opening["info"].split() or [""])[0]
        blocks.append(Block(page, first + 1, language, text))
        opened = None
    if opened is not None:
        raise ValueError(f"{page}:{opened[0]}: the block does not end")
    return blocks


def read_spans(page: str) -> list[str]:
    """The code within the sentences and tables of a page, each with single spaces."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in read_blocks(page):
        text = text.replace(block.text, "")
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]
