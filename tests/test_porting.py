"""A ported model is used as the torch model that it looks like; `to_cpu` gives everything back."""

import copy
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, pipeline

import tpuport
from tpuport import PortError, compat

WORDS = ["<pad>", "<eos>", "<unk>", *(f"w{number}" for number in range(29))]
CONFIG = LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, bos_token_id=1, eos_token_id=1, pad_token_id=0, max_position_embeddings=64,
)  # fmt: skip


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    torch.manual_seed(0)
    reference = LlamaForCausalLM(CONFIG).eval()
    return reference, tpuport.port(copy.deepcopy(reference))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    backend = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def test_its_own_call_is_a_program(pair: Any, tokenizer: Any) -> None:
    reference, model = pair
    assert (model.device.type, model.dtype) == ("jax", torch.float32)
    for text in ("w1 w2 w3", "w7 w8 w9"):
        inputs = tokenizer(text, return_tensors="pt")
        expected = reference(**inputs).logits
        for given in (inputs, tokenizer(text, return_tensors="pt").to(model.device)):
            logits = model(**given).logits
            torch.testing.assert_close(logits.cpu(), expected, atol=1e-5, rtol=1e-5)
    assert model.forward.compiled.program.compilations == 1
    assert logits.argmax(-1)[0, 0].item() == expected.argmax(-1)[0, 0].item()


def test_in_torchaxs_environment_it_runs_operation_by_operation() -> None:
    seen = []

    class Printing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(float(x.sum()))
            return x * 2

    model = tpuport.port(Printing())
    with compat.environment():
        model(torch.ones(2).to("jax"))
    assert seen == [2.0]


def test_generate_has_transformers_arguments(pair: Any, tokenizer: Any) -> None:
    reference, model = pair
    inputs = tokenizer(["w1 w2 w3", "w4"], return_tensors="pt", padding=True)
    for options in ({"max_new_tokens": 6}, {"max_length": 9, "repetition_penalty": 1.3}):
        expected = reference.generate(**inputs, **options)
        assert torch.equal(model.generate(**inputs, **options), expected)
        assert torch.equal(model.generate(**inputs.to(model.device), **options).cpu(), expected)
        inputs = inputs.to("cpu")
    prompt = inputs["input_ids"]
    assert torch.equal(model.generate(prompt, max_new_tokens=2), reference.generate(prompt, max_new_tokens=2))
    with pytest.raises(PortError, match="the assistant is not a ported model"):
        model.generate(prompt, assistant_model=reference)
    with pytest.raises(PortError, match="num_beam_groups"):
        model.generate(prompt, num_beams=2, num_beam_groups=2)


def test_sampling_follows_torchs_seed(pair: Any) -> None:
    _, model = pair

    def sample() -> list[int]:
        return model.generate(torch.tensor([[3, 4, 5]]), do_sample=True, max_new_tokens=8, eos_token_id=None)[
            0
        ].tolist()

    torch.manual_seed(0)
    first, second = sample(), sample()
    torch.manual_seed(0)
    assert (sample(), sample()) == (first, second)
    assert first != second


def test_a_change_is_seen_by_generate(pair: Any) -> None:
    reference, model = copy.deepcopy(pair[0]), copy.deepcopy(pair[1])
    prompt = torch.tensor([[3, 4, 5]])
    seen = []
    for _ in range(2):
        seen.append(reference.generate(prompt, max_new_tokens=8, min_new_tokens=8))
        assert torch.equal(model.generate(prompt, max_new_tokens=8, min_new_tokens=8), seen[-1])
        torch.testing.assert_close(model(prompt).logits.cpu(), reference(prompt).logits, atol=1e-5, rtol=1e-5)
        for changed in (reference, model):
            changed.model.layers[0].register_forward_hook(lambda layer, args, output: -output)
    assert not torch.equal(*seen)


@pytest.mark.slow  # test_task_pipelines.py
def test_a_pipeline_of_transformers(pair: Any, tokenizer: Any) -> None:
    expected, result = (
        pipeline("text-generation", model=model, tokenizer=tokenizer)(
            ["w1 w2 w3", "w9"], max_new_tokens=5, do_sample=False, batch_size=2
        )
        for model in pair
    )
    assert result == expected


def test_a_copy_has_calls_of_its_own(pair: Any) -> None:
    reference, model = pair
    prompt = torch.tensor([[3, 4, 5]])
    twin = copy.deepcopy(model)
    assert twin.forward.module is twin
    assert twin.generate.model is twin
    with torch.no_grad(), compat.environment():
        twin.lm_head.weight.mul_(2)
    torch.testing.assert_close(twin(prompt).logits.cpu(), 2 * reference(prompt).logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(prompt).logits.cpu(), reference(prompt).logits, atol=1e-5, rtol=1e-5)


def test_to_cpu_gives_everything_back(tmp_path: Any) -> None:
    torch.manual_seed(0)
    reference = LlamaForCausalLM(CONFIG).eval()
    model = copy.deepcopy(reference)
    names = set(vars(model))
    tpuport.port(model)
    prompt = torch.tensor([[3, 4, 5]])
    model(prompt)
    model.generate(prompt, max_new_tokens=2)
    assert tpuport.to_cpu(model) is model
    assert set(vars(model)) == names
    assert torch.equal(model(prompt).logits, reference(prompt).logits)
    assert torch.equal(model.generate(prompt, max_new_tokens=3), reference.generate(prompt, max_new_tokens=3))
    model.save_pretrained(tmp_path)
    loaded = tpuport.load(LlamaForCausalLM, tmp_path)
    torch.testing.assert_close(loaded(prompt).logits.cpu(), reference(prompt).logits, atol=1e-5, rtol=1e-5)


def test_a_forward_of_its_own_comes_back() -> None:
    model: Any = nn.Linear(2, 2)
    model.forward = own = lambda x: x + 1
    tpuport.port(model)
    assert torch.equal(model(torch.ones(2)).cpu(), torch.full((2,), 2.0))
    tpuport.to_cpu(model)
    assert model.forward is own


def test_a_wrong_shape_is_explained() -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    line = Network.forward.__code__.co_firstlineno + 1
    with pytest.raises(PortError, match=rf"(?s)linear\(float32\[1,4\], float32\[2,3\].*line {line}, in "):
        tpuport.port(Network())(torch.ones(1, 4))


@pytest.mark.filterwarnings("ignore:`torch.jit.")
@pytest.mark.parametrize(
    "translate",
    [
        torch.jit.script,
        lambda model: torch.jit.trace(model, torch.ones(1, 2)),
        lambda model: torch.export.export(model, (torch.ones(1, 2),)).module(),
    ],
    ids=["script", "trace", "export"],
)
def test_what_torch_has_translated_is_refused(translate: Any) -> None:
    with pytest.raises(PortError, match=r"(?s)has translated cannot be ported.*port the model that it was"):
        tpuport.port(translate(nn.Linear(2, 2)))


def test_a_model_for_the_compiler_of_torch_is_ported() -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    expected = model(x).detach()
    compiled = torch.compile(copy.deepcopy(model), backend="eager")
    torch.testing.assert_close(tpuport.port(compiled)(x).cpu().detach(), expected)
