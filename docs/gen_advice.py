"""Write docs/compile-advice.md from the rules of `tpuport compile`'s advice.

python docs/gen_advice.py            write the page
python docs/gen_advice.py --check    exit 1 where it differs from what would be written
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tpuport.topology.advice.catalogue import page

PAGE = Path(__file__).parent / "compile-advice.md"


def is_stale() -> bool:
    """Whether the page is not what the rules say."""
    return not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args().check:
        if is_stale():
            print(f"{PAGE.name} is not what the rules say; run python docs/gen_advice.py")
        return int(is_stale())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
