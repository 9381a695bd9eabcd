"""Safe fixes leave the eager results of whole programs as they are: bits, dtypes and errors."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from benchmarks import tiny_models
from tpuport.lint import Applicability
from tpuport.lint.analysis import Analyser, Options
from tpuport.lint.fixes import fix_text
from tpuport.lint.rules import all_rules
from tpuport.lint.source import read

CORPUS = Path(__file__).parents[1] / "corpus"
PROGRAMS = sorted([*CORPUS.glob("*.py"), *CORPUS.glob("*/run.py")])


def apply_safe_fixes(path: Path) -> int:
    """Rewrite a file until nothing is left to fix; how many places were rewritten."""
    total = 0
    for _ in range(10):
        text = path.read_text()
        findings = Analyser(Options(all_rules())).analyse(read(path, str(path))).findings
        mine = [
            finding for finding in findings if finding.path == str(path) and finding.fix == Applicability.SAFE
        ]
        text, count = fix_text(text, mine, unsafe=False)
        if not count:
            return total
        path.write_text(text)
        total += count
    raise AssertionError("the rewrites go in circles")


def results(program: Path) -> list[Any]:
    """What the program's calls return, or the errors that they end with, with the same weights and draws."""
    tiny = tiny_models.build(f"file:{program}")
    outputs: list[Any] = []
    for inputs in tiny.inputs:
        torch.manual_seed(0)
        with torch.no_grad():
            try:
                outputs += pytree.tree_leaves(tiny.call(**inputs))
            except Exception as error:  # noqa: BLE001 - the same errors are the same result
                outputs.append(f"{type(error).__name__}: {error}")
    return outputs


def assert_bit_equal(before: list[Any], after: list[Any]) -> None:
    assert len(before) == len(after)
    for left, right in zip(before, after, strict=True):
        assert type(left) is type(right)
        if isinstance(left, torch.Tensor):
            assert left.dtype == right.dtype
            assert torch.equal(left.nan_to_num(), right.nan_to_num())
            assert torch.equal(left.isnan(), right.isnan())
        else:
            assert left == right or left != left


CHECKED = """
import math
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor):
        assert x.max() < 9
        positions = torch.arange(x.shape[-1], dtype=torch.float64, device=x.device)
        angles = torch.einsum("i,j->ij", positions, 10000 ** -(positions / 4))
        with torch.autocast("cuda", enabled=False):
            x = (x.cpu() * angles.sin().to(torch.float64).sum(0)).to("cpu")
        y = x.clone()
        y[torch.where(mask)] = 0.5
        y[mask] *= 2
        scaled = torch.compile(lambda t: t * 0.1)
        return y, scaled(y), positions


def tiny():
    torch.manual_seed(0)
    x, mask = torch.randn(2, 4), torch.tensor([[True, False, True, False], [False, True, True, False]])
    return Model(), [{"x": x, "mask": mask}, {"x": x + 99, "mask": mask}]
"""


def test_what_was_unsafe_once(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(CHECKED)
    before = results(path)
    assert apply_safe_fixes(path) >= 2
    assert_bit_equal(before, results(path))
    assert all(word in path.read_text() for word in ("float64", "assert", "torch.compile", ".cpu()"))


def fixed_programs(directory: Path) -> list[tuple[Path, Path]]:
    """Programs of the corpora that safe fixes change, with the changed copies."""
    changed = []
    shutil.copytree(CORPUS, directory, dirs_exist_ok=True)
    for program in PROGRAMS:
        copy = directory / program.relative_to(CORPUS)
        files = [copy] if copy.parent == directory else sorted(copy.parent.glob("*.py"))
        if sum(map(apply_safe_fixes, files)):
            changed.append((program, copy))
    return changed


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Path]]:
    return fixed_programs(tmp_path_factory.mktemp("fixed"))


@pytest.mark.slow  # test_execution.py runs programs before and after their fixes
def test_corpora_give_the_same_bits(changed: list[tuple[Path, Path]]) -> None:
    assert len(changed) >= 1
    for program, copy in changed:
        assert_bit_equal(results(program), results(copy))
