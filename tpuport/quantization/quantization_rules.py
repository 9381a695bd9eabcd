"""Which weights of a model are quantised, and how: regexes over parameter names, as
sharding rules are.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tpuport.base.mappings import names_of_each
from tpuport.errors import PortError
from tpuport.quantization.quantizable_modules import quantizable_weights
from tpuport.quantization.schemes import Scheme, as_scheme

# Small, or wrong by a little in every position: heads, routers, modulation and time
# embeddings, first and last layers, and adapters.
_EXCEPTIONS = re.compile(
    r"(^|\.)("
    r"lm_head|embed_out|output_projection|score|scores|classifier|qa_outputs|"
    r"router|gate|shared_expert_gate|"
    r"time_embed\w*|time_text_embed|timestep_embed\w*|condition_embedder|context_embedder|x_embedder|time_proj|"
    r"adaln\w*|adaLN\w*|modulation|img_mod|txt_mod|norm\w*|proj_out|final_layer|"
    r"lora_\w+"
    r")(\.|$)"
)


class QuantizationRules(Mapping[str, Any]):
    r"""An ordered map of regexes over parameter names to schemes; the first that
    matches a whole name decides.

    >>> rules = QuantizationRules(
    ...     {r".*\.mlp\..*": "int4", r".*\.self_attn\..*": "int8"}
    ... )

    A scheme is "int8", "int4" or "fp8", with a group size if wanted ("int4:64"), or
    None, which leaves a weight as it is. Weights that no rule matches stay as they are.
    Weights of `torch.nn.Linear` can be quantised, and those of transformers' experts.
    """

    def __init__(self, mapping: Mapping[str, Any]) -> None:
        if not isinstance(mapping, Mapping):
            raise PortError(
                f"{mapping!r:.60} is not a mapping from regexes to schemes",
                where="QuantizationRules",
                fix=r'QuantizationRules({r".*\.mlp\..*": "int8"})',
            )
        self._rules: dict[str, Scheme | None] = {}
        for pattern, scheme in mapping.items():
            self._rules[_checked_pattern(pattern)] = (
                None if scheme is None else as_scheme(scheme)
            )

    def __getitem__(self, pattern: str) -> Scheme | None:
        return self._rules[pattern]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def __repr__(self) -> str:
        names = {
            pattern: scheme and scheme.name for pattern, scheme in self._rules.items()
        }
        return f"QuantizationRules({names})"

    def schemes(self, model: torch.nn.Module) -> dict[str, Scheme]:
        """The scheme of each weight of `model` that these rules quantise, by its name.

        Raises:
            PortError: a rule matches no weight, or asks for a weight that cannot be
                quantised.
        """
        candidates = _candidates(model)
        schemes: dict[str, Scheme] = {}
        unused = set(self._rules)
        names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        for name in names:
            pattern = next(
                (pattern for pattern in self._rules if re.fullmatch(pattern, name)),
                None,
            )
            if pattern is None:
                continue
            scheme = self._rules[pattern]
            if name in candidates or scheme is None:
                unused.discard(pattern)
            if name in candidates and scheme is not None:
                schemes[name] = scheme
        if unused:
            raise PortError(
                f"no weight can follow the quantisation rule {', '.join(sorted(unused))}",
                where=type(model).__name__,
                fix="quantised are weights of torch.nn.Linear and of experts, by their whole names; an earlier rule "
                "that matches the same names decides first",
            )
        return schemes


class DefaultRules(QuantizationRules):
    """One scheme for every linear layer, except those that lose much and save
    little.
    """

    def __init__(self, scheme: Any) -> None:
        super().__init__({".*": scheme})

    def schemes(self, model: torch.nn.Module) -> dict[str, Scheme]:
        exceptions = _output_layers(model)
        chosen = super().schemes(model)
        return {
            name: scheme
            for name, scheme in chosen.items()
            if name not in exceptions and not _EXCEPTIONS.search(name)
        }


def as_quantization_rules(quantize: Any) -> QuantizationRules | None:
    """Rules from what a user passes as `quantize`: rules, a scheme's name, or None.

    Raises:
        PortError: it is none of these.
    """
    if quantize is None or isinstance(quantize, QuantizationRules):
        return quantize
    if isinstance(quantize, Mapping):
        return QuantizationRules(quantize)
    return DefaultRules(quantize)


def _candidates(model: torch.nn.Module) -> frozenset[str]:
    """The names of the weights of `model` that can be quantised."""
    return frozenset(
        f"{path}.{name}" if path else name
        for path, module in model.named_modules(remove_duplicate=False)
        for name in quantizable_weights(module)
    )


def _output_layers(model: Any) -> set[str]:
    """The names of the weights that give a language model's logits, and of those that
    share memory with others.
    """
    tensors = dict(model.named_parameters(remove_duplicate=False))
    tied = [group for group in names_of_each(tensors.items()) if len(group) > 1]
    names = set(itertools.chain.from_iterable(tied))
    head = (
        model.get_output_embeddings()
        if hasattr(model, "get_output_embeddings")
        else None
    )
    if isinstance(head, torch.nn.Module):
        heads = set(map(id, head.parameters()))
        names.update(name for name, tensor in tensors.items() if id(tensor) in heads)
    return names


def _checked_pattern(pattern: Any) -> str:
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise PortError(
            f"{pattern!r:.60} is not a regular expression: {error}",
            where="QuantizationRules",
        ) from None
    return pattern
