"""Checkpoints that bitsandbytes and torchao write themselves, loaded by tpuport.

    pip install --no-deps --target DIR bitsandbytes torchao
    python -m benchmarks.quantized_checkpoints --libraries DIR

The libraries are no dependencies: transformers, diffusers and PEFT import other code where they are installed. So a
process that has them writes a tiny Llama in each format through transformers' `save_pretrained`, and a tiny Flux
through diffusers', with the outputs of the numbers that the library itself makes of its weights. This process, which
has them not, loads each with `tpuport.load` and compares. torchao's int4 needs a GPU to be written. So does diffusers'
bitsandbytes: those tensors are made by the library's own functions, and saved under the names that diffusers gives.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

IDS = torch.arange(18).reshape(2, 9) % 64
OUTPUT = "expected.pt"
LLAMA: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
FLUX: dict[str, Any] = {
    "in_channels": 4, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 64, "num_attention_heads": 2,
    "joint_attention_dim": 64, "pooled_projection_dim": 64, "axes_dims_rope": (16, 24, 24),
}  # fmt: skip


def flux_inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "hidden_states": torch.randn(1, 16, 4, generator=generator),
        "encoder_hidden_states": torch.randn(1, 6, 64, generator=generator),
        "pooled_projections": torch.randn(1, 64, generator=generator),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(6, 3),
    }


def write_all(directory: Path) -> None:
    """Write each checkpoint below a directory, with its output beside; where the libraries are."""
    import bitsandbytes  # pyright: ignore[reportMissingImports]
    import torchao  # pyright: ignore[reportMissingImports]
    import transformers
    from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
    from diffusers.quantizers.quantization_config import TorchAoConfig
    from torchao import quantization  # pyright: ignore[reportMissingImports]

    print(f"bitsandbytes {bitsandbytes.__version__}, torchao {torchao.__version__}", flush=True)
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).save_pretrained(directory / "llama")
    in_bits = transformers.BitsAndBytesConfig
    nf4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    schemes = {
        "bitsandbytes int8": in_bits(load_in_8bit=True),
        "bitsandbytes nf4": in_bits(**nf4),
        "bitsandbytes nf4, double": in_bits(**nf4, bnb_4bit_use_double_quant=True),
        "bitsandbytes fp4": in_bits(load_in_4bit=True, bnb_4bit_quant_type="fp4"),
    }
    schemes |= {
        f"torchao {name.removesuffix('Config')}": transformers.TorchAoConfig(getattr(quantization, name)())
        for name in (
            "Int8WeightOnlyConfig", "Float8WeightOnlyConfig", "IntxWeightOnlyConfig",
            "Int8DynamicActivationInt8WeightConfig",
        )
    }  # fmt: skip
    for name, scheme in schemes.items():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            directory / "llama", quantization_config=scheme, dtype=torch.float32, device_map="cpu"
        )
        target = directory / f"Llama, {name}"
        model.save_pretrained(target)
        save_output(target, make_dense(model)(IDS).logits)
    flux: Any = FluxTransformer2DModel
    flux(**FLUX).save_pretrained(directory / "flux")
    scheme = TorchAoConfig(quantization.Int8WeightOnlyConfig())
    model = flux.from_pretrained(directory / "flux", quantization_config=scheme, torch_dtype=torch.float32)
    target = directory / "Flux, torchao Int8WeightOnly"
    model.save_pretrained(target)
    save_output(target, make_dense(model)(**flux_inputs()).sample)
    for kind, quantize in (("int8", quantize_to_int8), ("nf4", quantize_to_nf4)):
        write_flux(
            directory / f"Flux, bitsandbytes {kind}", flux.from_pretrained(directory / "flux"), quantize
        )


def save_output(directory: Path, output: torch.Tensor) -> None:
    torch.save(output.detach(), directory / OUTPUT)


def make_dense(model: Any) -> nn.Module:
    """The model with ordinary linear layers in float32, of the numbers that the libraries make of their weights."""
    for name, layer in list(model.named_modules()):
        weight = dense_weight(layer)
        if weight is not None:
            dense = nn.Linear(*reversed(weight.shape), bias=layer.bias is not None)
            dense.weight.data = weight.float()
            if layer.bias is not None:
                dense.bias.data = layer.bias.data.float()
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, dense)
    # Quantised models refuse their own `float`.
    return nn.Module.float(model).eval()


def dense_weight(layer: nn.Module) -> torch.Tensor | None:
    """What a library makes of a layer's weight; None if that is not quantised."""
    import bitsandbytes  # pyright: ignore[reportMissingImports]

    weight: Any = getattr(layer, "weight", None)
    if isinstance(layer, bitsandbytes.nn.Linear4bit):
        return bitsandbytes.functional.dequantize_4bit(weight.data, weight.quant_state)
    if isinstance(layer, bitsandbytes.nn.Linear8bitLt):
        return weight.data.float() * weight.SCB.float()[:, None] / 127
    is_torchao = type(weight).__module__.startswith("torchao")
    return weight.dequantize() if isinstance(layer, nn.Linear) and is_torchao else None


def quantize_to_int8(weight: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The numbers that a weight becomes, and its tensors in a checkpoint."""
    import bitsandbytes  # pyright: ignore[reportMissingImports]

    values, scale, _ = bitsandbytes.functional.int8_vectorwise_quant(weight.half())
    stored = {"weight": values, "SCB": scale, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return values.float() * scale.float()[:, None] / 127, stored


def quantize_to_nf4(weight: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """As `quantize_to_int8`."""
    import bitsandbytes  # pyright: ignore[reportMissingImports]

    functions = bitsandbytes.functional
    values, state = functions.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    parts = {f"weight.{name}": part for name, part in state.as_dict(packed=True).items()}
    return functions.dequantize_4bit(values, state).float(), {"weight": values, **parts}


def write_flux(directory: Path, model: Any, quantize: Callable) -> None:
    """A checkpoint of diffusers with its linear layers in bitsandbytes' format, but not the last."""
    from safetensors.torch import save_file

    tensors = model.state_dict()
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and name != "proj_out":
            layer.weight.data, stored = quantize(layer.weight.data)
            tensors |= {f"{name}.{ending}": tensor.contiguous() for ending, tensor in stored.items()}
    directory.mkdir()
    save_file(tensors, directory / "diffusion_pytorch_model.safetensors")
    is_int8 = quantize is quantize_to_int8
    config = json.loads(model.to_json_string()) | {
        "quantization_config": {
            "quant_method": "bitsandbytes", "load_in_8bit": is_int8, "load_in_4bit": not is_int8,
            "_load_in_8bit": is_int8, "_load_in_4bit": not is_int8, "bnb_4bit_quant_type": "nf4",
            "llm_int8_skip_modules": ["proj_out"],
        }
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    save_output(directory, model.eval()(**flux_inputs()).sample)


def compare_all(directory: Path) -> None:
    """Print how far the outputs of each loaded checkpoint are from those of its own library's numbers."""
    import transformers
    from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel

    import tpuport.auto
    from tpuport.quantization import quantized_weights

    print("| checkpoint | weights in few bits | largest error / largest output |")
    print("| --- | --- | --- |")
    for path in sorted(file.parent for file in directory.glob(f"*/{OUTPUT}")):
        if path.name.startswith("Llama"):
            model = tpuport.load(transformers.AutoModelForCausalLM, path, dtype="float32")
            output = model(IDS, use_cache=False).logits
        else:
            model = tpuport.load(FluxTransformer2DModel, path, dtype="float32")
            output = model(**flux_inputs()).sample
        expected = torch.load(path / OUTPUT)
        error = (output.cpu() - expected).abs().max() / expected.abs().max()
        count = sum(1 for _ in quantized_weights(model))
        print(f"| {path.name} | {count} | {error:.1e} |", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--libraries", type=Path, required=True, help="where pip has put bitsandbytes and torchao"
    )
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.write:
        write_all(options.write)
        return
    if not (options.libraries / "bitsandbytes").is_dir():
        parser.error(
            f"{options.libraries} has no bitsandbytes; see --help for the command that installs it there"
        )
    with tempfile.TemporaryDirectory() as directory:
        # Behind what is installed here, so that only what is missing comes from there.
        code = (
            f"import runpy, sys; sys.path.append({str(options.libraries.resolve())!r}); "
            "runpy.run_module('benchmarks.quantized_checkpoints', run_name='__main__')"
        )
        command = [sys.executable, "-c", code, "--libraries", str(options.libraries), "--write", directory]
        subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
        compare_all(Path(directory))


if __name__ == "__main__":
    main()
