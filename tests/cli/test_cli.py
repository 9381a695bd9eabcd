"""The command line as a whole."""

import subprocess
import sys

import pytest

import tpuport
from tpuport import cli
from tpuport.cli import COMMANDS, doctor, main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tpuport {tpuport.__version__}\n"


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "tpuport"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"tpuport {tpuport.__version__}\n"
    refused = subprocess.run([*command, "compile", "--no-such"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "unrecognized arguments: --no-such" in refused.stderr


def test_help_lists_the_commands_and_each_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"  {name} " in text
        assert command.summary in text
        assert main([name, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"usage: tpuport {name} ")
    assert main(["tune", "attention", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: tpuport tune attention ")


def test_without_a_command_there_is_help_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "commands:\n  lint " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["comple"], "there is no command 'comple'\n  fix: did you mean compile? tpuport --help"),
        (["--verion"], "unrecognized arguments: --verion\n  fix: did you mean --version? tpuport --help"),
        (
            ["doctor", "--jsn"],
            "unrecognized arguments: --jsn\n  fix: did you mean --json? tpuport doctor --help",
        ),
        (["doctor", "--timeout", "soon"], "'soon' is not a number of seconds, 1 or more\n  where: --timeout"),
        (["tune"], "the following arguments are required: KERNEL\n  fix: tpuport tune --help"),
        (
            ["lint", "-j", "two"],
            "'two' is not a number from 0 on\n  where: --jobs/-j\n  fix: tpuport lint --help",
        ),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what_to_do(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""


def test_a_port_error_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(options: object) -> int:
        raise tpuport.PortError("axis [tp] does not divide 6 heads", where="q_proj", fix="use tp=2")

    monkeypatch.setattr(doctor, "run", fail)
    assert main(["doctor"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "axis [tp] does not divide 6 heads\n  where: q_proj\n  fix: use tp=2\n"


def test_a_bug_and_an_interruption_have_exit_codes_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(options: object) -> int:
        raise errors.pop()

    errors: list[BaseException] = [KeyboardInterrupt(), ZeroDivisionError("no")]
    monkeypatch.setattr(doctor, "run", fail)
    assert cli.main(["doctor"]) == 2
    assert "ZeroDivisionError: no\nThis is a bug of tpuport" in capsys.readouterr().err
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
