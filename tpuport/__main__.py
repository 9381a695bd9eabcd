"""`python -m tpuport`: the `tpuport` command, if its script is not on the path."""

import sys

from tpuport.cli import main

if __name__ == "__main__":
    sys.exit(main())
