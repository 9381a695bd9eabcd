"""Rewrites of code that wants a GPU."""

import pytest


@pytest.mark.parametrize(
    ("rule", "node", "before", "after"),
    [
        ("TPU301", "x.cuda()", "y = x.cuda() * 2  # there", "y = x * 2  # there"),
        ("TPU301", "x.cuda(0, non_blocking=True)", "y = x.cuda(0, non_blocking=True)", "y = x"),
        ("TPU301", "x.cuda()", "# once\nx = x.cuda()\nreturn x", "# once\nreturn x"),
        ("TPU301", "self.table.cuda()", "self.table.cuda()  # moved\nreturn x", "# moved\nreturn x"),
        ("TPU301", "(x + 1).cuda()", "return (x + 1).cuda()", "return (x + 1)"),
        (
            "TPU301",
            "torch.ones(3).cuda()",
            "return x * torch.ones(3).cuda()",
            "return x * torch.ones(3).to(x.device)",
        ),
        ("TPU302", '"cuda"', 'return x.to("cuda")', "return x"),
        ("TPU302", '"cuda:0"', 'return x.to("cuda:0", torch.int8)', "return x.to(torch.int8)"),
        ("TPU302", '"cuda"', 'return x.to(torch.int8, device="cuda")', "return x.to(torch.int8)"),
        ("TPU302", '"cuda"', 'return x.to(device="cuda", non_blocking=True, copy=True)', "return x"),
        (
            "TPU302",
            "'cuda'",
            "return x * torch.zeros(\n    3,  # three\n    device='cuda',\n)",
            "return x * torch.zeros(\n    3,  # three\n    device=x.device,\n)",
        ),
        (
            "TPU303",
            "torch.cuda.empty_cache()",
            "y = x\ntorch.cuda.empty_cache()\nreturn y",
            "y = x\nreturn y",
        ),
        ("TPU303", "torch.cuda.synchronize", "if mask:\n    torch.cuda.synchronize()", "if mask:\n    pass"),
        ("TPU311", "x.pin_memory()", "return x.pin_memory().sum()", "return x.sum()"),
        ("TPU311", "x.to(y, non_blocking=True)", "return x.to(y, non_blocking=True)", "return x.to(y)"),
        ("TPU311", "f(x, pin_memory=True, a=1)", "return f(x, pin_memory=True, a=1)", "return f(x, a=1)"),
        ("TPU312", "x.cpu()", "return x.cpu().sum()", "return x.sum()"),
        ("TPU312", 'x.to("cpu", torch.int8)', 'return x.to("cpu", torch.int8)', "return x.to(torch.int8)"),
    ],
)
def test_rewrites_in_traced_code(rule: str, node: str, before: str, after: str, fix_forward) -> None:
    """What brings a tensor to the GPU goes only when asked."""
    is_unsafe = rule in {"TPU301", "TPU302"}
    assert fix_forward(before, (rule, node)) == (before if is_unsafe else after)
    assert fix_forward(before, (rule, node), unsafe=is_unsafe) == after


@pytest.mark.parametrize(
    ("rule", "node", "before"),
    [
        ("TPU301", "torch.cuda", "return torch.cuda"),
        ("TPU301", "torch.ones(3).cuda()", "return torch.ones(3).cuda()"),  # no tensor whose device is known
        ("TPU302", '"cuda"', 'return x.device.type == "cuda"'),
        ("TPU302", '"cuda"', 'return self.place(x, device="cuda")'),
        ("TPU302", '"cuda"', 'return mine.zeros_like(x, device="cuda")'),
        ("TPU302", '"cuda"', 'return torch.zeros(3, device="cuda")'),
        ("TPU302", '"cuda"', 'return x.to(y, "cuda")'),
        ("TPU303", "torch.cuda.is_available()", "return torch.cuda.is_available()"),
        ("TPU303", "torch.cuda.synchronize()", "a = torch.cuda.synchronize()"),
        ("TPU311", "x.to(y, non_blocking=wait)", "return x.to(y, non_blocking=wait)"),
        ("TPU312", "x.cpu()", "return x.cpu().numpy()"),
        ("TPU312", 'x.to("cuda")', 'return x.to("cuda")'),
        ("TPU401", "torch.float64", "return x.dtype == torch.float64"),
        ("TPU401", "torch.float64", "return x.dtype in (torch.float64, torch.int8)"),
        ("TPU402", "torch.float16", "return x.dtype == torch.float16"),
    ],
)
def test_left_alone(rule: str, node: str, before: str, fix_forward) -> None:
    assert fix_forward(before, (rule, node), unsafe=True, arguments="data, y=None") == before


@pytest.mark.parametrize(
    "before",
    [
        "y = torch.arange(3).double()",
        "return x.to(torch.float64)",
        "return torch.ones(3, dtype=torch.float64, device=x.device)",
        "y = torch.arange(3, device='cpu').to(torch.float64)",
        "y = torch.arange(3, dtype=torch.float64)",
        "y = torch.arange(3, dtype=torch.float64, device='cpu')",
        "y = torch.arange(3, dtype=torch.float64, device=other.device)",
        "dtype = torch.float64",
        "dtype = torch.float32 if mask else torch.float64",
    ],
)
def test_float64_changes_only_when_asked(before: str, fix_forward) -> None:
    node = "torch.float64" if "torch.float64" in before else "torch.arange(3).double()"
    assert fix_forward(before, ("TPU401", node)) == before
    assert "64" not in fix_forward(before, ("TPU401", node), unsafe=True).replace("double", "64")


def test_names_that_are_not_torch_are_left_alone(fix) -> None:
    mine = "def synchronize(torch):\n    torch.cuda.synchronize()\n"
    assert fix(mine, ("TPU303", "torch.cuda.synchronize()"), unsafe=True) == mine
    other = "import mine as torch\n\ntorch.cuda.synchronize()\n"
    assert fix(other, ("TPU303", "torch.cuda.synchronize()"), unsafe=True) == other


def test_host_code_changes_only_when_asked(fix) -> None:
    text = "def main(model):\n    model.cuda()\n    return model.to('cuda')\n"
    targets = ("TPU301", "model.cuda()"), ("TPU302", "'cuda'")
    assert fix(text, *targets, host=True) == text
    assert fix(text, *targets, host=True, unsafe=True) == "def main(model):\n    return model\n"


def test_modules_of_torch_are_built_without_their_device(fix) -> None:
    text = "from torch import nn\n\n\ndef main():\n    return nn.Linear(2, 2, device='cuda')\n"
    after = fix(text, ("TPU302", "'cuda'"), host=True, unsafe=True)
    assert after == text.replace(", device='cuda'", "")
    own = text.replace("nn.Linear", "Mine")
    assert fix(own, ("TPU302", "'cuda'"), host=True, unsafe=True) == own


def test_a_module_is_built_on_the_host(fix) -> None:
    text = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("a", torch.ones(3, device="cuda"))
            self.b = torch.arange(0, 3, 2, device="cuda", dtype=torch.float64).cuda()
    """
    after = fix(text, ("TPU302", '"cuda"'), unsafe=True)
    assert 'self.register_buffer("a", torch.ones(3))' in after
    assert "torch.arange(0, 3, 2, dtype=torch.float64).cuda()" in after
    assert fix(after, ("TPU401", "torch.float64")) == after  # float64 tables have their digits
    assert fix(after, ("TPU401", "torch.float64"), unsafe=True).count("torch.float32") == 1


def test_checkpoints_are_read_to_the_host(fix) -> None:
    text = "import torch\n\nweights = torch.load(path, map_location='cuda')\n"
    assert (
        fix(text, ("TPU302", "'cuda'"), unsafe=True)
        == 'import torch\n\nweights = torch.load(path, map_location="cpu")\n'
    )


@pytest.mark.parametrize(
    ("rule", "node", "before", "after"),
    [
        ("TPU308", "torch.compile", "@torch.compile\n", ""),
        (
            "TPU308",
            'torch.compile(mode="x")',
            '# fast\n@torch.compile(mode="x")\n@other\n',
            "# fast\n@other\n",
        ),
        (
            "TPU308",
            "torch.compile",
            "@torch.compile  # fast\n",
            "@torch.compile  # fast\n",
        ),  # a comment would go
    ],
)
def test_decorators(rule: str, node: str, before: str, after: str, fix) -> None:
    rest = "def f(x):\n    return x\n"
    changed = fix(f"import torch\n\n\n{before}{rest}", (rule, node), unsafe=rule == "TPU308")
    assert changed == f"import torch\n\n\n{after}{rest}"


def test_compiled_functions_become_themselves(fix) -> None:
    text = "import torch\n\nf = torch.compile(f, dynamic=True)\ng = torch.compile(f)\n"
    targets = ("TPU308", "torch.compile(f, dynamic=True)"), ("TPU308", "torch.compile(f)")
    # On the host the compiler works, and may round in its own way.
    assert fix(text, *targets) == text
    assert fix(text, *targets, unsafe=True) == "import torch\n\ng = f\n"


def test_half_becomes_bfloat16_when_asked(fix_forward) -> None:
    text = "return x.half() + x.to(torch.float16)"
    targets = ("TPU402", "x.half()"), ("TPU402", "torch.float16")
    assert fix_forward(text, *targets) == text
    assert fix_forward(text, *targets, unsafe=True) == "return x.bfloat16() + x.to(torch.bfloat16)"


def test_memory_that_is_asked_for_stays_pinned(fix_forward) -> None:
    before = "y = x.pin_memory()\nassert y.is_pinned()\nreturn y"
    assert fix_forward(before, ("TPU311", "x.pin_memory()"), unsafe=True) == before


def test_a_loader_for_a_gpu_keeps_its_pinned_memory(fix) -> None:
    text = "import torch\nloader = torch.utils.data.DataLoader(x, pin_memory=True)\n"
    target = ("TPU311", "torch.utils.data.DataLoader(x, pin_memory=True)")
    assert fix(text, target, host=True) == text
    assert "pin_memory" not in fix(text, target, host=True, unsafe=True)
