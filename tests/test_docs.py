"""The documentation's Python runs as it is written, block after block, on the tiny Llama, whose weights are tied."""

import ast
import contextlib
import functools
import importlib.util
import inspect
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DiTTransformer2DModel
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import tpuport
from tpuport.checkpoint import moving

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = ROOT / "recipes/llama/checkpoint"


# The overview's block makes the same calls as the README's. The blocks of the three longer pages compile some thirty
# programs; `test_the_names_of_a_page_exist` reads two of them, and the tests of each room make their calls.
PAGES = [
    "README.md",
    pytest.param("docs/index.md", marks=pytest.mark.slow),
    pytest.param("docs/generate.md", marks=pytest.mark.slow),
    pytest.param("docs/compiled-functions.md", marks=pytest.mark.slow),
    "docs/sharding.md",
    "docs/attention.md",
    pytest.param("docs/quantization.md", marks=pytest.mark.slow),
    "docs/habits.md",
    "docs/compat.md",
]


class Model(torch.nn.Module):
    """What a page calls a model of the reader's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def _names_of(page: str) -> dict[str, Any]:
    """What the reader of a page has beside the checkpoint and its tokens."""
    match page:
        case "docs/attention.md":
            return {
                "step": tpuport.compile(lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x)),
                "latents": torch.randn(1, 2, 16, 8),
                "transformer": DiTTransformer2DModel(1, 8, num_layers=1, norm_num_groups=1),
                "x": torch.tensor([[1, 2, 3]]),
            }  # fmt: skip
        case "docs/habits.md":
            return {"Model": Model, "x": torch.randn(2, 4)}
        case "docs/compat.md":
            return {"model": tpuport.port(torch.nn.Embedding(3, 2)), "ids": torch.tensor([0, 1])}
    return {}


def read_blocks(page: str) -> list[str]:
    """The Python blocks of a page, in their order."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_the_example_of_a_patch_runs(tmp_path: Path) -> None:
    """The blocks of docs/patches.md are files of the reader's, each with its name in the first line."""
    model, replacement, run, before_tracing, _ = read_blocks("docs/patches.md")
    for text in (model, replacement + before_tracing, run):
        name = text.partition("\n")[0].removeprefix("# ")
        (tmp_path / name).write_text(text)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "run.py"], cwd=tmp_path, check=True, env=environment)


@pytest.mark.parametrize("page", ["docs/generate.md", "docs/compiled-functions.md"])
def test_the_names_of_a_page_exist(page: str) -> None:
    """What the blocks take from tpuport is there, and has the arguments that they pass by name."""
    nodes = [node for block in read_blocks(page) for node in ast.walk(ast.parse(block))]
    names = [ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)]
    names = [name for name in names if re.fullmatch(r"tpuport(\.\w+)+", name)]
    assert len(names) > 3
    for name in names:
        _resolve(name)
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) in names]
    for call in calls:
        function = _resolve(ast.unparse(call.func))
        if function is tpuport.port:
            function = moving.port
        known = set(inspect.signature(function).parameters)
        if function is tpuport.generate:
            known |= vars(GenerationConfig()).keys() | {"pixel_values"}
        passed = {keyword.arg for keyword in call.keywords if keyword.arg}
        assert passed <= known, ast.unparse(call)


def _resolve(name: str) -> Any:
    """The object of a dotted name."""
    return functools.reduce(getattr, name.split(".")[1:], tpuport)


@pytest.mark.parametrize("page", PAGES)
def test_a_pages_blocks_run_in_their_order(page: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT, padding_side="left")
    texts = ["The harbour", "To port a model"]
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    names = {
        "tpuport": tpuport, "torch": torch, "AutoModelForCausalLM": AutoModelForCausalLM, "tokenizer": tokenizer,
        "texts": texts, "directory": str(CHECKPOINT), **encoded, "mesh": tpuport.create_mesh(tp=4, dp=2),
        "inputs": dict(encoded),
    }  # fmt: skip
    names |= _names_of(page)
    # A file of GGUF would have to be made first; `tests/checkpoint/formats` reads some.
    blocks = [block for block in read_blocks(page) if "gguf_file" not in block]
    assert blocks
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            for block in blocks:
                code = re.sub("path/to/(checkpoint|smaller)", str(CHECKPOINT), block)
                code = code.replace("path/to/copy", str(tmp_path))
                code = re.sub("max_new_tokens=(128|256)", "max_new_tokens=24", code)
                code = code.replace("range(64)", "range(4)")
                # The weights of the tiny model do not divide by as many.
                code = code.replace("create_mesh(tp=8)", "create_mesh(dp=4, tp=2)")
                exec(code, names)
    finally:
        tpuport.attention.unregister()
        tpuport.disable()
    if page == "docs/generate.md":
        assert names["tokens"].shape == (2, encoded["input_ids"].shape[1] + 24)
    if page == "docs/compiled-functions.md":
        again = AutoModelForCausalLM.from_pretrained(tmp_path)
        torch.testing.assert_close(
            again(encoded["input_ids"]).logits, names["model"](encoded["input_ids"]).logits
        )
        assert type(names["best"]) is torch.Tensor
    if page == "docs/sharding.md":
        assert re.search(
            r"lm_head\\.weight\|model\\.embed_tokens\\.weight +2 .* P\(None, None\)", printed.getvalue()
        )


def test_the_page_of_the_api_lists_every_public_name() -> None:
    spec = importlib.util.spec_from_file_location("gen_api", ROOT / "docs" / "gen_api.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert not generator.is_stale(), "run python docs/gen_api.py"
