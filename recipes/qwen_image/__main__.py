"""Port a Qwen-Image pipeline and render pictures: `python -m recipes.qwen_image --prompt "a cat on the grass"`.

Uses only the public API of tpuport; README.md beside this file says what is special about this model.
"""

from typing import Any

from recipes.command import run_command
from recipes.pipeline_command import PipelineRecipe, run_recipe


def build_tiny() -> Any:
    """The tiny pipeline."""
    from recipes.qwen_image.tiny import build_pipeline

    return build_pipeline()


def describe_texts(pipeline: Any, prompts: list[str], negative_prompt: str) -> dict[str, Any]:
    """Embeddings whose length few prompts change."""
    from recipes.qwen_image.texts import pad_texts

    return pad_texts(pipeline, prompts, negative_prompt)


RECIPE = PipelineRecipe(
    name="qwen_image",
    pipeline_class="QwenImagePipeline",
    model_module="diffusers.models.transformers.transformer_qwenimage",
    build_tiny=build_tiny,
    tiny_call={"height": 64, "width": 64, "num_inference_steps": 8, "true_cfg_scale": 4.0},
    real_call={"height": 1328, "width": 1328, "num_inference_steps": 50, "true_cfg_scale": 4.0},
    prompts=("a red circle to the left", "a blue square"),
    describe_texts=describe_texts,
)


if __name__ == "__main__":
    run_command(lambda: run_recipe(RECIPE))
