"""Operators over lists of tensors, and what torch builds on them, beside torch on the CPU."""

import copy

import pytest
import torch

import tpuport


def lists():
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(shape, generator=generator) + 0.5 for shape in [(2, 3), (4,), ()]]


def on_host(tensors):
    return [tensor.detach().cpu() for tensor in tensors]


LISTS = {
    "add": lambda a, b: torch._foreach_add(a, b, alpha=0.5),
    "add number": lambda a, b: torch._foreach_add(a, 2.0),
    "add numbers": lambda a, b: torch._foreach_add(a, [1.0, 2.0, 3.0]),
    "add tensor": lambda a, b: torch._foreach_add(a, b[2], alpha=2),
    "mul in place": lambda a, b: torch._foreach_mul_(a, b) or a,
    "lerp": lambda a, b: torch._foreach_lerp(a, b, 0.3),
    "lerp in place": lambda a, b: torch._foreach_lerp_(a, b, 0.3) or a,
    "addcmul": lambda a, b: torch._foreach_addcmul(a, a, b, value=0.1),
    "addcmul numbers": lambda a, b: torch._foreach_addcmul(a, a, b, [0.1, 0.2, 0.3]),
    "addcdiv tensor": lambda a, b: torch._foreach_addcdiv(a, a, b, torch.tensor([0.1, 0.2, 0.3])),
    "addcdiv in place": lambda a, b: torch._foreach_addcdiv_(a, a, b, value=-0.1) or a,
    "norm": lambda a, b: torch._foreach_norm(a, 1),
    "norm dtype": lambda a, b: torch._foreach_norm([t.bfloat16() for t in a], 2, torch.float32),
    "max": lambda a, b: torch._foreach_max(a),
    "maximum": lambda a, b: torch._foreach_maximum(a, b),
    "minimum in place": lambda a, b: torch._foreach_minimum_(a, 0.7) or a,
    "clamp": lambda a, b: torch._foreach_clamp_max(a, b),
    "power of number": lambda a, b: torch._foreach_pow(2.0, a),
    "sqrt in place": lambda a, b: torch._foreach_sqrt_(a) or a,
    "zero": lambda a, b: torch._foreach_zero_(a) or a,
    "copy": lambda a, b: torch._foreach_copy_(a, b) or a,
    "views": lambda a, b: (torch._foreach_neg_([a[0][1], a[1][:2]]), a)[1],
}


@pytest.mark.parametrize("use", LISTS)
def test_lists(use):
    expected = LISTS[use](lists(), lists())
    result = LISTS[use]([x.to("jax") for x in lists()], [x.to("jax") for x in lists()])
    torch.testing.assert_close(on_host(result), list(expected), rtol=1e-6, atol=1e-6)


def test_lists_of_different_lengths():
    tensors = [x.to("jax") for x in lists()]
    with pytest.raises(RuntimeError, match="got 3 and 2"):
        torch._foreach_add(tensors, tensors[:2])


def test_lists_in_compiled_code():
    average = tpuport.compile(lambda a, b: torch._foreach_lerp(a, b, 0.3))
    expected = torch._foreach_lerp(lists(), [*lists()[:2], torch.tensor(3.0)], 0.3)
    result = average(lists(), [*lists()[:2], torch.tensor(3.0)])
    torch.testing.assert_close(on_host(result), list(expected))


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).eval()


def set_gradients(module):
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter) * 3


def gradients(module):
    return on_host(parameter.grad for parameter in module.parameters())


CLIPS = {
    "norm": lambda parameters, **options: torch.nn.utils.clip_grad_norm_(parameters, 1.0, **options),
    "greatest": lambda parameters, **options: torch.nn.utils.clip_grad_norm_(
        parameters, 1.0, float("inf"), error_if_nonfinite=True, **options
    ),
    "value": lambda parameters, **options: torch.nn.utils.clip_grad_value_(parameters, 0.5, **options),
}


@pytest.mark.parametrize("foreach", [None, pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("clip", CLIPS)
def test_clipping(clip, foreach):
    host, ported = model(), tpuport.port(model())
    results = []
    for module in (host, ported):
        set_gradients(module)
        results.append(CLIPS[clip](module.parameters(), foreach=foreach))
    torch.testing.assert_close(gradients(ported), gradients(host))
    if results[0] is not None:
        assert results[1].item() == pytest.approx(results[0].item(), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "foreach"),
    [
        ("SGD", True),
        ("AdamW", None),
        ("RAdam", True),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("SGD", None), ("AdamW", True), ("RAdam", None))
        ),
    ],
)
def test_optimizers(name, foreach):
    """Gradients accumulated twice, clipped, and a learning rate that falls."""
    host, ported = model(), tpuport.port(model())
    for module in (host, ported):
        optimizer = getattr(torch.optim, name)(module.parameters(), lr=0.1, foreach=foreach)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        for _ in range(3):
            set_gradients(module)
            for parameter in module.parameters():
                parameter.grad += 0.5 * parameter.detach()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            optimizer.zero_grad()
    torch.testing.assert_close(on_host(ported.parameters()), on_host(host.parameters()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decay", [None, 0.9])
def test_averages_of_models(decay):
    averages = []
    for module in (model(), tpuport.port(model())):
        function = None if decay is None else torch.optim.swa_utils.get_ema_multi_avg_fn(decay)
        average = torch.optim.swa_utils.AveragedModel(module, multi_avg_fn=function)
        for _ in range(2):
            average.update_parameters(module)
            with torch.no_grad():
                torch._foreach_add_(list(module.parameters()), 1.0)
        average.update_parameters(module)
        averages.append(average)
    x = torch.ones(2, 4)
    with torch.no_grad():
        expected = averages[0](x)
    torch.testing.assert_close(averages[1](x).cpu(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(copy.deepcopy(averages[1])(x).cpu(), expected, rtol=1e-5, atol=1e-5)


def test_torch_is_left_as_it_was():
    tpuport.disable()
    original = torch._C._group_tensors_by_device_and_dtype
    tpuport.enable()
    assert torch._C._group_tensors_by_device_and_dtype is not original
    tensors = lists()
    ((device, dtype),) = torch.utils._foreach_utils._group_tensors_by_device_and_dtype([tensors])
    assert (device.type, dtype) == ("cpu", torch.float32)
