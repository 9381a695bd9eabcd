"""What the reader of a page has beside its blocks, as small as it can be: models of the same classes, inputs, files."""

import copy
import functools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from diffusers import DiTTransformer2DModel, FlowMatchEulerDiscreteScheduler, LTXVideoTransformer3DModel
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import tpuport
from benchmarks import abuse_formats
from tests.docs.pages import ROOT

Names = dict[str, Any]


class Linear(torch.nn.Module):
    """What a page calls a model of the reader's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Tower(torch.nn.Module):
    """Linear layers one after another: the model of a page, called with `x`."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Tokens(Tower):
    """The same, called with `ids` of tokens."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__(width, layers)
        self.embed = torch.nn.Embedding(1000, width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.layers(self.embed(ids))


class Denoiser(torch.nn.Module):
    """Predicts noise from latents [B, T, E], a timestep [B] and a text [B, N, E] with its mask [B, N]."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(
        self,
        hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_attention_mask: torch.Tensor,
    ) -> torch.Tensor:
        text = (encoder_hidden_states * encoder_attention_mask[..., None]).mean(1, keepdim=True)
        return self.linear(hidden_states + text) * torch.cos(timestep / 1000)[:, None, None]


def small_llama() -> Any:
    """A Llama of one block whose heads eight devices divide."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=8
    )
    return LlamaForCausalLM(config).eval()


def clip_pipeline() -> Any:
    """The pipeline of the HunyuanVideo recipe."""
    from recipes.hunyuan_video import tiny

    pipe: Any = tiny.load_pipeline()
    pipe.set_progress_bar_config(disable=True)
    return pipe


def flux_pipeline() -> Any:
    """The pipeline of the Flux recipe."""
    from recipes.flux import tiny

    pipe: Any = tiny.build_pipeline()
    pipe.set_progress_bar_config(disable=True)
    return pipe


def write_lora(directory: Path) -> None:
    """Write weights of LoRA for the Flux recipe's transformer."""
    from peft import LoraConfig
    from peft.utils import get_peft_model_state_dict

    pipe = flux_pipeline()
    modules = ["to_q", "to_v", "to_out.0"]
    pipe.transformer.add_adapter(LoraConfig(r=2, init_lora_weights=False, target_modules=modules))
    pipe.save_lora_weights(directory / "path/to/lora", get_peft_model_state_dict(pipe.transformer))


def write_checkpoint(directory: Path) -> None:
    """Write the first block of the Llama recipe's model, with its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(ROOT / "recipes/llama/checkpoint", num_hidden_layers=1)
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(ROOT / "recipes/llama/checkpoint").save_pretrained(directory)


def common(directory: Path) -> Names:
    """What the pages about language models begin with: a tokenizer, its tokens, a mesh of eight devices."""
    tokenizer = AutoTokenizer.from_pretrained(directory / "path/to/checkpoint", padding_side="left")
    texts = ["The harbour", "To port a model"]
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    return {
        "tpuport": tpuport, "torch": torch, "AutoModelForCausalLM": AutoModelForCausalLM, "tokenizer": tokenizer,
        "texts": texts, "directory": "path/to/checkpoint", **encoded, "mesh": tpuport.create_mesh(tp=4, dp=2),
        "inputs": dict(encoded),
    }  # fmt: skip


def attention(_: Path) -> Names:
    return {
        "step": tpuport.compile(lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x)),
        "latents": torch.randn(1, 2, 16, 8),
        "transformer": DiTTransformer2DModel(1, 8, num_layers=1, norm_num_groups=1),
        "x": torch.tensor([[1, 2, 3]]),
    }


def rotary(_: Path) -> Names:
    transformer = LTXVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=4, attention_head_dim=12, cross_attention_dim=48,
        num_layers=1, caption_channels=8,
    )  # fmt: skip
    inputs = {
        "hidden_states": torch.randn(2, 24, 4), "encoder_hidden_states": torch.randn(2, 5, 8),
        "timestep": torch.tensor([7.0, 3.0]), "encoder_attention_mask": torch.ones(2, 5),
        "num_frames": 2, "height": 4, "width": 3,
    }  # fmt: skip
    return {"transformer": transformer.eval(), "inputs": inputs, "example_inputs": inputs}


def described_transformer(_: Path) -> Names:
    """The transformer of the HunyuanVideo recipe by its config, and inputs of a call without values."""
    from diffusers import HunyuanVideo15Transformer3DModel

    loaded = dict(clip_pipeline().transformer.config)
    config = {name: value for name, value in loaded.items() if not name.startswith("_")}
    meta = functools.partial(torch.empty, dtype=torch.bfloat16, device="meta")
    inputs = {
        "hidden_states": meta(1, config["in_channels"], 3, 8, 8),
        "timestep": meta(1),
        "encoder_hidden_states": meta(1, 16, config["text_embed_dim"]),
        "encoder_attention_mask": meta(1, 16),
        "encoder_hidden_states_2": meta(1, 8, config["text_embed_2_dim"]),
        "encoder_attention_mask_2": meta(1, 8),
        "image_embeds": torch.zeros(1, 8, config["image_embed_dim"], dtype=torch.bfloat16),
    }
    return {
        "Model": HunyuanVideo15Transformer3DModel,
        "HunyuanVideo15Transformer3DModel": HunyuanVideo15Transformer3DModel,
        "config": config,
        "inputs": inputs,
    }


def diffusion(directory: Path) -> Names:
    write_lora(directory)
    text = {name: torch.randn(1, 3, 8) for name in ("text", "no_text")}
    masks = {name: torch.ones(1, 3) for name in ("text_mask", "no_text_mask")}
    names = {
        "clip_pipeline": clip_pipeline, "flux_pipeline": flux_pipeline, "prompt": "a red circle",
        "denoiser": tpuport.port(Denoiser()), "scheduler": FlowMatchEulerDiscreteScheduler(),
        "noise": torch.randn(1, 4, 8),
    }  # fmt: skip
    return names | text | masks | described_transformer(directory)


def quantization(directory: Path) -> Names:
    (directory / "path/to/directory").mkdir()
    abuse_formats.write_gguf(directory / "path/to/directory")
    written = directory / "path/to/directory" / abuse_formats.FILE
    written.rename(written.with_name("model-Q4_K_M.gguf"))
    return {}


def own_model(_: Path) -> Names:
    """What the recipe's page calls its GPT, and a step of its diffusion transformer."""
    from recipes.own_model.after import dit, gpt
    from recipes.own_model.train import encode

    config = gpt.GPTConfig()
    reference = gpt.GPT(config).eval()
    prompts = [encode("the"), encode("a")]
    return {
        "copy": copy, "functools": functools, "config": config, "KVCache": gpt.KVCache, "prompts": prompts,
        "model": tpuport.port(copy.deepcopy(reference)), "reference": reference,
        "inputs": (torch.tensor([prompts[0]]),), "guided_step": dit.guided_step,
    }  # fmt: skip


def suggested_split(names: Names, printed: str, directory: Path) -> None:
    assert names["report"].fits
    assert names["suggestion"].best is not None


def same_text(names: Names, printed: str, directory: Path) -> None:
    assert names["tokens"].shape == (2, names["input_ids"].shape[1] + 24)


def same_logits(names: Names, printed: str, directory: Path) -> None:
    again = AutoModelForCausalLM.from_pretrained(directory / "path/to/copy")
    torch.testing.assert_close(again(names["input_ids"]).logits, names["model"](names["input_ids"]).logits)
    assert type(names["best"]) is torch.Tensor
    assert not torch.equal(names["first"], names["second"])
    assert torch.equal(names["first"], names["again"])


def tied_rows(names: Names, printed: str, directory: Path) -> None:
    assert re.search(r"lm_head\\.weight\|model\\.embed_tokens\\.weight +2 .* P\(None, None\)", printed)


def nothing_more(names: Names, printed: str, directory: Path) -> None:
    """Where it is enough that the blocks run."""


def training(_: Path) -> Names:
    """A small language model, and batches of one text."""
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    ids = torch.arange(12).reshape(1, 12)
    loader = [{"input_ids": ids, "labels": ids}] * 20
    return {"model": LlamaForCausalLM(config), "loader": loader, "first": math.log(16)}


def has_learnt(names: Names, printed: str, directory: Path) -> None:
    assert names["loss"].item() < names["first"] - 0.2


class Reader(NamedTuple):
    """A page's reader.

    Attributes:
        names: makes what the blocks use and do not define, from the directory in which they run.
        smaller: parts of the page's code, as regular expressions, and what runs in their place.
        slow: a part of the first block that only `make test-all` runs, with those after it. Of these the default
            tests look up the names, and the tests of the rooms make the calls.
        then: what has to hold at the end, for the names, what was printed, and the directory.
    """

    names: Callable[[Path], Names] = lambda _: {}
    smaller: tuple[tuple[str, str], ...] = ()
    slow: str = ""
    then: Callable[[Names, str, Path], None] = nothing_more


_FEWER_TOKENS = (r"max_new_tokens=\d{2,}", "max_new_tokens=24")
_CLIP = "height=32, width=32, num_frames=5, num_inference_steps=2"
_FIRST = "import tpuport.auto"
_TINY_LLAMA = (
    r"LlamaConfig\(\)",
    "LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=8)",
)

READERS = {
    "README.md": Reader(
        lambda _: {"clip_pipeline": clip_pipeline, "MyModule": Linear, "x": torch.ones(2, 4)},
        (
            _FEWER_TOKENS, (r"DiffusionPipeline\.from_pretrained\(.*\)", "clip_pipeline()"),
            (r'"a lighthouse at dusk"', f'"red circle left", {_CLIP}'),
        ),
        slow="DiffusionPipeline",
    ),
    # Its block makes the calls of the README's.
    "docs/index.md": Reader(smaller=(_FEWER_TOKENS,), slow=_FIRST),
    "docs/attention.md": Reader(attention),
    "docs/train.md": Reader(training, then=has_learnt),
    "docs/check.md": Reader(
        smaller=((r"from my_research.model import", "from tests.docs.readers import Tokens as"),)
    ),
    "docs/compat.md": Reader(
        lambda _: {"model": tpuport.port(torch.nn.Embedding(3, 2)), "ids": torch.tensor([0, 1])}
    ),
    "docs/compile.md": Reader(
        lambda _: {"model": small_llama(), "pipe": clip_pipeline()},
        ((r"from my_research.model import", "from tests.docs.readers import Tower as"), _TINY_LLAMA),
        slow="scan_layers",
        then=suggested_split,
    ),
    "docs/compiled-functions.md": Reader(
        smaller=((r"range\(64\)", "range(4)"),), slow=_FIRST, then=same_logits
    ),
    "docs/diffusion.md": Reader(
        diffusion,
        (
            (r"HunyuanVideo15Pipeline\.from_pretrained\(.*\)", "clip_pipeline()"),
            (r'left", num_inference_steps=50', f'left", {_CLIP}'),
            (r"tpuport.port\(pipe\)\npipe.load", "pipe = tpuport.port(flux_pipeline())\npipe.load"),
            (r"pipe\(prompt, ", "pipe(prompt, height=32, width=32, num_inference_steps=2, max_sequence_length=16, "),
            (r"pipe\.transformer,\n    pipe\.scheduler", "denoiser,\n    scheduler"),
            (r"num_inference_steps=50,\n", "num_inference_steps=2,\n"),
        ),
        slow=_FIRST,
    ),
    "docs/generate.md": Reader(smaller=(_FEWER_TOKENS,), slow="import tpuport.auto", then=same_text),
    "docs/habits.md": Reader(lambda _: {"Model": Linear, "x": torch.randn(2, 4)}),
    "docs/hunyuan-video-v6e.md": Reader(described_transformer, slow="compile_for"),
    "docs/lint.md": Reader(
        lambda _: {"x": torch.ones(3), "mask": torch.tensor([True, False, True]), "tokens": torch.zeros(2)}
    ),
    "docs/quantization.md": Reader(
        quantization,
        # The weights of the tiny Llama do not divide by as many.
        (
            _FEWER_TOKENS, (r"model = (?=tpuport\.load\(\n)", "_ = "),
            (r"create_mesh\(tp=8\)", "create_mesh(dp=4, tp=2)"),
        ),
    ),
    "docs/rotary.md": Reader(rotary),
    "docs/sharding.md": Reader(then=tied_rows),
    "docs/time.md": Reader(smaller=(_TINY_LLAMA,)),
    "recipes/attention/README.md": Reader(lambda _: {"sequence": "ring", "model": small_llama()}),
    "recipes/hunyuan_video/README.md": Reader(
        lambda _: {"pipe": clip_pipeline(), "prompts": ["red circle left"]},
        ((r"height=480, width=848, num_frames=121, num_inference_steps=50", _CLIP),),
        slow=_FIRST,
    ),
    "recipes/llama/README.md": Reader(
        lambda directory: {"reference": LlamaForCausalLM.from_pretrained(directory / "path/to/checkpoint")},
        (_FEWER_TOKENS, (r"torch\.bfloat16", "torch.float32")),
    ),
    "recipes/own_model/README.md": Reader(own_model, (_FEWER_TOKENS,), slow="def forward"),
}  # fmt: skip
