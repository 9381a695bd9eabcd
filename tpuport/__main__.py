"""The `tpuport` command, also as `python -m tpuport` if its script is not on the
path.
"""

import sys


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        from tpuport.cli import main as run
    except KeyboardInterrupt:
        # Before the command line itself takes care of it.
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
