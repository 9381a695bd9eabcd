"""Message passing with scatter, no graph library."""

import math
import inspect

import torch
import torch.nn as nn
import torch.nn.functional as F


def maybe_num_nodes(index, num_nodes=None):
    return int(index.max()) + 1 if num_nodes is None else num_nodes


def scatter(src, index, dim=0, dim_size=None, reduce="sum"):
    size = list(src.size())
    if dim_size is not None:
        size[dim] = dim_size
    elif index.numel() == 0:
        size[dim] = 0
    else:
        size[dim] = int(index.max()) + 1
    idx = index.view([-1] + [1] * (src.dim() - 1)).expand_as(src)
    if reduce in ("sum", "add"):
        return src.new_zeros(size).scatter_add_(dim, idx, src)
    elif reduce == "mean":
        total = src.new_zeros(size).scatter_add_(dim, idx, src)
        count = src.new_zeros(size).scatter_add_(dim, idx, torch.ones_like(src))
        return total / count.clamp(min=1)
    elif reduce == "max":
        return src.new_zeros(size).scatter_reduce_(dim, idx, src, reduce="amax", include_self=False)
    raise ValueError(f"unknown reduce {reduce}")


def remove_self_loops(edge_index, edge_attr=None):
    mask = edge_index[0] != edge_index[1]
    edge_index = edge_index[:, mask]
    if edge_attr is None:
        return edge_index, None
    return edge_index, edge_attr[mask]


def add_self_loops(edge_index, num_nodes=None):
    N = maybe_num_nodes(edge_index, num_nodes)
    loop = torch.arange(0, N, dtype=torch.long, device=edge_index.device)
    loop = loop.unsqueeze(0).repeat(2, 1)
    return torch.cat([edge_index, loop], dim=1)


def degree(index, num_nodes=None, dtype=None):
    N = maybe_num_nodes(index, num_nodes)
    out = torch.zeros((N,), dtype=dtype, device=index.device)
    return out.scatter_add_(0, index, out.new_ones((index.size(0))))


def softmax(src, index, num_nodes=None):
    num_nodes = maybe_num_nodes(index, num_nodes)
    out = src - scatter(src, index, dim=0, dim_size=num_nodes, reduce="max")[index]
    out = out.exp()
    return out / (scatter(out, index, dim=0, dim_size=num_nodes, reduce="add")[index] + 1e-16)


class MessagePassing(nn.Module):
    def __init__(self, aggr="add"):
        super().__init__()
        assert aggr in ["add", "mean", "max"]
        self.aggr = aggr
        self.params = inspect.signature(self.message).parameters

    def propagate(self, edge_index, x, **kwargs):
        row, col = edge_index
        msg = self.message(x[row], x[col], **kwargs)
        return self.update(scatter(msg, col, dim_size=x.size(0), reduce=self.aggr))

    def message(self, x_j, x_i):
        return x_j

    def update(self, aggr_out):
        return aggr_out


class GCNConv(MessagePassing):
    def __init__(self, cin, cout):
        super().__init__(aggr="add")
        self.lin = nn.Linear(cin, cout)

    def forward(self, x, edge_index):
        edge_index = add_self_loops(edge_index, num_nodes=x.size(0))
        x = self.lin(x)
        row, col = edge_index
        deg = degree(col, x.size(0), dtype=x.dtype)
        inv = deg.pow(-0.5)
        inv[inv == float("inf")] = 0
        return self.propagate(edge_index, x, norm=inv[row] * inv[col])

    def message(self, x_j, x_i, norm):
        return norm.view(-1, 1) * x_j


class GATConv(MessagePassing):
    def __init__(self, cin, cout, heads=2):
        super().__init__(aggr="add")
        self.heads, self.cout = heads, cout
        self.weight = nn.Parameter(torch.empty(cin, heads * cout))
        self.att = nn.Parameter(torch.empty(1, heads, 2 * cout))
        stdv = math.sqrt(6.0 / (cin + cout))
        self.weight.data.uniform_(-stdv, stdv)
        self.att.data.uniform_(-stdv, stdv)

    def forward(self, x, edge_index, size=None):
        if size is None and torch.is_tensor(x):
            edge_index, _ = remove_self_loops(edge_index)
            edge_index = add_self_loops(edge_index)
        x = torch.mm(x, self.weight).view(-1, self.heads, self.cout)
        return self.propagate(edge_index, x, edge_index=edge_index).flatten(1)

    def propagate(self, index, x, edge_index):
        row, col = index
        alpha = (torch.cat([x[row], x[col]], dim=-1) * self.att).sum(-1)
        alpha = softmax(F.leaky_relu(alpha, 0.2), col)
        return scatter(x[row] * alpha.view(-1, self.heads, 1), col, dim_size=x.size(0))


class Net(nn.Module):
    def __init__(self, cin=6, hidden=8, classes=3):
        super().__init__()
        self.convs = nn.ModuleList([GCNConv(cin, hidden), GATConv(hidden, hidden // 2)])
        self.readout = nn.Linear(hidden, classes)

    def forward(self, data):
        x, edge_index, batch = data["x"], data["edge_index"], data["batch"]
        for i, conv in enumerate(self.convs):
            x = conv(x, edge_index)
            if i != len(self.convs) - 1:
                x = F.elu(x)
        num_graphs = batch.max().item() + 1
        pooled = scatter(x, batch, dim_size=num_graphs, reduce="mean")
        return self.readout(pooled)


def tiny():
    edge_index = torch.tensor([[0, 1, 2, 3, 4, 4, 5], [1, 2, 0, 4, 5, 4, 3]])
    data = {"x": torch.rand(6, 6), "edge_index": edge_index, "batch": torch.tensor([0, 0, 0, 1, 1, 1])}
    return Net().eval(), [{"data": data}]
