"""What calls models of `benchmarks.tiny_strangers_eleventh`, as their READMEs do.

The linter reads this file with them.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn


class Phones(nn.Module):
    """A recognizer of phones, of sequences with lengths."""

    def __init__(self) -> None:
        super().__init__()
        from allosaurus.am.allosaurus_torch import AllosaurusTorchModel

        config = SimpleNamespace(
            hidden_size=8, layer_size=1, proj_size=0, feat_size=6, lang_size_dict={"eng": 5}, phone_size=7, loss="ctc"
        )  # fmt: skip
        self.model = AllosaurusTorchModel(config)

    def forward(self, features: torch.Tensor, lengths: torch.Tensor) -> Any:
        return self.model(features, lengths)


class Catalog(nn.Module):
    """Codes of items, and the search for the likeliest next one."""

    def __init__(self) -> None:
        super().__init__()
        from cornac.models.tiger.tiger import RQVAE, TIGERSeq2Seq

        self.codes = RQVAE(6, (8,), 4, 2, 5)
        self.model = TIGERSeq2Seq([5, 5], 16, 16, 2, 8, num_enc_layers=1, num_dec_layers=1)

    def forward(self, items: torch.Tensor, tokens: torch.Tensor, mask: torch.Tensor) -> Any:
        ids, _, reconstruction, quantization = self.codes(items)
        used = torch.zeros(2, 5, dtype=torch.bool, device=items.device)
        restarted = self.codes.restart_dead_codes(items, used)
        loss = self.model(tokens, mask, ids[: tokens.size(0)])
        children = [{(): [0, 1, 2]}, {(first,): [0, 3] for first in range(5)}]
        beams = self.model.generate_beam(tokens[:1], mask[:1], 2, children)
        return reconstruction + quantization + loss, restarted, beams


class Letters(nn.Module):
    """Codes whose collisions are resolved."""

    def __init__(self) -> None:
        super().__init__()
        from cornac.models.letter.letter import LETTERRQVAE

        self.codes = LETTERRQVAE(6, (8,), 4, 2, 5, n_clusters=2, sk_iters=3)

    def forward(self, items: torch.Tensor) -> Any:
        return self.codes.resolve_collisions(items, self.codes.encode(items), max_iters=2)


class Digits(nn.Module):
    """A model that decodes the digit of which it is surest."""

    def __init__(self) -> None:
        super().__init__()
        from cornac.models.diffgrm.diffgrm import DiffGRMBackbone

        self.model = DiffGRMBackbone(3, 5, 6, d_model=16, decoder_n_layer=1, n_head=2, n_inner=16)
        self.model.set_item_codes([[0, 1, 2], [1, 2, 3], [4, 0, 1], [2, 2, 2]])

    def forward(self, items: torch.Tensor, mask: torch.Tensor, targets: torch.Tensor) -> Any:
        from cornac.models.diffgrm.diffgrm import cpd_decode

        loss = self.model(items, mask, targets)
        memory, padding = self.model.encode_history(items[:1], mask[:1])
        return loss, cpd_decode(self.model, memory, padding, 2)


class Recommended(nn.Module):
    """A model of sequences of items, and a recurrent one."""

    def __init__(self) -> None:
        super().__init__()
        from cornac.models.gru4rec.gru4rec import GRU4RecModel
        from cornac.models.sasrec.sasrec import SASRecModel

        self.attention = SASRecModel(10, 8, 6, 1, 1)
        self.recurrent = GRU4RecModel(10, layers=[8], constrained_embedding=True)

    def forward(self, users: torch.Tensor, items: torch.Tensor, outputs: torch.Tensor) -> Any:
        states = [torch.zeros(items.size(0), 8, device=items.device)]
        scores = self.recurrent(items[:, 0], states, outputs)
        return self.attention(users, items, outputs), scores


class Cells(nn.Module):
    """Instances of cells: a network, its loss, and the instances that its output says."""

    def __init__(self) -> None:
        super().__init__()
        from instanseg.utils.loss.instanseg_loss import InstanSeg
        from instanseg.utils.models.InstanSeg_UNet import InstanSeg_UNet

        self.loss = InstanSeg(n_sigma=2, device="cpu", window_size=16)
        self.model = InstanSeg_UNet(3, [[2, 2, 1]], layers=[16, 8], act="ReLU")
        self.model = self.loss.initialize_pixel_classifier(self.model)

    def forward(self, images: torch.Tensor, instances: torch.Tensor) -> Any:
        prediction = self.model(images)
        loss = self.loss(prediction, instances.clone())
        labels = self.loss.postprocessing(prediction[0], window_size=16, seed_threshold=0.1)
        return loss, labels


class Rivers(nn.Module):
    """A model of runoff, and its loss of what was measured."""

    def __init__(self, name: str, head: str = "regression", loss: str = "nse") -> None:
        super().__init__()
        from neuralhydrology.modelzoo import get_model
        from neuralhydrology.training import get_loss_obj
        from neuralhydrology.utils.config import Config

        options = {
            "model": name, "head": head, "hidden_size": 8, "output_dropout": 0.1, "dynamic_inputs": ["rain", "heat"],
            "static_attributes": ["area"], "target_variables": ["flow"], "seq_length": 6, "predict_last_n": 3,
            "loss": loss, "use_frequencies": ["1D"], "output_activation": "linear", "initial_forget_bias": 3,
            "n_distributions": 2, "n_taus": 3, "tau_down": 0.01, "tau_up": 0.5,
            "transformer_nheads": 2, "transformer_dim_feedforward": 8, "transformer_nlayers": 1,
            "transformer_positional_encoding_type": "sum", "transformer_dropout": 0.1,
            "transformer_positional_dropout": 0.1,
        }  # fmt: skip
        config = Config(options, dev_mode=True)
        self.model = get_model(config)
        self.loss = get_loss_obj(config)

    def forward(self, rain: torch.Tensor, heat: torch.Tensor, area: torch.Tensor, flow: torch.Tensor) -> Any:
        data = {
            "x_d": {"rain": rain, "heat": heat}, "x_s": area, "y": flow,
            "per_basin_target_stds": torch.ones(rain.size(0), 1, 1, device=rain.device),
        }  # fmt: skip
        prediction = self.model(data)
        return prediction, self.loss(prediction, data)


class Spelled(nn.Module):
    """A corrector of spelling, of words as counts of letters."""

    def __init__(self) -> None:
        super().__init__()
        from neuspell.seq_modeling.models import SCLSTM

        self.model = SCLSTM(6, 0, 7)

    def forward(
        self, first: torch.Tensor, second: torch.Tensor, lengths: torch.Tensor, targets: torch.Tensor
    ) -> Any:
        return self.model([first, second], lengths, targets=targets, topk=2)


class Sounds(nn.Module):
    """Diffusion of sound: loss, samples and what is filled in."""

    def __init__(self) -> None:
        super().__init__()
        from audio_diffusion_pytorch import UNetV0, VDiffusion, VInpainter, VSampler

        net = UNetV0(dim=1, in_channels=2, channels=[8, 8], factors=[1, 2], items=[1, 1], attentions=[0, 1],
                     attention_heads=2, attention_features=4, resnet_groups=2, modulation_features=8)  # fmt: skip
        self.diffusion, self.sampler, self.inpainter = VDiffusion(net), VSampler(net), VInpainter(net)

    def forward(self, sounds: torch.Tensor, mask: torch.Tensor) -> Any:
        loss = self.diffusion(sounds)
        filled = self.inpainter(sounds, mask, num_steps=2, num_resamples=1)
        return loss, self.sampler(sounds, num_steps=2), filled


class Drawn(nn.Module):
    """Images as codes, and from codes."""

    def __init__(self) -> None:
        super().__init__()
        from taming.models.vqgan import VQModel

        shape = {
            "double_z": False, "z_channels": 8, "resolution": 16, "in_channels": 3, "out_ch": 3, "ch": 32,
            "ch_mult": [1, 1], "num_res_blocks": 1, "attn_resolutions": [8], "dropout": 0.0,
        }  # fmt: skip
        loss = {"target": "taming.modules.losses.DummyLoss"}
        self.images = VQModel(shape, loss, 12, 8)

    def forward(self, images: torch.Tensor) -> Any:
        reconstruction, loss = self.images(images)
        _, _, (_, _, ids) = self.images.encode(images)
        return reconstruction, loss, self.images.quantize.get_codebook_entry(ids, (2, 8, 8, 8))


class Survival(nn.Module):
    """Losses of the time until an event."""

    def __init__(self) -> None:
        super().__init__()
        from pycox.models import loss

        self.net = nn.Linear(5, 6)
        self.hazard, self.pmf = loss.NLLLogistiHazardLoss(), loss.NLLPMFLoss()
        self.hit, self.cox = loss.DeepHitSingleLoss(0.5, 0.1), loss.CoxPHLoss()

    def forward(self, x: torch.Tensor, times: torch.Tensor, events: torch.Tensor, ranks: torch.Tensor) -> Any:
        scores = self.net(x)
        losses = [self.hazard(scores, times, events), self.pmf(scores, times, events)]
        losses.append(self.hit(scores, times, events, ranks))
        losses.append(self.cox(scores[:, :1], times.float(), events))
        return sum(losses)


class Inferred(nn.Module):
    """Densities of parameters, given what was observed."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        from sbi.neural_nets import posterior_nn

        generator = torch.Generator().manual_seed(0)
        theta, x = torch.randn(30, 2, generator=generator), torch.randn(30, 3, generator=generator)
        self.model = posterior_nn(kind, hidden_features=8, num_transforms=2)(theta, x)

    def forward(self, theta: torch.Tensor, x: torch.Tensor) -> Any:
        loss = self.model.loss(theta, x)
        return loss, self.model.sample(torch.Size((3,)), x), self.model.log_prob(theta[None], x)


class Distilled(nn.Module):
    """Losses between a teacher and a student."""

    def forward(self, student: torch.Tensor, teacher: torch.Tensor, mask: torch.Tensor) -> Any:
        from textbrewer import losses

        kept = mask.float()
        hidden = [losses.hid_mse_loss(student, teacher, kept), losses.cos_loss(student, teacher, kept)]
        hidden += [
            losses.pkd_loss(student, teacher, kept),
            losses.mmd_loss([student] * 2, [teacher] * 2, kept),
        ]
        hidden.append(losses.fsp_loss([student] * 2, [teacher] * 2, kept))
        attention = student @ student.transpose(1, 2)
        maps = torch.stack([attention, attention], 1)
        return hidden, losses.att_mse_loss(maps, maps * 2, kept), losses.att_ce_loss(maps, maps * 2, kept)


class Policies(nn.Module):
    """What a learner of policies computes of a rollout."""

    def forward(
        self, logits: torch.Tensor, rewards: torch.Tensor, dones: torch.Tensor, values: torch.Tensor
    ) -> Any:
        from gymnasium.spaces import Discrete
        from sample_factory.algo.utils import action_distributions, rl_utils

        distribution = action_distributions.get_action_distribution(Discrete(4), logits)
        actions, probabilities = action_distributions.sample_actions_log_probs(distribution)
        valid = torch.ones_like(values)
        advantages = rl_utils.gae_advantages(rewards, dones, values, valid, 0.9, 0.95)
        return actions, probabilities, advantages, distribution.entropy()


class Paths(nn.Module):
    """An equation that a path controls."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Linear(4, 4 * 3)

    def forward(self, x: torch.Tensor, start: torch.Tensor) -> Any:
        import torchcde

        coefficients = torchcde.hermite_cubic_coefficients_with_backward_differences(x)
        path = torchcde.CubicSpline(coefficients)
        linear = torchcde.LinearInterpolation(torchcde.linear_interpolation_coeffs(x))

        def field(t: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return self.field(z).tanh().view(*z.shape[:-1], 4, 3)

        options = {"method": "rk4", "options": {"step_size": 0.5}, "adjoint": False}
        solved = torchcde.cdeint(X=path, func=field, z0=start, t=path.interval, **options)
        signature = torchcde.logsig_windows(x, 2, 2.0) if hasattr(torchcde, "signatory") else None
        return solved, linear.evaluate(1.5), linear.derivative(1.5), signature


class Hidden(nn.Module):
    """A message in a sound, written and read."""

    def __init__(self) -> None:
        super().__init__()
        from wavmark.models.my_model import Model

        self.model = Model(640, 8, 40, 20, num_layers=1)

    def forward(self, sounds: torch.Tensor, message: torch.Tensor) -> Any:
        return self.model.decode(self.model.encode(sounds, message))


class Retrieved(nn.Module):
    """Passages for questions, and their loss."""

    def __init__(self) -> None:
        super().__init__()
        from tevatron.modeling import DenseModel
        from transformers import BertConfig, BertModel

        sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16}
        config = BertConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
        options = SimpleNamespace(
            negatives_x_device=False, grad_cache=False, untie_encoder=True, normalize=True
        )
        self.model = DenseModel(BertModel(config), BertModel(config), train_args=options, model_args=options,
                                data_args=SimpleNamespace(train_n_passages=1))  # fmt: skip

    def forward(self, question: torch.Tensor, passage: torch.Tensor, mask: torch.Tensor) -> Any:
        query = {"input_ids": question, "attention_mask": mask}
        return self.model(query=query, passage={"input_ids": passage, "attention_mask": mask})


class Bank(nn.Module):
    """A memory of features of each class."""

    def __init__(self) -> None:
        super().__init__()
        from biapy.models.memory_bank import MemoryBank

        self.bank = MemoryBank(3, 8, 4, (1, 1), 2, torch.device("cpu"))

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> Any:
        self.bank.dequeue_and_enqueue(features, labels)
        return features


class Accepted(nn.Module):
    """Tokens that several heads propose, and those that are accepted."""

    def forward(self, heads: torch.Tensor, logits: torch.Tensor) -> Any:
        from medusa.model.utils import evaluate_posterior, generate_candidates, generate_medusa_buffers

        buffers = generate_medusa_buffers([1, 2, 2], device=logits.device)
        candidates, tree = generate_candidates(heads, logits, [2, 2], buffers["tree_indices"], 0.7)
        verified = logits[:, -1:].expand(candidates.size(0), candidates.size(1), -1)
        greedy = evaluate_posterior(verified, candidates, 0.0, 0.09, 0.3)
        return greedy, evaluate_posterior(verified, candidates, 0.7, 0.09, 0.3), tree
