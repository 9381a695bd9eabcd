"""Every command of the documentation is one that its program takes."""

import pytest

from tests.docs.commands import check_command, commands_of, is_command
from tests.docs.pages import find_pages, read_blocks, read_spans
from tpuport.errors import PortError

SHELLS = {"bash", "console"}


def _commands(page):
    blocks = [block for block in read_blocks(page) if block.language in SHELLS]
    return [command for block in blocks for command in commands_of(block)] + [
        span for span in read_spans(page) if is_command(span)
    ]


COMMANDS = {page: commands for page in find_pages() if (commands := _commands(page))}


@pytest.mark.parametrize("page", COMMANDS)
@pytest.mark.usefixtures("reader_directory")
def test_the_programs_of_a_page_take_its_commands(page):
    failed = []
    for command in dict.fromkeys(COMMANDS[page]):
        try:
            check_command(command)
        except Exception as error:  # noqa: BLE001 - all wrong ones of a page at once
            failed.append(f"{command}\n    {type(error).__name__}: {error}")
    assert not failed, "\n".join(failed)


@pytest.mark.usefixtures("reader_directory")
@pytest.mark.parametrize(
    "command",
    [
        "tpuport lnit src",
        "tpuport lint --no-such-option src",
        "tpuport lint no/such/directory",
        "tpuport compile llama-2-7b --topology v5e:3x5",
        "tpuport compile llama-2-7b --topology v5e:2x4 --tp 3",
        "tpuport tune attention --topology v6e --no-such-option NAME",
        "python -m recipes.nothing",
        "python -m recipes.flux --no-such-option",
        "python benchmarks/nothing.py",
        "python -m pytest tests/nothing",
        "python -c 'import tpuport; tpuport.patches.nothing()'",
        "make nothing",
        "make test NOTHING=1",
        "pip install 'tpuport[nothing]'",
        "nothing --at all",
    ],
)
def test_what_no_program_takes_is_found(command):
    with pytest.raises((AssertionError, ImportError, PortError)):
        check_command(command)
