"""Codes of images as tokens of the text, looked up on the device: Chameleon and Emu3
copy the codes to the host.
"""

from typing import Any

import torch


def chameleon_tokens(self: Any, img_batch: torch.Tensor) -> torch.Tensor:
    """Traced. `ChameleonImageVocabularyMapping.convert_img2bpe`: the token of each code
    [B, N].
    """
    return _look_up(self.img2bpe_mapping_tensor, img_batch)


def emu3_tokens(self: Any, img_batch: torch.Tensor) -> torch.Tensor:
    """Traced. `Emu3ImageVocabularyMapping.convert_img2bpe`: the token of each code
    [H, W], and the end of each row.
    """
    tokens = _look_up(self.img2bpe_mapping_tensor, img_batch)
    row_ends = torch.full_like(tokens[:, :1], self.eol_token_id)
    return torch.cat([tokens, row_ends], dim=-1)


def emu3_codes(self: Any, img_batch: torch.Tensor) -> torch.Tensor:
    """Traced. `Emu3ImageVocabularyMapping.convert_bpe2img`: the code of each token
    [B, H, W + 1], without row ends.
    """
    return _look_up(self.bpe2img_mapping_tensor, img_batch[..., :-1])


def _look_up(table: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return table.to(indices.device)[indices]
