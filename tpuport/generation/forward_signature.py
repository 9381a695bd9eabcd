"""Which arguments a model's forward takes, also where its signature does not name
them.
"""

import inspect
from typing import Any, Final

# transformers gives them to a forward that names them, and to no other.
_NAMED_OR_ABSENT: Final = frozenset({"position_ids", "logits_to_keep"})
_COLLECTING: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def forward_parameters(model: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a model's forward by name, without `*args` and `**kwargs`.

    In your own class derived from one of transformers, `**kwargs` stands for the mask
    and for what the forward takes that it overrides: transformers' `generate` passes
    both.
    """
    forward = inspect.signature(model.forward).parameters
    parameters = _without_collecting(forward)
    for cls in type(model).__mro__:
        if not _collects_names(forward) or _is_of_transformers(cls):
            break
        attention_mask = inspect.Parameter(
            "attention_mask", inspect.Parameter.KEYWORD_ONLY
        )
        parameters.setdefault("attention_mask", attention_mask)
        overridden = getattr(super(cls, model), "forward", None)
        if overridden is None:
            break
        forward = inspect.signature(overridden).parameters
        for name, parameter in _without_collecting(forward).items():
            if name not in _NAMED_OR_ABSENT:
                parameters.setdefault(name, parameter)
    return parameters


def _without_collecting(parameters: Any) -> dict[str, inspect.Parameter]:
    return {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind not in _COLLECTING
    }


def _collects_names(parameters: Any) -> bool:
    kinds = (parameter.kind for parameter in parameters.values())
    return inspect.Parameter.VAR_KEYWORD in kinds


def _is_of_transformers(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "transformers"
