"""The command line as a whole."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import tpuport
from tpuport import cli


def test_version() -> None:
    result = CliRunner().invoke(cli.app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"tpuport {tpuport.__version__}\n"


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "tpuport.cli"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"tpuport {tpuport.__version__}\n"
    refused = subprocess.run([*command, "compile", "--no-such"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "unrecognized arguments: --no-such" in refused.stderr


def test_every_command_has_help() -> None:
    result = CliRunner().invoke(cli.app, ["--help"])
    assert result.exit_code == 0
    assert "doctor" in result.stdout


def test_a_port_error_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise tpuport.PortError("axis [tp] does not divide 6 heads", where="q_proj", fix="use tp=2")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "axis [tp] does not divide 6 heads\n  where: q_proj\n  fix: use tp=2\n"
