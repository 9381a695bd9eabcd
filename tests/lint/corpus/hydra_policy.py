"""A diffusion policy whose pieces a config instantiates."""
import copy
import importlib
from typing import Dict, Tuple, Union

import torch
import torch.nn as nn
import torch.nn.functional as F


def get_class(path):
    module, _, name = path.rpartition(".")
    if module:
        return getattr(importlib.import_module(module), name)
    return globals()[name]


def instantiate(cfg, *args, **kwargs):
    cfg = dict(cfg)
    return get_class(cfg.pop("_target_"))(*args, **{**cfg, **kwargs})


def dict_apply(x, func):
    result = dict()
    for key, value in x.items():
        if isinstance(value, dict):
            result[key] = dict_apply(value, func)
        else:
            result[key] = func(value)
    return result


class ModuleAttrMixin(nn.Module):
    def __init__(self):
        super().__init__()
        self._dummy_variable = nn.Parameter()

    @property
    def device(self):
        return next(iter(self.parameters())).device

    @property
    def dtype(self):
        return next(iter(self.parameters())).dtype


class LinearNormalizer(nn.Module):
    def __init__(self, keys, eps=1e-4):
        super().__init__()
        self.params_dict = nn.ParameterDict({f"{k}_{n}": nn.Parameter(torch.full((1,), v), requires_grad=False)
                                             for k in keys for n, v in (("scale", 2.0), ("offset", 0.5))})

    def _apply_key(self, key, x, forward=True):
        scale, offset = self.params_dict[f"{key}_scale"], self.params_dict[f"{key}_offset"]
        src_shape = x.shape
        x = x.reshape(-1, src_shape[-1])
        x = x * scale + offset if forward else (x - offset) / scale
        return x.reshape(src_shape)

    def normalize(self, x: Union[Dict, torch.Tensor], key=None):
        if isinstance(x, dict):
            return {k: self._apply_key(k, v) for k, v in x.items()}
        return self._apply_key(key, x)

    def unnormalize(self, x, key):
        return self._apply_key(key, x, forward=False)


class LowdimMaskGenerator(ModuleAttrMixin):
    def __init__(self, action_dim, obs_dim, max_n_obs_steps=2, fix_obs_steps=True, action_visible=False):
        super().__init__()
        self.action_dim, self.obs_dim = action_dim, obs_dim
        self.max_n_obs_steps, self.fix_obs_steps, self.action_visible = max_n_obs_steps, fix_obs_steps, action_visible

    @torch.no_grad()
    def forward(self, shape, seed=None):
        device = self.device
        B, T, D = shape
        assert D == (self.action_dim + self.obs_dim)
        rng = torch.Generator(device=device)
        if seed is not None:
            rng = rng.manual_seed(seed)
        dim_mask = torch.zeros(size=shape, dtype=torch.bool, device=device)
        is_action_dim = dim_mask.clone()
        is_action_dim[..., : self.action_dim] = True
        is_obs_dim = ~is_action_dim
        if self.fix_obs_steps:
            obs_steps = torch.full((B,), fill_value=self.max_n_obs_steps, device=device)
        else:
            obs_steps = torch.randint(low=1, high=self.max_n_obs_steps + 1, size=(B,), generator=rng, device=device)
        steps = torch.arange(0, T, device=device).reshape(1, T).expand(B, T)
        obs_mask = (steps.T < obs_steps).T.reshape(B, T, 1).expand(B, T, D)
        mask = obs_mask & is_obs_dim
        if self.action_visible:
            action_steps = torch.maximum(obs_steps - 1, torch.tensor(0, dtype=obs_steps.dtype, device=obs_steps.device))
            action_mask = (steps.T < action_steps).T.reshape(B, T, 1).expand(B, T, D)
            mask = mask | (action_mask & is_action_dim)
        return mask


class Scheduler:
    def __init__(self, num_train_timesteps=10):
        self.alphas_cumprod = torch.linspace(0.99, 0.1, num_train_timesteps)
        self.num_train_timesteps = num_train_timesteps
        self.timesteps = None

    def set_timesteps(self, n):
        ratio = self.num_train_timesteps // n
        self.timesteps = torch.arange(n).mul(ratio).flip(0)
        self.step_ratio = ratio

    def step(self, model_output, timestep, sample):
        t = timestep
        prev_t = t - self.step_ratio
        alpha = self.alphas_cumprod[t]
        alpha_prev = self.alphas_cumprod[prev_t] if prev_t >= 0 else torch.tensor(1.0)
        x0 = (sample - (1 - alpha) ** 0.5 * model_output) / alpha ** 0.5
        return alpha_prev ** 0.5 * x0 + (1 - alpha_prev) ** 0.5 * model_output


class ConditionalNet(nn.Module):
    def __init__(self, input_dim, cond_dim, width=16, kernel_size=3):
        super().__init__()
        self.up = nn.Conv1d(input_dim, width, kernel_size, padding=kernel_size // 2)
        self.film = nn.Sequential(nn.Mish(), nn.Linear(cond_dim + 1, width * 2), nn.Unflatten(-1, (-1, 1)))
        self.down = nn.Conv1d(width, input_dim, 1)

    def forward(self, sample, timestep, global_cond=None):
        timesteps = timestep
        if not torch.is_tensor(timesteps):
            timesteps = torch.tensor([timesteps], dtype=torch.long, device=sample.device)
        elif torch.is_tensor(timesteps) and len(timesteps.shape) == 0:
            timesteps = timesteps[None].to(sample.device)
        timesteps = timesteps.expand(sample.shape[0])
        cond = torch.cat([timesteps[:, None].float(), global_cond], -1)
        scale, bias = self.film(cond).chunk(2, dim=1)
        h = scale * self.up(sample.moveaxis(-1, -2)) + bias
        return self.down(h).moveaxis(-1, -2)


class Policy(ModuleAttrMixin):
    def __init__(self, cfg):
        super().__init__()
        self.obs_dim, self.action_dim, self.horizon, self.n_obs_steps = cfg["obs_dim"], cfg["action_dim"], cfg["horizon"], cfg["n_obs_steps"]
        self.mask_generator = LowdimMaskGenerator(self.action_dim, self.obs_dim, self.n_obs_steps)
        self.model = instantiate(cfg["model"], input_dim=self.action_dim + self.obs_dim, cond_dim=self.obs_dim * self.n_obs_steps)
        self.scheduler = instantiate(cfg["scheduler"])
        self.normalizer = LinearNormalizer(["obs", "action"])
        self.steps, self.clip = cfg["steps"], cfg["clip"]

    def conditional_sample(self, condition_data, condition_mask, global_cond):
        scheduler = self.scheduler
        trajectory = torch.randn(size=condition_data.shape, dtype=condition_data.dtype, device=condition_data.device)
        scheduler.set_timesteps(self.steps)
        for t in scheduler.timesteps:
            trajectory[condition_mask] = condition_data[condition_mask]
            model_output = self.model(trajectory, t, global_cond=global_cond)
            trajectory = scheduler.step(model_output, t, trajectory)
        trajectory[condition_mask] = condition_data[condition_mask]
        return trajectory

    def forward(self, obs_dict: Dict[str, torch.Tensor]):
        assert "past_action" not in obs_dict
        obs_dict = dict_apply(obs_dict, lambda x: x.to(self.device))
        nobs = self.normalizer.normalize(obs_dict)["obs"]
        B, _, Do = nobs.shape
        To, T, Da = self.n_obs_steps, self.horizon, self.action_dim
        assert Do == self.obs_dim
        global_cond = nobs[:, :To].reshape(nobs.shape[0], -1)
        cond_data = torch.zeros(size=(B, T, Da + Do), device=self.device, dtype=self.dtype)
        cond_data[:, :To, Da:] = nobs[:, :To]
        cond_mask = self.mask_generator(cond_data.shape)
        nsample = self.conditional_sample(cond_data, cond_mask, global_cond)
        action = self.normalizer.unnormalize(nsample[..., :Da], "action")
        if self.clip:
            action = action.clamp(-1, 1)
        start = To - 1
        return {"action": action[:, start: start + 4], "action_pred": action}


def tiny():
    cfg = {"obs_dim": 3, "action_dim": 2, "horizon": 8, "n_obs_steps": 2, "steps": 5, "clip": True,
           "model": {"_target_": "ConditionalNet", "width": 8}, "scheduler": {"_target_": "Scheduler", "num_train_timesteps": 10}}
    return Policy(cfg).eval(), [{"obs_dict": {"obs": torch.randn(2, 4, 3)}}]
