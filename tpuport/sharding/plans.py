"""Sharding rules out of a model's own tensor-parallel plan.

transformers keeps a plan on the configuration and the classes (`model.tp_plan`, and `model.ep_plan` for
experts), diffusers on the class (`_tp_plan`); both map module or parameter names to styles. Most classes of diffusers
have none, and theirs is found in their structure (`sharding.diffusers`). Decided here:

- Experts are shared out whole (dimension 0) whatever the plan cuts inside them: their fused gate and up
  matrices cannot be cut over the intermediate width without moving activations between devices.
- The embedding and the head are cut over the vocabulary, so that the residual stream stays replicated. A
  vocabulary that the mesh does not divide is replicated with a warning.
- Attention weights remember how many heads they hold, so that no mesh axis cuts through a head. In a
  Llama layer with 2 key/value heads on 8 devices that saves 3 all-to-alls, 4 all-gathers and 4 permutes.
- Tied weights share one rule.
- A model without a plan takes one from `families`, or is replicated with a warning.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from math import gcd
from typing import Any, NamedTuple

from jax.sharding import PartitionSpec

from tpuport.errors import PortError
from tpuport.sharding.diffusers_plans import diffusers_plan
from tpuport.sharding.families import FAMILY_PLANS
from tpuport.sharding.specs import Rule, show
from tpuport.sharding.styles import AXIS, Cut, cut_of, plan_regex, spec_of

logger = logging.getLogger("tpuport")


# What attention modules call their number of heads ("heads" in diffusers), and a head's size.
_HEADS = ("num_heads", "num_attention_heads", "heads")
_HEAD_DIM = ("head_dim", "head_size")


class Entry(NamedTuple):
    """One line of a plan, compiled. The regex matches the module or parameter that the key names."""

    key: str
    regex: re.Pattern[str]
    cut: Cut


class Choice(NamedTuple):
    """What was decided for one parameter name."""

    pattern: str
    spec: PartitionSpec
    heads: int | None
    optional: bool = False


def plan_of(model: Any) -> dict[str, Any]:
    """The plan of a transformers or diffusers model, names relative to the model, families' plans included.

    Later sources win: the family's plan, the expert-parallel plan, the tensor-parallel plan.
    """
    own = diffusers_plan(model) or getattr(model, "_tp_plan", None) or {}
    return {**_family_plan(model), **(getattr(model, "_ep_plan", None) or {}), **own}


def _family_plan(model: Any) -> dict[str, str]:
    config = getattr(model, "config", None)
    plan = FAMILY_PLANS.get(getattr(config, "model_type", ""), {})
    base = getattr(model, "base_model", model)
    prefix = "" if base is model else f"{model.base_model_prefix}."
    return {prefix + key: style for key, style in plan.items()}


def compile_plan(plan: dict[str, Any]) -> list[Entry]:
    """The plan's keys as regexes and its styles as cuts, an unknown style being a PortError that names it."""
    return [Entry(key, re.compile(plan_regex(key)), cut_of(style, key)) for key, style in plan.items()]


def rules_from_model(model: Any) -> list[Rule]:
    """One rule for each plan entry and weight kind that the model really has, in the model's order.

    Raises:
        PortError: not a torch module, or a plan with a style that tpuport does not know.
    """
    if not hasattr(model, "named_parameters"):
        raise PortError(
            f"rules are derived from a torch module, and this is a {type(model).__name__}",
            fix="pass the model itself; of a pipeline, pass the part to shard, such as pipe.transformer",
        )
    plan = plan_of(model)
    derivation = _Derivation(model, compile_plan(plan))
    rules = derivation.rules()
    if not plan:
        logger.warning(
            "%s has no tensor-parallel plan and is of no family known here: %s",
            type(model).__name__,
            "only its embeddings are sharded" if rules else "its weights are replicated on every device",
        )
    for entry in derivation.unused():
        logger.info("plan entry %r matches no weight of this %s", entry.key, type(model).__name__)
    return rules


class _Derivation:
    """One pass over a model's parameters. Parameters may be on the meta device."""

    def __init__(self, model: Any, entries: list[Entry]) -> None:
        self.entries = entries
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.names: dict[int, list[str]] = {}
        self.parameters: dict[int, Any] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self.names.setdefault(id(parameter), []).append(name)
            self.parameters[id(parameter)] = parameter
        self.vocabulary = set(_vocabulary(model))
        self.config = getattr(model, "config", None)
        self._used: set[str] = set()

    def unused(self) -> list[Entry]:
        return [
            entry for entry in self.entries if entry.key not in self._used and entry.cut is not Cut.MODULE
        ]

    def rules(self) -> list[Rule]:
        grouped: dict[tuple[str, PartitionSpec], list[Choice]] = {}
        members: dict[str, dict[PartitionSpec, list[str]]] = {}
        for key, names in self.names.items():
            choice = self._choose_tied(names, tuple(self.parameters[key].shape))
            if choice is None:
                continue
            grouped.setdefault((choice.pattern, choice.spec), []).append(choice)
            members.setdefault(choice.pattern, {}).setdefault(choice.spec, []).extend(names)
        rules = []
        for (pattern, spec), choices in grouped.items():
            # Layers that differ in rank cannot share a pattern; each then goes by its full names.
            alone = len(members[pattern]) == 1
            text = pattern if alone else "|".join(re.escape(name) for name in members[pattern][spec])
            counts = [choice.heads for choice in choices if choice.heads]
            optional = all(choice.optional for choice in choices)
            rules.append(Rule(text, spec, gcd(*counts) if counts else None, optional))
        return rules

    def _choose_tied(self, names: list[str], shape: tuple[int, ...]) -> Choice | None:
        """One choice for all names of a tied weight: what is sharded wins over what is replicated."""
        decided = [self._choose(name, shape) for name in names]
        choices = [choice for choice in decided if choice]
        if not choices:
            return None
        best = next((choice for choice in choices if any(choice.spec)), choices[0])
        if any(choice.spec != best.spec for choice in choices):
            logger.info("%s are tied: all take %s", " and ".join(names), show(best.spec))
        patterns = [
            made.pattern if made else re.escape(name) for name, made in zip(names, decided, strict=True)
        ]
        distinct = list(dict.fromkeys(patterns))
        pattern = distinct[0] if len(distinct) == 1 else f"(?:{'|'.join(distinct)})"
        return Choice(pattern, best.spec, best.heads, any(choice.optional for choice in choices))

    def _choose(self, name: str, shape: tuple[int, ...]) -> Choice | None:
        owner_name, _, leaf = name.rpartition(".")
        owner = self.modules[owner_name]
        direct = self._entry(name)
        if id(owner) in self.vocabulary:
            return self._choose_vocabulary(name, shape)
        if experts := self._entry(owner_name, Cut.EXPERTS):
            pattern = f"{experts.regex.pattern}{re.escape('.' + leaf)}"
            return Choice(pattern, spec_of(Cut.EXPERTS, shape), None)
        if direct:
            return Choice(
                direct.regex.pattern, self._spec(direct.cut, shape, owner), self._heads(direct, name, shape)
            )
        module = self._entry(owner_name)
        if module is None or module.cut is Cut.MODULE:
            return None
        pattern = f"{module.regex.pattern}{re.escape('.' + leaf)}"
        return Choice(pattern, self._spec(module.cut, shape, owner), self._heads(module, owner_name, shape))

    def _entry(self, name: str, cut: Cut | None = None) -> Entry | None:
        for entry in self.entries:
            if (cut is None or entry.cut is cut) and entry.regex.fullmatch(name):
                self._used.add(entry.key)
                return entry
        return None

    def _choose_vocabulary(self, name: str, shape: tuple[int, ...]) -> Choice:
        self._entry(name.rpartition(".")[0])
        return Choice(re.escape(name), spec_of(Cut.FIRST, shape), None, optional=True)

    @staticmethod
    def _spec(cut: Cut, shape: tuple[int, ...], owner: Any) -> PartitionSpec:
        return spec_of(
            cut, shape, transposed=type(owner).__name__ == "Conv1D", convolution=hasattr(owner, "kernel_size")
        )

    def _heads(self, entry: Entry, path: str, shape: tuple[int, ...]) -> int | None:
        """How many heads the dimension that is cut holds: None for anything but an attention projection."""
        if entry.cut not in (Cut.COLUMNS, Cut.ROWS) or not shape:
            return None
        attention = self._attention_above(path)
        if attention is None:
            return None
        sizes = list(shape)
        width = sizes[-1] if entry.cut is Cut.ROWS else sizes[-2:][0]
        total = _number(attention, *_HEADS) or _number(
            getattr(attention, "config", self.config), "num_attention_heads"
        )
        head_dim = _number(attention, *_HEAD_DIM)
        if head_dim is None and total and (inner := _number(attention, "inner_dim")):
            head_dim = (
                inner // total
            )  # diffusers: heads of keys may be fewer, and are nowhere else to be seen
        if head_dim and width % head_dim == 0:
            held = width // head_dim
            return gcd(held, total) if total and held > total else held
        return total if total and width % total == 0 else None

    def _attention_above(self, path: str) -> Any:
        for _ in range(2):
            path = path.rpartition(".")[0]
            module = self.modules.get(path) if path else None
            if module is not None and _number(module, *_HEAD_DIM, *_HEADS):
                # A block may say what the attention in it has; its other weights hold no heads.
                parts = module.children()
                return None if any(_number(part, *_HEAD_DIM, *_HEADS) for part in parts) else module
        return None


def _vocabulary(model: Any) -> Iterator[int]:
    """The ids of the modules whose rows are the vocabulary: the input embedding and the head."""
    for getter in ("get_input_embeddings", "get_output_embeddings"):
        try:
            module = getattr(model, getter, lambda: None)()
        except (AttributeError, NotImplementedError):
            continue
        if getattr(module, "weight", None) is not None:
            yield id(module)


def _number(owner: Any, *names: str) -> int | None:
    found = (getattr(owner, name, None) for name in names)
    return next((value for value in found if isinstance(value, int) and value > 0), None)


__all__ = ["AXIS", "Entry", "compile_plan", "plan_of", "rules_from_model"]
