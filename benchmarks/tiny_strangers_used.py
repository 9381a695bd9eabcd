"""What calls models of language, sound, weather and robots of `benchmarks.tiny_strangers_tenth`, as their READMEs do.

The linter reads this file with them.
"""

from typing import Any

import torch
from torch import nn


class Translated(nn.Module):
    """A translator: the loss, and its search for the likeliest sentences."""

    def __init__(self) -> None:
        super().__init__()
        from sockeye import beam_search, data_io, encoder, model, transformer

        layers = transformer.TransformerConfig(
            model_size=16, attention_heads=2, feed_forward_num_hidden=16, act_type="relu", num_layers=1,
            dropout_attention=0.0, dropout_act=0.0, dropout_prepost=0.0, positional_embedding_type="fixed",
            preprocess_sequence="n", postprocess_sequence="dr", max_seq_len_source=20, max_seq_len_target=20,
            depth_key_value=16,
        )  # fmt: skip
        statistics = data_io.DataStatistics(1, 0, 9, 9, 0, 0, 9, 9, 12, 12, 1.0, 0.1, [], [], [])
        config = model.ModelConfig(
            data_io.DataConfig(statistics, 20, 20, 1, 1), 12, 12, encoder.EmbeddingConfig(12, 16, 0.0),
            encoder.EmbeddingConfig(12, 16, 0.0), layers, layers,
        )  # fmt: skip
        self.model = model.SockeyeModel(config)
        model.initialize_parameters(self.model)
        scorer = beam_search.CandidateScorer(1.0, 0.0, 0.0)
        self.search = beam_search.get_search_algorithm([self.model], 2, torch.device("cpu"), False, scorer)
        inference = beam_search._SingleModelInference(self.model, skip_softmax=True)
        self.greedy = beam_search.GreedySearch(
            torch.float32, 2, 3, torch.device("cpu"), 1, 1, inference, True
        )

    def forward(self, source: torch.Tensor, lengths: torch.Tensor, target: torch.Tensor) -> Any:
        from sockeye.loss import CrossEntropyLoss

        output = self.model(source, lengths, target, lengths)
        loss = CrossEntropyLoss(label_smoothing=0.1)(output, {"target_label": target[..., 0]})
        limit = torch.tensor([4, 4], dtype=torch.int32)
        return (
            loss,
            self.search(source, lengths, None, limit),
            self.greedy(source[:1], lengths[:1], None, limit[:1]),
        )


class Dialogue(nn.Module):
    """A model of dialogue, token by token."""

    def __init__(self) -> None:
        super().__init__()
        from parlai.agents.transformer.modules import TransformerGeneratorModel
        from parlai.core.opt import Opt

        opt = Opt({
            "n_heads": 2, "embedding_size": 16, "ffn_size": 16, "n_layers": 1, "n_positions": 32, "truncate": 32,
            "activation": "gelu", "variant": "xlm", "beam_size": 2, "gpu": -1, "text_truncate": 32,
            "label_truncate": 32,
        })  # fmt: skip
        self.model = TransformerGeneratorModel(opt, _Words())

    def forward(self, text: torch.Tensor, labels: torch.Tensor) -> Any:
        from parlai.core.torch_generator_agent import BeamSearch

        scores, best, states = self.model(text, ys=labels)
        search = BeamSearch(2, padding_token=0, bos_token=1, eos_token=2, min_length=1, device="cpu")
        self.found = search
        encoded = self.model.encoder(text[:1])
        encoded = self.model.reorder_encoder_states(encoded, torch.zeros(2, dtype=torch.long))
        ids, past = torch.ones(2, 1, dtype=torch.long), None
        for step in range(3):
            hidden, past = self.model.decoder(ids, encoded, past)
            found = nn.functional.log_softmax(self.model.output(hidden[:, -1:]), dim=-1)
            search.advance(found[:, 0], step)
            order = search.get_backtrack_from_current_step()
            past = self.model.reorder_decoder_incremental_state(past, order)
            ids = torch.cat([ids[order], search.get_output_from_current_step().unsqueeze(-1)], 1)
        return scores, best, states, ids


class _Words(dict):
    """Ids of the words that a model of dialogue asks for."""

    null_token, start_token, end_token, unk_token = "__null__", "__start__", "__end__", "__unk__"

    def __init__(self) -> None:
        super().__init__(
            {word: index for index, word in enumerate(("__null__", "__start__", "__end__", "__unk__"))}
        )

    def __len__(self) -> int:
        return 20


class Spoken(nn.Module):
    """Speech, patch by patch, by a language model and a flow: the loss, and what it says."""

    def __init__(self) -> None:
        super().__init__()
        from types import SimpleNamespace

        from voxcpm.model.voxcpm import (
            CfmConfig,
            VoxCPMConfig,
            VoxCPMDitConfig,
            VoxCPMEncoderConfig,
            VoxCPMModel,
        )
        from voxcpm.modules.minicpm4 import MiniCPM4Config

        scaling = {"type": "longrope", "long_factor": [1.0] * 4, "short_factor": [1.0] * 4,
                   "original_max_position_embeddings": 64}  # fmt: skip
        language = MiniCPM4Config(
            bos_token_id=1, eos_token_id=2, hidden_size=16, intermediate_size=16, max_position_embeddings=64,
            num_attention_heads=2, num_hidden_layers=1, num_key_value_heads=1, rms_norm_eps=1e-5, rope_scaling=scaling,
            vocab_size=120, scale_emb=1.0, dim_model_base=16, scale_depth=1.0, rope_theta=10000.0,
        )  # fmt: skip
        config = VoxCPMConfig(
            lm_config=language, patch_size=2, feat_dim=4, residual_lm_num_layers=1, scalar_quantization_latent_dim=8,
            encoder_config=VoxCPMEncoderConfig(hidden_dim=16, ffn_dim=16, num_heads=2, num_layers=1),
            dit_config=VoxCPMDitConfig(hidden_dim=16, ffn_dim=16, num_heads=2, num_layers=1, cfm_config=CfmConfig()),
            max_length=32, device="cpu", dtype="float32",
        )  # fmt: skip
        waves = nn.Module()
        waves.chunk_size, waves.latent_dim, waves.sample_rate = 4, 4, 16000
        words = SimpleNamespace(get_vocab=dict, vocab={}, convert_tokens_to_ids=lambda _: 0)
        self.model = VoxCPMModel(config, words, waves, device="cpu").float()

    def forward(self, text: torch.Tensor, features: torch.Tensor) -> Any:
        said = torch.tensor([[1, 1, 1, 0, 0, 0]])
        loss = self.model(
            text,
            said,
            features,
            1 - said,
            1 - said,
            torch.arange(6)[None],
            torch.tensor([[0, 0, 0, 0, 0, 1]]),
        )
        self.model.base_lm.setup_cache(1, 32, torch.device("cpu"), torch.float32)
        self.model.residual_lm.setup_cache(1, 32, torch.device("cpu"), torch.float32)
        found = next(self.model._inference(
            text, said, features, 1 - said, min_len=1, max_len=4, inference_timesteps=3
        ))  # fmt: skip
        return loss, found


class Notes(nn.Module):
    """The notes that intervals of a score are likeliest to be."""

    def forward(self, scores: torch.Tensor, gaps: torch.Tensor) -> Any:
        from transkun.CRF import NeuralSemiCRFInterval

        crf = NeuralSemiCRFInterval(scores, gaps)
        with torch.enable_grad():
            likelihood = crf.logProb([[(0, 1), (3, 3)], [(2, 4)]])
        return likelihood, crf.decode()


class Cleared(nn.Module):
    """Speech without its noise, by the ratio of spectra."""

    def __init__(self) -> None:
        super().__init__()
        from clearvoice.models.mossformer2_se.mossformer2 import MossFormer_MaskNet

        self.model = MossFormer_MaskNet(18, 16, 10, num_blocks=1)

    def forward(self, spectra: torch.Tensor) -> Any:
        return self.model(spectra)


class Sung(nn.Module):
    """A voice for another: a flow between the two, and the wave."""

    def __init__(self) -> None:
        super().__init__()
        from infer_rvc_python.lib.infer_pack.models import SynthesizerTrnMs768NSFsid

        self.model = SynthesizerTrnMs768NSFsid(
            17,
            8,
            16,
            16,
            16,
            2,
            1,
            3,
            0.0,
            "1",
            [3],
            [[1, 3, 5]],
            [4, 2],
            16,
            [8, 4],
            2,
            8,
            16000,
            is_half=False,
        )

    def forward(self, phones: torch.Tensor, lengths: torch.Tensor, pitches: torch.Tensor) -> Any:
        voices = torch.tensor([0, 1])
        tones = pitches.float() * 3
        spectra = torch.randn(2, 17, 24)
        trained = self.model(phones, lengths, pitches, tones, spectra, lengths, voices)
        return trained, self.model.infer(phones, lengths, pitches, tones, voices)


class Pitched(nn.Module):
    """The pitch of a voice."""

    def __init__(self) -> None:
        super().__init__()
        from infer_rvc_python.lib.rmvpe import E2E

        self.model = E2E(1, 1, (2, 2), 2, 1, 1, 4)

    def forward(self, mels: torch.Tensor) -> Any:
        return self.model(mels)


class Latents(nn.Module):
    """Sound from noise, by a sampler that knows its steps."""

    def __init__(self) -> None:
        super().__init__()
        from audioldm2.latent_diffusion.modules.diffusionmodules.openaimodel import UNetModel

        self.model = UNetModel(
            image_size=8, in_channels=4, model_channels=32, out_channels=4, num_res_blocks=1,
            attention_resolutions=[2], channel_mult=(1, 2), num_head_channels=8, context_dim=[8],
        )  # fmt: skip

    def forward(self, x: torch.Tensor, steps: torch.Tensor, texts: torch.Tensor) -> Any:
        mask = torch.tensor([[1.0, 1, 1], [1, 1, 0]])
        return self.model(x, steps, context_list=[texts], context_attn_mask_list=[mask])


class Upsampled(nn.Module):
    """Sound with the frequencies that it lacks."""

    def __init__(self) -> None:
        super().__init__()
        from audiosr.latent_diffusion.modules.diffusionmodules.openaimodel import UNetModel

        self.model = UNetModel(
            image_size=8, in_channels=8, model_channels=32, out_channels=4, num_res_blocks=1,
            attention_resolutions=[2], channel_mult=(1, 2), num_head_channels=8, extra_sa_layer=True,
        )  # fmt: skip

    def forward(self, x: torch.Tensor, steps: torch.Tensor) -> Any:
        return self.model(x, steps, context_list=[], context_attn_mask_list=[])


class Embedded(nn.Module):
    """Texts by their dense, sparse and late embeddings, and the losses of them."""

    def __init__(self) -> None:
        super().__init__()
        from FlagEmbedding.finetune.embedder.encoder_only.m3.modeling import EncoderOnlyEmbedderM3Model
        from transformers import BertConfig, BertModel

        config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                            intermediate_size=16)  # fmt: skip
        parts = {
            "model": BertModel(config),
            "colbert_linear": nn.Linear(16, 16),
            "sparse_linear": nn.Linear(16, 1),
        }
        self.model = EncoderOnlyEmbedderM3Model(
            parts,
            _Marks(),
            temperature=0.02,
            normalize_embeddings=True,
            unified_finetuning=True,
            use_self_distill=True,
        )

    def forward(self, queries: torch.Tensor, passages: torch.Tensor) -> Any:
        self.model.train()
        asked = {"input_ids": queries, "attention_mask": torch.ones_like(queries)}
        given = {"input_ids": passages, "attention_mask": torch.ones_like(passages)}
        return self.model(asked, given)


class _Marks:
    """The marks that a tokenizer has."""

    cls_token_id, eos_token_id, pad_token_id, unk_token_id = 0, 1, 2, 3


class Late(nn.Module):
    """The losses of pages and questions that are compared token by token."""

    def __init__(self) -> None:
        super().__init__()
        from colpali_engine.loss import ColbertLoss, ColbertNegativeCELoss, ColbertPairwiseCELoss

        self.late = ColbertLoss()
        self.filtered = ColbertLoss(use_smooth_max=True, pos_aware_negative_filtering=True)
        self.pair = ColbertPairwiseCELoss()
        self.negative = ColbertNegativeCELoss()

    def forward(self, queries: torch.Tensor, pages: torch.Tensor) -> Any:
        queries = nn.functional.normalize(queries, dim=-1)
        pages = nn.functional.normalize(pages, dim=-1)
        return (
            self.late(queries, pages),
            self.filtered(queries, pages),
            self.pair(queries, pages),
            self.negative(queries, pages, pages.flip(0)[:, None]),
        )


class Ensemble(nn.Module):
    """Losses of ensembles of forecasts."""

    def __init__(self) -> None:
        super().__init__()
        from credit.losses.gen_1.almost_fair_crps import AlmostFairKCRPSLoss
        from credit.losses.gen_1.kcrps import KCRPSLoss
        from credit.losses.gen_1.spectral import SpectralLoss2D

        self.kernel = KCRPSLoss("mean")
        self.fair = AlmostFairKCRPSLoss()
        self.spectrum = SpectralLoss2D(wavenum_init=2)

    def forward(self, target: torch.Tensor, members: torch.Tensor) -> Any:
        return self.kernel(target, members), self.fair(target, members), self.spectrum(members[:1], target)


class Imagined(nn.Module):
    """A model of the world: its states, what it imagines, and its loss."""

    def __init__(self) -> None:
        super().__init__()
        from sheeprl.algos.dreamer_v3.agent import RSSM, RecurrentModel
        from sheeprl.models.models import MLP

        self.model = RSSM(
            RecurrentModel(2 + 16, 8, 8), MLP(8 + 6, 16, [8]), MLP(8, 16, [8]),
            {"type": "auto", "validate_args": False}, discrete=4,
        )  # fmt: skip
        self.reward = nn.Linear(16, 255)

    def forward(
        self, seen: torch.Tensor, actions: torch.Tensor, first: torch.Tensor, rewards: torch.Tensor
    ) -> Any:
        from sheeprl.utils.distribution import TwoHotEncodingDistribution
        from sheeprl.utils.utils import gae

        state, stochastic = torch.zeros(1, 2, 8), torch.zeros(1, 2, 4, 4)
        states = []
        for step in range(len(actions)):
            state, stochastic, logits = self.model.dynamic(
                stochastic, state, actions[step : step + 1], seen[step : step + 1], first[step : step + 1]
            )
            states.append((self.model.prior_logits(state), logits))
        imagined = self.model.imagination(stochastic.flatten(-2), state, actions[:1])
        spread = TwoHotEncodingDistribution(self.reward(stochastic.flatten(-2)[0]), dims=1)
        return (
            states,
            imagined,
            spread.log_prob(rewards[0]),
            spread.mean,
            gae(rewards, rewards * 0.5, first, rewards[0], len(rewards), 0.99, 0.95),
        )


class Valued(nn.Module):
    """Values of actions as distributions: the network, and its losses."""

    def __init__(self) -> None:
        super().__init__()
        from pfrl.agents.iqn import ImplicitQuantileQFunction
        from pfrl.nn import Lambda
        from pfrl.q_functions import DistributionalFCStateQFunctionWithDiscreteAction

        self.model = DistributionalFCStateQFunctionWithDiscreteAction(4, 3, 5, -1.0, 1.0, 8, 1)
        self.implicit = ImplicitQuantileQFunction(
            nn.Linear(4, 8), Lambda(lambda taus: taus[..., None].expand(-1, -1, 8)), nn.Linear(8, 3)
        )

    def forward(self, states: torch.Tensor, actions: torch.Tensor) -> Any:
        from pfrl.agents import categorical_dqn, dqn, iqn

        values = self.model(states)
        quantiles = self.implicit(states)
        taus = torch.rand(2, 4)
        found = quantiles(taus).evaluate_actions_as_quantiles(actions)
        atoms = torch.linspace(-1, 1, 5)
        return (
            values.greedy_actions,
            values.evaluate_actions_as_distribution(actions),
            quantiles(taus).greedy_actions,
            iqn.compute_eltwise_huber_quantile_loss(found, found * 0.5, taus),
            dqn.compute_value_loss(values.max, values.max * 0.5),
            categorical_dqn._apply_categorical_projection(
                atoms.expand(2, 5) * 0.9, torch.full((2, 5), 0.2), atoms
            ),
        )


class Acts(nn.Module):
    """A policy and its value, with what their advantages are."""

    def __init__(self) -> None:
        super().__init__()
        self.model = _policy()

    def forward(
        self, states: torch.Tensor, actions: torch.Tensor, rewards: torch.Tensor, done: torch.Tensor
    ) -> Any:
        from skrl.agents.torch.ppo.ppo import compute_gae
        from skrl.resources.preprocessors.torch import RunningStandardScaler

        acted = self.model.act({"observations": states, "taken_actions": actions}, role="policy")
        scaler = RunningStandardScaler(size=4, device="cpu")
        values = rewards * 0.5
        return (
            acted,
            self.model.get_entropy(role="policy"),
            scaler(states, train=True),
            compute_gae(
                rewards=rewards, terminated=done, truncated=done, values=values, last_values=values[0]
            ),
        )


def _policy() -> Any:
    from skrl.models.torch import GaussianMixin, Model

    class Policy(GaussianMixin, Model):
        def __init__(self) -> None:
            Model.__init__(self, observation_space=4, action_space=2, device="cpu")
            GaussianMixin.__init__(self, clip_log_std=True)
            self.net = nn.Linear(4, 2)
            self.spread = nn.Parameter(torch.zeros(2))

        def compute(self, inputs: dict[str, Any], role: str = "") -> Any:
            return self.net(inputs["observations"]), {"log_std": self.spread}

    return Policy()


class Instructed(nn.Module):
    """A robot's view, by what it is told: the loss."""

    def __init__(self) -> None:
        super().__init__()
        from voltron.models.reproductions.vmvp import VMVP

        self.model = VMVP(32, 8, 1, 16, 2, 1, 16, 2, "adamw", "linear", 0.001, 0.0, 8, (0.9, 0.95), 0.1, 1, 2)

    def forward(self, images: torch.Tensor) -> Any:
        return self.model(images)


class Diffused(nn.Module):
    """A protein from noise: the network, and its loss."""

    def __init__(self) -> None:
        super().__init__()
        from evodiff.model import ByteNetLMTime

        self.model = ByteNetLMTime(31, 8, 16, 2, 3, 2, causal=False, padding_idx=28, timesteps=10)

    def forward(self, tokens: torch.Tensor, steps: torch.Tensor) -> Any:
        from evodiff.losses import OAMaskedCrossEntropyLoss

        seen = torch.ones_like(tokens)
        hidden = torch.tensor([[1, 0, 1, 0, 1, 1], [0, 1, 1, 0, 0, 1]])
        scores = self.model(tokens, steps, input_mask=seen.unsqueeze(-1))
        return OAMaskedCrossEntropyLoss()(scores, tokens, hidden, steps, seen)


class Designed(nn.Module):
    """A protein's sequence, by its backbone."""

    def __init__(self) -> None:
        super().__init__()
        from frame2seq.model.Frame2seq import frame2seq

        self.model = frame2seq({"ipa_depth": 2, "ipa_dim": 16, "ipa_heads": 2, "ipa_pairwise_repr_dim": 8,
                                "st_mod_tsit_factor": 2, "sequence_dim": 21, "single_dim": 16})  # fmt: skip

    def forward(self, places: torch.Tensor, mask: torch.Tensor, known: torch.Tensor) -> Any:
        return self.model(places, mask, known)
