"""What a user does first with an installed tpuport: `tpuport doctor`, a lint, and a port beside torch.

`make test-dist` runs this file with the Python of an environment into which the wheel was installed, outside of the
clone; tests/test_packaging.py does so with the dependencies of the environment that runs the tests.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import tpuport.auto  # isort: skip
import torch
from transformers import LlamaConfig, LlamaForCausalLM

CODE = """\
import torch


class Gate(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x
"""


def run_command(*arguments: str, expected: int) -> str:
    """What the installed `tpuport` prints."""
    command = [str(Path(sys.executable).with_name("tpuport")), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == expected, ended.stdout + ended.stderr
    return ended.stdout


def check_port() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    model = LlamaForCausalLM(config).eval()
    tokens = torch.tensor([[1, 5, 9, 2]])
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.no_grad():
        logits, generated = model(tokens).logits, model.generate(tokens, **options)
    tpuport.port(model, mesh=tpuport.create_mesh(tp=-1))
    torch.testing.assert_close(
        tpuport.to_cpu(tpuport.compile(model)(tokens).logits), logits, rtol=1e-4, atol=1e-5
    )
    assert torch.equal(tpuport.generate(model, tokens, **options), generated)


def main() -> None:
    package = Path(tpuport.__file__)
    assert package.is_relative_to(sys.prefix), f"{package} is not the installed package"
    sys.stdout.write(run_command("doctor", expected=0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gate.py"
        path.write_text(CODE)
        assert "TPU205" in run_command("lint", str(path), expected=1)
    check_port()
    sys.stdout.write(f"tpuport {tpuport.__version__}: doctor, lint and a port beside torch succeed\n")


if __name__ == "__main__":
    main()
