from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

from flow_net.corr import CorrBlock
from flow_net.update import UpdateBlock
from flow_net.utils import InputPadder, coords_grid, upflow8

try:
    autocast = torch.amp.autocast
except AttributeError:

    class autocast:
        def __init__(self, enabled):
            pass

        def __enter__(self):
            pass

        def __exit__(self, *args):
            pass


class FlowNet(nn.Module):
    def __init__(self, args):
        super(FlowNet, self).__init__()
        self.args = args
        self.hidden_dim = hdim = self.context_dim = cdim = 8
        if "dropout" not in self.args:
            self.args.dropout = 0
        if not hasattr(self.args, "alternate_corr"):
            self.args.alternate_corr = False
        self.fnet = nn.Sequential(nn.Conv2d(3, 16, 8, 8), nn.InstanceNorm2d(16))
        self.cnet = nn.Conv2d(3, hdim + cdim, 8, 8)
        self.update_block = UpdateBlock(args, hdim)

    def freeze_bn(self):
        for m in self.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.eval()

    def initialize_flow(self, img):
        N, C, H, W = img.shape
        coords0 = coords_grid(N, H // 8, W // 8, device=img.device)
        coords1 = coords_grid(N, H // 8, W // 8, device=img.device)
        return coords0, coords1

    def upsample_flow(self, flow, mask):
        N, _, H, W = flow.shape
        mask = mask.view(N, 1, 9, 8, 8, H, W)
        mask = torch.softmax(mask, dim=2)
        up_flow = F.unfold(8 * flow, [3, 3], padding=1)
        up_flow = up_flow.view(N, 2, 9, 1, 1, H, W)
        up_flow = torch.sum(mask * up_flow, dim=2)
        up_flow = up_flow.permute(0, 1, 4, 2, 5, 3)
        return up_flow.reshape(N, 2, 8 * H, 8 * W)

    def forward(self, image1, image2, iters=3, flow_init=None, upsample=True, test_mode=False):
        padder = InputPadder(image1.shape)
        image1, image2 = padder.pad(image1, image2)
        image1 = 2 * (image1 / 255.0) - 1.0
        image2 = 2 * (image2 / 255.0) - 1.0
        hdim, cdim = self.hidden_dim, self.context_dim
        with autocast("cpu", enabled=self.args.mixed_precision):
            fmap1, fmap2 = self.fnet(torch.cat([image1, image2])).chunk(2)
        corr_fn = CorrBlock(fmap1.float(), fmap2.float(), self.args.corr_levels, radius=self.args.corr_radius)
        net, inp = torch.split(self.cnet(image1), [hdim, cdim], dim=1)
        net, inp = torch.tanh(net), torch.relu(inp)
        coords0, coords1 = self.initialize_flow(image1)
        if flow_init is not None:
            coords1 = coords1 + flow_init
        flow_predictions = []
        for itr in range(iters):
            coords1 = coords1.detach()
            corr = corr_fn(coords1)
            flow = coords1 - coords0
            net, up_mask, delta_flow = self.update_block(net, inp, corr, flow)
            coords1 = coords1 + delta_flow
            if up_mask is None:
                flow_up = upflow8(coords1 - coords0)
            else:
                flow_up = self.upsample_flow(coords1 - coords0, up_mask)
            flow_predictions.append(padder.unpad(flow_up))
        if test_mode:
            return coords1 - coords0, flow_up
        return flow_predictions


def make():
    class Args(SimpleNamespace):
        def __contains__(self, key):
            return hasattr(self, key)

    return FlowNet(Args(corr_levels=2, corr_radius=1, mixed_precision=False)).eval()
