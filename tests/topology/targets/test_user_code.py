"""Someone's own functions, and the code that lies in a model's directory."""

import sys
from pathlib import Path

import pytest
import torch

from tpuport.errors import PortError
from tpuport.topology.generation_tasks import Decode
from tpuport.topology.targets import resolve
from tpuport.verification.check_target import load_target

MODEL = """
import dataclasses
import torch
from helper_of_mine import WIDTH

@dataclasses.dataclass
class Settings:
    width: int = WIDTH

class Big(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width, bias=False)
        self.register_buffer("scale", torch.arange(3.0))

    def forward(self, x):
        return self.linear(x)

def whole():
    return Big(Settings().width), {"x": torch.ones(2, 8)}

def builder():
    return lambda: Big(64), {"x": torch.ones(2, 64)}

def wrong():
    return Big(8)

def fails():
    return 1 / 0

def positions():
    return Big(8), [torch.ones(2)]

def nothing():
    return None

def late():
    from late_helper_of_mine import WIDTH
    return Big(WIDTH), {"x": torch.ones(2, 8)}

def sized(size, *more, width=8, **rest):
    return Big(width), {}
"""


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "helper_of_mine.py").write_text("WIDTH = 40_000\n")
    (tmp_path / "late_helper_of_mine.py").write_text("WIDTH = 8\n")
    file = tmp_path / "model_of_mine.py"
    file.write_text(MODEL)
    before = set(sys.modules), list(sys.path)
    yield file
    assert sys.path == before[1]
    for name in set(sys.modules) - before[0]:
        if name.endswith("of_mine"):
            del sys.modules[name]


@pytest.mark.parametrize("by", ["file", "module"])
def test_a_function_that_returns_a_model_makes_none(mine, monkeypatch, by):
    """6.4 GB of weights, were they made."""
    monkeypatch.chdir(mine.parent)
    [target] = resolve(f"{mine}:whole" if by == "file" else "model_of_mine:whole", dtype="bfloat16")
    model = target.build()
    assert model.linear.weight.shape == (40_000, 40_000)
    assert model.linear.weight.device.type == "meta"
    assert model.scale.tolist() == [0, 1, 2]
    assert target.inputs["x"].tolist() == torch.ones(2, 8).tolist()
    assert (target.name, target.kind, target.unit, target.dtype) == ("whole", "code", None, None)
    assert {tensor.dtype for tensor in (model.linear.weight, model.scale, target.inputs["x"])} == {
        torch.bfloat16
    }


def test_a_function_that_returns_a_builder_is_built_later(mine):
    [target] = resolve(f"{mine}:builder")
    assert target.build() is not target.build()
    assert target.build().linear.weight.shape == (64, 64)


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        ("absent", {}, r"no function 'absent'(.|\n)*it has whole, builder"),
        ("wrong", {}, r"it returned an object of class Big(.|\n)*return \(model, inputs\)"),
        (
            "fails",
            {},
            r"ZeroDivisionError: division by zero(.|\n)*model_of_mine.py:29(.|\n)*fix: call it in Python",
        ),
        ("nothing", {}, r"it returned None\n"),
        (
            "sized",
            {},
            r"the function takes size, and it is called without arguments(.|\n)*fix: give its parameters defaults",
        ),
        ("positions", {}, r"the inputs are a list of 1: Tensor"),
        ("whole", {"batch": 2}, "batch does not apply to the user's own code"),
        ("wrong", {}, r"or give --inputs module:function"),
        ("whole", {"inputs": "a:b"}, "the function makes the inputs"),
        ("whole", {"component": "vae"}, "not a pipeline"),
    ],
)
def test_what_a_function_cannot_be(mine, function, options, says):
    with pytest.raises(PortError, match=says):
        resolve(f"{mine}:{function}", **options)


def test_a_model_alone_has_the_inputs_of_another_function(mine):
    with mine.open("a") as file:
        file.write("\ndef inputs():\n    return {'x': torch.ones(3, 8)}\n\ndef of(config):\n    return {}\n")
    [target] = resolve(f"{mine}:wrong", inputs=f"{mine}:inputs", dtype="float16")
    assert target.inputs["x"].shape == (3, 8)
    assert target.build().linear.weight.device.type == "meta"
    assert target.build().linear.weight.dtype == torch.bfloat16
    assert "float16" in target.notes[-2]
    assert target.notes[-1] == "inputs that were converted to bfloat16: x"
    with pytest.raises(PortError, match="no config to give it"):
        resolve(f"{mine}:wrong", inputs=f"{mine}:of")


@pytest.mark.parametrize("name", ["llama-2-8b", "meta-llama/Llama-2-7b"])
def test_a_name_that_is_not_known_lists_those_that_are(name):
    with pytest.raises(PortError, match=r"did you mean [^?]*llama-2-7b(.|\n)*wan-2.1-14b"):
        resolve(name)


def test_modules_and_files_that_are_not_there(tmp_path, mine):
    with pytest.raises(PortError, match="no module 'no_such_module_at_all'"):
        resolve("no_such_module_at_all:function")
    with pytest.raises(PortError, match="no such file"):
        resolve(f"{tmp_path}/absent.py:function")
    with pytest.raises(PortError, match="does not name a function"):
        resolve(str(mine))


def test_errors_in_a_module_say_their_line(tmp_path):
    (tmp_path / "broken_of_mine.py").write_text("import torch\n\nx = (\n")
    with pytest.raises(PortError, match=r"SyntaxError(.|\n)*broken_of_mine.py:3"):
        resolve(f"{tmp_path}/broken_of_mine.py:f")
    (tmp_path / "other_of_mine.py").write_text("import torch\n\nimport not_installed_at_all\n")
    with pytest.raises(PortError, match=r"not_installed_at_all(.|\n)*other_of_mine.py:3"):
        resolve(f"{tmp_path}/other_of_mine.py:f")


def test_inputs_of_ones_own_for_a_config(tmp_path, tiny):
    path = tiny.write(tmp_path / "model", {"model_type": "llama", "num_hidden_layers": 1})
    (tmp_path / "inputs_of_mine.py").write_text(
        "from tpuport.topology.generation_tasks import Decode\n"
        "def decode(config):\n    return Decode(4, config.num_hidden_layers * 32)\n"
        "def without():\n    return {'input_ids': None}\n"
        "def default(config=3):\n    return {'config': config}\n"
        "def wrong(config):\n    return 3\n"
    )
    named = f"{tmp_path}/inputs_of_mine.py"
    assert resolve(path, inputs=f"{named}:decode")[0].inputs == Decode(4, 32)
    assert resolve(path, inputs=f"{named}:without")[0].inputs == {"input_ids": None}
    assert resolve(path, inputs=f"{named}:default")[0].inputs == {"config": 3}
    assert resolve(path, inputs=f"{named}:decode", task="decode")
    with pytest.raises(PortError, match="makes inputs of decode, not of prefill"):
        resolve(path, inputs=f"{named}:decode", task="prefill")
    with pytest.raises(PortError, match="the inputs are an object of class int"):
        resolve(path, inputs=f"{named}:wrong")
    with pytest.raises(PortError, match="length is given together with inputs"):
        resolve(path, inputs=f"{named}:decode", length=3)


CONFIGURATION = """
from transformers import PretrainedConfig
class OwnConfig(PretrainedConfig):
    model_type = "own_model_of_mine"
    def __init__(self, hidden_size=16, **rest):
        self.hidden_size = hidden_size
        super().__init__(**rest)
"""
MODELING = """
import torch
from transformers import PreTrainedModel
from .configuration_own import OwnConfig
class OwnModel(PreTrainedModel):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        self.embed = torch.nn.Embedding(32, config.hidden_size)
        self.post_init()
    def forward(self, input_ids, attention_mask=None):
        return (self.embed(input_ids),)
"""


@pytest.fixture
def own(tmp_path, tiny, monkeypatch):
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    # Code of another directory, imported before, has the package's name, and its place on the path comes first.
    monkeypatch.setattr(
        sys, "path", [one for one in sys.path if not Path(one, "transformers_modules").is_dir()]
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
        monkeypatch.delitem(sys.modules, name)
    automatic = {"AutoConfig": "configuration_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}
    path = tiny.write(tmp_path / "own", {"model_type": "own_model_of_mine", "auto_map": automatic})
    (tmp_path / "own" / "configuration_own.py").write_text(CONFIGURATION)
    (tmp_path / "own" / "modeling_own.py").write_text(MODELING)
    return path


def test_code_in_the_directory_is_run_only_if_it_is_trusted(own, tiny):
    with pytest.raises(PortError, match=r"configuration_own.py(.|\n)*--trust-remote-code") as raised:
        resolve(own)
    assert "modeling_own.py" in str(raised.value)
    [target] = resolve(own, trust_remote_code=True, length=8)
    model = target.build()
    assert type(model).__name__ == "OwnModel"
    assert model.embed.weight.device.type == "meta"
    with torch.no_grad():
        assert model.to("meta")(**target.inputs)[0].shape == (1, 8, 16)


def test_code_that_is_elsewhere_or_not_there(tmp_path, tiny):
    elsewhere = {"model_type": "not_known", "auto_map": {"AutoConfig": "someone/repo--configuration.Own"}}
    with pytest.raises(PortError, match="another repository"):
        resolve(tiny.write(tmp_path / "a", elsewhere), trust_remote_code=True)
    absent = {"model_type": "not_known", "auto_map": {"AutoConfig": "configuration.Own"}}
    with pytest.raises(PortError, match=r"no such file(.|\n)*configuration.py"):
        resolve(tiny.write(tmp_path / "b", absent), trust_remote_code=True)


def test_that_code_beside_a_model_of_the_library_is_not_needed(tmp_path, tiny):
    raw = {"model_type": "llama", "auto_map": {"AutoConfig": "configuration.Own"}}
    assert len(resolve(tiny.write(tmp_path, raw))) == 2


TIED = """
import torch

def target():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    model[1].weight = model[0].weight
    return model, {"input": torch.empty(1, 8)}
"""


def test_a_model_that_is_returned_keeps_its_shared_weights(tmp_path):
    file = tmp_path / "tied.py"
    file.write_text(TIED)
    [target] = resolve(f"{file}:target")
    model = target.build()
    assert model[1].weight is model[0].weight
    assert model[0].weight.device.type == "meta"


def test_a_function_may_import_what_is_beside_its_file(mine):
    assert resolve(f"{mine}:late")
    assert load_target(f"{mine}:late", {}).model.linear.in_features == 8
