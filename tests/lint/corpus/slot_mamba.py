"""Slot attention over a selective scan; clean."""
import math
from functools import partial
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


def selective_scan_ref(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False):
    dtype_in = u.dtype
    u, delta = u.float(), delta.float()
    if delta_bias is not None:
        delta = delta + delta_bias[..., None].float()
    if delta_softplus:
        delta = F.softplus(delta)
    batch, dim, dstate = u.shape[0], A.shape[0], A.shape[1]
    is_variable_B, is_variable_C = B.dim() >= 3, C.dim() >= 3
    x = A.new_zeros((batch, dim, dstate))
    ys = []
    deltaA = torch.exp(torch.einsum("bdl,dn->bdln", delta, A))
    if not is_variable_B:
        deltaB_u = torch.einsum("bdl,dn,bdl->bdln", delta, B, u)
    else:
        if B.dim() == 3:
            deltaB_u = torch.einsum("bdl,bnl,bdl->bdln", delta, B, u)
        else:
            raise NotImplementedError
    last_state = None
    for i in range(u.shape[2]):
        x = deltaA[:, :, i] * x + deltaB_u[:, :, i]
        if not is_variable_C:
            y = torch.einsum("bdn,dn->bd", x, C)
        else:
            y = torch.einsum("bdn,bn->bd", x, C[:, :, i])
        if i == u.shape[2] - 1:
            last_state = x
        if y.is_complex():
            y = y.real * 2
        ys.append(y)
    y = torch.stack(ys, dim=2)
    out = y if D is None else y + u * D[:, None]
    if z is not None:
        out = out * F.silu(z)
    out = out.to(dtype=dtype_in)
    return out if not return_last_state else (out, last_state)


class Mamba(nn.Module):
    def __init__(self, d_model, d_state=4, d_conv=3, expand=2, dt_rank="auto", layer_idx=None):
        super().__init__()
        self.d_inner = int(expand * d_model)
        self.dt_rank = math.ceil(d_model / 16) if dt_rank == "auto" else dt_rank
        self.d_state, self.d_conv, self.layer_idx = d_state, d_conv, layer_idx
        self.in_proj = nn.Linear(d_model, self.d_inner * 2, bias=False)
        self.conv1d = nn.Conv1d(self.d_inner, self.d_inner, d_conv, groups=self.d_inner, padding=d_conv - 1)
        self.x_proj = nn.Linear(self.d_inner, self.dt_rank + d_state * 2, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, self.d_inner)
        A = torch.arange(1, d_state + 1, dtype=torch.float32).repeat(self.d_inner, 1)
        self.A_log = nn.Parameter(torch.log(A))
        self.A_log._no_weight_decay = True
        self.D = nn.Parameter(torch.ones(self.d_inner))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)

    def forward(self, hidden_states, inference_params=None):
        batch, seqlen, dim = hidden_states.shape
        conv_state, ssm_state = None, None
        if inference_params is not None:
            conv_state, ssm_state = self._get_states_from_cache(inference_params, batch)
            if inference_params["seqlen_offset"] > 0:
                raise NotImplementedError
        xz = self.in_proj(hidden_states).transpose(1, 2)
        x, z = xz.chunk(2, dim=1)
        if conv_state is not None:
            conv_state.copy_(F.pad(x, (self.d_conv - x.shape[-1], 0)))
        x = F.silu(self.conv1d(x)[..., :seqlen])
        x_dbl = self.x_proj(x.transpose(1, 2).reshape(batch * seqlen, -1))
        dt, B, C = torch.split(x_dbl, [self.dt_rank, self.d_state, self.d_state], dim=-1)
        dt = (self.dt_proj.weight @ dt.t()).view(-1, batch, seqlen).transpose(0, 1)
        B, C = (t.view(batch, seqlen, -1).transpose(1, 2).contiguous() for t in (B, C))
        assert self.d_state == B.shape[1]
        y = selective_scan_ref(x, dt, -torch.exp(self.A_log.float()), B, C, self.D.float(), z=z, delta_bias=self.dt_proj.bias.float(),
                               delta_softplus=True, return_last_state=ssm_state is not None)
        if ssm_state is not None:
            y, last_state = y
            ssm_state.copy_(last_state)
        return self.out_proj(y.transpose(1, 2))

    def _get_states_from_cache(self, inference_params, batch_size, initialize_states=False):
        assert self.layer_idx is not None
        cache = inference_params["cache"]
        if self.layer_idx not in cache:
            conv_state = torch.zeros(batch_size, self.d_inner, self.d_conv, device=self.conv1d.weight.device)
            ssm_state = torch.zeros(batch_size, self.d_inner, self.d_state, device=self.conv1d.weight.device)
            cache[self.layer_idx] = (conv_state, ssm_state)
        else:
            conv_state, ssm_state = cache[self.layer_idx]
            if initialize_states:
                conv_state.zero_()
        return conv_state, ssm_state


class SlotAttention(nn.Module):
    def __init__(self, num_slots, dim, iters=2, eps=1e-8):
        super().__init__()
        self.num_slots, self.iters, self.eps, self.scale = num_slots, iters, eps, dim ** -0.5
        self.slots_mu, self.slots_logsigma = nn.Parameter(torch.randn(1, 1, dim)), nn.Parameter(torch.zeros(1, 1, dim))
        self.to_q, self.to_k, self.to_v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.gru, self.norm = nn.GRUCell(dim, dim), nn.LayerNorm(dim)

    def forward(self, inputs, num_slots: Optional[int] = None):
        b, n, d = inputs.shape
        n_s = num_slots if num_slots is not None else self.num_slots
        mu = self.slots_mu.expand(b, n_s, -1)
        slots = mu + self.slots_logsigma.exp().expand(b, n_s, -1) * torch.randn(mu.shape, device=mu.device)
        k, v = self.to_k(inputs), self.to_v(inputs)
        attn = None
        for _ in range(self.iters):
            slots_prev = slots
            dots = torch.einsum("bid,bjd->bij", self.to_q(self.norm(slots)), k) * self.scale
            attn = dots.softmax(dim=1) + self.eps
            updates = torch.einsum("bjd,bij->bid", v, attn / attn.sum(dim=-1, keepdim=True))
            slots = self.gru(updates.reshape(-1, d), slots_prev.reshape(-1, d)).reshape(b, -1, d)
        return slots, attn


class Model(nn.Module):
    def __init__(self, dim=8, depth=2):
        super().__init__()
        block = partial(Mamba, dim, d_state=4)
        self.blocks = nn.ModuleList([block(layer_idx=i) for i in range(depth)])
        self.slots = SlotAttention(3, dim)

    def forward(self, x, use_cache=False):
        params = dict(cache={}, seqlen_offset=0) if use_cache else None
        for blk in self.blocks:
            x = x + blk(x, inference_params=params)
        slots, attn = self.slots(x)
        return dict(slots=slots, attn=attn, states=list(params["cache"].values()) if params else [])


def tiny():
    return Model().eval(), [{"x": torch.randn(2, 6, 8)}, {"x": torch.randn(1, 5, 8), "use_cache": True}]
