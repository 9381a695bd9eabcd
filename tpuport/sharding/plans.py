"""Sharding rules from a model's own tensor-parallel plan.

transformers keeps a plan on the configuration and the classes (`model.tp_plan`, and
`model.ep_plan` for experts), diffusers on the class (`_tp_plan`); both map module or
parameter names to styles. Most classes of diffusers have none, and theirs is derived
from their structure (`sharding.diffusers_plans`). Decisions made here:

- Experts are divided whole (dimension 0) whatever the plan cuts inside them: their
  fused gate and up matrices cannot be cut over the intermediate width without moving
  activations between devices.
- The embedding and the head are cut over the vocabulary, so that the residual stream
  stays replicated. A vocabulary that the mesh does not divide is replicated with a
  warning.
- Attention weights record how many heads they hold, so that no mesh axis cuts through a
  head. In a Llama layer with 2 key/value heads on 8 devices that saves 3 all-to-alls, 4
  all-gathers and 4 permutes.
- Tied weights share one rule.
- A model without a plan takes one from `FAMILY_PLANS`, or is replicated with a warning.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import gcd
from typing import Any, NamedTuple

from jax.sharding import PartitionSpec

from tpuport.errors import PortError
from tpuport.internals.transformers_internals import expert_plan
from tpuport.libraries.family_plans import FAMILY_PLANS
from tpuport.libraries.library_classes import positive_attribute
from tpuport.sharding.diffusers_plans import diffusers_plan
from tpuport.sharding.specs import Rule, format_spec
from tpuport.sharding.styles import Cut, plan_regex, style_cut, weight_spec

logger = logging.getLogger("tpuport")

# What attention modules call their number of heads ("heads" in diffusers), and a head's
# size.
_HEADS = ("num_heads", "num_attention_heads", "heads")
_HEAD_DIM = ("head_dim", "head_size")

# What PEFT calls a layer inside the adapter that takes its place.
_WRAPPED = ".base_layer"


class PlanEntry(NamedTuple):
    """One line of a plan, compiled. The regex matches the module or parameter that the
    key names.
    """

    key: str
    regex: re.Pattern[str]
    cut: Cut


class Choice(NamedTuple):
    """What was decided for one parameter, which becomes part of a `Rule`."""

    pattern: str
    spec: PartitionSpec
    heads: int  # 0 if the weight has none
    optional: bool = False


@dataclass
class _Group:
    """Parameters whose choices have the same pattern and spec."""

    choices: list[Choice] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


def tensor_parallel_plan(model: Any) -> dict[str, Any]:
    """The plan of a transformers or diffusers model, with names relative to the model.

    Later sources win: the family's plan, the expert-parallel plan, the tensor-parallel
    plan.
    """
    # The plan for a diffusers class contains that of the class, and modulation besides.
    own_plan = diffusers_plan(model) or getattr(model, "tp_plan", None) or {}
    return {**_family_plan(model), **expert_plan(model), **own_plan}


def _family_plan(model: Any) -> dict[str, str]:
    config = getattr(model, "config", None)
    plan = FAMILY_PLANS.get(getattr(config, "model_type", ""), {})
    # Keys are relative to the base model, which a model with a head has under a name.
    base = getattr(model, "base_model", model)
    prefix = "" if base is model else f"{model.base_model_prefix}."
    return {prefix + key: style for key, style in plan.items()}


def compile_plan(plan: dict[str, Any]) -> list[PlanEntry]:
    """The plan's keys as regexes and its styles as cuts; PortError for a style that
    tpuport does not know.
    """
    return [
        PlanEntry(key, re.compile(plan_regex(key)), style_cut(style, key))
        for key, style in plan.items()
    ]


def rules_from_model(model: Any) -> list[Rule]:
    """One rule for each plan entry and kind of weight that the model really has, in the
    model's order.

    Raises:
        PortError: not a torch module, or a plan with a style that tpuport does not
            know.
    """
    class_name = type(model).__name__
    if not hasattr(model, "named_parameters"):
        raise PortError(
            f"rules are derived from a torch module, and this is a {class_name}",
            fix="pass the model itself; of a pipeline, pass the part to shard, such as pipe.transformer",
        )
    plan = tensor_parallel_plan(model)
    derivation = _Derivation(model, compile_plan(plan))
    rules = derivation.derive_rules()
    if not plan:
        effect = "its weights are replicated on every device"
        if rules:
            effect = "only its embeddings are sharded"
        logger.warning(
            "%s has no tensor-parallel plan, and tpuport has none for its family: %s; "
            "ShardingRules.infer(model, inputs) derives rules from its code",
            class_name,
            effect,
        )
    for key in derivation.unused:
        logger.info("plan entry %r matches no weight of this %s", key, class_name)
    return rules


class _Derivation:
    """One pass over a model's parameters, which may be on the meta device."""

    def __init__(self, model: Any, entries: list[PlanEntry]) -> None:
        self.entries = entries
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.parameters: dict[int, Any] = {}
        self.names: defaultdict[int, list[str]] = defaultdict(list)
        # Imported late: it needs torch, which has been imported where there is a model.
        from tpuport.quantization import quantized_weights

        quantized = ((name, weight) for name, _, _, weight in quantized_weights(model))
        for name, parameter in itertools.chain(
            model.named_parameters(remove_duplicate=False), quantized
        ):
            self.parameters[id(parameter)] = parameter
            self.names[id(parameter)].append(name)
        self.vocabulary = set(_vocabulary_modules(model))
        self.config = getattr(model, "config", None)
        # Entries that concern weights and have matched none so far, by their key.
        self.unused = {
            entry.key: entry for entry in entries if entry.cut is not Cut.MODULE
        }

    def derive_rules(self) -> list[Rule]:
        groups: defaultdict[tuple[str, PartitionSpec], _Group] = defaultdict(_Group)
        for key, names in self.names.items():
            choice = self._choose_tied(names, tuple(self.parameters[key].shape))
            if choice is not None:
                group = groups[choice.pattern, choice.spec]
                group.choices.append(choice)
                group.names += names
        specs_by_pattern = Counter(pattern for pattern, _ in groups)
        rules = []
        for (pattern, spec), group in groups.items():
            if specs_by_pattern[pattern] > 1:
                # Layers that differ in rank cannot share a pattern, so each is listed
                # by its full name.
                pattern = "|".join(map(re.escape, group.names))
            # Weights without heads, which have 0, leave the others' common divisor.
            heads = gcd(*(choice.heads for choice in group.choices)) or None
            optional = all(choice.optional for choice in group.choices)
            rules.append(Rule(pattern, spec, heads, optional))
        return rules

    def _choose_tied(self, names: list[str], shape: tuple[int, ...]) -> Choice | None:
        """One choice for all names of a tied weight: a sharded spec wins over a
        replicated one.
        """
        choices = {name: self._choose(name, shape) for name in names}
        candidates = [choice for choice in choices.values() if choice is not None]
        if not candidates:
            return None
        best = max(candidates, key=lambda choice: any(choice.spec))
        if {choice.spec for choice in candidates} != {best.spec}:
            logger.info(
                "%s are tied: all take %s", " and ".join(names), format_spec(best.spec)
            )
        # A name without a choice of its own follows the others, by its full name.
        patterns = {
            getattr(choice, "pattern", re.escape(name)): None
            for name, choice in choices.items()
        }
        pattern = "|".join(patterns)
        if len(patterns) > 1:
            pattern = f"(?:{pattern})"
        return best._replace(
            pattern=pattern, optional=any(choice.optional for choice in candidates)
        )

    def _choose(self, name: str, shape: tuple[int, ...]) -> Choice | None:
        owner_name, _, leaf = name.rpartition(".")
        owner = self.modules[owner_name]
        leaf_regex = re.escape(f".{leaf}")
        # Looked up before anything else decides, so that an entry of this name always
        # counts as used.
        entry = self._find_entry(name)
        if id(owner) in self.vocabulary:
            self._find_entry(owner_name)
            return Choice(
                re.escape(name), weight_spec(Cut.FIRST, shape), 0, optional=True
            )
        experts = self._find_entry(owner_name, Cut.EXPERTS)
        if experts is not None:
            return Choice(
                experts.regex.pattern + leaf_regex, weight_spec(Cut.EXPERTS, shape), 0
            )
        path, suffix = name, ""
        if entry is None:
            # What an adapter has wrapped is sharded as without the adapter.
            path = owner_name.removesuffix(_WRAPPED)
            entry = self._find_entry(path)
            suffix = re.escape(owner_name.removeprefix(path)) + leaf_regex
            if entry is None or entry.cut is Cut.MODULE:
                return None
        spec = weight_spec(
            entry.cut,
            shape,
            transposed=type(owner).__name__ == "Conv1D",
            convolution=hasattr(owner, "kernel_size"),
        )
        return Choice(
            entry.regex.pattern + suffix,
            spec,
            self._count_heads(entry.cut, path, shape),
        )

    def _find_entry(self, name: str, cut: Cut | None = None) -> PlanEntry | None:
        """The first entry that matches a name, of this cut if one is passed; it counts
        as used from now on.
        """
        for entry in self.entries:
            if cut in (None, entry.cut) and entry.regex.fullmatch(name):
                self.unused.pop(entry.key, None)
                return entry
        return None

    def _count_heads(self, cut: Cut, path: str, shape: tuple[int, ...]) -> int:
        """How many heads the cut dimension holds; 0 if this is not a projection of an
        attention module.
        """
        attention = self._attention_above(path)
        if attention is None or cut not in (Cut.COLUMNS, Cut.ROWS) or not shape:
            return 0
        # The output features of a matrix, or the only dimension of a bias.
        width = shape[-2:][0]
        if cut is Cut.ROWS:
            width = shape[-1]
        config = getattr(attention, "config", self.config)
        heads = (
            positive_attribute(attention, _HEADS)
            or positive_attribute(config, ("num_attention_heads",))
            or 0
        )
        head_dim = positive_attribute(attention, _HEAD_DIM)
        inner_dim = positive_attribute(attention, ("inner_dim",))
        if head_dim is None and heads and inner_dim:
            # In diffusers the heads of keys may be fewer than `heads`, and only the
            # width of the weight shows it.
            head_dim = inner_dim // heads
        if head_dim and width % head_dim == 0:
            width_heads = width // head_dim
            if width_heads > heads:
                # A fused projection, which divides only where its parts do; gcd(n, 0)
                # is n, if no number is known.
                return gcd(width_heads, heads)
            return width_heads
        if heads and width % heads == 0:
            return heads
        return 0

    def _attention_above(self, path: str) -> Any:
        """The attention module that a projection belongs to: its parent, or the
        parent's parent.
        """
        for _ in range(2):
            path = path.rpartition(".")[0]
            module = self.modules[path]
            if path and _has_heads(module):
                # A block may repeat the numbers of the attention inside it; its other
                # weights hold no heads.
                if any(map(_has_heads, module.children())):
                    return None
                return module
        return None


def _has_heads(module: Any) -> bool:
    return positive_attribute(module, (*_HEAD_DIM, *_HEADS)) is not None


def _vocabulary_modules(model: Any) -> Iterator[int]:
    """The ids of the modules whose rows are the vocabulary: the input embedding and the
    head.
    """
    import torch

    from tpuport.quantization import find_weight

    for getter in ("get_input_embeddings", "get_output_embeddings"):
        try:
            module = getattr(model, getter)()
        except (AttributeError, NotImplementedError):
            continue  # a model without embeddings may have the method and fail in it
        # Perceiver has a parameter there.
        if isinstance(module, torch.nn.Module) and find_weight(module) is not None:
            yield id(module)
