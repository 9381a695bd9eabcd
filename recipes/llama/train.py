"""Trains the tiny byte-level Llama of this recipe with plain torch on one CPU core, and saves a checkpoint.

    python -m recipes.llama.train --steps 2000 --out recipes/llama/checkpoint

Shapes: `B` stories in a step, `T` bytes in the longest of them.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from recipes.llama.tokenizer import BOS_ID, EOS_ID, PAD_ID, VOCAB_SIZE, build_tokenizer

CORPUS = Path(__file__).parent / "corpus"
CONTEXT = 512
PEAK_MUON, PEAK_ADAM, WARMUP = 4e-3, 4e-3, 20


def model_config() -> LlamaConfig:
    """Grouped-query Llama of 1.9 million weights; 4 key/value heads, so that up to 4 devices can share it."""
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=192,
        intermediate_size=448,
        num_hidden_layers=5,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )


def stories() -> list[str]:
    """Every paragraph of the corpus; each is a text of its own."""
    files = sorted(CORPUS.glob("*.txt"))
    return [story for file in files for story in file.read_text(encoding="utf-8").strip().split("\n\n")]


def lesson(story: str, generator: torch.Generator) -> torch.Tensor:
    """Tokens `[T]` of one story up to its `</s>`.

    Half of the stories begin as a prompt does, with their first byte; the others begin with `<s>`, or at a
    random word, so that the model can take up a thread from anywhere.
    """
    start, kind = 0, torch.rand((), generator=generator).item()
    if kind < 0.25:
        words = [index + 1 for index, letter in enumerate(story[: len(story) // 2]) if letter == " "]
        start = words[int(torch.randint(len(words), (), generator=generator))] if words else 0
    opening = [BOS_ID] if kind > 0.75 else []
    return torch.tensor([*opening, *story[start:].encode(), EOS_ID])


def batches(texts: list[str], batch: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Endless batches `[B, T]` of stories of like length, padded on the right; each epoch reads every story."""
    while True:
        lessons = [lesson(text, generator) for text in texts]
        jitter = 1 + 0.2 * torch.rand(len(lessons), generator=generator)
        lengths = torch.tensor([len(tokens) for tokens in lessons]) * jitter
        groups = lengths.argsort().split(batch)
        for group in torch.randperm(len(groups), generator=generator).tolist():
            chosen = [lessons[index] for index in groups[group].tolist()]
            yield pad_sequence(chosen, batch_first=True, padding_value=PAD_ID)


def optimizers(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, Adam for the embedding and the norms."""
    matrices = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and "layers" in name]
    inside = {id(weight) for weight in matrices}
    others = [weight for weight in model.parameters() if id(weight) not in inside]
    return [
        torch.optim.Muon(matrices, lr=PEAK_MUON, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=PEAK_ADAM, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def rate(step: int, steps: int) -> float:
    """Share of the peak learning rate: a short warm-up, then a straight line to zero."""
    return min((step + 1) / WARMUP, 1.0) * (1 - step / steps)


def train(steps: int, batch: int, seed: int) -> LlamaForCausalLM:
    """A model trained for `steps` steps of `batch` stories; the same seed gives the same model."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(model_config())
    lessons = batches(stories(), batch, torch.Generator().manual_seed(seed))
    tools = optimizers(model)
    schedules = [torch.optim.lr_scheduler.LambdaLR(tool, lambda step: rate(step, steps)) for tool in tools]
    started, recent = time.perf_counter(), 0.0
    for step in range(steps):
        tokens_BT = next(lessons)
        loss = model(input_ids=tokens_BT, labels=tokens_BT.masked_fill(tokens_BT == PAD_ID, -100)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for tool, schedule in zip(tools, schedules, strict=True):
            tool.step()
            tool.zero_grad()
            schedule.step()
        recent = loss.item() if step == 0 else 0.95 * recent + 0.05 * loss.item()
        if step % 25 == 24 or step == steps - 1:
            seconds = time.perf_counter() - started
            print(f"step {step + 1}/{steps}  loss {recent:.3f} nats a byte  {seconds:.0f} s", flush=True)
    return model.eval()


@torch.inference_mode()
def corpus_loss(model: LlamaForCausalLM) -> float:
    """Mean loss in nats a byte over every story of the corpus, each read alone from its first byte."""
    total, count = 0.0, 0
    for story in stories():
        story_BT = torch.tensor([[*story.encode()[: CONTEXT - 1], EOS_ID]])
        total += model(input_ids=story_BT, labels=story_BT).loss.item() * (story_BT.shape[1] - 1)
        count += story_BT.shape[1] - 1
    return total / count


def save(model: LlamaForCausalLM, directory: Path) -> None:
    """Write bfloat16 weights, configuration, tokenizer and generation options for `transformers` to load."""
    model.bfloat16().save_pretrained(directory)
    build_tokenizer(CONTEXT).save_pretrained(directory)
    options = GenerationConfig(
        pad_token_id=PAD_ID, bos_token_id=BOS_ID, eos_token_id=EOS_ID, max_new_tokens=200
    )
    options.save_pretrained(directory)


def main() -> None:
    """Train and save, by the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m recipes.llama.train", description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=4, help="stories in a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "checkpoint")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    save(train(options.steps, options.batch, options.seed), options.out)
    saved = LlamaForCausalLM.from_pretrained(options.out, dtype=torch.float32)
    print(f"saved in {options.out}  loss over the whole corpus {corpus_loss(saved.eval()):.3f} nats a byte")


if __name__ == "__main__":
    main()
