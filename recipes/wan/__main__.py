"""Port a Wan pipeline and render clips: `python -m recipes.wan --prompt "a cat walks on the grass"`.

Uses only the public API of tpuport; README.md beside this file says what is special about this model.
"""

from typing import Any

from recipes.command import run_command
from recipes.pipeline_command import PipelineRecipe, run_recipe


def build_tiny() -> Any:
    """The tiny pipeline."""
    from recipes.wan.tiny import build_pipeline

    return build_pipeline()


RECIPE = PipelineRecipe(
    name="wan",
    pipeline_class="WanPipeline",
    model_module="diffusers.models.transformers.transformer_wan",
    build_tiny=build_tiny,
    tiny_call={"height": 64, "width": 64, "num_frames": 9, "num_inference_steps": 8, "guidance_scale": 4.0},
    real_call={
        "height": 480,
        "width": 832,
        "num_frames": 81,
        "num_inference_steps": 40,
        "guidance_scale": 4.0,
    },
    prompts=("a red circle moves to the left", "a blue square"),
)


if __name__ == "__main__":
    run_command(lambda: run_recipe(RECIPE))
