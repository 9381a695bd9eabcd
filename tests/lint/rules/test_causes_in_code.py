"""What the linter once got wrong about classes and libraries in published repositories, by cause.

Each case stands beside a near twin that the linter must tell apart. A line that ends in `#! TPU201` is an error, and
there is no other. Where a case has inputs, its `Model` runs too: with an error it cannot be traced, and without one it
gives what torch gives.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tpuport.lint.analysis import Analyser, Options
from tpuport.lint.rules import Example, all_rules
from tpuport.lint.source import read


def not_run(code: str) -> Example:
    return Example(code, inputs="")


FLASH = """
try:
    from flash_attn import flash_attn_func
except ImportError:
    flash_attn_func = None
"""
CASES = {
    "defaults of a dataclass": not_run("""
import dataclasses

@dataclasses.dataclass
class Settings:
    pruned: bool = False
    limit: int = 0
    kind: str = "base"
    top: int | None = None

class Model(nn.Module):
    def __init__(self, settings: Settings):
        super().__init__()
        self.settings = settings

    def forward(self, x):
        if self.settings.pruned:
            x = x[x > 0]  #! TPU101
        if self.settings.kind == "large":
            x = x.nonzero()  #! TPU102
        if self.settings.limit > 0:
            x = x.unique()  #! TPU104
        if self.settings.top is not None:
            x = x * x.sum().item()  #! TPU201
        return x
"""),
    "fields of objects that are not known": not_run("""
class Model(nn.Module):
    def forward(self, batch):
        if batch["mask"].any():  #! TPU205
            return batch.positions.nonzero()  #! TPU102
        return batch["x"][: batch["lengths"].max().item()]  #! TPU201
"""),
    "methods that encode": not_run("""
class Model(nn.Module):
    def encode_image(self, image: torch.Tensor):
        if image.max() > 1:  #! TPU205
            image = image / 255
        return image

    def get_text_features(self, input_ids: torch.Tensor):
        return input_ids.nonzero()  #! TPU102

    def encode_texts(self, texts: list[str], batch_size: int = 32):
        return self.encode_image(self.tokenizer(texts)["input_ids"]).cpu().numpy()

    def get_speech_features(self, input_features: torch.Tensor):
        ids = self.decoder.generate(input_features)
        return ids[ids > 0]

    def save(self, x: torch.Tensor):
        print(x.item())
"""),
    "a forward that is assigned": Example(
        """
class Model(nn.Module):
    def __init__(self, fast=False):
        super().__init__()
        if fast:
            self.forward = self.forward_fast
        else:
            self.forward = self.forward_slowly

    def forward_fast(self, x: torch.Tensor):
        return x[x > 0]  #! TPU101

    def forward_slowly(self, x: torch.Tensor):
        return x * x.sum().item()  #! TPU201
""",
        "(torch.randn(2, 3),)",
    ),
    "hooks of forward": Example(
        """
def check(module, args, output):
    if output.isnan().any():  #! TPU205
        raise ValueError("NaN")

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.layer.register_forward_hook(check)
        self.register_forward_pre_hook(self.double)

    def double(self, module, args):
        x = args[0]
        return (x * 2 if (x > 3).any() else x,)  #! TPU205

    def forward(self, x):
        return self.layer(x)
""",
        "(torch.randn(2, 3),)",
    ),
    "the output that a hook gets": Example(
        """
def keep_positive(module, args, output):
    return output[output > 0]  #! TPU101

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.layer.register_forward_hook(keep_positive)

    def forward(self, x):
        return self.layer(x)
""",
        "(torch.randn(2, 3),)",
    ),
    "hooks of state dicts": Example(
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self._register_load_state_dict_pre_hook(self.load)

    def load(self, state_dict, prefix, *args):
        if state_dict[prefix + "weight"].sum() > 0:
            print(state_dict[prefix + "weight"].mean().item())

    def forward(self, x):
        return x * 2
""",
        "(torch.randn(2, 3),)",
    ),
    "the length of a static cache": not_run("""
class Model(nn.Module):
    def forward(self, input_ids: torch.Tensor, past_key_values=None, position_ids=None):
        past = past_key_values.get_seq_length() if past_key_values is not None else 0
        length = input_ids.shape[1]
        if past > 0:  #! TPU205
            input_ids = input_ids[:, -1:]
        if position_ids is None:
            position_ids = torch.arange(past, length + past, device=input_ids.device)  #! TPU107
        mask = torch.arange(length, device=input_ids.device) >= past
        return input_ids + position_ids + mask
"""),
    "an attribute that another call has set": not_run("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.deltas = None
        self.never = None

    def positions(self, ids, past):
        if past is None or self.deltas is None:
            positions, self.deltas = self.index(ids)
        elif self.deltas is not None and past.get_seq_length() > 0:  #! TPU205
            positions = torch.arange(past.get_seq_length(), 8) + self.deltas  #! TPU107
        elif self.never is not None:
            positions = ids[ids > 0]
        else:
            positions = ids
        return positions

    def forward(self, input_ids: torch.Tensor, past_key_values=None):
        return self.positions(input_ids, past_key_values)
"""),
    "a package that is missing": not_run(
        FLASH
        + """
class Asserted(nn.Module):
    def __init__(self, flash=True):
        super().__init__()
        assert flash_attn_func is not None, "install flash-attn"  #! TPU305

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

class Refused(nn.Module):
    def forward(self, q, k, v):
        if flash_attn_func is None:
            raise ImportError("install flash-attn")  #! TPU305
        return flash_attn_func(q, k, v)

class Stored(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = flash_attn_func

    def forward(self, q, k, v):
        return self.attend(q, k, v)  #! TPU305
"""
    ),
    "a package that is missing, with an alternative": Example(
        FLASH
        + """
class Model(nn.Module):
    def __init__(self, flash=True):
        super().__init__()
        self.attend = F.scaled_dot_product_attention if flash_attn_func is None else flash_attn_func
        if flash and flash_attn_func is not None:
            self.kernel = flash_attn_func

    def forward(self, q, k, v):
        return self.attend(q, k, v)
""",
        "tuple(torch.randn(1, 2, 6, 8) for _ in range(3))",
    ),
    "kernel languages": not_run("""
import triton
import triton.language as tl

try:
    import tilelang
    import tilelang.language as T
except ImportError:
    tilelang = None

@triton.jit
def kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    if tl.sum(x) > 3:
        tl.store(y_ptr + offsets, x, mask=offsets < n)

@T.prim_func
def main(x: T.Tensor((4, 4), "float16"), index: T.Tensor((4,), "int32")):
    for i in range(4):
        if x[i, 0] > 0:
            index[i] = i
        assert index[i] >= 0

def compiled(rows: int):
    @T.prim_func
    def body(x: T.Tensor((4, 4), "float16")):
        for i in range(rows):
            if x[i, 0] > 0:
                x[i, 0] = 0

    return body

class Kernel(nn.Module):
    def forward(self, x: torch.Tensor):
        return compiled(4)(x)

class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        n = triton.cdiv(x.shape[-1], 16) + triton.next_power_of_2(x.shape[0])
        return x[:, :n]
"""),
    "a GPU that is asked for first": not_run("""
def memory():
    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()

def seed(n, device):
    if n is None or device.type != "cuda":
        return
    torch.cuda.manual_seed_all(n)

memory()
"""),
    "distributions": Example(
        """
from torch.distributions import Independent, Normal, constraints

class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        prior = Independent(Normal(x, x.exp()), 1)
        if prior and len(prior.event_shape) > 0 and prior.has_rsample:
            x = x + 1
        if constraints.independent(constraints.real, 1) != constraints.real:
            x = x * prior.mean.shape[1]
        return prior.log_prob(x)
""",
        "(torch.randn(2, 3),)",
    ),
    "what distributions compute": Example(
        """
from torch.distributions import Normal

class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        prior = Normal(x, x.exp())
        if prior.mean.sum() > 0:  #! TPU205
            x = x + 1
        return x * prior.log_prob(x).sum().item()  #! TPU201
""",
        "(torch.randn(2, 3),)",
    ),
    "a cache of the linted code": Example(
        """
class KVCache(nn.Module):
    def __init__(self, length: int):
        super().__init__()
        self.register_buffer("position", torch.arange(length))
        self.register_buffer("keys", torch.zeros(2, length))

    def update(self, keys):
        assert self.position[0] + keys.shape[1] <= self.keys.shape[1]  #! TPU206
        return self.keys + keys

class Attention(nn.Module):
    def __init__(self, cache: KVCache | None = None):
        super().__init__()
        self.cache = cache

    def forward(self, x):
        return x if self.cache is None else self.cache.update(x)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention(KVCache(3))

    def forward(self, x):
        return self.attention(x)
""",
        "(torch.randn(2, 3),)",
    ),
    "the larger of a tensor and a number": Example(
        """
def one_hot(indices, classes: int):
    width = max(indices.max() + 1, classes)  #! TPU212
    return F.one_hot(indices, width)[..., :classes]  #! TPU110

class Model(nn.Module):
    def forward(self, indices):
        return one_hot(indices, max(indices.shape[0], 4))
""",
        "(torch.tensor([3, 1]),)",
    ),
    "a flag's default that another module does not use": Example(
        """
class Model(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor, normalize: bool = True):
        total = (x * mask).sum()
        if not normalize:
            return total
        if mask.sum() == 0:  #! TPU205
            return total
        return total / mask.sum()

class Chunks(nn.Module):
    def __init__(self):
        super().__init__()
        self.loss = Model()

    def forward(self, x: torch.Tensor, mask: torch.Tensor):
        return sum(self.loss(*pair, normalize=False) for pair in zip(x.chunk(2), mask.chunk(2)))
""",
        "(torch.randn(2, 3), torch.ones(2, 3))",
    ),
    "a flag that decides": Example(
        """
class Loss(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor, normalize: bool = False):
        total = (x * mask).sum()
        if not normalize:
            return total
        if mask.sum() == 0:
            return total
        return total / mask.sum()

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.loss = Loss()

    def forward(self, x: torch.Tensor, mask: torch.Tensor):
        return self.loss(x, mask) + self.loss(x, mask, normalize=False)
""",
        "(torch.randn(2, 3), torch.ones(2, 3))",
    ),
    "a GPU's name": Example(
        """
KIND = "cuda"

class Settings:
    device_type = "cuda"

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.backend = "cuda"

    def forward(self, x):
        return x * 2 if self.backend == KIND else x
""",
        "(torch.randn(2, 3),)",
    ),
}


@pytest.mark.parametrize("example", CASES.values(), ids=CASES)
def test_the_errors_are_these(assert_errors: Callable[[Example], None], example: Example) -> None:
    assert_errors(example)


RUNNABLE = {name: example for name, example in CASES.items() if example.inputs}


@pytest.mark.parametrize("example", RUNNABLE.values(), ids=RUNNABLE)
def test_the_errors_are_true(assert_true: Callable[[Example], None], example: Example) -> None:
    assert_true(example)


CONSTRUCTED = """
import functools

class Model(nn.Module):
    def __init__(self, cfg, options, norm=functools.partial(nn.LayerNorm, eps=1e-6), table: torch.Tensor = None):
        super().__init__()
        self.cfg = cfg.clone()
        self.rate = options.rate.mean()
        self.attend = functools.partial(torch.softmax, dim=-1)
        self.norm = norm
        self.scale = torch.full((4,), 2.0)  #! TPU507
        self.table = table.clone()  #! TPU507

    def forward(self, x):
        return self.attend(x) * self.scale
"""


def test_what_a_constructor_stores_is_a_tensor_only_if_torch_creates_it(
    tmp_path: Path, oracle, marked_rules
) -> None:
    path = tmp_path / "model.py"
    text = oracle.text(Example(CONSTRUCTED))
    path.write_text(text)
    findings = Analyser(Options(rules=all_rules())).analyse(read(path, str(path))).findings
    errors = [(finding.line, finding.rule) for finding in findings if finding.rule == "TPU507"]
    assert errors == marked_rules(text)


PACKAGES = {
    "the package's own files": {
        "mamba_ssm/__init__.py": "from mamba_ssm.ops import scan\n",
        "mamba_ssm/ops.py": "import selective_scan_cuda  #! TPU305\n\ndef scan(x):\n    return x\n",
        "tests/test_ops.py": "from mamba_ssm.ops import scan\n",
    },
    "the package in src": {
        "src/flash_attn/__init__.py": "",
        "src/flash_attn/layers.py": "from flash_attn import rotary\n",
        "tests/test_layers.py": "from flash_attn.layers import rotary\n",
    },
    "a folder of the package's name": {
        "cuda/__init__.py": "",
        "quack.py": "",
        "main.py": "from cuda import f\nfrom quack import g\n",
    },
    "the packages": {
        "main.py": "from cuda import f  #! TPU305\nimport mamba_ssm  #! TPU305\n",
    },
}


@pytest.mark.parametrize("files", PACKAGES.values(), ids=PACKAGES)
def test_a_package_of_the_linted_code_is_not_one_that_needs_a_gpu(
    tmp_path: Path, marked_rules, files: dict[str, str]
) -> None:
    expected = []
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        expected += [(name, rule) for _, rule in marked_rules(text)]
    analyser = Analyser(Options(rules=all_rules()))
    findings = [
        (name, finding.rule)
        for name in files
        for finding in analyser.analyse(read(tmp_path / name, name)).findings
    ]
    assert findings == expected


def test_a_type_of_tensors_on_the_gpu_says_how_to_make_one_on_the_device(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("import torch\n\nX = torch.cuda.FloatTensor(3)\ntorch.cuda.synchronize()\n")
    tensor, synchronized = Analyser(Options(rules=all_rules())).analyse(read(path, str(path))).findings
    assert "torch.zeros(n, device=x.device)" in tensor.remedy
    assert "device=" not in synchronized.remedy
