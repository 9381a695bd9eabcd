"""Rules about what a call is given: Python numbers, lengths and rows; and a real model that has none of it."""

from types import SimpleNamespace

import pytest

from tpuport.topology import Decode, Prefill
from tpuport.topology.advice import Evidence, advice_rule_by_id
from tpuport.topology.compile_report import Costs

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")


@pytest.mark.slow  # the example of TPC010 in test_advice_rules.py, and the next test
def test_floats_compile_again_and_integers_do_not(advice, models) -> None:
    inputs = {"tokens": models.tokens(2, 64), "guidance": 3.5, "timestep": 7, "cache_position": 5}
    [finding] = advice(lambda: models.Blocks(1), inputs, rules=models.rules(models.BLOCKS))
    assert finding.rule == "TPC010"
    assert finding.message.startswith("guidance=3.5 is a Python number")
    assert finding.remedy == "pass a tensor: guidance=torch.tensor(3.5)"


@pytest.mark.parametrize(("name", "value"), [("guidance", 3.5), ("length", 3)])
def test_a_number_that_decides_what_is_traced_cannot_be_a_tensor(advice, models, name, value) -> None:
    class Guided(models.Blocks):
        def forward(self, tokens, guidance=1.0, length=0):
            if guidance > 1:
                tokens = tokens + 1
            for _ in range(length):
                tokens = tokens + 1
            return super().forward(tokens)

    inputs = {"tokens": models.tokens(2, 64), name: value}
    [finding] = advice(lambda: Guided(1), inputs, rules=models.rules(models.BLOCKS))
    assert finding.rule == "TPC010"
    assert finding.remedy.startswith("a tensor cannot take its place, because the code needs the number")


@pytest.mark.slow  # the example of TPC010, after, in test_advice_rules.py
def test_choices_and_tensors_are_all_right(advice, models) -> None:
    inputs = {"tokens": models.tokens(2, 64), "height": 4, "flag": True, "timestep": models.meta(1)}
    assert advice(lambda: models.Blocks(1), inputs, rules=models.rules(models.BLOCKS)) == ()


@pytest.mark.slow  # `test_a_step_of_decoding_and_a_prompt_hold_weights_and_cache`, in ../test_compiling.py, has none
@pytest.mark.parametrize(
    "task",
    [Decode(batch=2, max_cache_len=512), Prefill(batch=2, length=256, max_cache_len=512)],
    ids=["decode", "prefill"],
)
def test_a_tiny_llama_that_its_own_plan_shards_gets_no_advice(advice, llama, task) -> None:
    assert advice(llama, task) == ()


@pytest.mark.parametrize(("length", "idle"), [(256, 0), (257, 63), (320, 0)])
def test_a_length_well_below_its_bucket(length, idle) -> None:
    """The figures of a report: nothing but the length has to be compiled to be known."""
    evidence = object.__new__(Evidence)
    vars(evidence).update(
        inputs={"length": length}, report=SimpleNamespace(task="prefill", costs=Costs(320e6, 0.0, 0.0, 0.0))
    )
    hits = list(advice_rule_by_id("TPC018").check(evidence))
    assert [hit.cost for hit in hits] == [idle * 1e6] * bool(idle)
    for hit in hits:
        assert "257 tokens runs in a program of 320 columns: 20%" in hit.message


@pytest.mark.slow
def test_rows_that_fill_a_batch_up(advice, llama) -> None:
    [finding] = advice(llama, Decode(batch=1, max_cache_len=256), dp=2, tp=2)
    assert finding.rule == "TPC014"
    assert (
        "1 rows over dp=2 are filled up to 2: 50%" in finding.message or "1 row over dp=2" in finding.message
    )


@pytest.mark.slow
def test_sp_is_spare_in_a_decode_step(advice, llama) -> None:
    [finding] = advice(llama, Decode(batch=2, max_cache_len=256), sp=2, tp=2)
    assert finding.rule == "TPC017"
    assert "a decode step has one token a row" in finding.remedy
