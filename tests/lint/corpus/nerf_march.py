"""Volume rendering along rays: chunks, importance sampling, early termination."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Embedder:
    def __init__(self, **kwargs):
        self.kwargs = kwargs
        self.create_embedding_fn()

    def create_embedding_fn(self):
        embed_fns, d, out_dim = [], self.kwargs["input_dims"], 0
        if self.kwargs["include_input"]:
            embed_fns.append(lambda x: x)
            out_dim += d
        freq_bands = 2.0 ** torch.linspace(0.0, self.kwargs["max_freq_log2"], steps=self.kwargs["num_freqs"])
        for freq in freq_bands.tolist():
            for p_fn in self.kwargs["periodic_fns"]:
                embed_fns.append(lambda x, p_fn=p_fn, freq=freq: p_fn(x * freq))
                out_dim += d
        self.embed_fns, self.out_dim = embed_fns, out_dim

    def embed(self, inputs):
        return torch.cat([fn(inputs) for fn in self.embed_fns], -1)


def get_embedder(multires, i=0):
    if i == -1:
        return nn.Identity(), 3
    obj = Embedder(include_input=True, input_dims=3, max_freq_log2=multires - 1, num_freqs=multires, periodic_fns=[torch.sin, torch.cos])
    embed = lambda x, eo=obj: eo.embed(x)
    return embed, obj.out_dim


def batchify(fn, chunk):
    if chunk is None:
        return fn

    def ret(inputs):
        return torch.cat([fn(inputs[i:i + chunk]) for i in range(0, inputs.shape[0], chunk)], 0)
    return ret


def sample_pdf(bins, weights, N_samples, det=False):
    weights = weights + 1e-5
    pdf = weights / torch.sum(weights, -1, keepdim=True)
    cdf = torch.cumsum(pdf, -1)
    cdf = torch.cat([torch.zeros_like(cdf[..., :1]), cdf], -1)
    if det:
        u = torch.linspace(0.0, 1.0, steps=N_samples).expand(list(cdf.shape[:-1]) + [N_samples])
    else:
        u = torch.rand(list(cdf.shape[:-1]) + [N_samples])
    inds = torch.searchsorted(cdf, u.contiguous(), right=True)
    below = torch.max(torch.zeros_like(inds - 1), inds - 1)
    above = torch.min((cdf.shape[-1] - 1) * torch.ones_like(inds), inds)
    inds_g = torch.stack([below, above], -1)
    matched_shape = [inds_g.shape[0], inds_g.shape[1], cdf.shape[-1]]
    cdf_g = torch.gather(cdf.unsqueeze(1).expand(matched_shape), 2, inds_g)
    bins_g = torch.gather(bins.unsqueeze(1).expand(matched_shape), 2, inds_g)
    denom = cdf_g[..., 1] - cdf_g[..., 0]
    denom = torch.where(denom < 1e-5, torch.ones_like(denom), denom)
    return bins_g[..., 0] + (u - cdf_g[..., 0]) / denom * (bins_g[..., 1] - bins_g[..., 0])


class OccupancyGrid(nn.Module):
    def __init__(self, resolution=8):
        super().__init__()
        self.resolution = resolution
        self.register_buffer("binaries", torch.rand(resolution, resolution, resolution) > 0.3)
        self.register_buffer("aabb", torch.tensor([-1.0, -1, -1, 1, 1, 1]))

    def query(self, pts):
        unit = (pts - self.aabb[:3]) / (self.aabb[3:] - self.aabb[:3])
        inside = ((unit >= 0) & (unit < 1)).all(-1)
        idx = (unit.clamp(0, 0.999) * self.resolution).long()
        return self.binaries[idx[..., 0], idx[..., 1], idx[..., 2]] & inside


class NeRF(nn.Module):
    def __init__(self, D=2, W=16, skips=(1,), chunk=64, n_importance=4, use_grid=True):
        super().__init__()
        self.embed_fn, self.input_ch = get_embedder(3)
        self.skips, self.chunk, self.n_importance = skips, chunk, n_importance
        self.pts_linears = nn.ModuleList([nn.Linear(self.input_ch, W)] + [nn.Linear(W + (self.input_ch if i in skips else 0), W) for i in range(1, D)])
        self.alpha_linear, self.rgb_linear = nn.Linear(W, 1), nn.Linear(W, 3)
        self.grid = OccupancyGrid() if use_grid else None

    def query(self, pts):
        emb = self.embed_fn(pts)
        h = emb
        for i, l in enumerate(self.pts_linears):
            if i in self.skips:
                h = torch.cat([emb, h], -1)
            h = F.relu(l(h))
        return torch.cat([self.rgb_linear(h), self.alpha_linear(h)], -1)

    def run_network(self, pts):
        flat = torch.reshape(pts, [-1, pts.shape[-1]])
        if self.grid is not None:
            occupied = self.grid.query(flat)
            out = flat.new_zeros(flat.shape[0], 4)
            if occupied.any():
                out[occupied] = batchify(self.query, self.chunk)(flat[occupied])
        else:
            out = batchify(self.query, self.chunk)(flat)
        return torch.reshape(out, list(pts.shape[:-1]) + [out.shape[-1]])

    def raw2outputs(self, raw, z_vals, rays_d, white_bkgd=False):
        dists = z_vals[..., 1:] - z_vals[..., :-1]
        dists = torch.cat([dists, torch.Tensor([1e10]).expand(dists[..., :1].shape)], -1)
        dists = dists * torch.norm(rays_d[..., None, :], dim=-1)
        alpha = 1.0 - torch.exp(-F.relu(raw[..., 3]) * dists)
        trans = torch.cumprod(torch.cat([torch.ones((alpha.shape[0], 1)), 1.0 - alpha + 1e-10], -1), -1)[:, :-1]
        weights = alpha * trans
        rgb_map = torch.sum(weights[..., None] * torch.sigmoid(raw[..., :3]), -2)
        acc = weights.sum(-1)
        if white_bkgd:
            rgb_map = rgb_map + (1.0 - acc[..., None])
        return rgb_map, acc, weights

    def forward(self, rays_o, rays_d, near=0.5, far=2.0, n_samples=6, perturb=0.0):
        t_vals = torch.linspace(0.0, 1.0, steps=n_samples)
        z_vals = (near * (1.0 - t_vals) + far * t_vals).expand([rays_o.shape[0], n_samples])
        if perturb > 0.0:
            z_vals = z_vals + torch.rand(z_vals.shape) * perturb
        pts = rays_o[..., None, :] + rays_d[..., None, :] * z_vals[..., :, None]
        rgb, acc, weights = self.raw2outputs(self.run_network(pts), z_vals, rays_d)
        if self.n_importance > 0:
            mid = 0.5 * (z_vals[..., 1:] + z_vals[..., :-1])
            z_samples = sample_pdf(mid, weights[..., 1:-1], self.n_importance, det=(perturb == 0.0)).detach()
            z_vals, _ = torch.sort(torch.cat([z_vals, z_samples], -1), -1)
            pts = rays_o[..., None, :] + rays_d[..., None, :] * z_vals[..., :, None]
            rgb, acc, weights = self.raw2outputs(self.run_network(pts), z_vals, rays_d)
        ret = {"rgb": rgb, "acc": acc}
        for k in ret:
            if torch.isnan(ret[k]).any() or torch.isinf(ret[k]).any():
                print(f"! [Numerical Error] {k} contains nan or inf.")
        return ret


def tiny():
    d = F.normalize(torch.randn(4, 3), dim=-1)
    return NeRF().eval(), [{"rays_o": torch.zeros(4, 3), "rays_d": d}]
