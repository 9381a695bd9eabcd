"""What SECURITY.md says, sentence by sentence: the docstring of each test is the sentence."""

import inspect
import json
import os
import pickle
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

import tpuport
from tpuport.errors import PortError

ROOT = Path(__file__).resolve().parents[1]
EVIL = "import pathlib\npathlib.Path({marker!r}).touch()\n"
# Prints what a command does besides computing: connections, open ports, other programs, code from a directory.
AUDIT = """
import sys
watched = "socket.connect socket.bind socket.getaddrinfo subprocess.Popen os.system os.exec os.posix_spawn".split()
def hook(event, arguments):
    if event in watched:
        print("EVENT", event, arguments, file=sys.stderr)
    elif event == "exec" and getattr(arguments[0], "co_filename", "").startswith(sys.argv[1]):
        print("EVENT", event, arguments, file=sys.stderr)
sys.addaudithook(hook)
"""
LINT = "from tpuport.cli import main\nsys.argv[:] = ['tpuport', 'lint', '--no-cache', sys.argv[1]]\nsys.exit(main())"


def planted(directory: Path) -> Path:
    """Code in every file that some tool would run; it leaves `ran` behind."""
    marker = directory / "ran"
    evil = EVIL.format(marker=str(marker))
    names = "conftest setup sitecustomize usercustomize __init__ __main__ torch json tomllib noxfile tasks"
    for name in names.split():
        (directory / f"{name}.py").write_text(evil)
    model = (
        "import json, torch\nfrom . import setup\nfrom torch import nn\n\n\nclass Model(nn.Module):\n"
        "    def forward(self, x):\n        return x[x > 0]\n"
    )
    (directory / "model.py").write_text(evil + model)
    cell = {"cell_type": "code", "source": evil, "metadata": {}, "outputs": [], "execution_count": None}
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (directory / "notes.ipynb").write_text(json.dumps(notebook))
    (directory / "pyproject.toml").write_text(
        '[tool.tpuport.lint]\nselect = ["TPU1"]\n[tool.pytest]\naddopts = ""\n'
    )
    return marker


def run(*command: str, cwd: Path, code: set[int]) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode in code, done.stderr
    return done.stdout + done.stderr


def test_lint_reads_text(tmp_path):
    """`tpuport lint` reads code, notebooks and settings as text, and never imports or runs any of it."""
    marker = planted(tmp_path)
    script = str(Path(sys.executable).with_name("tpuport"))
    output = run(script, "lint", ".", cwd=tmp_path, code={1})
    assert "TPU101" in output
    assert not marker.exists()


def test_lint_connects_to_nothing(tmp_path):
    """`tpuport lint` connects to nothing, and starts no other program."""
    planted(tmp_path)
    output = run(sys.executable, "-P", "-c", AUDIT + LINT, str(tmp_path), cwd=tmp_path.parent, code={1})
    assert "TPU101" in output
    assert "EVENT" not in output


def test_the_audit_sees_what_it_is_for(tmp_path):
    (tmp_path / "evil.py").write_text("")
    code = "import socket\ntry:\n    socket.create_connection(('127.0.0.1', 9), 0.01)\nexcept OSError:\n    pass\n"
    code += "import os\nos.system('true')\nsys.path.insert(0, sys.argv[1])\nimport evil\n"
    output = run(sys.executable, "-c", AUDIT + code, str(tmp_path), cwd=tmp_path.parent, code={0})
    assert all(f"EVENT {event}" in output for event in ("socket.connect", "os.system", "exec"))


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def test_caches_are_data(tmp_path):
    """The linter's cache and baselines are JSON, and nothing in them is ever executed."""
    source, cache, marker = tmp_path / "code", tmp_path / "cache", tmp_path / "ran"
    source.mkdir()
    (source / "model.py").write_text("x = 1\n")
    command = [sys.executable, "-m", "tpuport", "lint", "--cache-dir", str(cache), str(source)]
    run(*command, cwd=tmp_path, code={0})
    entries = [file for file in cache.rglob("*") if file.is_file()]
    for file in entries:
        json.loads(file.read_bytes()) if file.suffix == ".json" else None
        file.write_bytes(pickle.dumps(Evil(marker)))
    run(*command, cwd=tmp_path, code={0})
    (tmp_path / "baseline.json").write_bytes(pickle.dumps(Evil(marker)))
    run(*command, "--baseline", str(tmp_path / "baseline.json"), cwd=tmp_path, code={2})
    assert entries
    assert not marker.exists()


@pytest.fixture
def checkpoint(tmp_path):
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("trust_remote_code", [False, True])
def test_pickles_are_refused(checkpoint, trust_remote_code):
    """Weights are read from safetensors and GGUF files alone; pickled weights are refused, trusted or not."""
    (checkpoint / "model.safetensors").unlink()
    marker = checkpoint / "ran"
    (checkpoint / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(marker)))
    with pytest.raises(PortError, match="unpickling runs"):
        tpuport.load(AutoModelForCausalLM, checkpoint, trust_remote_code=trust_remote_code)
    assert not marker.exists()


def own_code(directory: Path) -> Path:
    """A checkpoint of a model whose code lies beside its weights; the code leaves `ran` behind."""
    directory.mkdir()
    marker = directory / "ran"
    code = (
        "import torch\nfrom transformers import PretrainedConfig, PreTrainedModel\n"
        "class OwnConfig(PretrainedConfig):\n    model_type = 'own'\n"
        "class OwnModel(PreTrainedModel):\n    config_class = OwnConfig\n"
        "    def __init__(self, config):\n        super().__init__(config)\n"
        "        self.layer = torch.nn.Linear(2, 3)\n        self.post_init()\n"
    )
    (directory / "modeling_own.py").write_text(EVIL.format(marker=str(marker)) + code)
    names = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    (directory / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": names}))
    weights = {"layer.weight": torch.ones(3, 2), "layer.bias": torch.zeros(3)}
    save_file(weights, directory / "model.safetensors")
    return marker


def test_code_runs_only_when_trusted(tmp_path, monkeypatch):
    """Python code in a checkpoint runs only with `trust_remote_code=True`."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    marker = own_code(tmp_path / "own")
    with pytest.raises(PortError, match="trust_remote_code=True"):
        tpuport.load(AutoModelForCausalLM, tmp_path / "own")
    assert not marker.exists()


def test_trusted_code_runs(tmp_path, monkeypatch):
    """`load(..., trust_remote_code=True)` runs the Python code in the checkpoint's directory, as you."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    marker = own_code(tmp_path / "own")
    tpuport.load(AutoModelForCausalLM, tmp_path / "own", trust_remote_code=True)
    assert marker.exists()


@pytest.mark.slow  # the refusal below
def test_loading_connects_to_nothing(checkpoint, tmp_path):
    code = (
        "import tpuport\nfrom transformers import AutoModelForCausalLM\n"
        "tpuport.load(AutoModelForCausalLM, sys.argv[1])\nprint('loaded')\n"
    )
    # Imports of packages may start programs (torch asks for the compiler), so the hook comes after them.
    output = run(sys.executable, "-c", "import sys, tpuport, torch, transformers\n" + AUDIT + code, str(checkpoint),
                 cwd=tmp_path, code={0})  # fmt: skip
    assert "loaded" in output
    assert "socket." not in output


def test_code_elsewhere_is_refused(tmp_path):
    """Loading a checkpoint connects to nothing: code that its configuration names elsewhere is refused."""
    marker = own_code(tmp_path / "own")
    config = json.loads((tmp_path / "own" / "config.json").read_text())
    config["auto_map"]["AutoConfig"] = "someone/else--modeling_own.OwnConfig"
    (tmp_path / "own" / "config.json").write_text(json.dumps(config))
    with pytest.raises(PortError, match="someone/else"):
        tpuport.load(AutoModelForCausalLM, tmp_path / "own", trust_remote_code=True)
    assert not marker.exists()


def test_the_server_listens_on_no_port(tmp_path):
    """The language server speaks over its standard input and output, and listens on no port."""
    serve = "from tpuport.cli import main\nsys.argv[:] = ['tpuport', 'server']\nsys.exit(main())"
    output = run(sys.executable, "-c", AUDIT + serve, str(tmp_path), cwd=tmp_path, code={0, 1})
    assert "EVENT" not in output
    assert "needs pygls" not in output


@pytest.mark.slow  # tests/cli/test_check.py runs it
def test_check_runs_what_it_is_given(tmp_path):
    """`tpuport check file.py:function` imports that file and calls that function."""
    marker = tmp_path / "ran"
    target = "import torch\ndef target():\n    return torch.nn.Linear(2, 2), {'input': torch.ones(1, 2)}\n"
    (tmp_path / "mine.py").write_text(EVIL.format(marker=str(marker)) + target)
    run(sys.executable, "-m", "tpuport", "check", "mine.py:target", cwd=tmp_path, code={0})
    assert marker.exists()


def test_python_looks_in_the_working_directory_first(tmp_path):
    """`python -m tpuport` may run files in the working directory; the script `tpuport` does not."""
    marker = planted(tmp_path)
    run(sys.executable, "-m", "tpuport", "lint", "model.py", cwd=tmp_path, code={0, 1, 2})
    assert marker.exists()


@pytest.mark.slow  # tests/compilation/test_compilation.py has the directory
def test_programs_are_the_users_own(tmp_path):
    """Compiled programs are kept in a directory of yours, below `~/.cache`, and are not shared with other users."""
    code = (
        "import jax, torch, tpuport\njax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)\n"
        "tpuport.compile(tpuport.port(torch.nn.Linear(8, 8)))(torch.ones(2, 8))\n"
    )
    environment = {"HOME": str(tmp_path), "XDG_CACHE_HOME": "", "TPUPORT_COMPILATION_CACHE": ""}
    settings = (
        f"import os\nos.umask(0o022)\nos.environ.update({environment!r})\n"
        "os.environ.pop('JAX_COMPILATION_CACHE_DIR', None)\n"
    )
    run(sys.executable, "-c", settings + code, cwd=tmp_path, code={0})
    directory = tmp_path / ".cache" / "tpuport" / "xla"
    assert list(directory.iterdir())
    others = [path for path in (directory, *directory.iterdir()) if stat.S_IMODE(path.stat().st_mode) & 0o022]
    assert others == []


def test_each_sentence_has_its_test():
    bullets = re.findall(r"^- (.*)$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    tests = [value for name, value in globals().items() if name.startswith("test_") and value.__doc__]
    assert sorted(bullets) == sorted(inspect.cleandoc(test.__doc__) for test in tests)
