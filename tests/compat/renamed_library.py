"""Runs models with libraries that have another name for something private.

    python renamed_library.py '[["MODULE", "OLD_NAME", "NEW_NAME", "SCENARIO"], ...]'

Each runs in a process of its own, in which nothing else is renamed. The name is replaced in
the source of the module, or of all modules of a package, when it is imported; in torch._C,
which has no source, once it is imported. Prints a line of JSON for each: which it is, how far
the model's output is from torch's, and the lines of `tpuport doctor` about mechanisms.

What is not renamed is imported once, before the process is forked: imports take most of the
time.
"""

import importlib.abc
import importlib.machinery
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Renaming(importlib.abc.MetaPathFinder):
    """Finds modules whose source uses a name, and replaces the name."""

    def __init__(self, module: str, old: str, new: str) -> None:
        self._module, self._old, self._new = module, old, new

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self._module and not fullname.startswith(f"{self._module}."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        origin = spec.origin if spec is not None else None
        if origin is None or not origin.endswith(".py"):
            return None
        source = Path(origin).read_text(encoding="utf-8")
        if self._old not in source:
            return None
        renamed = re.sub(rf"\b{self._old}\b", self._new, source)
        if renamed == source:
            return None
        spec.loader = RenamedSource(fullname, origin, renamed)
        return spec


class RenamedSource(importlib.machinery.SourceFileLoader):
    """Loads a module from another source than that of its file."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> Any:
        return compile(self._source, self.path, "exec", dont_inherit=True)


def causal_llama() -> float:
    """A padded batch through a Llama, whose mask is causal."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    model = LlamaForCausalLM(config).eval()
    ids = torch.arange(14).reshape(2, 7)
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[0, :2] = 0
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).logits
        ported = tpuport_of()(model)
        output = ported(ids.to("jax"), attention_mask=mask.to("jax")).logits
    # Padded queries see nothing, and what they give means nothing.
    return float((output.to("cpu") - expected)[mask.bool()].abs().max())


def flux() -> float:
    """A transformer of diffusers, with the backend that it chooses by itself."""
    import torch
    from diffusers import FluxTransformer2DModel

    torch.manual_seed(0)
    model = FluxTransformer2DModel(
        in_channels=4, num_layers=1, num_single_layers=0, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
    ).eval()  # fmt: skip
    inputs = {
        "hidden_states": torch.randn(1, 16, 4), "encoder_hidden_states": torch.randn(1, 8, 32),
        "pooled_projections": torch.randn(1, 32), "timestep": torch.tensor([0.5]),
        "img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(8, 3),
    }  # fmt: skip
    with torch.no_grad():
        expected = model(**inputs).sample
        import tpuport

        ported = tpuport_of()(model)
        with tpuport.attention.register():
            output = ported(**{name: value.to("jax") for name, value in inputs.items()}).sample
    return float((output.to("cpu") - expected).abs().max())


def tpuport_of() -> Callable[[Any], Any]:
    """`tpuport.port` in a process in which tpuport is enabled."""
    import tpuport

    tpuport.enable()
    return tpuport.port


SCENARIOS: dict[str, Callable[[], float]] = {"causal_llama": causal_llama, "flux": flux}


class Messages(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


# Imported one after another; before each, those processes are forked for which it is renamed. The first three are what
# transformers imports and nobody renames.
IMPORTS = (
    "torch._dynamo", "accelerate", "scipy.stats", "transformers.models.llama.modeling_llama",
    "diffusers.models.transformers.transformer_flux", "jax",
)  # fmt: skip


def main(renames: list[list[str]]) -> None:
    waiting = list(renames)
    for name in IMPORTS:
        package = name.partition(".")[0]
        for rename in [one for one in waiting if one[0].partition(".")[0] == package != "torch"]:
            waiting.remove(rename)
            run_in_fork(rename)
        importlib.import_module(name)
    for rename in waiting:
        run_in_fork(rename)


def run_in_fork(rename: list[str]) -> None:
    """Run a scenario in a copy of this process, and wait for it."""
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            report(*rename)
            code = 0
        except BaseException:  # noqa: BLE001 - the copy must not go on with the caller's work
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) != 0:
        raise SystemExit(f"failed with {rename}")


def report(module: str, old: str, new: str, scenario: str) -> None:
    if module == "torch._C":
        extension = importlib.import_module(module)
        setattr(extension, new, getattr(extension, old))
        delattr(extension, old)
    else:
        assert module not in sys.modules, "it is too late to rename anything there"
        sys.meta_path.insert(0, Renaming(module, old, new))
    messages = Messages()
    logging.getLogger("tpuport").addHandler(messages)
    difference = SCENARIOS[scenario]()

    from tpuport.cli import doctor, probes

    mechanisms = probes.mechanisms()
    found = {
        "rename": [module, old, new, scenario],
        "difference": difference,
        "off": [entry["mechanism"] for entry in mechanisms if not entry["works"]],
        "doctor": doctor.mechanism_lines(mechanisms),
        "warnings": messages.texts,
    }
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
