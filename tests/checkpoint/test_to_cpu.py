"""From the devices back to the host: results and whole models."""

import dataclasses
from collections import defaultdict

import jax
import pytest
import torch

import tpuport
from tests.cache_names import CACHE
from tpuport import PortError, compat


def test_a_compiled_models_output_becomes_plain_torch(tiny_model, mesh_of_size):
    model = tiny_model("llama")
    ids = torch.arange(8).reshape(2, 4)
    expected = model(ids)
    out = tpuport.to_cpu(tpuport.compile(tpuport.port(tiny_model("llama"), mesh=mesh_of_size(tp=2)))(ids))
    assert type(out) is type(expected)
    assert type(out.logits) is torch.Tensor
    torch.testing.assert_close(out.logits, expected.logits, atol=1e-5, rtol=1e-5)
    keys = out[CACHE].layers[1].keys
    torch.testing.assert_close(keys, expected[CACHE].layers[1].keys, atol=1e-5, rtol=1e-5)


def test_every_kind_of_value():
    narrow = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    array = compat.to_jax(narrow)
    got = tpuport.to_cpu({"array": array, "tensors": [compat.wrap(array), narrow], "none": None, "number": 3})
    assert torch.equal(got["array"], narrow)
    assert all(type(x) is torch.Tensor and torch.equal(x, narrow) for x in got["tensors"])
    assert (got["none"], got["number"]) == (None, 3)
    with compat.environment():
        view = compat.wrap(array)[1:]
    assert tpuport.to_cpu(view).tolist() == [-2.0]


def test_a_model_goes_to_the_device_and_back(tiny_model, family, mesh_of_size, assert_same):
    original = tiny_model(family)
    model = tpuport.port(tiny_model(family), mesh=mesh_of_size(tp=2))
    assert tpuport.to_cpu(model) is model
    assert not any(compat.is_ported(x) for x in model.state_dict().values())
    for ours, theirs in ((model.state_dict(), original.state_dict()),
                         (dict(model.named_buffers()), dict(original.named_buffers()))):  # fmt: skip
        assert list(ours) == list(theirs)
        for name, value in theirs.items():
            assert torch.equal(ours[name], value), name
    pointers = {name: x.data_ptr() for name, x in model.named_parameters(remove_duplicate=False)}
    tied = {name: x.data_ptr() for name, x in original.named_parameters(remove_duplicate=False)}
    assert len(set(pointers.values())) == len(set(tied.values()))
    ids = torch.arange(8).reshape(2, 4)
    assert torch.equal(model(ids).logits, original(ids).logits)
    with pytest.raises(PortError, match="not on the device"):
        tpuport.compile(model)(ids)
    assert_same(tpuport.port(model, mesh=mesh_of_size(tp=2)), original)


def test_what_a_forward_keeps_on_a_module_comes_back_too():
    model = tpuport.port(torch.nn.Linear(2, 2))
    model.table = compat.wrap(compat.to_jax(torch.ones(2)))
    assert type(tpuport.to_cpu(model).table) is torch.Tensor


def test_what_cannot_be_fetched_says_why():
    with pytest.raises(PortError, match="not there yet"):
        jax.jit(lambda x: tpuport.to_cpu(x).tolist())(1.0)
    array = jax.numpy.ones(2)
    array.delete()
    with pytest.raises(PortError, match="donated"):
        tpuport.to_cpu(compat.wrap(array))


def test_buffers_of_64_bits_have_their_digits_again():
    def build():
        model = torch.nn.Linear(2, 2)
        model.register_buffer("table", torch.polar(torch.ones(3).double(), torch.arange(3).double() / 7))
        model.register_buffer("scale", torch.tensor([1 / 3], dtype=torch.float64))
        return model

    original, model = build(), tpuport.port(build())
    # Also a second time, from the device.
    model = tpuport.to_cpu(tpuport.port(model))
    for name in ("table", "scale"):
        assert torch.equal(model.get_buffer(name), original.get_buffer(name))
    written = tpuport.port(build())
    with compat.environment():
        written.scale.mul_(2)
    torch.testing.assert_close(tpuport.to_cpu(written).scale, torch.tensor([2 / 3]))


def test_dictionaries_keep_their_order():
    values = defaultdict(list, {"b": torch.ones(1), "a": {"z": torch.zeros(1), 1: torch.ones(2)}})
    ported = defaultdict(
        list, {"b": values["b"].to("jax"), "a": {key: x.to("jax") for key, x in values["a"].items()}}
    )
    fetched = tpuport.to_cpu([ported])[0]
    assert (type(fetched), list(fetched), list(fetched["a"])) == (defaultdict, ["b", "a"], ["z", 1])
    assert fetched["c"] == []
    assert torch.equal(fetched["a"][1], values["a"][1])
    assert compat.is_ported(ported["b"])


@dataclasses.dataclass(frozen=True)
class Forecast:
    fields: dict[str, torch.Tensor]
    latitudes: torch.Tensor
    history: list


def test_what_own_objects_hold_is_fetched_in_new_ones():
    field = compat.wrap(compat.to_jax(torch.arange(3.0)))
    host = torch.ones(2)
    model = tpuport.port(torch.nn.Linear(2, 2))
    forecast = Forecast({"b": field, "a": field}, host, [model, "12:00"])
    forecast.history.append(forecast)
    got, (again,) = tpuport.to_cpu((forecast, [forecast]))
    assert type(got) is Forecast
    assert got is again is got.history[2]
    assert list(got.fields) == ["b", "a"]
    assert type(got.fields["b"]) is torch.Tensor
    assert got.fields["b"].tolist() == [0, 1, 2]
    assert got.fields["a"] is got.fields["b"]
    assert got.latitudes is host
    assert got.history[:2] == [model, "12:00"]
    # The caller's own is as it was.
    assert forecast.fields["b"] is field
    assert compat.is_ported(model.weight)


def test_an_object_without_tensors_of_the_device_is_returned_itself():
    forecast = Forecast({}, torch.ones(2), [torch.distributions.Normal(torch.zeros(1), torch.ones(1))])
    assert tpuport.to_cpu([forecast])[0] is forecast
