"""Rules about dtypes."""

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype", "ignore:float64 becomes float32")


@pytest.mark.slow  # the float32 buffer below
def test_a_model_that_stays_in_float32(advice, models) -> None:
    inputs, rules = {"tokens": models.tokens(2, 256)}, models.rules(models.BLOCKS)
    [finding] = advice(models.Blocks, inputs, rules=rules, dtype=None)
    assert finding.rule == "TPC005"
    # Two embeddings and two layers of two weights over four devices, and the norms.
    held = (2 * 8192 * 512 + 4 * 512 * 2048) + 4 * 2 * 512
    assert finding.cost == held / 4 * 4 / 2
    assert "dtype='bfloat16'" in finding.remedy


@pytest.mark.slow
def test_a_float32_buffer_in_a_model_of_16_bits(advice, models) -> None:
    class Table(models.Blocks):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.zeros(4096, models.WIDTH), persistent=False)

        def forward(self, tokens):
            return super().forward(tokens, scale=self.table[:1].to(torch.bfloat16))

    [finding] = advice(Table, {"tokens": models.tokens(2, 256)}, rules=models.rules(models.BLOCKS))
    assert finding.rule == "TPC005"
    assert "1 weight in float32, 8 MiB a device" in finding.message
    assert finding.cost == 4096 * 512 * 2


@pytest.mark.slow
def test_what_the_model_keeps_in_float32_is_meant_so(advice, models) -> None:
    class Keeping(models.Blocks):
        _keep_in_fp32_modules = ("head",)

        def forward(self, tokens):
            x = self.layers[0](self.embed(tokens))
            return self.head(x[:, -1:].float()).argmax(-1)

    assert advice(Keeping, {"tokens": models.tokens(2, 256)}, rules=models.rules(models.BLOCKS)) == ()


@pytest.mark.slow
def test_products_that_a_float_made_float32(advice, models) -> None:
    class Promoting(models.Blocks):
        def forward(self, tokens):
            x = self.embed(tokens).float()
            for layer in self.layers:
                hidden = torch.nn.functional.silu(x @ layer.up.weight.float().T)
                x = x + hidden @ layer.down.weight.float().T
            return self.head(x[:, -1:].to(torch.bfloat16)).argmax(-1)

    findings = advice(Promoting, {"tokens": models.tokens(4, 512)}, rules=models.rules(models.BLOCKS))
    assert [finding.rule for finding in findings] == ["TPC005"] * 2
    codes = [finding.source.code for finding in findings]
    assert sorted(codes) == [
        "hidden = torch.nn.functional.silu(x @ layer.up.weight.float().T)",
        "x = x + hidden @ layer.down.weight.float().T",
    ]
    for one in findings:
        # Two layers over 2,048 tokens, on four devices.
        assert f"{2 * 2 * 2048 * 512 * 2048 / 4 / 1e9:.3g} GFLOP a device" in one.message
        assert ", 2 times; its operands: converted from bfloat16 at " in one.message


@pytest.mark.slow
def test_attention_that_a_table_made_float32(advice, models) -> None:
    class Rotary(models.Attending):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.ones(512, 128), persistent=False)

        def attend(self, q, k, v, mask):
            return super().attend(q * self.table, k * self.table, v.float(), mask).to(torch.bfloat16)

    [finding] = advice(Rotary, {"x": models.meta(4, 512, 512)}, rules=models.rules(models.ATTENDING))
    assert finding.rule == "TPC005"
    assert finding.message.startswith("attention in float32 in a 16-bit model")
    assert "16 bits met float32 (the argument weights['table'])" in finding.message
    assert "converted from bfloat16" in finding.message
    assert finding.source.code.startswith("return torch.nn.functional.scaled_dot_product_attention(")


@pytest.mark.parametrize("scale", [torch.ones(1, dtype=torch.float64), np.ones(1)], ids=["torch", "numpy"])
@pytest.mark.slow
def test_inputs_of_64_bits(advice, models, scale) -> None:
    value = torch.as_tensor(scale)
    inputs = {"tokens": models.tokens(2, 256), "scale": value}

    class Scaled(models.Blocks):
        def forward(self, tokens, scale):
            return super().forward(tokens, scale=scale.to(torch.bfloat16))

    [finding] = advice(Scaled, inputs, rules=models.rules(models.BLOCKS))
    assert finding.rule == "TPC006"
    assert "1 64-bit input converted to 32 bits in each call: scale" in finding.message
    inputs["scale"] = value.float()
    assert advice(Scaled, inputs, rules=models.rules(models.BLOCKS)) == ()


@pytest.mark.slow
def test_a_buffer_of_64_bits(advice, models) -> None:
    class Frequencies(models.Blocks):
        def __init__(self):
            super().__init__()
            self.register_buffer("frequencies", torch.ones(512, dtype=torch.float64), persistent=False)

        def forward(self, tokens):
            return super().forward(tokens, scale=self.frequencies.to(torch.bfloat16))

    [finding] = advice(Frequencies, {"tokens": models.tokens(2, 256)}, rules=models.rules(models.BLOCKS))
    assert finding.rule == "TPC006"
    assert "frequencies" in finding.message
    assert finding.cost == 512 * 4
