"""Calls of `tpuport.generate` as they must not be: tokens, masks, criteria and options of every wrong kind.

    python -m benchmarks.abuse_generate [--only NAME]

Each case calls `generate` for a tiny Llama, and transformers' own for the same model. Right is a single PortError, or
the tokens that transformers gives. Where transformers cannot be called so, a result is right if it is that of ordinary
tokens: lists and arrays of NumPy are taken, for example. The exit status is 1 if any case is not right.
"""

import copy
import math
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, StoppingCriteria, StoppingCriteriaList

import tpuport
from benchmarks.abuse import run
from tpuport.errors import PortError

VOCABULARY = 64
NEW = {"max_new_tokens": 3}
SAMPLED = ("temperature", "top_k", "top_p", "min_p", "typical_p", "seed")
OPTIONS = (
    "max_new_tokens", "max_length", "min_length", "min_new_tokens", "num_beams", "num_return_sequences", "temperature",
    "top_k", "top_p", "min_p", "repetition_penalty", "do_sample", "eos_token_id", "pad_token_id", "bos_token_id",
    "length_penalty", "early_stopping", "no_repeat_ngram_size", "bad_words_ids", "prefill_chunk_size", "kv_cache",
    "guidance_scale", "typical_p", "num_beam_groups", "renormalize_logits", "streamer", "generation_config",
    "logits_processor", "prefix_allowed_tokens_fn", "suppress_tokens", "forced_eos_token_id", "seed",
)  # fmt: skip
ODD: Final[Mapping[str, Any]] = {
    "-1": -1, "0": 0, "1.5": 1.5, "a word": "x", "None": None, "NaN": math.nan, "infinity": math.inf,
    "minus infinity": -math.inf, "True": True, "[]": [], "{}": {}, "[3]": [3], "10**12": 10**12, "-10**12": -(10**12),
    "a scalar": torch.tensor(3), "a vector": torch.tensor([1, 2]), "1j": 1j, "bytes": b"x", "an object": object(),
}  # fmt: skip


class Case(NamedTuple):
    """A call of `generate`."""

    name: str
    ids: Any
    options: dict[str, Any]


class Failing(StoppingCriteria):
    """A criterion with an error in it."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        raise RuntimeError("out of luck")


class Answering(StoppingCriteria):
    """A criterion that always gives the same answer."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.answer


def build() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).eval()


def ordinary_ids() -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (2, 5), generator=torch.Generator().manual_seed(0))


def _nested(rows: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor([rows[0], rows[1, :3]])


def _quantized(values: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(values.float(), 1.0, 0, torch.qint8)


def _ids_cases(ids: torch.Tensor) -> Iterator[Case]:
    kinds = (
        "uint8",
        "uint16",
        "uint64",
        "int8",
        "int16",
        "int32",
        "float32",
        "float16",
        "bfloat16",
        "complex64",
        "bool",
    )
    values: dict[str, Any] = {kind: ids.to(getattr(torch, kind)) for kind in kinds}
    values |= {
        "meta": ids.to("meta"), "sparse": ids.to_sparse(), "sparse rows": ids.to_sparse_csr(), "nested": _nested(ids),
        "quantised": _quantized(ids), "negative": -ids, "too large": ids + VOCABULARY,
        "huge": torch.full((2, 5), 2**62),
        "a list": ids.tolist(), "NumPy": ids.numpy(), "None": None, "text": "abc",
        "a vector": ids[0], "a cube": ids[None],
        "a scalar": ids[0, 0], "no columns": ids[:, :0], "no rows": ids[:0], "nothing": torch.empty(0),
        "a tuple": (ids,), "a dictionary": {"input_ids": ids}, "a number": 3, "an object": object(),
        "expanded": ids[:1].expand(2, 5),
    }  # fmt: skip
    for name, value in values.items():
        yield Case(f"ids: {name}", value, NEW)


def _mask_cases(ids: torch.Tensor) -> Iterator[Case]:
    mask = torch.ones_like(ids)
    kinds = ("uint8", "uint64", "float32", "float16", "bfloat16", "complex64", "bool")
    values: dict[str, Any] = {kind: mask.to(getattr(torch, kind)) for kind in kinds}
    values |= {
        "NaN": torch.full((2, 5), math.nan), "infinity": torch.full((2, 5), math.inf), "halves": mask * 0.5,
        "twos": mask * 2, "negative": -mask, "zeros": mask * 0, "short": mask[:, :4], "long": torch.ones(2, 6),
        "a vector": mask[0], "a cube": mask[None], "of attention": mask[:, None, None], "a list": mask.tolist(),
        "text": "x", "meta": mask.to("meta"), "sparse": mask.to_sparse(), "a number": 1, "one row": mask[:1],
        "quantised": _quantized(mask), "nested": _nested(mask.float()),
        "holes": torch.tensor([[1, 0, 1, 1, 1], [1, 1, 1, 1, 1]]),
        "on the right": torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]),
    }  # fmt: skip
    for name, value in values.items():
        yield Case(f"mask: {name}", ids, {"attention_mask": value, **NEW})


def _criteria_cases(ids: torch.Tensor) -> Iterator[Case]:
    answers: dict[str, Any] = {
        "None": None, "True": True, "a number": 3, "floats": torch.zeros(2), "three rows": torch.zeros(3).bool(),
        "a scalar": torch.tensor(True), "a matrix": torch.zeros(2, 1).bool(), "text": "x", "a list": [True, False],
        "meta": torch.zeros(2, dtype=torch.bool, device="meta"), "NumPy": np.zeros(2, bool),
        "booleans": torch.zeros(2).bool(),
    }  # fmt: skip
    criteria = {name: Answering(answer) for name, answer in answers.items()}
    for name, criterion in {"an error": Failing(), **criteria}.items():
        yield Case(f"criteria: {name}", ids, {"stopping_criteria": StoppingCriteriaList([criterion]), **NEW})
    for value in ("x", 3, [3], Failing, [Failing]):
        yield Case(f"criteria: {value!r:.40} itself", ids, {"stopping_criteria": value, **NEW})


def cases() -> Iterator[Case]:
    """All calls, in an order that does not change."""
    ids = ordinary_ids()
    yield from _ids_cases(ids)
    yield from _mask_cases(ids)
    yield from _criteria_cases(ids)
    for option in OPTIONS:
        for name, value in ODD.items():
            sampling = {"do_sample": True} if option in SAMPLED else {}
            yield Case(f"{option}: {name}", ids, {**NEW, **sampling, option: value})


def outcome(case: Case, reference: Any, ported: Any) -> str:
    """What became of a case: "right", or what is wrong with it."""
    try:
        tokens: Any = tpuport.generate(ported, case.ids, **case.options)
    except PortError:
        return "right"
    except BaseException as error:  # noqa: BLE001 - the point is to see every one
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"raw {type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {str(error)[:100]}"
    if case.options.get("do_sample"):
        return "right"
    try:
        with torch.no_grad():
            expected = reference.generate(case.ids, **case.options)
    except Exception:  # noqa: BLE001 - what transformers does not take is compared with ordinary tokens
        with torch.no_grad():
            expected = reference.generate(ordinary_ids(), **NEW)
        kind = case.name.partition(":")[0]
        if kind not in ("ids", "mask"):
            return "right"
    return (
        "right" if torch.equal(tokens.cpu().long(), expected.long()) else f"other tokens: {tokens.tolist()}"
    )


def main() -> None:
    reference = build()
    ported = tpuport.port(copy.deepcopy(reference))
    run(__doc__, cases(), lambda case: outcome(case, reference, ported))


if __name__ == "__main__":
    main()
