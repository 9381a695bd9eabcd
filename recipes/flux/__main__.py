"""Port a Flux pipeline and render pictures: `python -m recipes.flux --prompt "a cat on the grass"`.

Uses only the public API of tpuport; README.md beside this file says what is special about this model.
"""

from typing import Any

from recipes.command import run_command
from recipes.pipeline_command import PipelineRecipe, run_recipe


def build_tiny() -> Any:
    """The tiny pipeline."""
    from recipes.flux.tiny import build_pipeline

    return build_pipeline()


RECIPE = PipelineRecipe(
    name="flux",
    pipeline_class="FluxPipeline",
    model_module="diffusers.models.transformers.transformer_flux",
    build_tiny=build_tiny,
    tiny_call={
        "height": 64,
        "width": 64,
        "num_inference_steps": 8,
        "guidance_scale": 3.5,
        "max_sequence_length": 64,
    },
    real_call={"height": 1024, "width": 1024, "num_inference_steps": 50, "guidance_scale": 3.5},
    prompts=("a red circle to the left", "a blue square"),
)


if __name__ == "__main__":
    run_command(lambda: run_recipe(RECIPE))
