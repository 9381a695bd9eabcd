"""Two mixtures of experts: one that gathers by index, one that dispatches by einsum."""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class MoEArgs:
    dim: int = 16
    hidden: int = 32
    num_experts: int = 4
    top_k: int = 2
    capacity_factor: float = 1.25
    eval_capacity_factor: float = 2.0
    min_capacity: int = 2
    jitter: Optional[float] = None


def get_capacity(num_tokens, num_experts, factor, min_capacity):
    capacity = int(num_tokens * factor / num_experts)
    if capacity < min_capacity:
        capacity = min_capacity
    return capacity


def one_hot(indices, n):
    return F.one_hot(indices, num_classes=n)


class FeedForward(nn.Module):
    def __init__(self, args: MoEArgs):
        super().__init__()
        self.w1 = nn.Linear(args.dim, args.hidden, bias=False)
        self.w2 = nn.Linear(args.hidden, args.dim, bias=False)
        self.w3 = nn.Linear(args.dim, args.hidden, bias=False)

    def forward(self, x) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class GatherMoE(nn.Module):
    def __init__(self, args: MoEArgs):
        super().__init__()
        self.gate = nn.Linear(args.dim, args.num_experts, bias=False)
        self.experts = nn.ModuleList([FeedForward(args) for _ in range(args.num_experts)])
        self.args = args

    def forward(self, inputs: Tensor):
        squashed = inputs.view(-1, inputs.shape[-1])
        weights, selected = torch.topk(self.gate(squashed), self.args.top_k)
        weights = F.softmax(weights, dim=1, dtype=torch.float).type_as(inputs)
        results = torch.zeros_like(squashed)
        counts = torch.bincount(selected.flatten(), minlength=self.args.num_experts).tolist()
        for i, expert in enumerate(self.experts):
            if counts[i] == 0:
                continue
            batch_idx, nth_expert = torch.where(selected == i)
            results[batch_idx] += weights[batch_idx, nth_expert, None] * expert(squashed[batch_idx])
        return results.view_as(inputs)


class SortedMoE(nn.Module):
    """Sorts the tokens by expert, and runs each expert on its stretch."""

    def __init__(self, args: MoEArgs):
        super().__init__()
        self.args = args
        self.router = nn.Linear(args.dim, args.num_experts)
        self.experts = nn.ModuleList(FeedForward(args) for _ in range(args.num_experts))

    @torch.no_grad()
    def infer(self, x, topk_ids, topk_weight):
        cnts = topk_ids.new_zeros((topk_ids.shape[0], len(self.experts)))
        cnts.scatter_(1, topk_ids, 1)
        tokens_per_expert = cnts.sum(dim=0)
        idxs = topk_ids.view(-1).argsort()
        sorted_tokens = x[idxs // topk_ids.shape[1]]
        tokens_per_expert = tokens_per_expert.cpu().numpy()
        outputs = []
        start_idx = 0
        for i, num_tokens in enumerate(tokens_per_expert):
            end_idx = start_idx + num_tokens
            if num_tokens == 0:
                continue
            outputs.append(self.experts[i](sorted_tokens[start_idx:end_idx]))
            start_idx = end_idx
        outs = torch.cat(outputs, dim=0) if len(outputs) else sorted_tokens.new_empty(0)
        new_x = torch.empty_like(outs)
        new_x[idxs] = outs
        return (new_x.view(*topk_ids.shape, -1) * topk_weight.unsqueeze(-1)).sum(dim=1).type(new_x.dtype)

    def forward(self, hidden):
        orig_shape = hidden.shape
        flat = hidden.view(-1, hidden.shape[-1])
        probs = self.router(flat).softmax(-1)
        topk_weight, topk_ids = probs.topk(self.args.top_k, dim=-1)
        return self.infer(flat, topk_ids, topk_weight).view(*orig_shape)


class EinsumMoE(nn.Module):
    """All static: a capacity from the number of tokens, one-hot dispatch."""

    def __init__(self, args):
        super().__init__()
        self.args = args
        self.wg = nn.Linear(args.dim, args.num_experts, bias=False)
        self.w_in = nn.Parameter(torch.randn(args.num_experts, args.dim, args.hidden) * 0.02)
        self.w_out = nn.Parameter(torch.randn(args.num_experts, args.hidden, args.dim) * 0.02)

    def forward(self, x, mask=None):
        b, s, d = x.shape
        tokens = x.reshape(-1, d)
        logits = self.wg(tokens.float())
        if self.args.jitter is not None and self.training:
            logits = logits + torch.rand_like(logits) * self.args.jitter
        gates = F.softmax(logits, dim=1)
        factor = self.args.capacity_factor if self.training else self.args.eval_capacity_factor
        capacity = get_capacity(tokens.shape[0], self.args.num_experts, factor, self.args.min_capacity)
        mask1 = one_hot(gates.argmax(dim=1), self.args.num_experts)
        if mask is not None:
            mask1 = mask1 * mask.reshape(-1, 1).to(mask1)
        locations1 = torch.cumsum(mask1, dim=0) - 1
        l_aux = torch.mean(gates.mean(0) * mask1.float().mean(0)) * self.args.num_experts**2
        mask1 = mask1 * torch.lt(locations1, capacity)
        locations1_s = torch.sum(locations1 * mask1, dim=1)
        gates1 = (gates * mask1).sum(dim=1)
        combine = torch.einsum("se,sc->sec", gates1[:, None] * mask1, one_hot(locations1_s, capacity).float())
        dispatch = combine.bool()
        dispatched = torch.einsum("sec,sm->ecm", dispatch.type_as(tokens), tokens)
        hidden = torch.einsum("ecm,emh->ech", dispatched, self.w_in).relu()
        out = torch.einsum("ech,ehm->ecm", hidden, self.w_out)
        return torch.einsum("sec,ecm->sm", combine.type_as(x), out).reshape(b, s, d), l_aux


class Stack(nn.Module):
    KINDS = {"gather": GatherMoE, "sorted": SortedMoE}

    def __init__(self, args, kinds=("gather", "sorted")):
        super().__init__()
        self.layers = nn.ModuleList([self.KINDS[k](args) for k in kinds])
        self.last = EinsumMoE(args)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        out, aux = self.last(x)
        return x + out, aux


def tiny():
    return Stack(MoEArgs()).eval(), [{"x": torch.randn(2, 5, 16)}]
