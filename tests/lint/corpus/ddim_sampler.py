"""Gaussian diffusion as a module whose forward samples."""

import math
from collections import namedtuple
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

ModelPrediction = namedtuple("ModelPrediction", ["pred_noise", "pred_x_start"])


def exists(x):
    return x is not None


def default(val, d):
    if exists(val):
        return val
    return d() if callable(d) else d


def identity(t, *args, **kwargs):
    return t


def extract(a, t, x_shape):
    b, *_ = t.shape
    out = a.gather(-1, t)
    return out.reshape(b, *((1,) * (len(x_shape) - 1)))


def normalize_to_neg_one_to_one(img):
    return img * 2 - 1


def unnormalize_to_zero_to_one(t):
    return (t + 1) * 0.5


def cosine_beta_schedule(timesteps, s=0.008):
    t = torch.linspace(0, timesteps, timesteps + 1, dtype=torch.float64) / timesteps
    alphas_cumprod = torch.cos((t + s) / (1 + s) * math.pi * 0.5) ** 2
    alphas_cumprod = alphas_cumprod / alphas_cumprod[0]
    return torch.clip(1 - (alphas_cumprod[1:] / alphas_cumprod[:-1]), 0, 0.999)


class Rearrange(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x):
        return self.fn(x)


class Residual(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x, *args, **kwargs):
        return self.fn(x, *args, **kwargs) + x


class Denoiser(nn.Module):
    def __init__(self, dim=8, channels=3):
        super().__init__()
        self.channels, self.self_condition = channels, False
        self.time = nn.Sequential(nn.Linear(1, dim), nn.GELU(), nn.Linear(dim, dim))
        self.inp = nn.Conv2d(channels, dim, 3, padding=1)
        self.mid = Residual(nn.Sequential(Rearrange(lambda t: t.flatten(2).transpose(1, 2)), nn.Linear(dim, dim), nn.SiLU()))
        self.mid.fn.append(Rearrange(lambda t: t.transpose(1, 2).unflatten(-1, (8, -1))))
        self.out = nn.Conv2d(dim, channels, 3, padding=1)

    def forward(self, x, time, x_self_cond=None):
        if self.self_condition:
            x_self_cond = default(x_self_cond, lambda: torch.zeros_like(x))
            x = torch.cat((x_self_cond, x), dim=1)
        h = self.inp(x) + self.time(time[:, None].float())[..., None, None]
        return self.out(self.mid(h))


class GaussianDiffusion(nn.Module):
    def __init__(
        self,
        model,
        *,
        image_size,
        timesteps=20,
        sampling_timesteps=None,
        objective="pred_v",
        ddim_sampling_eta=0.0,
        auto_normalize=True,
    ):
        super().__init__()
        assert not (type(self) == GaussianDiffusion and model.channels != 3)
        self.model, self.image_size, self.objective, self.channels = (
            model,
            image_size,
            objective,
            model.channels,
        )
        betas = cosine_beta_schedule(timesteps)
        alphas = 1.0 - betas
        alphas_cumprod = torch.cumprod(alphas, dim=0)
        (timesteps,) = betas.shape
        self.num_timesteps = int(timesteps)
        self.sampling_timesteps = default(sampling_timesteps, timesteps)
        self.is_ddim_sampling = self.sampling_timesteps < timesteps
        self.ddim_sampling_eta = ddim_sampling_eta
        register_buffer = lambda name, val: self.register_buffer(name, val.to(torch.float32))
        register_buffer("betas", betas)
        register_buffer("alphas_cumprod", alphas_cumprod)
        register_buffer("sqrt_alphas_cumprod", torch.sqrt(alphas_cumprod))
        register_buffer("sqrt_one_minus_alphas_cumprod", torch.sqrt(1.0 - alphas_cumprod))
        self.normalize = normalize_to_neg_one_to_one if auto_normalize else identity
        self.unnormalize = unnormalize_to_zero_to_one if auto_normalize else identity

    @property
    def device(self):
        return self.betas.device

    def predict_start_from_v(self, x_t, t, v):
        return (
            extract(self.sqrt_alphas_cumprod, t, x_t.shape) * x_t
            - extract(self.sqrt_one_minus_alphas_cumprod, t, x_t.shape) * v
        )

    def model_predictions(self, x, t, x_self_cond=None, clip_x_start=False):
        model_output = self.model(x, t, x_self_cond)
        maybe_clip = partial(torch.clamp, min=-1.0, max=1.0) if clip_x_start else identity
        if self.objective == "pred_v":
            x_start = maybe_clip(self.predict_start_from_v(x, t, model_output))
        elif self.objective == "pred_x0":
            x_start = maybe_clip(model_output)
        pred_noise = (x - extract(self.sqrt_alphas_cumprod, t, x.shape) * x_start) / extract(
            self.sqrt_one_minus_alphas_cumprod, t, x.shape
        )
        return ModelPrediction(pred_noise, x_start)

    @torch.no_grad()
    def ddim_sample(self, shape, return_all_timesteps=False):
        batch, device, total = shape[0], self.device, self.num_timesteps
        times = torch.linspace(-1, total - 1, steps=self.sampling_timesteps + 1)
        times = list(reversed(times.int().tolist()))
        time_pairs = list(zip(times[:-1], times[1:]))
        img = torch.randn(shape, device=device)
        imgs = [img]
        for time, time_next in time_pairs:
            time_cond = torch.full((batch,), time, device=device, dtype=torch.long)
            pred_noise, x_start, *_ = self.model_predictions(img, time_cond, None, clip_x_start=True)
            if time_next < 0:
                img = x_start
                imgs.append(img)
                continue
            alpha, alpha_next = self.alphas_cumprod[time], self.alphas_cumprod[time_next]
            sigma = (
                self.ddim_sampling_eta * ((1 - alpha / alpha_next) * (1 - alpha_next) / (1 - alpha)).sqrt()
            )
            c = (1 - alpha_next - sigma**2).sqrt()
            img = x_start * alpha_next.sqrt() + c * pred_noise + sigma * torch.randn_like(img)
            imgs.append(img)
        ret = img if not return_all_timesteps else torch.stack(imgs, dim=1)
        return self.unnormalize(ret)

    def p_losses(self, x_start, t, noise=None):
        b, c, h, w = x_start.shape
        noise = default(noise, lambda: torch.randn_like(x_start))
        x = (
            extract(self.sqrt_alphas_cumprod, t, x_start.shape) * x_start
            + extract(self.sqrt_one_minus_alphas_cumprod, t, x_start.shape) * noise
        )
        target = {"pred_noise": noise, "pred_x0": x_start}.get(self.objective, noise)
        loss = F.mse_loss(self.model(x, t), target, reduction="none").flatten(1).mean(1)
        return loss.mean()

    def forward(self, img=None, n_samples=2):
        if img is None:
            return self.ddim_sample((n_samples, self.channels, self.image_size, self.image_size))
        (
            b,
            c,
            h,
            w,
            device,
            img_size,
        ) = *img.shape, img.device, self.image_size
        assert h == img_size and w == img_size, f"height and width of image must be {img_size}"
        t = torch.randint(0, self.num_timesteps, (b,), device=device).long()
        return self.p_losses(self.normalize(img), t)


def tiny():
    model = GaussianDiffusion(Denoiser(), image_size=8, sampling_timesteps=4).eval()
    return model, [{}, {"img": torch.rand(2, 3, 8, 8)}]
