"""A sample of the table of models, and the verdicts of models that are different or refused on purpose."""

import importlib
import inspect
import re
from types import SimpleNamespace

import pytest
import torch
from transformers import PretrainedConfig, PreTrainedModel

from benchmarks import (
    coverage,
    coverage_checks,
    coverage_generation,
    coverage_lint,
    coverage_prompts,
    coverage_table,
    coverage_unbuilt,
    exported_models,
    tiny_models,
)
from tpuport import lint
from tpuport.libraries.model_results import ModelResult
from tpuport.lint.entry_verdicts import EntryVerdict

# Of models that ask for 64 bits, where `tpuport.enable` is not in force.
pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype", "ignore:float64 becomes float32")
LLAMA = "transformers:LlamaForCausalLM"


def last_record(name):
    *_, record = coverage_checks.checked(name, None)
    return record


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        LLAMA,
        "transformers:MarianForCausalLM",
        "transformers:DeepseekV4ForCausalLM",
        "diffusers:FluxTransformer2DModel",
    ],
)
def test_a_sample_is_equal_in_every_check(name):
    record = last_record(name)
    assert record["forward"]["verdict"] == record["mesh"]["verdict"] == "equal"
    assert record["forward"]["recompilations"] == 0
    assert 0 < record["forward"]["error"] < 1e-3


def test_what_a_streamer_is_given_is_compared(monkeypatch):
    tiny = tiny_models.build(LLAMA)
    call = {"input_ids": tiny.inputs[0]["input_ids"][:1]}

    class Hasty:
        """Gives the streamer all tokens at once, where transformers gives one after the other."""

        generation_config = tiny.call.generation_config
        forward = type(tiny.call).forward

        def generate(self, streamer, **inputs):
            tokens = tiny.call.generate(**inputs)
            streamer.put(tokens)
            streamer.end()
            return tokens

    monkeypatch.setattr(coverage_checks, "ported", lambda model: model)
    assert coverage_checks.compare_streams(tiny.call, call) == {"verdict": "equal"}
    monkeypatch.setattr(coverage_checks, "ported", lambda model: Hasty())
    assert coverage_checks.compare_streams(tiny.call, call)["verdict"] == "different"


@pytest.mark.slow
def test_images_and_videos_are_compared_in_every_form():
    record = last_record("transformers:Qwen2_5_VLForConditionalGeneration")
    for form in ("generate", "generate_batch", "generate_video", "generate_mesh", "streamed"):
        assert record[form]["verdict"] == "equal"


@pytest.mark.slow  # what it is built with is below, and how such classes generate in test_class_generate.py
@pytest.mark.parametrize("name", ["BarkModel", "Qwen3OmniMoeForConditionalGeneration"])
def test_a_class_without_forward_generates_what_it_does_in_torch(name):
    record = last_record(f"transformers:{name}")
    assert record["generate"]["verdict"] == "equal"
    assert "forward" not in record


def test_a_class_without_forward_has_the_options_of_its_own_generate():
    tiny = tiny_models.build("transformers:Qwen3OmniMoeForConditionalGeneration")
    assert not coverage_generation.has_forward(tiny.call)
    assert not tiny.prompts
    [call] = tiny.inputs
    assert coverage_checks._generate(tiny.call, call).shape == (1, 12)


def test_prompts_have_several_images_and_padding():
    tiny = tiny_models.build("transformers:Qwen2_5_VLForConditionalGeneration")
    assert tiny.prompts.keys() == {"image", "video"}
    batch = tiny.prompts["image"](2)
    assert batch["image_grid_thw"].tolist() == [[1, 4, 4], [1, 4, 8], [1, 8, 4], [1, 4, 4]]
    tokens = batch["input_ids"] == tiny.call.config.image_token_id
    assert tokens.sum(-1).tolist() == [4 + 8, 8 + 4]
    assert batch["attention_mask"][:, 0].tolist() == [1, 0]


class Repeats:
    """A model whose generate gives a token with some logit."""

    def __init__(self, logit):
        self.logit = logit

    def generate(self, **_):
        return SimpleNamespace(sequences=torch.tensor([[5, 7]]), logits=(torch.tensor([[1.0, self.logit]]),))


@pytest.mark.parametrize(
    ("logit", "effect", "verdict"),
    [(0.5, 1.0, "equal"), (0.5, 0.001, "not compared"), (0.501, 1.0, "different")],
)
def test_other_images_have_to_change_the_logits(logit, effect, verdict):
    theirs = Repeats(0.5).generate()
    check = coverage_prompts.compare_contents(Repeats(logit), {}, theirs, effect, {})
    assert check["verdict"] == verdict


class Doubled(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


class ReadsAValue(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


class Draws(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.rand_like(x)


class KeepsItsScale(Doubled):
    scale = None

    def forward(self, x):
        if self.scale is None:
            self.scale = torch.full_like(x[:1, :1], 3)
        return super().forward(x) * self.scale


class CountsItsCalls(Doubled):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


def compared(model, change=0.0):
    """The verdict on a model, with torch's result changed."""
    expected = coverage_checks.expect(model.eval(), [{"x": torch.arange(6.0).view(2, 3)}])
    # Of torch and of its referee, or the difference would count as torch's own error.
    for tensors in (expected[0].results, expected[0].exact):
        for tensor in tensors:
            tensor += change
    return coverage_checks.attempt(lambda: coverage_checks.compare_calls(model, expected, mesh=None))


def test_hidden_logits_are_no_size():
    """Chameleon hides the tokens of images by the least number, beside which every difference would be small."""
    least = torch.finfo(torch.float32).min
    ours, theirs, unhidden = (
        [torch.tensor([[first, last]])] for first, last in ((least, 1), (least, 2), (0, 2))
    )
    assert coverage_prompts.deviation_of_logits(ours, theirs) == 0.5
    assert coverage_prompts.deviation_of_logits(unhidden, theirs) == float("inf")


def test_verdicts():
    assert compared(Doubled(3, 3))["verdict"] == "equal"
    assert compared(Doubled(3, 3), change=1e-3)["verdict"] == "different"
    assert compared(Draws(3, 3))["verdict"] == "not compared"
    refused = compared(ReadsAValue(3, 3))
    assert refused["verdict"] == "refused"
    assert "TPU205" in refused["reason"]


class RepeatsRows(PreTrainedModel):
    """A model of a library, whose own call runs on the host."""

    __module__ = "transformers.models.repeats"
    config_class = PretrainedConfig

    def __init__(self):
        super().__init__(PretrainedConfig())
        self.doubled = Doubled(3, 3)

    def forward(self, x):
        return x.repeat_interleave(self.doubled(x)[:, 0].abs().int() + 1, dim=0)


def test_a_model_that_runs_on_the_host_says_why():
    check = compared(RepeatsRows())
    assert check["verdict"] == "equal"
    assert "sum of the repeats" in check["reason"]
    assert coverage_table.new_programs({"forward": check}) == "0"
    versions = {"torch": "1", "transformers": "2", "diffusers": "3"}
    page = coverage_table.page(
        [{"name": "transformers:RepeatsRows", "status": "ran", "forward": check}], versions, 6
    )
    assert "runs on the host" in next(
        line for line in page.splitlines() if line.startswith("| `RepeatsRows`")
    )
    assert compared(RepeatsRows(), change=1e-3)["verdict"] == "different"


@pytest.mark.parametrize(
    ("model_class", "cell"),
    [(Doubled, "0"), (KeepsItsScale, "0"), (CountsItsCalls, "0")],
)
def test_a_program_that_the_second_call_compiles_may_be_the_last(model_class, cell):
    record = {"forward": compared(model_class(3, 3))}
    assert record["forward"]["verdict"] == "equal"
    assert coverage_table.new_programs(record) == cell


def test_an_older_row_does_not_say_what_a_third_call_compiled():
    assert coverage_table.new_programs({"forward": {"recompilations": 1}}) == "1"
    assert coverage_table.new_programs({}) == ""


def test_a_class_that_cannot_be_built_says_why():
    record = last_record("transformers:NoSuchModel")
    assert record["status"] == "not built"
    assert "NoSuchModel" in record["reason"]


def test_the_page_says_why_a_class_is_not_among_them():
    versions = {"torch": "1", "transformers": "2", "diffusers": "3"}
    known = {"name": "transformers:DinatModel", "status": "not built", "reason": "ImportError"}
    unknown = {"name": "transformers:Other", "status": "not built", "reason": "ValueError: no | such"}
    lines = coverage_table.page([known, unknown], versions, 6).splitlines()
    assert f"| {coverage_unbuilt.REASONS['DinatModel']} | `DinatModel` |" in lines
    assert "| `ValueError: no \\| such` | `Other` |" in lines


def test_the_page_names_what_has_not_been_run():
    records = [{"name": LLAMA, "status": "ran"}]
    names = [f"transformers:{name}" for name in ("LukeForMultipleChoice", "BeitBackbone")]
    page = coverage_table.page(records, coverage.versions(), 6, names)
    assert page.startswith("# Models beside torch\n\nThe 3 model classes that transformers")
    assert "| it has not been run yet | `BeitBackbone`, `LukeForMultipleChoice` |" in page


@pytest.mark.parametrize("library", coverage.LIBRARIES)
def test_the_page_has_every_class_that_a_library_exports(library):
    page = coverage.PAGE.read_text(encoding="utf-8")
    assert [name for name in exported_models.names(library) if f"`{name}`" not in page] == []


@pytest.mark.slow  # to import all takes half a minute; the test above has the sources of both
@pytest.mark.parametrize(
    ("library", "base"), [("transformers", "PreTrainedModel"), ("diffusers", "ModelMixin")]
)
def test_exported_models_are_those_of_the_libraries(library, base):
    package = importlib.import_module(library)
    classes = {name: getattr(package, name) for name in dir(package)}
    models = {
        name: value
        for name, value in classes.items()
        if inspect.isclass(value) and issubclass(value, classes[base])
    }
    found = set(exported_models.names(library))
    bases = models.keys() - found
    # Where a package is missing, the library has something else in the place of a model.
    assert all(hasattr(classes[name], "_backends") for name in found - models.keys())
    for name in bases:
        assert re.search("Pre[Tt]rained|ModelMixin", name)
        assert models[name].forward is torch.nn.Module.forward


def test_the_page_names_the_worst_verdict():
    equal = {"verdict": "equal"}
    llama = {
        "name": LLAMA, "status": "ran", "forward": {**equal, "error": 2e-7, "recompilations": 0}, "mesh": equal,
        "generate": equal, "generate_batch": equal,
    }  # fmt: skip
    broken = {**llama, "name": "transformers:OtherForCausalLM"}
    broken |= {
        "mesh": {"verdict": "different", "reason": "at [0] 1 here, 2 in torch"}, "made_with": {"transformers": "1.9"},
    }  # fmt: skip
    versions = {"torch": "1", "transformers": "2", "diffusers": "3"}
    page = coverage_table.page([llama, broken], versions, 6)
    assert "| equal | 2 | 1 | 2 | 2 |" in page
    assert "| `OtherForCausalLM` | equal | different | equal | equal |" in page
    assert "`at [0] 1 here, 2 in torch`" in page
    modules = {"LlamaForCausalLM": "models.llama.modeling_llama"}
    shipped = coverage_table.results([llama, broken], versions, modules)
    known = [ModelResult(**{"version": "2", **model}) for model in shipped["models"]]
    assert [result.fails for result in known] == [False, True]
    assert [result.version for result in known] == ["2", "1.9"]
    assert known[0].model_type == "llama"
    assert known[1].describe().endswith("(at [0] 1 here, 2 in torch)")


def test_a_row_says_what_it_was_made_with():
    versions = {"torch": "1", "transformers": "2", "diffusers": "3"}
    row = {"name": LLAMA, "status": "ran", "forward": {"verdict": "equal"}}
    assert coverage_table.age(row, versions) == ""
    row["made_with"] = {"tpuport": "2026-11-26", "torch": "1", "transformers": "2"}
    assert "| 2026-11-26 |" in coverage_table.page([row], versions, 6)
    newer = {**versions, "transformers": "4"}
    assert coverage_table.age(row, newer) == "2026-11-26, transformers 2"
    assert "1 of them were compared with transformers 2." in coverage_table.page([row], newer, 6)
    assert "were compared with" not in coverage_table.page([row], versions, 6)


def test_a_row_is_as_old_as_its_oldest_check():
    stored = {"name": LLAMA, "forward": {"verdict": "refused"}, "made_with": {"tpuport": "2026-11-01"}}
    again = {"name": LLAMA, "mesh": {"verdict": "equal"}, "made_with": {"tpuport": "2026-11-26"}}
    assert coverage.update(stored, again) == {**stored, "mesh": {"verdict": "equal"}}
    assert coverage.update({}, again) == again


@pytest.mark.parametrize(
    ("scenarios", "verdict"),
    [
        ((), "traces"),
        (("Model.forward with `mask`",), "some calls"),
        (("Model.forward with `mask`", ""), "stops"),
    ],
)
def test_lint_expects_a_class_to_stop_that_stops_in_every_call(scenarios, verdict):
    errors = tuple(
        lint.Finding(
            "m.py", line, 1, line, 2, "TPU201", lint.Severity.ERROR, "a value", "", scenario=scenario
        )
        for line, scenario in enumerate(scenarios, 1)
    )
    expected = coverage_lint.expectation(EntryVerdict("Model", "m.py", 1, "model", errors))
    assert expected["verdict"] == verdict
    assert expected.get("reason", "").startswith({"stops": "m.py:2", "some calls": "m.py:1"}.get(verdict, ""))


def test_lint_is_not_told_of_patches_that_most_calls_go_round():
    patched = coverage_lint.patched_everywhere()
    assert "transformers.models.dbrx.modeling_dbrx:DbrxExperts.forward" in patched
    assert not any("idefics" in target for target in patched)


def test_batch_norms_have_the_statistics_of_the_call():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1)
    ).eval()
    images = torch.randn(2, 3, 8, 8)
    coverage_checks.measure_batch_norms(model, {"input": images})
    expected = torch.nn.functional.batch_norm(model[0](images), None, None, training=True)
    torch.testing.assert_close(model[1](model[0](images)), expected)


def test_batch_norms_of_features_that_do_not_vary_leave_them_as_they_are():
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3)).eval()
    coverage_checks.measure_batch_norms(model, {"input": torch.ones(2, 3)})
    assert model[0].running_var.tolist() == [1, 1, 1]
