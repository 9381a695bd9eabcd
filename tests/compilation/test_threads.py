"""Threads, as a server has them, that make first calls of one model at once, in every way in which it is called."""

import concurrent.futures
import copy
import threading
from collections.abc import Callable

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tpuport
from tpuport import compat

IDS = torch.tensor([[1, 2, 3, 4]])
THREADS = 4


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    config = LlamaConfig(
        num_hidden_layers=2, hidden_size=16, intermediate_size=32, num_attention_heads=2, vocab_size=32,
        pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def _at_once(work: Callable[[int], None]) -> None:
    """Let new threads do something, each with its number."""
    start = threading.Barrier(THREADS)

    def run(number: int) -> None:
        start.wait()
        work(number)

    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(run, range(THREADS)))


@torch.no_grad()
def test_first_calls_are_those_of_torch(model) -> None:
    logits = model(IDS).logits
    tokens = model.generate(IDS, max_new_tokens=3, do_sample=False)
    ported = tpuport.port(copy.deepcopy(model))
    compiled = tpuport.compile(ported)
    dropout = tpuport.compile(
        tpuport.port(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout())).train()
    )

    def check_own_call() -> None:
        torch.testing.assert_close(ported(IDS).logits.cpu(), logits)

    def check_compiled() -> None:
        torch.testing.assert_close(compiled(IDS).logits.cpu(), logits)

    def check_tokens() -> None:
        assert torch.equal(ported.generate(IDS, max_new_tokens=3, do_sample=False).cpu(), tokens)

    def check_draws() -> None:
        assert not torch.equal(dropout(torch.ones(8, 4)).cpu(), dropout(torch.ones(8, 4)).cpu())

    checks = [check_own_call, check_compiled, check_tokens, check_draws]

    def work(number: int) -> None:
        for check in (*checks[number:], *checks[:number]):
            check()

    _at_once(work)


def test_each_thread_is_in_the_environment_by_itself() -> None:
    environment = compat.environment()
    entered, left = threading.Event(), threading.Event()

    def enter_and_leave() -> None:
        with environment:
            entered.set()
            left.wait()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(enter_and_leave)
        entered.wait()
        assert not environment.enabled
        with environment:
            assert environment.enabled
            left.set()
            other.result()
            assert environment.enabled
        assert not environment.enabled


def test_a_block_ends_by_itself_alone() -> None:
    environment = compat.environment()
    with environment:
        with environment:
            torch.ones(2, device="jax") + 1
        assert environment.enabled
        type(environment)()
        assert environment.enabled
    assert not environment.enabled
