"""The documentation's Python runs as it is written, block after block, on the tiny Llama, whose weights are tied."""

import contextlib
import importlib.util
import io
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import tpuport

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = ROOT / "recipes/llama/checkpoint"


# The overview's block makes the same calls as the README's.
PAGES = [
    "README.md",
    pytest.param("docs/index.md", marks=pytest.mark.slow),
    "docs/generate.md",
    "docs/compiled-functions.md",
    "docs/sharding.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_a_pages_blocks_run_in_their_order(page: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT, padding_side="left")
    texts = ["The harbour", "To port a model"]
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    names = {
        "tpuport": tpuport, "torch": torch, "AutoModelForCausalLM": AutoModelForCausalLM, "tokenizer": tokenizer,
        "texts": texts, "directory": str(CHECKPOINT), **encoded, "mesh": tpuport.create_mesh(tp=4, dp=2),
    }  # fmt: skip
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
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
