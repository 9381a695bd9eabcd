"""Random programs of views, writes and results, run by torch on the host, on the device, and compiled.

Each line of a program is a template with random tensors, dimensions and numbers, of which torch has taken the call. All
variables and the arguments are compared at the end, so that a write that reaches too little or too much is seen. What
rounds is left out, by which a later comparison or remainder could differ.
"""

import random
from typing import Any

import pytest
import torch
from torch.nn import functional

import tpuport

VIEWS = """
    {new} = {x}.view({count}, -1)
    {new} = {x}.view(-1)
    {new} = {x}.reshape(-1, {count})
    {new} = {x}.ravel()
    {new} = {x}.flatten(0, {d})
    {new} = {x}.unflatten({d}, (-1, {count}))
    {new} = {x}.transpose({d}, {e})
    {new} = {x}.movedim({d}, {e})
    {new} = {x}[{i}]
    {new} = {x}[{i}:]
    {new} = {x}[::{count}]
    {new} = {x}[..., {i}::{count}]
    {new} = {x}[None, ..., :{count}]
    {new} = {x}.select({d}, {i})
    {new} = {x}.narrow({d}, {i}, {count})
    {new} = {x}.unsqueeze({d})
    {new} = {x}.squeeze({d})
    {new} = {x}.squeeze_()
    {new} = {x}.unsqueeze_({d})
    {new} = {x}.transpose_({d}, {e})
    {new} = {x}.chunk(2, {d})[-1]
    {new} = {x}.split([{i}, len({x}) - {i}])[-1]
    {new} = {x}.unbind({d})[-1]
    {new} = {x}.diagonal()
    {new} = {x}.detach()
    {new} = {x}.data
    {new} = {x}.contiguous()
    {new} = {x}.to({y}.dtype)
    {new} = {x}.expand({count}, *{x}.shape)
    {new} = {x}[None].expand({count}, *{x}.shape)[{i}]
    {new} = {x}.unsqueeze(-1).expand(*{x}.shape, {count})[..., {i}]
    {new} = {x}.narrow({d}, 0, 1).expand_as({x})
    {new} = {x}.unfold({d}, {count}, {count})
    {new} = {x}.float().view(torch.int32).view(torch.float32)
    {new} = {x}.mT
    {new} = torch.atleast_3d({x})
    {new} = torch.einsum("...ij->...ji", {x})
"""
WRITES = """
    {x}.add_({y})
    {x}.mul_({number})
    {x}.copy_({y})
    {x}.fill_({number})
    {x}.clamp_(-1, {number})
    {x}.cumsum_({d})
    {x}.masked_fill_({x} > {number}, {number})
    {x}.index_fill_({d}, torch.tensor([{i}], device={x}.device), {number})
    {x}.index_add_({d}, torch.tensor([{i}], device={x}.device), {x}.narrow({d}, 0, 1) + 1)
    {x}.scatter_({d}, {x}.long().remainder({count}), {x}.clone())
    {x}[{i}] = {number}
    {x}[{i}] = {y}
    {x}[::{count}] += {number}
    {x}[..., {i}] = {y}
    {x}[{x} < {number}] = {number}
    {x}[[{i}, 0]] = {number}
    {x}.view(-1)[::{count}].add_(1)
    {x}.transpose(0, -1)[{i}].mul_(2)
    {x}.diagonal().zero_()
    {x}.expand({count}, *{x}.shape)[{i}] = {y}
    {x}.expand({count}, *{x}.shape)[{i}].mul_({number})
    {x}.data.add_({number})
    {x}.detach()[{i}:] = {number}
    {x}.masked_scatter_({x} > {number}, {y}.clone())
    {x} += {y}
    {x} //= {count}
    torch.mul({x}, {number}, out={x})
    functional.relu({x}, inplace=True)
"""
RESULTS = """
    {new} = {x} + {y}
    {new} = {x} * {number}
    {new} = {x} / 2
    {new} = {x} > {y}
    {new} = {x} % {count}
    {new} = {x}.float() @ {y}.float()
    {new} = torch.where({x} > {number}, {x}, {y})
    {new} = torch.cat([{x}, {y}], {d})
    {new} = torch.cat([{x}, {y}])[: len({x})]
    {new} = torch.cat([{x}, {y}]).split([len({x}), len({y})])[-1]
    {new} = torch.stack([-{x}[..., 1::2], {x}[..., ::2]], -1).flatten(-2)
    {new} = torch.cat([-{x}.chunk(2, -1)[1], {x}.chunk(2, -1)[0]], -1)
    {new} = torch.zeros_like({x}).copy_({y})
    {new} = {x}.sum({d}, keepdim=True)
    {new} = {x}.float().square().sum({d})
    {new} = {x}.amax({d})
    {new} = {x}.argmax({d})
    {new} = {x}.sort({d}, stable=True)[{i} % 2]
    {new} = {x}.flip({d})
    {new} = {x}.roll({count}, {d})
    {new} = {x}.gather({d}, {x}.long().remainder({count}))
    {new} = {x}[torch.tensor([{i}, 0], device={x}.device)]
    {new} = {x}.float().var({d}, correction={count})
    {new} = {x}.nansum({d})
    {new} = {x}.cumsum({d})
    {new} = {x}.scatter_reduce({d}, {x}.long().remainder({count}), {x}, "amax")
    {new} = {x}.expand({count}, *{x}.shape).clone()
    {new} = {x}.clone()
    {new} = torch.complex({x}.float(), {y}.float()).view(torch.float32)
    {new} = torch.view_as_complex({x}.float().view(-1, 2)).imag.clone()
    {new} = {x}.float()
    {new} = {x}.bfloat16()
    {new} = {x}.bool()
    {new} = {x}.tril()
    {new} = {x}.repeat_interleave({count}, {d})
    {new} = functional.pad({x}, (1, {i}), value={number})
"""
TEMPLATES = [[line.strip() for line in lines.strip().splitlines()] for lines in (VIEWS, WRITES, RESULTS)]
DTYPES = torch.float32, torch.float32, torch.bfloat16, torch.int64, torch.bool
LENGTH = 10
# The device has no float64.
NARROW = {torch.float64: torch.float32}
Tensors = dict[str, torch.Tensor]


def draw_program(seed: int) -> tuple[list[str], Tensors]:
    """Lines that torch runs one after the other, and the arguments that they begin with."""
    draw = random.Random(seed)
    arguments = {f"argument{number}": _draw_tensor(draw, seed + number) for number in range(3)}
    lines: list[str] = []
    while len(lines) < LENGTH:
        variables = run(lines, _copies(arguments))
        line = _draw_line(draw, variables, new=f"x{len(lines)}")
        try:
            variables = run([*lines, line], _copies(arguments))
        except (RuntimeError, IndexError, TypeError, ValueError):
            continue
        if all(0 < variable.numel() <= 2000 for variable in variables.values()):
            lines.append(line)
    return lines, arguments


def _draw_tensor(draw: random.Random, seed: int) -> torch.Tensor:
    shape = [draw.choice([1, 2, 3, 4, 6]) for _ in range(draw.choice([1, 2, 2, 3]))]
    # Eighths, of which sums and products are exact, so that no comparison depends on rounding.
    values = torch.randint(-16, 17, shape, generator=torch.Generator().manual_seed(seed))
    dtype = draw.choice(DTYPES)
    return (values / 8).to(dtype) if dtype.is_floating_point else values.to(dtype)


def _draw_line(draw: random.Random, variables: Tensors, new: str) -> str:
    templates = draw.choice(TEMPLATES)
    names = list(variables)
    # torch itself fills an expanded tensor, which is refused on the device as its other writes are in torch.
    targets = (
        names
        if templates is not TEMPLATES[1]
        else [name for name in names if not _has_overlap(variables[name])]
    )
    # Lines on one another's results say more than those on the arguments.
    x, y = (draw.choice(choices[-draw.choice([2, 4, 99]) :]) for choices in (targets, names))
    numbers = {"d": draw.randrange(-2, 3), "e": draw.randrange(-2, 3), "i": draw.randrange(3)}
    number = draw.choice(["2", "-1", "0.5", "True", "0"])
    template = draw.choice(templates)
    return template.format(new=new, x=x, y=y, count=draw.choice([1, 2, 3]), number=number, **numbers)


def _has_overlap(tensor: torch.Tensor) -> bool:
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _copies(tensors: Tensors) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def run(lines: list[str], variables: Tensors) -> Tensors:
    """The variables of a program after its last line."""
    scope: dict[str, Any] = {"torch": torch, "functional": functional, **variables}
    exec(compile("\n".join(lines), "<program>", "exec"), scope)
    return {name: value for name, value in scope.items() if isinstance(value, torch.Tensor)}


def _assert_as_in_torch(results: Tensors, expected: Tensors, lines: list[str]) -> None:
    for name, reference in expected.items():
        reference = reference.to(NARROW.get(reference.dtype, reference.dtype))
        result = results[name].cpu()
        result = result.to(NARROW.get(result.dtype, result.dtype))
        tolerance = 2e-2 if reference.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(
            result, reference, rtol=tolerance, atol=tolerance, equal_nan=True,
            msg=lambda message, name=name: f"{name}: {message}\n" + "\n".join(lines),
        )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def enabled():
    tpuport.enable()
    yield
    tpuport.disable()


# A program may ask torch for what it warns of; it has a result all the same.
@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")
@pytest.mark.filterwarnings("ignore:Tensor.mT is deprecated on 0-D tensors")
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 200))]
)
def test_every_variable_is_as_in_torch(seed: int) -> None:
    lines, arguments = draw_program(seed)
    expected = run(lines, _copies(arguments))
    on_device = {name: argument.to("jax") for name, argument in arguments.items()}
    _assert_as_in_torch(run(lines, _copies(on_device)), expected, lines)

    def program(**variables: torch.Tensor) -> Tensors:
        return run(lines, variables)

    compiled = tpuport.compile(program)(**_copies(on_device))
    _assert_as_in_torch(compiled, expected, lines)
