import torch
from torch import nn


class ConvGRU(nn.Module):
    def __init__(self, hidden_dim, input_dim):
        super().__init__()
        self.convz, self.convr, self.convq = [
            nn.Conv2d(hidden_dim + input_dim, hidden_dim, 3, padding=1) for _ in range(3)
        ]

    def forward(self, h, x):
        hx = torch.cat([h, x], dim=1)
        z, r = torch.sigmoid(self.convz(hx)), torch.sigmoid(self.convr(hx))
        q = torch.tanh(self.convq(torch.cat([r * h, x], dim=1)))
        return (1 - z) * h + z * q


class UpdateBlock(nn.Module):
    def __init__(self, args, hidden_dim):
        super().__init__()
        self.args = args
        planes = args.corr_levels * (2 * args.corr_radius + 1) ** 2
        self.enc = nn.Conv2d(planes + 2, hidden_dim, 1)
        self.gru = ConvGRU(hidden_dim, hidden_dim * 2)
        self.flow_head = nn.Conv2d(hidden_dim, 2, 3, padding=1)
        self.mask = nn.Conv2d(hidden_dim, 64 * 9, 1)

    def forward(self, net, inp, corr, flow, upsample=True):
        motion = self.enc(torch.cat([corr, flow], 1)).relu()
        net = self.gru(net, torch.cat([inp, motion], dim=1))
        return net, 0.25 * self.mask(net), self.flow_head(net)
