"""Whether safe fixes leave libraries as they are: what was changed, what ran of it, and what counts as equal."""

from pathlib import Path

import torch

from benchmarks import safe_fixes

MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, mask):
        y = x.clone()
        y[mask] *= 2
        return y


def tiny():
    return Model(), [{"x": torch.ones(3), "mask": torch.tensor([True, False, True])}]
"""


def test_a_program_before_and_after(tmp_path: Path) -> None:
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(MODEL)
    after.write_text(MODEL)
    changed = safe_fixes.fix([after], tmp_path)
    assert changed == {"/after.py": [9]}
    (old,), (new,) = (list(safe_fixes.work(f"file:{path}", changed=changed)) for path in (before, after))
    assert new["files"] == ["/after.py"]
    assert safe_fixes.compare(old, new) == "equal"
    assert safe_fixes.models_of([after], ["diffusers:Model", "diffusers:Other"]) == ["diffusers:Model"]


def test_what_is_equal() -> None:
    described = [
        safe_fixes.describe((torch.ones(2, dtype=dtype), 1)) for dtype in (torch.float32, torch.float64)
    ]
    records = [{"outputs": outputs, "files": []} for outputs in described]
    assert safe_fixes.compare(records[0], records[1]) == "different"
    assert safe_fixes.compare(records[0], records[0]) == "equal, without a changed line"
    failure = {"failure": "not built"}
    assert safe_fixes.compare(failure, failure) == "not run"
    assert safe_fixes.compare(failure, records[0]) == "different"
