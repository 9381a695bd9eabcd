"""Write docs/compile-advice.md from the rules of `tpuport compile`'s advice.

python docs/gen_advice.py            write the page
python docs/gen_advice.py --check    exit 1 if it differs from what would be written
"""

import argparse
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from tpuport.topology.advice import AdviceRule, all_advice_rules

PAGE: Final = Path(__file__).parent / "compile-advice.md"

# The lines before every example; the tests run them before it, too.
PRELUDE: Final = '''import functools

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F
from jax.sharding import NamedSharding, PartitionSpec
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import tpuport
from tpuport import ShardingRules
from tpuport.topology import Decode, Prefill, compile_for, described


def llama(num_key_value_heads=4):
    """A Llama of two layers."""
    return LlamaForCausalLM(LlamaConfig(
        hidden_size=512, intermediate_size=2048, num_hidden_layers=2, num_attention_heads=8, vocab_size=8192,
        num_key_value_heads=num_key_value_heads, max_position_embeddings=1024,
    ))


class MLP(nn.Module):
    """Two products that follow each other."""

    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return self.down(self.up(x).relu())


class Step(nn.Module):
    """A decoding step with a cache of its own: x [B, 1, E], keys and values [B, K, T, D], which come back."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(512, 512, bias=False) for _ in range(4))

    def write(self, past, new, position):
        return past.index_copy(2, position, new)

    def forward(self, x, keys, values, position):
        q, k, v = (layer(x).unflatten(2, (8, 64)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        keys, values = self.write(keys, k, position), self.write(values, v, position)
        out = F.scaled_dot_product_attention(q, keys, values)
        return self.o(out.transpose(1, 2).flatten(2)), keys, values
'''

_HEAD: Final = """# Advice of `tpuport compile`

`docs/gen_advice.py` generates this page from the rules. Each rule examines measurements of the compiled program: its
collectives, its arrays, the attention calls that were traced, how the weights are sharded, and [when each instruction
runs](time.md). Findings are sorted by the time that they cost per step: what the profile says of the instructions in
question or, for a cost in bytes or FLOPs, what it takes at the device's published peak. Rule ids are never reused.

The examples are complete: after [these lines](#before-every-example), each of them compiles without a TPU. The code
under "Before" triggers the advice, and the code under "After" does not.
"""


def render_page() -> str:
    """docs/compile-advice.md: a table, then a section a rule."""
    rules = all_advice_rules()
    rows = [
        f"| [{rule.id}](#{rule.id.lower()}-{rule.name}) | {rule.name} | {escape_cell(rule.summary)} |"
        for rule in rules
    ]
    table = "\n".join(["| id | name | finds |", "| --- " * 3 + "|", *rows])
    sections = [render_section(rule) for rule in rules]
    prelude = f"## Before every example\n\n{render_code(PRELUDE)}\n"
    return "\n".join([_HEAD, table + "\n", *sections, prelude])


def render_section(rule: AdviceRule) -> str:
    """All about one rule, with a heading."""
    parts = [
        f"## {rule.id} {rule.name}",
        f"Finds {rule.summary}.",
        rule.why,
        f"Measured: {rule.measured}",
        f"Before:\n\n{render_code(rule.before)}",
        f"After:\n\n{render_code(rule.after)}",
    ]
    return "\n\n".join(parts) + "\n"


def render_code(code: str) -> str:
    return f"```python\n{code.strip()}\n```"


def escape_cell(text: str) -> str:
    return text.replace("|", "\\|")


def is_stale() -> bool:
    """Whether the page differs from what the rules say."""
    return not PAGE.exists() or PAGE.read_text(encoding="utf-8") != render_page()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args().check:
        if is_stale():
            print(f"{PAGE.name} is not what the rules say; run python docs/gen_advice.py")
        return int(is_stale())
    PAGE.write_text(render_page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
