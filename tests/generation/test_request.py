"""What a request holds is what `generate` takes, and transformers' `generate` gets all of it."""

import dataclasses
import inspect

import torch
from transformers import GenerationMixin, LogitsProcessorList, MinLengthLogitsProcessor

import tpuport
from tpuport.generation.request import Request


def test_the_arguments_of_generate_are_the_fields_of_a_request() -> None:
    parameters = inspect.signature(tpuport.generate).parameters
    fields = {field.name for field in dataclasses.fields(Request)}
    assert set(parameters) == fields - {"timestamps"}
    for field in dataclasses.fields(Request):
        if field.default is not dataclasses.MISSING and field.name in parameters:
            assert parameters[field.name].default == field.default


def test_transformers_gets_all_that_was_asked_for() -> None:
    processor, ids = MinLengthLogitsProcessor(3, 1), torch.tensor([[5, 6]])
    options = {"max_new_tokens": 4, "top_k": None, "inputs_embeds": None}
    request = Request(model=None, input_ids=ids, logits_processor=[processor], options=options)
    named = request.as_transformers()
    assert isinstance(named["logits_processor"], LogitsProcessorList)
    assert named["inputs"] is ids
    # None as an option takes the place of what the model's config has; elsewhere it says nothing.
    assert named.keys() == {"inputs", "logits_processor", "seed", "max_new_tokens", "top_k"}
    assert {"inputs", "logits_processor"} <= inspect.signature(GenerationMixin.generate).parameters.keys()


def test_the_result_of_a_tokenizer_is_given_by_name() -> None:
    encoding = {"input_ids": torch.tensor([[5, 6]]), "attention_mask": torch.ones(1, 2)}
    request = Request(model=None, input_ids=encoding, attention_mask=torch.zeros(1, 2))
    named = request.as_transformers()
    assert named["input_ids"] is encoding["input_ids"]
    assert named["attention_mask"] is request.attention_mask
