"""Causal language models, encoders, and the figures of well-known ones."""

import json

import pytest
import torch
import transformers

from tpuport.errors import PortError
from tpuport.topology.generation_tasks import Decode, Prefill
from tpuport.topology.reports.known_models import KNOWN
from tpuport.topology.targets import config_files, known, resolve

SMALL = {"vocab_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 32}
LLAMA = {"model_type": "llama", **SMALL, "intermediate_size": 64, "num_key_value_heads": 1}
T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 2}
BART = {
    "vocab_size": 64, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64,
}  # fmt: skip
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}

# In 10^9: the papers and model cards that the files name, to three places.
PARAMETERS = {
    "llama-2-7b": 6.74, "llama-3-8b": 8.03, "llama-3-70b": 70.6, "mixtral-8x7b": 46.7, "qwen3-30b-a3b": 30.5,
    "gemma-3-27b": 27.0, "hunyuan-video-1.5": 8.33, "wan-2.1-14b": 14.3, "flux-dev": 11.9, "sdxl-unet": 2.57,
}  # fmt: skip


# Built of the same classes as another.
LIKE_ANOTHER = ("llama-2-7b", "llama-3-70b", "mixtral-8x7b", "wan-2.1-14b")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in LIKE_ANOTHER else []) for name in PARAMETERS],
)
def test_that_known_models_have_the_parameters_that_are_published(name):
    model = resolve(name)[0].build()
    weights = {id(parameter): parameter for parameter in model.parameters()}.values()
    assert all(weight.device.type == "meta" for weight in weights)
    assert {weight.dtype for weight in weights} == {torch.bfloat16}
    count = sum(weight.numel() for weight in weights)
    assert float(f"{count / 1e9:.3g}") == PARAMETERS[name]
    assert count == json.loads((KNOWN / f"{name}.json").read_text())["_parameters"]


def test_that_every_known_model_is_tested():
    assert set(known()) == set(PARAMETERS)


def test_that_a_known_model_says_where_its_figures_are_from_and_what_they_were_compared_with():
    for name in known():
        raw = json.loads((KNOWN / f"{name}.json").read_text())
        assert "huggingface.co" in raw["_source"] or "github.com" in raw["_source"]
        assert raw["_checked"]
        assert all("github.com" in one or "litgpt" in one for one in raw["_checked"])


def test_that_what_a_known_config_says_of_itself_is_no_part_of_it():
    for name in known():
        assert not {"_source", "_checked", "_parameters"} & config_files.find_config(name).raw.keys()


def test_llama_2_7b_by_the_arithmetic_of_its_config():
    """Embedding and logits; then a layer: four of E x E, three of E x F and two norms; and the last norm."""
    e, f, v = 4096, 11008, 32000
    model = resolve("Llama-2-7B", task="decode")[0].build()
    assert (
        sum(one.numel() for one in model.parameters()) == 2 * v * e + 32 * (4 * e * e + 3 * e * f + 2 * e) + e
    )


def test_a_causal_language_model_is_two_programs(tmp_path, tiny):
    path = tiny.write(tmp_path / "little", LLAMA)
    prefill, decode = resolve(path, batch=3, length=128, max_cache_len=256)
    assert (prefill.name, decode.name) == ("little prefill", "little decode")
    assert prefill.inputs == Prefill(3, 128, 256)
    assert decode.inputs == Decode(3, 256)
    assert (prefill.unit, decode.unit) == (("tokens", 3.0 * 128), ("tokens", 3.0))
    assert prefill.kind == decode.kind == "causal-lm"
    both = resolve(path, batch=3, length=128, max_cache_len=256, task="generate")
    assert [(target.name, target.inputs) for target in both] == [
        (target.name, target.inputs) for target in (prefill, decode)
    ]
    assert type(decode.build()) is transformers.LlamaForCausalLM
    assert decode.build() is not decode.build()


@pytest.mark.parametrize(
    ("options", "inputs"),
    [
        ({"task": "decode"}, Decode(1, 2048)),
        ({"task": "decode", "length": 100}, Decode(1, 100)),
        ({"task": "decode", "max_cache_len": 100}, Decode(1, 100)),
        ({"task": "prefill"}, Prefill(1, 2048)),
        ({"task": "prefill", "max_cache_len": 100}, Prefill(1, 100, 100)),
        ({"task": "prefill", "length": 5000, "batch": 2}, Prefill(2, 5000)),
    ],
)
def test_the_sizes_of_a_task(tmp_path, options, inputs, tiny):
    [target] = resolve(tiny.write(tmp_path, LLAMA), **options)
    assert target.inputs == inputs


def test_the_length_is_as_far_as_4096_or_the_positions_go(tmp_path, tiny):
    [short] = resolve(tiny.write(tmp_path / "short", LLAMA | {"max_position_embeddings": 512}), task="decode")
    [long] = resolve(
        tiny.write(tmp_path / "long", LLAMA | {"max_position_embeddings": 1 << 17}), task="decode"
    )
    assert (short.inputs.max_cache_len, long.inputs.max_cache_len) == (512, 4096)


def test_one_call_of_a_causal_language_model(tmp_path, tiny):
    [target] = resolve(tiny.write(tmp_path, LLAMA), task="forward", batch=2, length=16)
    with torch.no_grad():
        logits = tiny.with_weights(target.build())(**tiny.on_cpu(target.inputs)).logits
    assert logits.shape == (2, 16, 64)
    assert target.unit == ("tokens", 32.0)


def test_a_file_and_a_directory_are_the_same(tmp_path, tiny):
    path = tiny.write(tmp_path / "model", LLAMA)
    (tmp_path / "other.json").write_text(json.dumps(LLAMA))
    assert resolve(f"{path}/config.json", task="decode")[0].name == "model"
    assert (
        resolve(path, task="decode")[0].inputs
        == resolve(str(tmp_path / "other.json"), task="decode")[0].inputs
    )
    assert resolve(str(tmp_path / "other.json"), task="decode")[0].name == "other"


@pytest.mark.parametrize(
    ("raw", "asked", "dtype", "note"),
    [
        ({}, None, "bfloat16", "names no dtype"),
        ({"torch_dtype": "float32"}, None, "float32", "as the config says"),
        ({"dtype": "float16"}, None, "bfloat16", "instead of the config's float16"),
        ({"dtype": "float32"}, "bfloat16", "bfloat16", None),
        ({"dtype": "float32"}, "float16", "bfloat16", "instead of float16"),
    ],
)
def test_the_dtype_of_the_weights(tmp_path, raw, asked, dtype, note, tiny):
    [target] = resolve(tiny.write(tmp_path, LLAMA | raw), task="decode", dtype=asked)
    assert target.dtype == dtype
    assert next(target.build().parameters()).dtype == getattr(torch, dtype)
    assert (
        any(note in one for one in target.notes)
        if note
        else not any("weights" in one for one in target.notes)
    )


def test_a_model_of_text_and_images_is_compiled_for_text(tmp_path, tiny):
    text = {
        "model_type": "gemma3_text",
        **SMALL,
        "intermediate_size": 64,
        "num_key_value_heads": 1,
        "head_dim": 16,
    }
    whole = {
        "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text,
        "vision_config": {"model_type": "siglip_vision_model", **VISION}, "torch_dtype": "bfloat16",
    }  # fmt: skip
    [target] = resolve(tiny.write(tmp_path, whole), task="decode")
    assert type(target.build()) is transformers.Gemma3ForCausalLM
    assert any("text model alone" in note for note in target.notes)


ENCODERS = {
    "BertModel": (SMALL | {"intermediate_size": 64}, (2, 512, 32)),
    "BertForMaskedLM": (SMALL | {"intermediate_size": 64}, (2, 512, 64)),
    "RobertaModel": (SMALL | {"intermediate_size": 64, "max_position_embeddings": 66}, (2, 64, 32)),
    "T5EncoderModel": (T5, (2, 512, 32)),
    "T5ForConditionalGeneration": (T5, (2, 512, 64)),
    "BartModel": (BART, (2, 64, 32)),
    "CLIPTextModel": (SMALL | {"intermediate_size": 64}, (2, 77, 32)),
    "CLIPVisionModel": (VISION | {"image_size": 64}, (2, 1 + 4, 32)),
    "ViTModel": (VISION | {"image_size": 32}, (2, 1 + 4, 32)),
    "Wav2Vec2Model": (VISION | {"conv_dim": [16] * 7}, (2, 499, 32)),
    "LlamaModel": (LLAMA, (2, 512, 32)),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_that_an_encoder_takes_its_inputs(tmp_path, name, tiny):
    fields, shape = ENCODERS[name]
    model_class = getattr(transformers, name)
    config = model_class.config_class(**{key: value for key, value in fields.items() if key != "model_type"})
    path = tiny.write(tmp_path, config.to_dict() | {"architectures": [name]})
    [target] = resolve(path, batch=2)
    assert (target.kind, type(target.build())) == ("encoder", model_class)
    model = tiny.with_weights(target.build())
    with torch.no_grad():
        made = model(**tiny.on_cpu(target.inputs))
    assert tuple(made[0].shape) == shape


@pytest.mark.parametrize(
    ("raw", "options", "says"),
    [
        (LLAMA, {"frames": 9}, "frames does not apply to a causal language model's prefill"),
        (LLAMA, {"image_size": 64}, "image_size does not apply"),
        (LLAMA, {"task": "forward", "max_cache_len": 9}, "max_cache_len does not apply"),
        (LLAMA, {"task": "paint"}, "no task 'paint'"),
        (LLAMA, {"batch": 0}, "batch is 0"),
        (LLAMA, {"length": 100, "max_cache_len": 50}, "longer than the cache"),
        (LLAMA, {"dtype": "int8"}, "weights cannot be int8"),
        (LLAMA, {"dtype": "bf17"}, "not a dtype"),
        (LLAMA, {"component": "unet"}, "not a pipeline"),
        (LLAMA | {"quantization_config": {"quant_method": "quanto"}}, {}, "quantised .quanto."),
        ({"model_type": "gpt2", "n_positions": 64}, {"length": 65}, "positions for 64 tokens, not for 65"),
        ({"model_type": "t5"}, {"task": "decode"}, "no decode"),
        ({"model_type": "bert"}, {"length": 513}, "positions for 512 tokens"),
        ({"model_type": "bert"}, {"max_cache_len": 9}, "max_cache_len does not apply"),
        ({"model_type": "vit"}, {"image_size": 100}, "takes images of 224x224"),
        ({"model_type": "no-such"}, {}, "no model_type 'no-such'"),
        ({"model_type": "llama", "architectures": ["NoSuchModel"]}, {}, "no model called NoSuchModel"),
        ({"hidden_size": 32}, {}, "config of neither library"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(tmp_path, raw, options, says, tiny):
    with pytest.raises(PortError, match=says):
        resolve(tiny.write(tmp_path, raw), **options)


def test_an_argument_that_cannot_be_made(tmp_path, tiny):
    with pytest.raises(PortError, match="the argument 'past_values'") as raised:
        resolve(tiny.write(tmp_path, {"model_type": "patchtst", "architectures": ["PatchTSTModel"]}))
    assert "--inputs module:function" in str(raised.value)
