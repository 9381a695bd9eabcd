"""Embeddings of prompts, padded to a bucket: prompts of other lengths then run the same program."""

from typing import Any

import torch

BUCKET = 64  # tokens


def pad_texts(pipeline: Any, prompts: list[str], negative_prompt: str) -> dict[str, torch.Tensor]:
    """Embeddings and masks of the prompts and of the negative prompt, by the names of the pipeline's arguments."""
    texts: dict[str, torch.Tensor] = {}
    for prefix, batch in (("", prompts), ("negative_", [negative_prompt] * len(prompts))):
        embeddings, mask = pipeline.encode_prompt(batch)
        if mask is None:  # diffusers leaves out a mask of ones
            mask = torch.ones(embeddings.shape[:2], dtype=torch.long)
        # At least one token of padding, because a batch without any would run without a mask: another program.
        padding = BUCKET - embeddings.shape[1] % BUCKET
        texts[f"{prefix}prompt_embeds"] = torch.nn.functional.pad(embeddings, (0, 0, 0, padding))
        texts[f"{prefix}prompt_embeds_mask"] = torch.nn.functional.pad(mask, (0, padding))
    return texts
