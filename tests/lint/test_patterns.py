"""Which functions a pattern of the settings means, and what is said of one that means none."""

import json
from pathlib import Path

import pytest

from tpuport.cli import main
from tpuport.lint.patterns import matches_function


def lint(arguments: list[str]) -> int:
    return main(["lint", *arguments])


FILE = Path("/elsewhere/repo/pipelines/video.py")


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("Video.denoise", True),
        ("Video.*", True),
        ("denoise", False),
        ("video:Video.denoise", True),
        ("pipelines.video:Video.denoise", True),
        ("repo.pipelines.video:Video.denoise", True),
        ("pipelines.*:Video.denoise", True),
        ("lines.video:Video.denoise", False),
        ("pipelines.audio:Video.denoise", False),
        ("pipelines:Video.denoise", False),
    ],
)
def test_patterns(pattern: str, fits: bool) -> None:
    assert matches_function(pattern, FILE, "Video.denoise") is fits
    assert matches_function(pattern, FILE.with_suffix("") / "__init__.py", "Video.denoise") is fits


def test_a_directory_need_not_be_a_package_and_what_fits_nothing_is_told(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "pipelines").mkdir()
    (project / "pipelines" / "video.py").write_text(
        "import torch\n\n\nclass Video:\n    def denoise(self, x: torch.Tensor):\n        return x.item()\n"
    )
    settings = project / "pyproject.toml"
    settings.write_text('[tool.tpuport.lint]\nentry-points = ["pipelines.video:Video.denoise"]\n')
    assert lint(["pipelines"]) == 1
    assert capsys.readouterr().err == ""
    settings.write_text('[tool.tpuport.lint]\nentry-points = ["pipelines.video:Video.denoize"]\n')
    assert lint(["pipelines", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert err == 'entry-points: no function in these files is "pipelines.video:Video.denoize"\n'
    summary = json.loads(out)["summary"]
    assert summary["unmatched_entry_points"] == ["pipelines.video:Video.denoize"]
    assert summary["verdict"].endswith("nothing is compiled, and no entry point of the settings is in them.")
