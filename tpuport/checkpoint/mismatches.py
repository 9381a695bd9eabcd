"""What is wrong between a checkpoint and a model, all of it, before a weight is read."""

import logging
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from tpuport.checkpoint.device_layout import find_owner, parameter_groups
from tpuport.checkpoint.matching import Match, held, same_contents
from tpuport.errors import PortError

_logger = logging.getLogger("tpuport")

# Names listed in an error before the rest is only counted.
_LISTED = 100


def misfits(model: Any, match: Match, allow: Iterable[str]) -> list[str]:
    """One line for each kind of thing in which the checkpoint's tensors are not those of the model."""
    expected = model.state_dict()
    _untie(model, match)
    missing = [name for name in _absent(model, match) if not _may_be_absent(model, name)]
    unexpected = [
        name for name in match.unexpected if not any(name == one or fnmatchcase(name, one) for one in allow)
    ]
    if allowed := sorted(set(match.unexpected) - set(unexpected)):
        _logger.info("tensors that were allowed to go unused: %s", ", ".join(allowed))
    misshapen = [
        f"{name}: {list(source.shape)} in the checkpoint, {list(expected[name].shape)} in the model"
        for name, source in match.sources.items()
        if tuple(source.shape) != tuple(expected[name].shape)
    ]
    kinds = {
        "missing tensors": missing,
        "unexpected tensors": unexpected,
        "wrongly shaped tensors": misshapen,
    }
    lines = [_listing(kind, names) for kind, names in kinds.items() if names]
    return [*match.problems, *lines]


def _listing(kind: str, names: list[str]) -> str:
    more = f"\n    and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    kind = kind.removesuffix("s") if len(names) == 1 else kind
    return f"{len(names)} {kind}:" + "".join(f"\n    {name}" for name in names[:_LISTED]) + more


def raise_problems(directory: Path, problems: list[str]) -> None:
    """Raise one PortError that lists `problems`, if there are any."""
    if problems:
        count = len(problems)
        what = f"the checkpoint cannot be loaded, for {'one reason' if count == 1 else f'{count} reasons'}:"
        raise PortError(
            "\n".join([what, *(f"  - {problem}" for problem in problems)]),
            where=str(directory),
            fix="check that the model class is the one that was saved and that every file was copied whole; "
            "a tensor that may go unused is allowed by its name, allow=('lm_head.weight',)",
        )


def _untie(model: Any, match: Match) -> None:
    """Part weights that the model ties and of which the checkpoint has two values, as transformers does."""
    for names in parameter_groups(model):
        present = [name for name in names if name in match.sources]
        for name in present[1:]:
            if same_contents(match.sources[present[0]], match.sources[name]):
                del match.sources[name]
                continue
            _logger.warning(
                "%s and %s are tied in the model and differ in the checkpoint: untied", present[0], name
            )
            module, leaf = find_owner(model, name)
            own = model.get_parameter(name).detach()
            module._parameters[leaf] = torch.nn.Parameter(own, requires_grad=False)
            getattr(model, "all_tied_weights_keys", {}).pop(name, None)


def _absent(model: Any, match: Match) -> list[str]:
    """Names of parameters and saved buffers that the checkpoint gives no value, one name for tied weights."""
    found = match.sources.keys() | match.unknown
    parameters = dict(model.named_parameters(remove_duplicate=False))
    absent = [names[0] for names in parameter_groups(model) if not found.intersection(names)]
    return absent + [name for name in model.state_dict() if name not in parameters and name not in found]


def _may_be_absent(model: Any, name: str) -> bool:
    patterns = getattr(model, "_keys_to_ignore_on_load_missing", None) or ()
    return any(re.search(pattern, name) for pattern in patterns)


def initialise_absent(model: Any, match: Match) -> None:
    """Give parameters that the model's own list lets be absent the values that its constructor gives them."""
    absent = [name for name in _absent(model, match) if model.state_dict()[name].is_meta]
    if not absent:
        return
    _logger.info("not in the checkpoint, initialised as the model does: %s", ", ".join(absent))
    for name, parameter in model.named_parameters():
        parameter._is_hf_initialized = name not in absent  # what initialize_weights goes by
    for names in parameter_groups(model):
        if names[0] not in absent:
            continue
        empty = torch.empty_like(model.get_parameter(names[0]), device="cpu")
        parameter = torch.nn.Parameter(empty, requires_grad=False)
        for module, leaf in (find_owner(model, name) for name in names):
            module._parameters[leaf] = parameter
            module._is_hf_initialized = False
    model.initialize_weights()
    for name in absent:
        match.sources[name] = held(model.get_parameter(name))
