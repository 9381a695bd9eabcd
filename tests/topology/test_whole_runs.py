"""Programs added up to what a user waits for."""

from typing import Any

import pytest

from tpuport.topology.compile_messages import CompileResult
from tpuport.topology.whole_runs import Recipe, whole_runs


def program(
    target: str, seconds: float | None, kind: str, topology: str = "v6e:2x4", **fields: Any
) -> CompileResult:
    profile = None if seconds is None else {"seconds": seconds}
    return CompileResult(target, topology, {"profile": profile}, kind=kind, **fields)


def calls(run: dict[str, Any]) -> dict[str, float]:
    return {part["target"]: part["times"] for part in run["parts"]}


CLIP = {"product": "a clip of 121 frames of 720x1280"}


def pipeline(**denoiser: Any) -> list[CompileResult]:
    return [
        program("wan text_encoder", 0.5, "encoder"),
        program("wan image_encoder", 0.25, "encoder"),
        program("wan transformer", 3.0, "denoiser", **CLIP, **denoiser),
        program("wan vae", 10.0, "vae"),
    ]


def test_without_a_recipe_there_are_no_runs() -> None:
    assert whole_runs(pipeline(), Recipe()) is None


def test_a_pipeline_encodes_and_decodes_once() -> None:
    [run] = whole_runs(pipeline(), Recipe(steps=50)) or []
    assert (run["product"], run["topology"], run["missing"]) == (CLIP["product"], "v6e:2x4", ())
    assert calls(run) == {"wan text_encoder": 1, "wan image_encoder": 1, "wan transformer": 50, "wan vae": 1}
    assert run["seconds"] == 0.5 + 0.25 + 150 + 10


def test_guidance_takes_a_second_call_or_the_other_half_of_the_rows() -> None:
    [run] = whole_runs(pipeline(), Recipe(steps=50, guidance=True)) or []
    assert calls(run) == {"wan text_encoder": 2, "wan image_encoder": 1, "wan transformer": 100, "wan vae": 1}
    [run] = whole_runs(pipeline(rows=4), Recipe(steps=50, guidance=True)) or []
    assert calls(run) == {
        "wan text_encoder": 1,
        "wan image_encoder": 1,
        "wan transformer": 50,
        "wan vae": 0.5,
    }
    assert run["product"] == f"2 times {CLIP['product']}"
    # Its scale is an input.
    [run] = whole_runs(pipeline(is_distilled=True), Recipe(steps=50, guidance=True)) or []
    assert calls(run)["wan transformer"] == 50


def test_two_denoisers_share_the_steps() -> None:
    results = [
        program("transformer", 3.0, "denoiser", **CLIP),
        program("transformer_2", 5.0, "denoiser", **CLIP),
    ]
    [run] = whole_runs(results, Recipe(steps=40)) or []
    assert calls(run) == {"transformer": 20, "transformer_2": 20}
    assert run["seconds"] == 160
    assert run["product"] == "40 steps of a clip of 121 frames of 720x1280"


def test_a_prompt_makes_the_first_token() -> None:
    results = [program("llama prefill", 0.5, "causal-lm"), program("llama decode", 0.01, "causal-lm")]
    [run] = whole_runs(results, Recipe(length=1024, new_tokens=101)) or []
    assert run["product"] == "a prompt of 1,024 tokens and 101 new ones"
    assert run["seconds"] == pytest.approx(0.5 + 100 * 0.01)


def test_each_topology_has_its_run_and_what_has_no_time_is_named() -> None:
    results = [
        program("transformer", 3.0, "denoiser", **CLIP),
        program("vae", None, "vae"),
        program("transformer", 1.0, "denoiser", "v6e:4x4", **CLIP),
        program("text_encoder", 1.0, "encoder", "v5e:2x2"),
    ]
    first, second = whole_runs(results, Recipe(steps=10)) or []
    assert (first["topology"], first["seconds"], first["missing"]) == ("v6e:2x4", 30, ("vae",))
    assert (second["topology"], second["seconds"], second["missing"]) == ("v6e:4x4", 10, ())


def test_ones_own_code_is_called_once_a_step() -> None:
    [run] = whole_runs([program("mine", 2.0, "code")], Recipe(steps=3)) or []
    assert (run["product"], run["seconds"]) == ("3 steps of mine", 6)
