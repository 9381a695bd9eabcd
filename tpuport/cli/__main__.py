"""`python -m tpuport.cli`: the `tpuport` command where its script is not on the path."""

import sys

from tpuport.cli import main

if __name__ == "__main__":
    sys.exit(main())
