"""Arguments of the wrong type, as a user's process sees them: without the type checker of the other tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# By name: the call, and what its PortError says, in order.
CALLS = {
    "mesh is a number": ("load(Auto, d, mesh=8)", ["this is a int and not a mesh", "mesh=8", "create_mesh"]),
    "mesh is text": ("port(model(), mesh='tp')", ["this is a str and not a mesh", "mesh='tp'"]),
    "mesh with explicit axes, loaded": (
        "load(Auto, d, mesh=explicit)",
        ["axes are Auto", "'dp' is Explicit, axis 'tp' is Explicit", "create_mesh", "axis_types="],
    ),
    "mesh with explicit axes, ported": ("port(model(), mesh=explicit)", ["axes are Auto", "create_mesh"]),
    "rules are a dict, loaded": (
        "load(Auto, d, rules={'a': P()})",
        ["rules is a dict", "ShardingRules({...})", "override({...})"],
    ),
    "rules are a dict, ported": ("port(model(), rules={'a': P()})", ["rules is a dict"]),
    "class and directory swapped": ("load(d, Auto)", ["is not a model class", "load(AutoModelForCausalLM,"]),
    "a model instead of its class": ("load(model(), d)", ["a LlamaForCausalLM is not", "tpuport.port"]),
    "no directory": ("load(Auto, None)", ["None is not a directory", "second argument"]),
    "dtype is a number": ("load(Auto, d, dtype=5)", ["5 is not a dtype"]),
    "dtype is no dtype": ("load(Auto, d, dtype='float7')", ["'float7' is not a dtype"]),
    "axis size is text": ("create_mesh(tp='4')", ["whole number of devices", "tp='4'"]),
    "axis size is a float": ("create_mesh(tp=2.0, dp=4)", ["whole number of devices", "tp=2.0"]),
    "max_new_tokens is a float": ("generate(m, ids, max_new_tokens=4.5)", ["max_new_tokens=4.5"]),
    "config is a dict": ("generate(m, ids, None, {'max_new_tokens': 4})", ["generation_config is a dict"]),
    "seed is text": ("generate(m, ids, seed='a')", ["seed='a'"]),
    "seed is None": ("generate(m, ids, seed=None)", ["seed=None"]),
    "a function for a criterion": (
        "generate(m, ids, stopping_criteria=print)",
        ["not a list of StoppingCriteria"],
    ),
    "model is None": ("generate(None, ids)", ["this is a NoneType"]),
    "the cache's dtype is no dtype": (
        "kv_cache_bytes(m.config, 1, 100, 'float7')",
        ["'float7' is not a dtype"],
    ),
    "compile of a number": ("compile(3)", ["this is a int, which cannot be compiled"]),
}
# What looks odd and works: the call, and what it gives.
WORKS = {
    "NumPy's dtype": ("load(Auto, d, dtype=np.float32).dtype", "torch.float32"),
    "jax's dtype": ("load(Auto, d, dtype=jnp.bfloat16).dtype", "torch.bfloat16"),
    "a dtype by name": ("kv_cache_bytes(m.config, 1, 100, 'bfloat16')", str(2 * 16 * 100 * 2)),
    "lists": ("generate(m, [[3, 4]], [[1, 1]], max_new_tokens=2).shape", "torch.Size([1, 4])"),
    "NumPy ids": ("generate(m, ids.numpy(), max_new_tokens=2).shape", "torch.Size([1, 4])"),
}
SCRIPT = """
import json, sys, jax, jax.numpy as jnp, numpy as np, torch
from jax.sharding import PartitionSpec as P
from transformers import AutoModelForCausalLM as Auto, LlamaConfig, LlamaForCausalLM
from tpuport import PortError, compile, create_mesh, generate, kv_cache_bytes, load, port
sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
model = lambda: LlamaForCausalLM(LlamaConfig(**sizes, eos_token_id=None))
d = sys.argv[1]
model().save_pretrained(d)
m, ids, explicit = port(model()), torch.tensor([[3, 4]]), jax.make_mesh((2, 4), ("dp", "tp"))
outcomes = {}
for name, call in json.loads(sys.argv[2]).items():
    try:
        outcomes[name] = str(eval(call))
    except PortError as error:
        outcomes[name] = "PortError: " + str(error)
    except Exception as error:
        outcomes[name] = repr(error)
print(json.dumps(outcomes))
"""


# The process generates, and must then exit by itself: nothing that it started may keep it waiting.
@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    calls = json.dumps({name: call for name, (call, _) in (CALLS | WORKS).items()})
    env = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path_factory.mktemp("checkpoint")), calls]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_a_port_error_that_names_it(outcomes: dict[str, str], name: str) -> None:
    text = outcomes[name]
    assert text.startswith("PortError: ")
    assert len(text) < 600
    for part in CALLS[name][1]:
        assert part in text
        text = text.partition(part)[2]


@pytest.mark.parametrize("name", WORKS)
def test_an_odd_argument_works(outcomes: dict[str, str], name: str) -> None:
    assert outcomes[name] == WORKS[name][1]
