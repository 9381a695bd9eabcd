"""The examples of docs/patches.md run as they are written."""

import copy
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

import tpuport
from tpuport.patches import registry

PAGE = (Path(__file__).parents[2] / "docs/patches.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE, re.DOTALL))
EXTRA = re.search(r"```python\n# in thinker_tpu\.py\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in BLOCKS.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    tpuport.disable()
    registry.unregister("thinker.pooler")
    for name in [name for name in sys.modules if name.startswith(("thinker", "research_repository"))]:
        del sys.modules[name]


def test_the_patch_of_the_page_makes_its_model_compile(folder):
    import thinker

    tpuport.enable()
    states, mask = torch.ones(2, 5, 8), torch.ones(2, 5)
    with pytest.raises(Exception, match=r"(?i)bool|concrete"):
        tpuport.compile(tpuport.port(thinker.Pooler(8)))(states, mask)
    tpuport.disable()
    names = runpy.run_path(str(folder / "run.py"))
    assert registry.applied().count("thinker.pooler") == 1
    assert names["pooled"].shape == (2, 8)


def test_what_the_page_decides_before_tracing(folder):
    assert EXTRA is not None
    (folder / "thinker_tpu.py").write_text(BLOCKS["thinker_tpu.py"] + EXTRA[1])
    import thinker
    import thinker_tpu

    registry.register(thinker_tpu.PATCH)
    registry.apply_all()
    model = thinker.Pooler(8)
    states, full, partial = torch.randn(2, 2, 8), torch.ones(2, 2), torch.tensor([[1, 0], [1, 1]])
    assert registry.prepared(model, (states, full), {}) == ((states, None), {})
    assert registry.prepared(model, (states, partial), {}) == ((states, partial), {})
    ported = tpuport.compile(tpuport.port(copy.deepcopy(model)))
    for mask in (full, partial):
        torch.testing.assert_close(ported(states, mask).cpu(), model(states, mask))


def test_the_shim_of_the_page(folder, capsys):
    repository = folder / "research_repository"
    repository.mkdir()
    (repository / "__init__.py").touch()
    (repository / "model.py").write_text(
        "import torch\nTABLE = torch.zeros(2, device='cuda')\n\n\nclass Model(torch.nn.Module):\n    pass\n"
    )
    runpy.run_path(str(folder / "shimmed.py"))
    assert capsys.readouterr().out.endswith("model.py:2: zeros on a CUDA device -> on the CPU\n")


def test_every_state_is_on_the_page():
    from typing import get_args

    from tpuport.patches import patch

    table = re.findall(r"^\| ([a-z ]+) \|", PAGE[PAGE.index("| status | means |") :], re.MULTILINE)
    assert set(get_args(patch.State)) <= set(table)
