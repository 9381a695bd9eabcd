"""Write the list of public names in docs/api.md, each with the first line of its docstring.

python docs/gen_api.py            write the page
python docs/gen_api.py --check    exit 1 if the page is out of date
"""

import argparse
import inspect
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import tpuport
import tpuport.attention
import tpuport.topology

PAGE = Path(__file__).with_name("api.md")
# Of the rooms whose own names are public.
_OF_ATTENTION = ("register", "unregister", "explain", "attention")
_OF_TOPOLOGY = ("compile_for", "estimate", "suggest_splits", "Prefill", "Decode")
_HEAD = """# API

`make docs` writes every signature, argument and error from the docstrings into `site/api.html`; in Python,
`help(tpuport.load)` says the same. `import tpuport` imports neither torch nor jax: a name is resolved on first use.
`docs/gen_api.py` writes this list.

"""
# What `make docs` puts the docstrings in place of.
_DETAILS = "\n<!-- tpuport:api -->\n"


def render_page() -> str:
    """The page as it should be."""
    names = {f"tpuport.{name}": getattr(tpuport, name) for name in tpuport._PUBLIC}
    names |= {f"tpuport.attention.{name}": getattr(tpuport.attention, name) for name in _OF_ATTENTION}
    names |= {f"tpuport.topology.{name}": getattr(tpuport.topology, name) for name in _OF_TOPOLOGY}
    rows = [f"| `{name}` | {summarize(value)} |" for name, value in names.items()]
    return _HEAD + "\n".join(["| name | what it is |", "| --- | --- |", *rows]) + "\n" + _DETAILS


def summarize(value: object) -> str:
    """The first paragraph of a docstring, in one line."""
    paragraph, _, _ = inspect.getdoc(value).partition("\n\n")
    return " ".join(paragraph.split()).replace("|", "\\|")


def is_stale() -> bool:
    """Whether the page differs from what the docstrings say."""
    return PAGE.read_text(encoding="utf-8") != render_page()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args().check:
        if is_stale():
            print(f"{PAGE.name} is not what the docstrings say; run python docs/gen_api.py")
        return int(is_stale())
    PAGE.write_text(render_page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
