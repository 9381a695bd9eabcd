"""What torchax refuses outside of its environment, and what it refuses to mix, is said with advice that works."""

import pytest
import torch

import tpuport
from tpuport import PortError, compat


@pytest.mark.parametrize(
    "operation",
    [lambda x: x + 1, lambda x: x[:, -1].argmax(-1), lambda x: x.cpu(), lambda x: x.to("cpu"), torch.exp],
    ids=["add", "index", "cpu", "to", "exp"],
)
def test_an_operation_outside_of_the_environment_says_what_to_do(operation):
    result = compat.wrap(compat.to_jax(torch.ones(2, 3)))
    with pytest.raises(PortError, match=r"outside of torchax's environment\n.*tpuport\.to_cpu"):
        operation(result)
    assert torch.equal(operation(tpuport.to_cpu(result)), operation(torch.ones(2, 3)))
    with compat.environment():
        assert operation(result) is not None


def test_a_model_is_saved_or_moved_only_after_it_was_taken_back(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = tpuport.port(LlamaForCausalLM(config))
    ids = torch.tensor([[3, 4]])
    for call in (
        model.cpu,
        lambda: model.save_pretrained(tmp_path),
        lambda: model(ids),
    ):
        with pytest.raises(PortError, match=r"takes a ported model back"):
            call()
    tpuport.to_cpu(model).save_pretrained(tmp_path)
    again = LlamaForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_a_tensor_of_the_host_among_those_of_the_device_is_named():
    device, host = compat.wrap(compat.to_jax(torch.ones(2, 3))), torch.zeros(2, 3)
    with compat.environment():
        with pytest.raises(
            PortError, match=r"where: torch\.float32 \[2, 3\] on the host\n.*x\.to\(\"jax\"\)"
        ):
            device + host
        assert (device + host.to("jax")).shape == (2, 3)


@pytest.mark.parametrize("index", [torch.tensor(1), torch.tensor([1, 0]), torch.tensor([True, False])])
def test_a_tensor_of_the_host_that_one_of_the_device_indexes_is_named(index):
    host, place = torch.zeros(2, 3), compat.wrap(compat.to_jax(index))
    with compat.environment():
        with pytest.raises(PortError, match=r"where: torch\.float32 \[2, 3\] on the host"):
            host[place]
        assert host.to("jax")[place].shape == host[index].shape


def test_torchax_has_its_own_methods_back_when_disabled():
    tensor = compat.wrap(compat.to_jax(torch.ones(2)))
    tpuport.disable()
    with pytest.raises(AssertionError, match="enable_globally"):
        tensor.abs()
