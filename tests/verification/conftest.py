"""Lets the tests import the models beside them, which `tpuport check` loads by their file."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
