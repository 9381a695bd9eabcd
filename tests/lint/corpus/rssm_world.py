"""A recurrent state-space model; states as named tuples and dataclasses."""
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, Sequence

import torch
import torch.distributions as td
import torch.nn as nn
import torch.nn.functional as F


class State(NamedTuple):
    logits: torch.Tensor
    stoch: torch.Tensor
    deter: torch.Tensor

    @property
    def feature(self):
        return torch.cat([self.stoch.flatten(-2), self.deter], -1)


@dataclass
class Batch:
    obs: torch.Tensor
    action: torch.Tensor
    done: torch.Tensor

    def map(self, fn):
        return replace(self, **{f.name: fn(getattr(self, f.name)) for f in fields(self)})

    def __len__(self):
        return self.obs.shape[0]


def stack_states(states: Sequence[State], dim=1):
    return State(*[torch.stack(xs, dim=dim) for xs in zip(*states)])


def symlog(x):
    return torch.sign(x) * torch.log1p(torch.abs(x))


class DenseModel(nn.Module):
    def __init__(self, cin, cout, layers=2, units=16, dist=None):
        super().__init__()
        mods = []
        for _ in range(layers):
            mods += [nn.Linear(cin, units), nn.LayerNorm(units), nn.SiLU()]
            cin = units
        self.net = nn.Sequential(*mods, nn.Linear(cin, cout))
        self.dist = dist

    def forward(self, x):
        out = self.net(x)
        if self.dist == "binary":
            return td.Independent(td.Bernoulli(logits=out, validate_args=False), 1, validate_args=False)
        elif self.dist is None:
            return out
        raise NotImplementedError(self.dist)


class RSSM(nn.Module):
    def __init__(self, obs, action, stoch=4, classes=4, deter=8, unimix=0.01):
        super().__init__()
        self.stoch, self.classes, self.deter, self.unimix = stoch, classes, deter, unimix
        self.inp = nn.Linear(stoch * classes + action, deter)
        self.cell = nn.GRUCell(deter, deter)
        self.prior_net, self.post_net = nn.Linear(deter, stoch * classes), nn.Linear(deter + obs, stoch * classes)

    def initial(self, batch, like):
        zeros = lambda *s: like.new_zeros(batch, *s)
        return State(zeros(self.stoch, self.classes), zeros(self.stoch, self.classes), zeros(self.deter))

    def get_stoch(self, logits):
        logits = logits.unflatten(-1, (self.stoch, self.classes))
        probs = logits.softmax(-1)
        if self.unimix:
            probs = (1 - self.unimix) * probs + self.unimix / self.classes
            logits = probs.log()
        hard = F.one_hot(probs.argmax(-1), self.classes).float()
        return logits, hard + probs - probs.detach()

    def img_step(self, prev, action):
        x = F.silu(self.inp(torch.cat([prev.stoch.flatten(-2), action], -1)))
        deter = self.cell(x, prev.deter)
        return State(*self.get_stoch(self.prior_net(deter)), deter)

    def obs_step(self, prev, action, embed, is_first):
        if is_first.any():
            keep = 1.0 - is_first.float()
            prev = State(*[s * keep.view(-1, *[1] * (s.dim() - 1)) for s in prev])
            action = action * keep[:, None]
        prior = self.img_step(prev, action)
        post = State(*self.get_stoch(self.post_net(torch.cat([prior.deter, embed], -1))), prior.deter)
        return post, prior

    def observe(self, embed, action, is_first, state=None):
        if state is None:
            state = self.initial(len(embed), embed)
        posts, priors = [], []
        for t in range(embed.shape[1]):
            state, prior = self.obs_step(state, action[:, t], embed[:, t], is_first[:, t])
            posts.append(state)
            priors.append(prior)
        return stack_states(posts), stack_states(priors)

    def imagine(self, actor, start, horizon):
        flat = State(*map(lambda s: s.flatten(0, 1), start))
        succ, feats, actions = flat, [flat.feature], []
        for _ in range(horizon):
            action = actor(succ.feature).softmax(-1)
            succ = self.img_step(succ, action)
            feats.append(succ.feature)
            actions.append(action)
        return torch.stack(feats), torch.stack(actions)


def lambda_return(reward, value, discount, bootstrap, lambda_):
    next_values = torch.cat([value[1:], bootstrap[None]], 0)
    inputs = reward + discount * next_values * (1 - lambda_)
    returns, last = [], bootstrap
    for t in reversed(range(inputs.shape[0])):
        last = inputs[t] + discount[t] * lambda_ * last
        returns.append(last)
    return torch.stack(list(reversed(returns)))


class WorldModel(nn.Module):
    def __init__(self, obs=6, action=2, horizon=3, kl_free=1.0):
        super().__init__()
        self.encoder = DenseModel(obs, 8)
        self.rssm = RSSM(8, action)
        feat = 4 * 4 + 8
        self.heads = nn.ModuleDict({"reward": DenseModel(feat, 1), "cont": DenseModel(feat, 1, dist="binary"), "decoder": DenseModel(feat, obs)})
        self.actor, self.value = DenseModel(feat, action), DenseModel(feat, 1)
        self.horizon, self.kl_free = horizon, kl_free

    def kl(self, post, prior):
        p, q = post.logits.log_softmax(-1), prior.logits.log_softmax(-1)
        return (p.exp() * (p - q)).sum((-1, -2)).clamp(min=self.kl_free)

    def forward(self, batch):
        batch = batch.map(lambda t: t.float())
        embed = self.encoder(symlog(batch.obs))
        post, prior = self.rssm.observe(embed, batch.action, batch.done)
        feat = post.feature
        preds = {}
        for name, head in self.heads.items():
            pred = head(feat)
            preds[name] = pred.base_dist.logits if isinstance(pred, td.Distribution) else pred
        losses = {"kl": self.kl(post, prior).mean(), "decoder": (preds["decoder"] - symlog(batch.obs)).pow(2).mean()}
        feats, actions = self.rssm.imagine(self.actor, post, self.horizon)
        reward, value = self.heads["reward"](feats)[..., 0], self.value(feats)[..., 0]
        disc = torch.full_like(reward, 0.99)
        target = lambda_return(reward[:-1], value[:-1], disc[:-1], value[-1], 0.95)
        losses["actor"] = -target.mean()
        total = sum(losses.values())
        metrics = {f"{k}_loss": v.detach() for k, v in losses.items()}
        return total, metrics, preds


def tiny():
    done = torch.zeros(2, 4)
    done[0, 2] = 1
    return WorldModel().eval(), [{"batch": Batch(torch.randn(2, 4, 6), torch.randn(2, 4, 2), done)}]
