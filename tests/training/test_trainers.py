"""transformers' Trainer and accelerate's loops with a ported model, unmodified, beside torch on the CPU."""

import copy
import pathlib
from collections.abc import Iterator
from typing import Any

import accelerate
import pytest
import torch
import transformers

import tpuport
from tests.training.test_recorded_calls import small_llama
from tpuport import compat


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    tpuport.enable()
    yield
    tpuport.disable()
    # As other tests find it, which do not enable anything.
    compat.environment()


def examples(count: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(0, 32, (8,), generator=generator) for _ in range(count)]
    return [{"input_ids": each, "labels": each.clone()} for each in ids]


def test_the_trainer_of_transformers(tmp_path: pathlib.Path) -> None:
    torch.manual_seed(0)
    model = small_llama()
    losses: list[list[float]] = []
    evaluated: list[float] = []
    for number, each in enumerate((copy.deepcopy(model), tpuport.port(model))):
        arguments = transformers.TrainingArguments(
            str(tmp_path / str(number)), per_device_train_batch_size=4, gradient_accumulation_steps=2,
            num_train_epochs=2, learning_rate=1e-2, report_to=[], logging_steps=1, save_strategy="epoch",
            disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        trainer = transformers.Trainer(
            model=each, args=arguments, train_dataset=examples(16), eval_dataset=examples(4)
        )
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
        evaluated.append(trainer.evaluate()["eval_loss"])
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-4)
    assert losses[1][-1] < losses[1][0] - 0.1
    assert evaluated[1] == pytest.approx(evaluated[0], rel=1e-4)
    # The files that it writes are torch's.
    load = transformers.AutoModelForCausalLM.from_pretrained
    written = [load(tmp_path / name / "checkpoint-4").state_dict() for name in "01"]
    for name, weight in written[0].items():
        torch.testing.assert_close(written[1][name], weight, rtol=1e-3, atol=1e-5)


def test_a_loop_of_accelerate() -> None:
    torch.manual_seed(0)
    model = small_llama()
    losses: list[list[float]] = []
    for each in (copy.deepcopy(model), tpuport.port(model)):
        accelerator = accelerate.Accelerator(cpu=True)
        optimizer: Any = torch.optim.AdamW(each.parameters(), lr=1e-2)
        loader = torch.utils.data.DataLoader(examples(16), batch_size=4)
        prepared, optimizer, loader = accelerator.prepare(each, optimizer, loader)
        losses.append([])
        for batch in loader:
            with accelerator.accumulate(prepared):
                loss = prepared(**batch).loss
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses[-1].append(loss.item())
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-4)
    assert losses[1][-1] != losses[1][0]


def test_mixed_precision_is_refused_rather_than_ignored(tmp_path: pathlib.Path) -> None:
    model = tpuport.port(small_llama())
    arguments = transformers.TrainingArguments(str(tmp_path), bf16=True, report_to=[], use_cpu=True)
    with pytest.raises(tpuport.PortError, match="mixed precision"):
        transformers.Trainer(model=model, args=arguments, train_dataset=examples(4))
