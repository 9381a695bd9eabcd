"""`model.generate` of a ported transformers model: transformers' arguments,
`tpuport.generate` underneath.
"""

from collections.abc import Sequence
from typing import Any

from transformers import GenerationConfig

from tpuport.base.mappings import without
from tpuport.compilation.model_calls import is_on_host
from tpuport.generation.class_generate import enter_loop, run_class_generate
from tpuport.generation.class_loops import has_class_generate
from tpuport.generation.loop_choice import run_loop
from tpuport.generation.module_views import ModuleCalls
from tpuport.generation.option_values import without_absent
from tpuport.generation.request import read_transformers


class ModelGenerate:
    """`model.generate` of a ported model.

    Attributes:
        model: the model, a language model of transformers.
        module_calls: of it and its modules, for code of the host.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.module_calls = ModuleCalls(model, enter_loop)

    def __call__(
        self,
        inputs: Any = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Any = None,
        stopping_criteria: Sequence[Any] | None = None,
        prefix_allowed_tokens_fn: Any = None,
        assistant_model: Any = None,
        streamer: Any = None,
        negative_prompt_ids: Any = None,
        negative_prompt_attention_mask: Any = None,
        **options: Any,
    ) -> Any:
        """Generate token ids with the arguments of transformers' `generate`.

        Sampling draws its seed from torch's default generator, so that calls differ and
        `torch.manual_seed` reproduces.

        Returns:
            LongTensor [batch, length] on the host, as `tpuport.generate` returns it.

        Raises:
            PortError: an argument or an option that is not supported, by name.
        """
        named = without_absent(without(locals(), ("self", "options")) | options)
        if has_class_generate(self.model) or is_on_host(self.model):
            return run_class_generate(self.model, named)
        return run_loop(read_transformers(self.model, named))

    def __deepcopy__(self, memo: dict[int, Any]) -> "ModelGenerate":
        return ModelGenerate(memo.get(id(self.model), self.model))


def replace_generate(model: Any) -> None:
    """Let `model.generate` of a ported language model be tpuport's. Does nothing for
    other models.
    """
    can_generate = getattr(model, "can_generate", None)
    if (
        callable(getattr(model, "generate", None))
        and callable(can_generate)
        and can_generate()
    ):
        model.generate = ModelGenerate(model)


def restore_generate(model: Any) -> None:
    """Give a model transformers' `generate` back."""
    if isinstance(vars(model).get("generate"), ModelGenerate):
        del model.generate
