"""The figures are told by library, and a stored observation is scored again."""

import io
import json

import pytest
import torch
from rich.console import Console

from benchmarks import agreement

CODE = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor, y):
        if x.item() > 0:
            return x * 2
        return y[0].anything(x > 1)
"""

GUESSABLE = """\
import lightning
import torch
from torch import nn


class Encoder(lightning.LightningModule):
    def __init__(self, dim, num_heads, dropout=0.0):
        super().__init__()
        self.linear = nn.Linear(dim, dim // num_heads)

    def forward(self, x, lengths=None):
        assert x.dim() == 3
        x = self.linear(x)
        if lengths is not None:
            return x[:, : lengths.max()]
        return x


class NeedsMore(nn.Module):
    def forward(self, graph):
        return graph.nodes
"""


@pytest.fixture
def seen(tmp_path):
    files = {}
    for library, notes in (("diffusers", {"7": ["value:item"]}), ("transformers", {"9": ["value:__bool__"]})):
        path = tmp_path / library / "model.py"
        path.parent.mkdir()
        path.write_text(CODE, encoding="utf-8")
        files[str(path)] = {
            "ran": [6, 7, 8, 9],
            "notes": {line: {"kinds": kinds, "by": []} for line, kinds in notes.items()},
        }
    return {"models": {}, "files": files}


def printed(function, *args):
    out = io.StringIO()
    function(*args, Console(file=out, width=200, emoji=False))
    return out.getvalue()


def test_figures_by_library(seen):
    lines = printed(agreement.report, seen, []).splitlines()
    # Then the same for tensors of the host beside those of the device, of which there are none.
    end = lines.index("tensors of the host beside tensors of the device:")
    lines = [line for line in lines[:end] if line]
    assert lines[-3:] == [
        (
            "diffusers: 1 files; recall 100.0% of 1 watched lines; precision 100.0% of 1 errors on lines that ran; "
            "0 errors on lines that never ran"
        ),
        (
            "transformers: 1 files; recall 0.0% of 1 watched lines; precision 0.0% of 1 errors on lines that ran; "
            "0 errors on lines that never ran"
        ),
        (
            "all: 2 files; recall 50.0% of 2 watched lines; precision 50.0% of 2 errors on lines that ran; "
            "0 errors on lines that never ran"
        ),
    ]
    assert [line.split(":")[0] for line in lines[:-3]] == ["missed", "false alarm"]


def test_observations_are_stored_and_merged(tmp_path, seen):
    for number, path in enumerate(seen["files"]):
        part = {"models": {f"m{number}": {"status": "ran"}}, "files": {path: seen["files"][path]}}
        (tmp_path / f"{number}.json").write_text(json.dumps(part))
    loaded = agreement.load([tmp_path / "0.json", tmp_path / "1.json"])
    assert set(loaded["models"]) == {"m0", "m1"}
    assert printed(agreement.report, loaded, []) == printed(agreement.report, seen, [])


def test_a_shortened_text_names_no_directory_of_this_machine_even_where_it_is_cut() -> None:
    text = (
        'in forward\n  File "/srv/site-packages/transformers/x.py", line 3: /srv/env/site-packages/torch/a.py'
    )
    assert agreement.shorten(text, 300) == 'in forward File "transformers/x.py", line 3: torch/a.py'
    for length in range(100):
        assert "/srv" not in agreement.shorten(text, length)


def test_a_sample_is_spread_over_the_whole_library(monkeypatch):
    from benchmarks import tiny_models

    monkeypatch.setattr(tiny_models, "names", lambda library: [f"{library}:{n}" for n in range(10)])
    assert agreement.chosen("diffusers", None, None, 4) == ["diffusers:0", "diffusers:4", "diffusers:8"]
    assert agreement.chosen("diffusers", None, 2, 4) == ["diffusers:0", "diffusers:4"]
    assert agreement.chosen("diffusers", ["A"], 2, 4) == ["diffusers:A"]


def test_distributions_check_nothing_as_if_they_were_traced():
    from benchmarks import tiny_models

    with tiny_models.as_traced(True):
        assert torch.distributions.Normal(torch.zeros(2), -torch.ones(2)).batch_shape == (2,)
    with pytest.raises(ValueError, match="scale"):
        torch.distributions.Normal(torch.zeros(2), -torch.ones(2))


def test_any_package_is_run_with_guessed_sizes(tmp_path, monkeypatch):
    (tmp_path / "guessable").mkdir()
    (tmp_path / "guessable" / "__init__.py").touch()
    (tmp_path / "guessable" / "model.py").write_text(GUESSABLE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert agreement.guessed("guessable", None) == [
        "guessed:guessable.model.Encoder",
        "guessed:guessable.model.NeedsMore",
    ]

    encoder = agreement.record("guessed:guessable.model.Encoder", traced=True)
    assert encoder["status"] == "ran"
    [path] = encoder["files"]
    assert list(encoder["files"][path]["notes"]) == ["15"]

    assert agreement.record("guessed:guessable.model.NeedsMore", traced=True)["status"] == "not built"
