"""Which line changes something, among those that ran."""

import sysconfig
from pathlib import Path
from typing import Any

from tpuport.verification.executed_lines import ExecutedLines

SOURCE = """
def {name}(cache):
    cache["kept"] = 1
"""


def function_in(file: Path) -> Any:
    """A function that changes an item, as if it were in a file."""
    names: dict[str, Any] = {"__name__": file.stem}
    exec(compile(SOURCE.format(name=file.stem), str(file), "exec"), names)
    return names[file.stem]


def test_a_line_of_installed_code_comes_after_the_users_own(tmp_path: Path) -> None:
    installed = Path(sysconfig.get_path("purelib")) / "some_package.py"
    own = tmp_path / "own.py"
    executed = ExecutedLines()
    for file in (installed, own):
        with executed:
            function_in(file)({})
        line = executed.changing_line("kept")
        assert line is not None
        assert (line.file, line.line) == (str(file), 3)
