"""The watcher notes the lines that need numbers or make shapes of them, and no others."""

import math
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from benchmarks.watch import COUNTED, Line, watch

X = torch.arange(6.0).reshape(2, 3)
COUNT = torch.tensor(2)
MASK = X > 2
INTS = torch.tensor([1, 2])
WINDOW = torch.hann_window(8)
SPECTRUM = torch.stft(torch.arange(32.0), 8, window=WINDOW, return_complex=True)
PACKED = torch.nn.utils.rnn.pack_padded_sequence(torch.ones(1, 2, 3), [2], batch_first=True)
LAYER = torch.nn.TransformerEncoderLayer(3, 1, batch_first=True)
ENCODER = torch.nn.TransformerEncoder(LAYER, 1, enable_nested_tensor=False)

VALUES = [
    "COUNT.item()",
    "INTS.tolist()",
    "X.numpy()",
    "np.asarray(X)",
    "bool(COUNT)",
    "int(COUNT)",
    "float(COUNT)",
    "range(COUNT)",
    "math.sqrt(COUNT)",
    "1 if X.any() else 2",
    "X.sum() > 3 and COUNT",
    "not COUNT",
    "max(0, COUNT)",
    "1 in INTS",
    "X[:COUNT]",
    "X.new_zeros(COUNT, 2)",
    "X.expand(COUNT, 3)",
    "torch.arange(COUNT)",
    "torch.full((2,), COUNT)",
    "torch.full((2, COUNT), 1.0, device='cpu')",
    "torch.linspace(0, COUNT, 3)",
    "torch.logspace(start=COUNT, end=3, steps=2)",
    "F.pad(X, (0, COUNT))",
    "torch.equal(X, X)",
    "torch.allclose(X, X)",
    "torch.is_nonzero(COUNT)",
    "torch.tensor([COUNT, COUNT])",
    "torch.as_tensor(data=[COUNT, 1])",
    "X.new_tensor([COUNT])",
    "repr(X)",
    "f'{COUNT}'",
    "torch.ops.aten._local_scalar_dense(COUNT)",
]
# These have no tensor among their arguments, or only tensors of the host, and are on the device nevertheless.
DEVICE_VALUES = [
    "torch.div(4, 2).item()",
    "torch.where(torch.tensor(True), 1, 2).item()",
    "F.one_hot(torch.tensor([1]), 3).tolist()",
    "torch.rand(2).tolist()",
    "torch.normal(torch.zeros(2), torch.ones(2)).tolist()",
    "torch.distributions.Beta(0.5, 0.5).sample().item()",
    "X.new_tensor([1.0]).item()",
    "torch.BoolTensor(2, 3).fill_(True).any().item()",
    "torch.FloatTensor(2).sum().item()",
]
SHAPES = [
    "X.nonzero()",
    "X.nonzero(as_tuple=True)",
    "torch.argwhere(X)",
    "torch.where(MASK)",
    "X[MASK]",
    "X[:, MASK[0]]",
    "torch.ops.aten.index(X, [MASK])",
    "torch.masked_select(X, MASK)",
    "torch.unique(INTS)",
    "INTS.unique(return_counts=True)",
    "torch.unique_consecutive(INTS)",
    "X.repeat_interleave(INTS, dim=0)",
    "torch.repeat_interleave(INTS)",
    "torch.bincount(INTS)",
    "F.one_hot(INTS)",
    "torch.tensor_split(X, INTS, dim=1)",
    "torch.split(X, list(INTS), dim=1)",
    "torch.nn.utils.rnn.pack_padded_sequence(X[None], [2], batch_first=True)",
    "torch.nn.utils.rnn.pad_packed_sequence(PACKED)",
    "torch.nn.utils.rnn.pack_sequence([X, X[:1]])",
]
CLEAN = [
    "torch.tril_indices(3, 3).tolist()",
    "X * 2 + 1",
    "X ** COUNT",
    "X.clamp(min=COUNT)",
    "X.masked_fill(MASK, COUNT)",
    "X.masked_fill(MASK, 0.0)",
    "torch.where(MASK, X, 0.0)",
    "X[0], X[:, 1:], X[..., None], X[INTS - 1]",
    "X[[True, False]]",
    "X.repeat_interleave(2, dim=0)",
    "X.repeat_interleave(INTS, dim=0, output_size=3)",
    "F.one_hot(INTS, 4)",
    "F.one_hot(INTS, num_classes=4)",
    "torch.tensor([1.0, 2.0])",
    "torch.tensor(3)",
    "torch.as_tensor(INTS)",
    "torch.zeros(X.shape[0], int(X.size(1)))",
    "1 if X.shape[0] > 1 and X.is_floating_point() else 2",
    "[row.sum() for row in X]",
    "X.split(1), X.chunk(2), X.unbind()",
    "F.scaled_dot_product_attention(X[None], X[None], X[None])",
    "torch.topk(X, 2), X.sort(), X.argmax()",
    "torch.nonzero_static(X, size=3)",
    "LINEAR(X), F.dropout(X, 0.5)",
    "torch.nn.utils.rnn.pad_sequence([X, X])",
    "torch.full((2,), X.sum(), device=torch.device('cpu'))",
    "torch.istft(SPECTRUM, 8, window=WINDOW)",
    "torch.linspace(0, COUNT, 3, device='cpu')",
    # A patch of tpuport replaces what compares the mask with a causal one.
    "ENCODER(X[None], mask=torch.zeros_like(X[:, :2]))",
    # Tensors of the host.
    "torch.FloatTensor([1.0]).item()",
    "torch.tensor([1, 2]).tolist(), (1 - torch.arange(3)).sum().item()",
    "torch.where(torch.tensor(True), torch.ones(1), torch.zeros(1)).item()",
    "torch.arange(9)[torch.tensor(3)].item()",
]


def run(directory: Path, *lines: str, opposed: int = 0):
    """Run `lines` as a file's function, which starts at its second line; what was seen of the file."""
    path = directory / "code.py"
    path.write_text("def run():\n" + textwrap.indent("\n".join(lines), "    ") + "\n", encoding="utf-8")
    names = {
        "torch": torch, "F": torch.nn.functional, "math": math, "np": pytest.importorskip("numpy"),
        "X": X.clone(), "COUNT": COUNT, "MASK": MASK, "INTS": INTS, "WINDOW": WINDOW,
        "SPECTRUM": SPECTRUM, "PACKED": PACKED, "LINEAR": torch.nn.Linear(3, 2),
        "ENCODER": ENCODER,
    }  # fmt: skip
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    with watch([directory], Line(str(path), opposed)) as seen:
        names["run"]()
    return seen.notes.get(str(path), {}), seen.ran.get(str(path), set())


def families(kinds: set[str]) -> set[str]:
    return {kind.split(":")[0] for kind in kinds}


@pytest.mark.parametrize("expression", VALUES + DEVICE_VALUES)
def test_a_line_that_reads_a_number_is_noted(tmp_path, expression):
    notes, _ = run(tmp_path, "pass", expression, "pass")
    assert list(notes) == [3]
    assert families(notes[3]) == {"value"}


def test_what_a_packed_sequence_is_padded_to_is_where_the_sequence_is(tmp_path):
    packed = "torch.nn.utils.rnn.pack_padded_sequence(X[None], torch.tensor([2]), batch_first=True)"
    padded = f"y, lengths = torch.nn.utils.rnn.pad_packed_sequence({packed})"
    notes, _ = run(tmp_path, padded, "lengths.tolist()", "y.tolist()")
    assert families(notes[4]) == {"value"}
    assert 3 not in notes


@pytest.mark.parametrize("expression", SHAPES)
def test_a_line_that_makes_a_shape_of_numbers_is_noted(tmp_path, expression):
    notes, _ = run(tmp_path, "pass", expression, "pass")
    assert list(notes) == [3]
    assert "shape" in families(notes[3])
    assert families(notes[3]) <= set(COUNTED)


@pytest.mark.parametrize("expression", CLEAN)
def test_a_line_that_can_be_traced_is_not_noted(tmp_path, expression):
    notes, ran = run(tmp_path, "pass", expression, "pass")
    assert notes == {}
    assert ran == {2, 3, 4}


@pytest.mark.parametrize(
    "statement", ["X[MASK] = 0", "X[MASK] = X.sum()", "X.index_put_((MASK,), COUNT * 1.0)"]
)
def test_a_write_through_a_mask_is_a_kind_of_its_own(tmp_path, statement):
    notes, _ = run(tmp_path, statement)
    assert {line: families(kinds) for line, kinds in notes.items()} == {2: {"write"}}


def test_a_mask_beside_positions_shapes_a_write(tmp_path):
    notes, _ = run(tmp_path, "X[None][MASK.nonzero()[:, 0] * 0, MASK] = 0")
    assert "shape:mask" in notes[2]


@pytest.mark.parametrize("statement", ["X[COUNT - 1]", "X[COUNT - 1] = 0"])
def test_an_index_of_no_dimensions_is_a_kind_of_its_own(tmp_path, statement):
    notes, _ = run(tmp_path, statement)
    assert {line: families(kinds) for line, kinds in notes.items()} == {2: {"select"}}


def test_a_tensor_of_the_host_that_is_indexed_from_the_device_is_on_the_device(tmp_path):
    notes, _ = run(tmp_path, "table = torch.arange(9)", "x = table[COUNT]", "x.item()", "table[3].item()")
    assert notes == {3: {"select:index"}, 4: {"value:item"}}


@pytest.mark.parametrize(
    "write", ["t[0] = X[0, 0]", "t[0].copy_(X[0, 0])", "t.fill_(X.sum())", "t[MASK[0]] = X[0, 0]"]
)
def test_a_tensor_of_the_host_that_the_device_is_written_to_is_on_the_device(tmp_path, write):
    for value, expected in (
        (write, {4: {"value"}}),
        (write.replace("X", "H").replace("MASK", "(H > 2)"), {}),
    ):
        lines = ["t, H = torch.zeros(3), torch.ones(2, 3)", value, "t.tolist()"]
        notes, _ = run(tmp_path, *lines)
        assert {n: families(kinds) for n, kinds in notes.items() if n == 4} == expected


def test_a_tensor_of_the_host_beside_one_of_the_device_is_a_kind_of_its_own(tmp_path):
    notes, _ = run(
        tmp_path,
        "y = torch.arange(3)",
        "X + y",
        "torch.where(torch.ones(3).bool(), X, X)",
        "F.linear(X, torch.ones(2, 3))",
        "X * y.to(X.device)",
        "X * torch.tensor(2.0), X[torch.arange(2)], X.copy_(torch.zeros(2, 3)), y + 1",
        "X + torch.arange(3, device=X.device)",
    )
    assert {line: families(kinds) for line, kinds in notes.items()} == {3: {"host"}, 4: {"host"}, 5: {"host"}}


def test_a_conversion_is_noted_once_by_the_name_of_what_asked(tmp_path):
    notes, _ = run(tmp_path, "f'{COUNT}'", "bool(COUNT)", "X[:COUNT]")
    assert notes == {2: {"value:__format__"}, 3: {"value:__bool__"}, 4: {"value:slice"}}


def test_conditions_loops_and_assertions_are_noted_where_they_stand(tmp_path):
    notes, ran = run(
        tmp_path,
        "if X.shape[0] > 5:",
        "    X.item()",
        "if COUNT > 1:",
        "    y = X + 1",
        "while COUNT < 1:",
        "    pass",
        "assert (X >= 0).all()",
        "y = X + 1",
    )
    assert sorted(notes) == [4, 6, 8]
    assert ran == {2, 4, 5, 6, 8, 9}


def test_the_first_condition_of_a_line_can_be_opposed(tmp_path):
    code = (
        "for _ in range(2):",
        "    if COUNT > 5:",
        "        X[MASK]",
        "    elif X.shape[0] > 5:",
        "        X.item()",
        "    else:",
        "        X.tolist()",
    )
    notes, ran = run(tmp_path, *code, opposed=3)
    assert sorted(notes) == [3, 4, 8]
    assert ran == {2, 3, 4, 5, 8}
    notes, ran = run(tmp_path, *code, opposed=5)
    assert sorted(notes) == [3, 8]
    assert 4 not in ran


def test_several_lines_of_one_statement_are_noted_by_line(tmp_path):
    notes, _ = run(tmp_path, "y = (", "    X.sum(),", "    COUNT.item(),", ")")
    assert list(notes) == [4]


def test_what_torch_reads_for_a_line_is_that_lines(tmp_path):
    notes, _ = run(tmp_path, "X.sum()", "torch.testing.assert_close(X, X)")
    assert list(notes) == [3]


def test_the_innermost_model_line_is_the_one_noted(tmp_path):
    notes, _ = run(
        tmp_path, "def inner():", "    return COUNT.item()", "return sorted([0], key=lambda _: inner())"
    )
    assert list(notes) == [3]


def test_code_outside_the_roots_is_neither_noted_nor_listed(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    with watch([inside]) as seen:
        COUNT.item()
    assert seen.notes == {}
    assert seen.ran == {}


@pytest.mark.parametrize(
    ("code", "ran"),
    [
        ("f = lambda: COUNT + 1", []),
        ("(lambda: COUNT + 1)()", ["COUNT"]),
        ("1 or COUNT + 1", []),
        ("0 or COUNT + 1", ["COUNT"]),
        ("COUNT if NO else INTS", ["INTS"]),
        ("INTS if not NO else COUNT", ["INTS"]),
        ("[COUNT for _ in range(0)]", []),
        ("[COUNT for _ in range(1)]", ["COUNT"]),
        ("[0 for _ in range(1) if COUNT]", ["COUNT"]),
    ],
)
def test_parts_of_lines_that_ran_are_told_from_the_others(tmp_path, code, ran):
    path = tmp_path / "code.py"
    path.write_text(f"def f(COUNT, INTS, NO):\n    {code}\n", encoding="utf-8")
    names = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    with watch([tmp_path]) as seen:
        names["f"](1, 2, False)
    pieces = {code[part.column - 4 : part.end_column - 4] for part in seen.parts[str(path)]}
    assert [name for name in ("COUNT", "INTS") if name in pieces] == ran


def test_nothing_is_watched_after_the_block(tmp_path):
    run(tmp_path, "COUNT.item()")
    assert sys.gettrace() is None
    assert torch.overrides._get_current_function_mode() is None


def test_a_set_tracer_is_refused_not_lost(tmp_path):
    def tracer(*_):
        return None

    sys.settrace(tracer)
    try:
        with pytest.raises(ValueError, match="settrace"), watch([tmp_path]):
            pass
    finally:
        sys.settrace(None)
