"""The documentation's Python runs as it is written, block after block, on the tiny Llama, whose weights are tied."""

import ast
import contextlib
import functools
import importlib.util
import inspect
import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import tpuport
from tpuport.checkpoint import moving

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = ROOT / "recipes/llama/checkpoint"


# The overview's block makes the same calls as the README's. The blocks of the two longer pages compile some twenty
# programs; `test_the_names_of_a_page_exist` reads them, and the tests of each room make their calls.
PAGES = [
    "README.md",
    pytest.param("docs/index.md", marks=pytest.mark.slow),
    pytest.param("docs/generate.md", marks=pytest.mark.slow),
    pytest.param("docs/compiled-functions.md", marks=pytest.mark.slow),
    "docs/sharding.md",
]


def read_blocks(page: str) -> list[str]:
    """The Python blocks of a page, in their order."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


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
    }  # fmt: skip
    blocks = read_blocks(page)
    assert blocks
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            for block in blocks:
                code = re.sub("path/to/(checkpoint|smaller)", str(CHECKPOINT), block)
                code = code.replace("path/to/copy", str(tmp_path))
                code = code.replace("max_new_tokens=128", "max_new_tokens=24")
                code = code.replace("range(64)", "range(4)")
                exec(code, names)
    finally:
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
