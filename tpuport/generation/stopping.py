"""What the host looks at between compiled chunks: stopping criteria, stop strings, the streamer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import StoppingCriteriaList
from transformers.generation.stopping_criteria import MaxTimeCriteria, StopStringCriteria

from tpuport.errors import PortError
from tpuport.generation.options import Options


def criteria(options: Options, given: Any, tokenizer: Any) -> StoppingCriteriaList:
    """transformers' criteria for this call: the user's own, stop strings, max_time. Lengths and EOS are the loop's."""
    if not isinstance(given, Sequence | None) or any(not callable(one) for one in given or ()):
        raise PortError(
            "stopping_criteria is not a list of StoppingCriteria",
            where=f"stopping_criteria={given!r:.60}",
            fix="stopping_criteria=[criterion], each called with (input_ids, None)",
        )
    found = StoppingCriteriaList(list(given or []))
    if options.stop_strings:
        if tokenizer is None:
            raise PortError("stop strings need the tokenizer", where="stop_strings", fix="pass tokenizer=")
        found.append(StopStringCriteria(tokenizer, list(options.stop_strings)))
    if options.max_time is not None:
        found.append(MaxTimeCriteria(options.max_time))
    return found


def apply(
    stops: StoppingCriteriaList,
    tokens: np.ndarray,
    finished: np.ndarray,
    start: int,
    pad: int | None,
    eos: tuple[int, ...],
) -> tuple[np.ndarray, np.ndarray]:
    """Ask the criteria at every column from `start` on, as if the chunk had been generated token by token.

    Args:
        tokens: [B, N] prompt and output so far, without the bucket's padding.
        finished: [B], rows that had ended before column `start`.

    Returns:
        The tokens, cut at the column where the last row ended, with padding after the end of a row that ended in
        the chunk (only where there are EOS ids, as transformers does), and which rows have ended.
    """
    tokens, finished = tokens.copy(), finished.copy()
    for column in range(start, tokens.shape[1]):
        if eos and pad is not None:
            tokens[finished, column] = pad
        so_far: Any = torch.from_numpy(tokens[:, : column + 1].astype(np.int64))
        stop = stops(so_far, None).cpu().numpy() if stops else np.zeros(len(tokens), bool)
        finished |= stop | np.isin(tokens[:, column], eos)
        if finished.all():
            return tokens[:, : column + 1], finished
    return tokens, finished
