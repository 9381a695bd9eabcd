"""What the linter once got wrong in published repositories, by cause, each beside a near twin that it must tell apart.

A line that ends in `#! TPU201` is an error, and there is no other. Where a case has inputs, its `Model` runs too: with
an error it cannot be traced, and without one it gives what torch gives.
"""

import importlib.util
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import tpuport
from tpuport.errors import PortError
from tpuport.lint.analysis import Analyser, Options
from tpuport.lint.findings import Severity
from tpuport.lint.rules import Example, all_rules
from tpuport.lint.source import read

_spec = importlib.util.spec_from_file_location("causes_oracle", Path(__file__).with_name("oracle.py"))
assert _spec
assert _spec.loader
oracle = importlib.util.module_from_spec(_spec)
sys.modules["causes_oracle"] = oracle
_spec.loader.exec_module(oracle)


class Case(NamedTuple):
    """Code of a file, and the arguments of its `Model` as Python text."""

    code: str
    inputs: str = ""


FLASH = """
try:
    from flash_attn import flash_attn_func
except ImportError:
    flash_attn_func = None
"""
CASES = {
    "sizes in a tensor of the host": Case(
        """
class Block(nn.Module):
    def forward(self, x, grid_sizes, lengths):
        rows = [x[i, : h * w] for i, (h, w) in enumerate(grid_sizes.tolist())]
        if lengths.min() < 2:
            return x
        return torch.stack(rows)[:, : lengths[0]]

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(2)])

    def forward(self, x):
        grid_sizes = torch.stack([torch.tensor(u.shape[1:], dtype=torch.long) for u in x])
        lengths = torch.tensor([u.numel() for u in x], dtype=torch.long)
        assert lengths.max() <= 64
        x = x.flatten(1)
        kwargs = dict(grid_sizes=grid_sizes, lengths=lengths)
        for block in self.blocks:
            x = block(x, **kwargs)
        return x[:, : lengths.max().item()]
""",
        "(torch.randn(2, 3, 4, 4),)",
    ),
    "sizes in a tensor on the device": Case(
        """
class Model(nn.Module):
    def forward(self, x):
        sizes = torch.tensor(x.shape, device=x.device)
        return x * sizes.tolist()[0]  #! TPU202
""",
        "(torch.randn(2, 3),)",
    ),
    "a tensor of the host, moved to the device": Case(
        """
class Model(nn.Module):
    def forward(self, x):
        lengths = torch.tensor([x.shape[0], 3]).to(x.device)
        if lengths.sum() > 3:  #! TPU205
            return x
        return x * lengths[0]
""",
        "(torch.randn(2, 3),)",
    ),
    "tensors of the host in a dict of the object": Case(
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = {}

    def forward(self, x):
        n = x.shape[-1]
        if n not in self.tables:
            self.tables[n] = torch.arange(n).float()
        return x * self.tables[n].sum().item()
""",
        "(torch.randn(2, 3),)",
    ),
    "traced tensors in a dict of the object": Case(
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = {}

    def forward(self, x):
        if x.shape[-1] not in self.tables:
            self.tables[x.shape[-1]] = torch.arange(x.shape[-1], device=x.device).float()
        return x * self.tables[x.shape[-1]].sum().item()  #! TPU201
""",
        "(torch.randn(2, 3),)",
    ),
    "what stays on the host": Case(
        """
class Model(nn.Module):
    def forward(self, x):
        counts = torch.stack([torch.tensor([3]), torch.LongTensor([2])]) * 2 - torch.eye(2, dtype=torch.long)
        larger = torch.where(counts > 2, counts, torch.zeros_like(counts))
        return x * sum(larger.flatten().tolist()) + torch.outer(torch.arange(3), torch.ones(2)).max().item()
""",
        "(torch.randn(2, 8),)",
    ),
    "arithmetic of numbers by torch": Case(
        """
class Model(nn.Module):
    def forward(self, x):
        count = torch.div(x.shape[1], 2, rounding_mode="trunc")
        return x.view(x.shape[0], count, 2)  #! TPU107
""",
        "(torch.randn(2, 8),)",
    ),
    "indices that are created on the host": Case(
        """
class Model(nn.Module):
    def forward(self, x):
        return x * (torch.tril_indices(3, 3)[0, 0].item() + 1)
""",
        "(torch.randn(2, 8),)",
    ),
    "numbers that are chosen on the device": Case(
        """
class Model(nn.Module):
    def forward(self, x):
        return x * torch.where(torch.tensor(True), 1, 2).item()  #! TPU201
""",
        "(torch.randn(2, 8),)",
    ),
    "one-hot rows of host indices": Case(
        """
class Model(nn.Module):
    def forward(self, x):
        return x * F.one_hot(torch.tensor([1]), 3).sum().item()  #! TPU201
""",
        "(torch.randn(2, 8),)",
    ),
    "lists and tuples": Case(
        """
def sizes(features):
    if isinstance(features, list):
        return features[0].shape[-1]
    return int(features[0])

class Model(nn.Module):
    def forward(self, x):
        features = [x, x * 2]
        features[0] = x[:, :1]
        return x[:, : sizes(features)]
""",
        "(torch.randn(2, 8),)",
    ),
    "values after numpy()": Case(
        """
class Model(nn.Module):
    def forward(self, x):
        total = 0.0
        for step in torch.linspace(0, 1, 5).numpy():
            if step > 0.3:
                total += float(step)
        return x * total
""",
        "(torch.randn(2, 3),)",
    ),
    "numpy() of a traced tensor": Case(
        """
class Model(nn.Module):
    def forward(self, x):
        values = x.detach().numpy()  #! TPU203
        for row in values:
            if row.max() > 1:
                return x
        return x * values.mean().item()
""",
        "(torch.randn(2, 3),)",
    ),
    "numbers in spite of their names": Case(
        """
def cut(x: torch.Tensor, mask: int, tokens: int = 3, weights: float = 0.5, hidden: bool = False):
    if mask > 2 and hidden:
        x = x[:, :tokens]
    return x * weights if weights else x

class Model(nn.Module):
    def forward(self, x: torch.Tensor, tokens: int, t: float, features: list[int]):
        x = cut(x, tokens)
        if t > 0.5:
            x = x + t
        for feature in features:
            if feature > 1:
                x = x * feature
        return x[:, :tokens]
""",
        "(torch.randn(2, 8), 3, 0.7, [1, 2])",
    ),
    "guards by type": Case(
        """
class Model(nn.Module):
    def forward(self, x, tokens):
        if type(tokens) is int and tokens > 2:
            x = x * 2
        if type(tokens) in (int, float) and tokens > 2:
            x = x * 2
        if not isinstance(tokens, torch.Tensor) and tokens > 2:
            x = x * 2
        if not torch.is_tensor(tokens) and tokens > 2:
            x = x * 2
        return x
""",
        "(torch.randn(2, 3), 3)",
    ),
    "guards by constants": Case(
        """
class Model(nn.Module):
    def forward(self, x):
        if 0:
            return x.item()
        while False:
            x = x[x > 0]
        if not torch.jit.is_scripting() or True:
            return x * 2
        return x.tolist()
""",
        "(torch.randn(2, 3),)",
    ),
    "constants that let through": Case(
        """
class Model(nn.Module):
    def forward(self, x):
        if 1:
            x = x * x.sum().item()  #! TPU201
        if "":
            return x.tolist()
        return x[x > 0]  #! TPU101
""",
        "(torch.randn(2, 3),)",
    ),
    "arguments and their parameters": Case(
        """
import functools

def cut(x, *, length, mask=None, scale=1.0):
    if scale > 2:
        x = x * scale
    return x[:, :length]

def variadic(*tensors, count=2, **options):
    return tensors[0][:, :count] if count > 1 else tensors[0]

class Attention(nn.Module):
    def forward(self, x, context=None, length=3, *extra, **kwargs):
        if length > 2:
            x = x[:, :length]
        return x + extra[0][:, :length] if extra else x

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def run(self, n, x):
        return x[:, :n] if n > 1 else x
    two = functools.partialmethod(run, 2)

    def forward(self, x):
        x = cut(x, length=x.shape[1] - 1, mask=x)
        x = variadic(x, x, count=3)
        x = self.attention(x, None, 3, x)
        x = functools.partial(cut, length=3)(x)
        pair = (x, x.shape[1])
        x = self.attention(*pair[:1], length=pair[1])
        x = Model.run(self, 3, x)
        return self.two(x)
""",
        "(torch.randn(2, 8),)",
    ),
    "sequences of known lengths": Case(
        """
from torch.nn.utils.rnn import pad_sequence

class Model(nn.Module):
    def forward(self, x):
        rows = []
        for i in range(2):
            rows.append(x[i, : i + 1])
        return pad_sequence(rows, batch_first=True) + pad_sequence(x.unbind(0)).transpose(0, 1)[:, :2]
""",
        "(torch.randn(2, 3, 4),)",
    ),
    "sequences whose lengths depend on values": Case(
        """
from torch.nn.utils.rnn import pad_sequence

class Model(nn.Module):
    def forward(self, x):
        rows = [row[row > 0] for row in x]  #! TPU101
        return pad_sequence(rows, batch_first=True)
""",
        "(torch.randn(2, 3),)",
    ),
    "tensors that fill": Case(
        """
class Model(nn.Module):
    def forward(self, x):
        x = x.masked_fill(x > 0, x.max())
        return torch.full((2, 3), x.sum(), device=x.device) + torch.zeros_like(x).fill_(x.min())
""",
        "(torch.randn(2, 3),)",
    ),
    "tensors that fill like another": Case(
        """
class Model(nn.Module):
    def forward(self, x):
        return torch.full_like(x, x.mean()) + x.new_full((2, 3), x.max())  #! TPU213
""",
        "(torch.randn(2, 3),)",
    ),
    "defaults of a dataclass": Case("""
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
    "fields of objects that are not known": Case("""
class Model(nn.Module):
    def forward(self, batch):
        if batch["mask"].any():  #! TPU205
            return batch.positions.nonzero()  #! TPU102
        return batch["x"][: batch["lengths"].max().item()]  #! TPU201
"""),
    "methods that encode": Case("""
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
    "a forward that is assigned": Case(
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
    "hooks of forward": Case(
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
    "hooks of state dicts": Case(
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
    "the length of a static cache": Case("""
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
    "an attribute that another call has set": Case("""
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
    "a package that is missing": Case(
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
    "a package that is missing, with an alternative": Case(
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
    "kernel languages": Case("""
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

class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        n = triton.cdiv(x.shape[-1], 16) + triton.next_power_of_2(x.shape[0])
        return x[:, :n]
"""),
    "a GPU that is asked for first": Case("""
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
    "a GPU's name": Case(
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


def test_what_a_constructor_stores_is_a_tensor_only_if_torch_creates_it(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(oracle.PRELUDE + CONSTRUCTED)
    lines = [number for number, line in enumerate(path.read_text().splitlines(), 1) if _mark(line)]
    findings = Analyser(Options(tuple(all_rules()))).analyse(read(path, str(path))).findings
    assert [finding.line for finding in findings if finding.rule == "TPU507"] == lines


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_errors_are_these(tmp_path: Path, case: Case) -> None:
    path = tmp_path / "model.py"
    path.write_text(oracle.PRELUDE + case.code)
    marks = [(number, _mark(line)) for number, line in enumerate(path.read_text().splitlines(), 1)]
    findings = Analyser(Options(tuple(all_rules()))).analyse(read(path, str(path))).findings
    errors = {(finding.line, finding.rule) for finding in findings if finding.severity is Severity.ERROR}
    assert sorted(errors) == [(number, rule) for number, rule in marks if rule]


@pytest.mark.parametrize(
    "case",
    [case for case in CASES.values() if case.inputs],
    ids=[name for name in CASES if CASES[name].inputs],
)
def test_the_errors_are_true(tmp_path: Path, case: Case) -> None:
    tpuport.enable()
    shop, example = oracle.Workshop(tmp_path), Example(case.code, case.inputs)
    expected = shop.eager(example)
    if "#!" not in case.code:
        oracle.assert_same(shop.traced(example), expected)
        return
    with pytest.raises(PortError) as failure:
        shop.traced(example)
    lines = oracle.text(example).splitlines()
    line = re.search(r"line (\d+)", str(failure.value))
    assert line is not None
    assert _mark(lines[int(line[1]) - 1])


def _mark(line: str) -> str:
    """The rule that a line is marked with, or "" """
    mark = re.search(r"#! (\S+)$", line)
    return mark[1] if mark else ""


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
    tmp_path: Path, files: dict[str, str]
) -> None:
    expected = []
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        expected += [(name, rule) for rule in map(_mark, text.splitlines()) if rule]
    analyser = Analyser(Options(tuple(all_rules())))
    findings = [
        (name, finding.rule)
        for name in files
        for finding in analyser.analyse(read(tmp_path / name, name)).findings
    ]
    assert findings == expected
