"""Graphs to dense batches, edges by radius, equivariant layers."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def cumsum_ptr(batch):
    batch_size = int(batch[-1]) + 1
    num_nodes = torch.bincount(batch, minlength=batch_size)
    return torch.cat([num_nodes.new_zeros(1), num_nodes.cumsum(0)]), num_nodes


def to_dense_batch(x, batch=None, fill_value=0.0, max_num_nodes=None):
    if batch is None:
        return x.unsqueeze(0), torch.ones(1, x.size(0), dtype=torch.bool, device=x.device)
    ptr, num_nodes = cumsum_ptr(batch)
    if max_num_nodes is None:
        max_num_nodes = int(num_nodes.max())
    elif num_nodes.max() > max_num_nodes:
        raise ValueError("too many nodes")
    batch_size = num_nodes.numel()
    tmp = torch.arange(batch.size(0), device=x.device) - ptr[batch]
    idx = tmp + (batch * max_num_nodes)
    size = [batch_size * max_num_nodes] + list(x.size())[1:]
    out = torch.as_tensor(fill_value, device=x.device).to(x.dtype).repeat(size)
    out[idx] = x
    out = out.view([batch_size, max_num_nodes] + list(x.size())[1:])
    mask = torch.zeros(batch_size * max_num_nodes, dtype=torch.bool, device=x.device)
    mask[idx] = 1
    return out, mask.view(batch_size, max_num_nodes)


def radius_graph(pos, r, batch, loop=False, max_neighbours=8):
    dist = torch.cdist(pos, pos)
    same = batch[:, None] == batch[None, :]
    adj = (dist < r) & same
    if not loop:
        adj = adj & ~torch.eye(len(pos), dtype=torch.bool, device=pos.device)
    row, col = adj.nonzero(as_tuple=True)
    return torch.stack([row, col], 0)


def coalesce(edge_index, num_nodes):
    key = edge_index[0] * num_nodes + edge_index[1]
    key, inverse = torch.unique(key, return_inverse=True)
    return torch.stack([key // num_nodes, key % num_nodes]), inverse


def triplets(edge_index, num_nodes):
    row, col = edge_index
    adj = torch.zeros(num_nodes, num_nodes, dtype=torch.long, device=row.device)
    adj[row, col] = 1
    count = adj.sum(1)[row]
    idx_i = col.repeat_interleave(count)
    idx_j = torch.repeat_interleave(row, count)
    return idx_i, idx_j


class RBF(nn.Module):
    def __init__(self, n=6, cutoff=3.0):
        super().__init__()
        offset = torch.linspace(0, cutoff, n)
        self.coeff = -0.5 / (offset[1] - offset[0]).item() ** 2
        self.register_buffer("offset", offset)

    def forward(self, dist):
        dist = dist.view(-1, 1) - self.offset.view(1, -1)
        return torch.exp(self.coeff * torch.pow(dist, 2))


class EGNNLayer(nn.Module):
    def __init__(self, dim, rbf=6, norm_diff=True, tanh=False):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * dim + rbf, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.node, self.coord = nn.Linear(2 * dim, dim), nn.Linear(dim, 1)
        self.rbf, self.norm_diff, self.tanh = RBF(rbf), norm_diff, tanh

    def forward(self, h, pos, edge_index, edge_mask=None):
        row, col = edge_index
        diff = pos[row] - pos[col]
        dist = diff.norm(dim=-1, keepdim=True)
        if self.norm_diff:
            diff = diff / (dist + 1)
        m = self.edge(torch.cat([h[row], h[col], self.rbf(dist)], -1))
        if edge_mask is not None:
            m = m * edge_mask
        agg = torch.zeros_like(h).index_add_(0, row, m)
        phi = self.coord(m)
        if self.tanh:
            phi = phi.tanh()
        pos = pos + torch.zeros_like(pos).index_add_(0, row, diff * phi)
        return h + self.node(torch.cat([h, agg], -1)), pos


class EquivariantNet(nn.Module):
    def __init__(self, dim=8, layers=2, cutoff=1.5, max_z=10):
        super().__init__()
        self.embedding = nn.Embedding(max_z, dim, padding_idx=0)
        self.layers = nn.ModuleList([EGNNLayer(dim, tanh=i > 0) for i in range(layers)])
        self.cutoff, self.out = cutoff, nn.Linear(dim, 1)
        self.attn = nn.MultiheadAttention(dim, 2, batch_first=True)

    def forward(self, z, pos, batch=None):
        batch = torch.zeros_like(z) if batch is None else batch
        edge_index = radius_graph(pos, r=self.cutoff, batch=batch)
        edge_index, _ = coalesce(edge_index, z.size(0))
        h = self.embedding(z)
        for layer in self.layers:
            h, pos = layer(h, pos, edge_index)
        idx_i, idx_j = triplets(edge_index, z.size(0))
        if idx_i.numel() > 0:
            h = h.index_add(0, idx_i, 0.01 * h[idx_j])
        dense, mask = to_dense_batch(h, batch)
        dense = dense + self.attn(dense, dense, dense, key_padding_mask=~mask)[0]
        h = dense[mask]
        energy = h.new_zeros(batch.max() + 1, 1).index_add_(0, batch, self.out(h))
        return energy, pos - pos.mean(0)


def tiny():
    torch.manual_seed(0)
    return EquivariantNet().eval(), [{"z": torch.randint(1, 10, (6,)), "pos": torch.randn(6, 3), "batch": torch.tensor([0, 0, 0, 0, 1, 1])}]
