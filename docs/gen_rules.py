"""Write docs/rules from the rules themselves: a page a rule, and an index.

python docs/gen_rules.py            write the pages
python docs/gen_rules.py --check    exit 1 where a page differs from what would be written
"""

import argparse
import itertools
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tpuport.lint.findings import Applicability
from tpuport.lint.rule_catalogue import Entry, all_entries, entry_markdown

PAGES = Path(__file__).parent / "rules"
FIXES = {Applicability.SAFE: "`--fix`", Applicability.UNSAFE: "`--unsafe-fixes`", Applicability.NONE: ""}
INDEX = """# Rules

Written by `docs/gen_rules.py` from the rules themselves; `tpuport lint --explain TPU101` shows the same text. An id is
never given to another rule. [How to use the linter](../lint.md) is told elsewhere.

"error" stops a trace, or needs a GPU where there is none. "warning" and "info" do harm, and do not change the exit
code; [severities](../lint.md#settings) can be set otherwise.
"""


def pages() -> dict[str, str]:
    """Every page's text, by file name."""
    made = {f"{one.id}.md": page(one) for one in all_entries()}
    return {"index.md": index(), **made}


def page(one: Entry) -> str:
    return f"# {one.id} {one.name}\n\n{escaped(entry_markdown(one))}\n"


def index() -> str:
    parts = [INDEX]
    for (family, title), group in itertools.groupby(all_entries(), key=lambda one: (one.id[:4], one.family)):
        rows = [
            f"| [{one.id}]({one.id}.md) | {one.name} | {cell(one.summary)} | {one.severity} | {FIXES[one.fix]} |"
            for one in group
        ]
        head = [
            f"## {family}xx {title}",
            "",
            "| id | name | finds | severity | rewritten by |",
            "| --- " * 5 + "|",
        ]
        parts.append("\n".join([*head, *rows]) + "\n")
    return "\n".join(parts)


def cell(text: str) -> str:
    return escaped(text).replace("|", "\\|")


def escaped(text: str) -> str:
    """Brackets outside code are no links."""
    pieces = re.split(r"(```.*?```|`[^`\n]*`)", text, flags=re.DOTALL)
    return "".join(piece if number % 2 else piece.replace("[", "\\[") for number, piece in enumerate(pieces))


def stale() -> list[str]:
    """Names of the pages that are not what they should be: changed, missing or left over."""
    wanted = pages()
    there = {file.name: file.read_text(encoding="utf-8") for file in PAGES.glob("*.md")}
    return sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    names = stale()
    if parser.parse_args().check:
        for name in names:
            print(f"docs/rules/{name} is not what the rules say; run python docs/gen_rules.py")
        return int(bool(names))
    PAGES.mkdir(exist_ok=True)
    wanted = pages()
    for name in names:
        file = PAGES / name
        if name in wanted:
            file.write_text(wanted[name], encoding="utf-8")
        else:
            file.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
