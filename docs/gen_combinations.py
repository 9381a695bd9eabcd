"""Write docs/data/combinations.json, the table of docs/install.md, from what the tests gave in each environment.

python docs/gen_combinations.py ENVIRONMENT/tests.xml ...   replaces the rows of these environments
"""

import datetime as dt
import json
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

DATA: Final = Path(__file__).parent / "data" / "combinations.json"
PACKAGES: Final = "torch torchax jax libtpu transformers diffusers accelerate peft".split()


def describe_run(results: Path) -> dict[str, Any]:
    """One row: what is installed in the environment around `results`, and the counts of its tests."""
    environment = results.parent
    (site_packages,) = environment.glob("lib/python3*/site-packages")
    installed = {
        distribution.name.lower(): distribution.version
        for distribution in metadata.distributions(path=[str(site_packages)])
    }
    python = re.search(r"^version\s*=\s*([\d.]+)", (environment / "pyvenv.cfg").read_text(), re.MULTILINE)
    suites = ET.parse(results).getroot().findall("testsuite")
    total, failed, errors, skipped = (
        sum(int(suite.get(count, 0)) for suite in suites)
        for count in ("tests", "failures", "errors", "skipped")
    )
    return {
        "environment": environment.name.removeprefix(".venv").removeprefix("-") or "pinned",
        "Python": python.group(1),
        **{name: installed[name].partition("+")[0] for name in PACKAGES},
        "passed": total - failed - errors - skipped,
        "failed": failed + errors,
        "skipped": skipped,
        "date": dt.date.fromtimestamp(results.stat().st_mtime).isoformat(),
    }


def main() -> None:
    rows = {row["environment"]: row for row in json.loads(DATA.read_text())} if DATA.exists() else {}
    for argument in sys.argv[1:]:
        row = describe_run(Path(argument).absolute())
        rows[row["environment"]] = row
    DATA.write_text(json.dumps(list(rows.values()), indent=1) + "\n")


if __name__ == "__main__":
    main()
