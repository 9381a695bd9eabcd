"""In-place writes of compiled functions reach the tensors and models that they were given, as in torch."""

import copy

import jax
import pytest
import torch

import tpuport
from tpuport import PortError, compat
from tpuport.compilation import layers


class Counting(torch.nn.Module):
    """A model that changes its buffers in each call."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("scale", torch.ones(2, 3))

    def forward(self, x):
        self.calls.add_(1)
        self.scale[0].mul_(2)
        self.calls = self.calls * 2  # another tensor under the same name
        return self.linear(x) * self.scale.sum() + self.calls


def test_arguments_on_the_host_and_on_the_device():
    def function(x, y, factor=2):
        x[:, 0].add_(1)
        y.view(-1).mul_(factor)
        return x.sum() + y.sum()

    host = [torch.zeros(3, 2), torch.ones(2, 2)]
    mine = [host[0].clone(), compat.wrap(compat.to_jax(host[1]))]
    row = mine[1][0]
    compiled = tpuport.compile(function)
    for _ in range(3):
        result = compiled(*mine)
        assert torch.equal(result.cpu(), function(*host))
        assert torch.equal(mine[0], host[0])
        assert torch.equal(mine[1].cpu(), host[1])
        assert torch.equal(row.cpu(), host[1][0])
    assert compiled.program.compilations == 1


@pytest.mark.parametrize("step", [1, 2, 5])
def test_every_so_many_elements_of_a_row(step):
    def function(x):
        x.view(-1)[::step].add_(1)
        return x.view(-1)[::step] * 2

    host, mine = torch.arange(12.0).view(3, 4), torch.arange(12.0).view(3, 4)
    assert torch.equal(tpuport.compile(function)(mine).cpu(), function(host))
    assert torch.equal(mine, host)


def test_a_view_of_a_part_of_what_was_joined():
    def function(x, y):
        joined = torch.cat([x, y], dim=1)
        part = joined[:, : x.shape[1]]
        part[0].add_(7)
        return joined

    host = torch.zeros(2, 3), torch.ones(2, 2)
    assert torch.equal(tpuport.compile(function)(*host).cpu(), function(*host))


def test_buffers_of_a_model():
    reference = Counting().eval()
    model = tpuport.port(copy.deepcopy(reference))
    compiled = tpuport.compile(model)
    for _ in range(3):
        x = torch.randn(4, 3)
        torch.testing.assert_close(compiled(x).cpu(), reference(x))
        for name, buffer in reference.named_buffers():
            assert torch.equal(model.get_buffer(name).cpu(), buffer)
    assert compiled.program.compilations == 1


def test_a_function_that_writes_to_nothing_returns_its_own_results_only():
    def function(x):
        y = x.clone()
        y.add_(1)
        return y

    lowered = tpuport.compile(function).lower(torch.ones(3))
    assert len(jax.tree.leaves(lowered.out_info)) == 1


def test_running_statistics():
    reference = torch.nn.BatchNorm1d(3)
    model = tpuport.port(copy.deepcopy(reference)).train()
    compiled = tpuport.compile(model)
    for _ in range(2):
        x = torch.randn(4, 3)
        torch.testing.assert_close(compiled(x).cpu(), reference(x).detach())
        torch.testing.assert_close(model.running_mean.cpu(), reference.running_mean)
        torch.testing.assert_close(model.running_var.cpu(), reference.running_var)
        assert model.num_batches_tracked.item() == reference.num_batches_tracked.item()


class Block(torch.nn.Module):
    def __init__(self, changes_weight):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("calls", torch.zeros(3))
        self.changes_weight = changes_weight

    def forward(self, x):
        self.calls.add_(x.mean())
        if self.changes_weight:
            with torch.no_grad():
                self.weight.add_(1)
        return x * self.weight + 1


class Blocks(torch.nn.Module):
    def __init__(self, changes_weight=False):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(changes_weight) for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_buffers_of_blocks_in_a_loop():
    reference = Blocks().eval()
    model = tpuport.port(copy.deepcopy(reference))
    layers.stack_layers(model)
    compiled = tpuport.compile(model)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(3)).cpu(), reference(torch.ones(3)).detach())
    assert compiled.scanned
    for mine, theirs in zip(model.blocks, reference.blocks, strict=True):
        torch.testing.assert_close(mine.calls.cpu(), theirs.calls.detach())


def test_writes_to_stacked_weights_are_refused():
    model = tpuport.port(Blocks(changes_weight=True).eval())
    layers.stack_layers(model)
    with pytest.raises(PortError, match="write to their weights in place"):
        tpuport.compile(model)(torch.ones(3))
