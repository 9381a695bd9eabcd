"""What `benchmarks.coverage` tries with a model: its calls, generation and a mesh, each beside torch on the CPU."""

import copy
import fnmatch
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from benchmarks import coverage_generation, coverage_prompts, tiny_models
from benchmarks.agreement import reason, shorten
from tpuport.errors import PortError
from tpuport.trace_errors import CannotTrace
from tpuport.verification.bounds import deviation
from tpuport.verification.model_runs import Arguments, call_compiled, call_exact, call_torch, widen_model

# Of each greedy generation.
NEW_TOKENS = 6
# Seeds of two runs in torch, whose results differ if the model draws random numbers.
SEEDS = (1, 2)
_LONGEST_REASON = 300
Check = dict[str, Any]


def checked(name: str, topology: str | None, patterns: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The record of a model as it grows: after each check with the results so far.

    Args:
        patterns: of the names of checks that are made; all without any.

    Yields:
        A record with name, status ("ran" or "not built") and a verdict for each check: "equal", "different",
        "refused" (a PortError), "raw error" (any other), "torch fails" or "not compared", with a reason.
    """
    torch.set_num_threads(1)
    record: dict[str, Any] = {"name": name, "status": "ran"}
    try:
        tiny = tiny_models.build(name)
    except Exception as error:  # noqa: BLE001 - whatever a constructor raises is the reason to report
        yield {**record, "status": "not built", "reason": reason(error)}
        return
    model = tiny.call
    assert isinstance(model, torch.nn.Module)
    break_ties(model)
    coverage_generation.prepare(model)
    if coverage_generation.has_forward(model):
        measure_batch_norms(model, tiny.inputs[0])
    record["parameters"] = sum(weight.numel() for weight in model.parameters())
    yield record
    for check, run in _checks(model, tiny, topology):
        if not patterns or any(fnmatch.fnmatchcase(check, pattern) for pattern in patterns):
            record[check] = attempt(run)
            yield record


def _checks(
    model: torch.nn.Module, tiny: tiny_models.Tiny, topology: str | None
) -> Iterator[tuple[str, Callable[[], Check]]]:
    """What is tried with a model, by name, in order."""
    if not coverage_generation.has_forward(model):
        [call] = tiny.inputs
        theirs = _torch_tokens(model, call)
        yield "generate", lambda: compare_tokens(model, call, theirs)
        return
    # Before tpuport changes anything in the process.
    tokens = {} if tiny.prompts else expect_tokens(model, tiny.inputs[0])
    expected = functools.cache(lambda: expect(model, tiny.inputs))
    yield "forward", lambda: compare_calls(model, expected(), mesh=None)
    yield "mesh", lambda: compare_calls(model, expected()[:1], mesh=small_mesh())
    for form, (call, theirs) in tokens.items():
        yield form, functools.partial(compare_tokens, model, call, theirs)
    prompted = list(coverage_prompts.forms(tiny.prompts)) if tiny.prompts else []
    for form, call, on_mesh in prompted:
        yield form, functools.partial(compare_prompts, model, call, on_mesh)
    # Of one prompt: transformers' own streamers take no more.
    streamed = [call for form, (call, _) in tokens.items() if form == "generate"]
    streamed += [call for form, call, _ in prompted if form == "generate"]
    for call in streamed:
        yield "streamed", functools.partial(compare_streams, model, call)
    if topology is not None:
        yield "topology", lambda: compile_for(model, tiny.inputs[0], topology)


def break_ties(model: torch.nn.Module) -> None:
    """Give weights that a class initializes with zeros small random values, in place.

    Routers begin with zeros, so that all experts are equally good, and torch leaves open which of equals `topk` takes.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1 and weight.is_floating_point() and not weight.any():
                weight.normal_(std=0.02, generator=generator)
    # LeViT keeps what it computed from the old ones until it is trained.
    model.train().eval()


def measure_batch_norms(model: torch.nn.Module, inputs: dict[str, Any]) -> None:
    """Give batch norms the mean and variance of their input in this call, as training would, in place.

    A new one has 0 and 1, and small random weights before it: after some layers nothing but biases would be compared,
    or numbers that only torch distinguishes from 0.
    """

    def measure(module: Any, args: tuple[torch.Tensor, ...]) -> None:
        features = args[0].transpose(0, 1).flatten(1)
        module.running_mean.copy_(features.mean(1))
        variance = features.var(1, correction=0)
        module.running_var.copy_(torch.where(variance > 0, variance, 1.0))

    if not _batch_norms(model):
        return
    # Some models change when they are called.
    measured = copy.deepcopy(model)
    for norm in _batch_norms(measured):
        norm.register_forward_pre_hook(measure)
    call_torch(measured, Arguments.of(inputs))
    for norm, source in zip(_batch_norms(model), _batch_norms(measured), strict=True):
        norm.running_mean.copy_(source.running_mean)
        norm.running_var.copy_(source.running_var)


def _batch_norms(model: torch.nn.Module) -> list[Any]:
    """Those with statistics; frozen ones, of libraries' own classes, have the same two buffers."""
    modules = (module for module in model.modules() if "running_mean" in module._buffers)
    return [module for module in modules if module.running_mean is not None]


def attempt(check: Callable[[], Check]) -> Check:
    """The result of a check, or what it raised."""
    try:
        return check()
    except PortError as error:
        return {"verdict": "refused", "reason": shorten(str(error), _LONGEST_REASON)}
    except Exception as error:  # noqa: BLE001 - any other error is the finding
        return {"verdict": "raw error", "reason": reason(error)}


# --- torch ---


class Expected:
    """A call and its result in torch.

    Attributes:
        arguments: of the call.
        results: its tensors; `exact` in float64, None where the model does not run in float64.
        draws: whether the result depends on the random seed.
    """

    def __init__(self, model: torch.nn.Module, inputs: dict[str, Any]) -> None:
        self.arguments = Arguments.of(inputs)
        torch.manual_seed(SEEDS[0])
        self.results = call_torch(model, self.arguments)
        torch.manual_seed(SEEDS[1])
        again = call_torch(model, self.arguments)
        self.draws = not all(map(torch.equal, self.results, again))
        self.exact = self._in_float64(model)

    def _in_float64(self, model: torch.nn.Module) -> list[torch.Tensor] | None:
        try:
            return call_exact(widen_model(model), self.arguments)
        except Exception:  # noqa: BLE001 - code that names float32 does not run in float64
            return None


def expect(model: torch.nn.Module, calls: list[dict[str, Any]]) -> list[Expected]:
    """What torch gives for each call of a new model: some, such as BigBird, change when they are called."""
    return [Expected(copy.deepcopy(model), inputs) for inputs in calls]


def expect_tokens(
    model: torch.nn.Module, inputs: dict[str, Any]
) -> dict[str, tuple[dict[str, Any], torch.Tensor | Exception]]:
    """By the form of generation the call, and the tokens that torch gives for it or what it raises."""
    can_generate: Any = getattr(model, "can_generate", bool)
    if not can_generate():
        return {}
    config: Any = model.config
    inputs = coverage_generation.call_inputs(model, inputs)
    if config.is_encoder_decoder:
        # The decoder begins with its own token; ids, frames and images are the encoder's.
        inputs = {name: value for name, value in inputs.items() if not name.startswith("decoder_")}
    row = _first_row(inputs)
    if not coverage_generation.preparation(model).needs_mask:
        row.pop("attention_mask", None)
    forms = {"generate": row}
    forms["generate_batch"] = inputs
    if not config.is_encoder_decoder and "attention_mask" in inputs:
        # Two rows, the second padded on the left.
        forms["generate_batch"] = {**inputs, "attention_mask": inputs["attention_mask"].flip(-1)}
    return {form: (call, _torch_tokens(model, call)) for form, call in forms.items()}


def _first_row(inputs: dict[str, Any]) -> dict[str, Any]:
    """Inputs of one row; all of them if some, such as the patches of all images, are not divided by rows."""
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    if len({len(value) for value in tensors.values()}) > 1:
        return dict(inputs)
    return inputs | {name: value[:1] for name, value in tensors.items()}


def _torch_tokens(model: Any, call: dict[str, Any], seed: int = SEEDS[0]) -> torch.Tensor | Exception:
    try:
        return _generate(copy.deepcopy(model), call, seed)
    except Exception as error:  # noqa: BLE001 - that torch does not generate is the finding
        return error


def _generate(model: Any, call: dict[str, Any], seed: int = SEEDS[0], **options: Any) -> torch.Tensor:
    """Generate greedily, in torch or here. A class's own code may draw, as DiffusionGemma its canvas: on the host."""
    if coverage_generation.has_forward(model):
        options |= {"max_new_tokens": NEW_TOKENS, "do_sample": False}
    options |= coverage_generation.preparation(model).options
    torch.manual_seed(seed)
    return coverage_generation.result(model.generate(**copy.deepcopy(call), **options))


# --- tpuport ---


def small_mesh() -> Any:
    """Eight devices, two along each axis."""
    import tpuport

    return tpuport.create_mesh(dp=2, sp=2, tp=2)


def ported(model: torch.nn.Module, mesh: Any = None) -> Any:
    """A ported copy; without a mesh on one device."""
    import jax

    import tpuport

    if mesh is None:
        mesh = tpuport.create_mesh(devices=jax.devices()[:1])
    return tpuport.port(copy.deepcopy(model), mesh=mesh)


def compare_calls(model: torch.nn.Module, expected: list[Expected], mesh: Any) -> Check:
    """Compare each call of the compiled model with torch's.

    A model that no program can compute is called itself, and its code runs on the host.
    """
    import tpuport

    model = ported(model, mesh)
    compiled = tpuport.compile(model)
    try:
        return _compare_each(compiled, expected, lambda: compiled.program.compilations)
    except CannotTrace as error:
        check = _compare_each(model, expected, lambda: _module_programs(model))
        on_host = shorten(
            f"runs on the host, over compiled calls of its modules: {error.what}", _LONGEST_REASON
        )
        return {"reason": on_host, **check}


def _compare_each(run: Any, expected: list[Expected], count: Callable[[], int]) -> Check:
    worst: Check = {"verdict": "equal", "error": 0.0}
    for call in expected:
        torch.manual_seed(SEEDS[0])
        _compare_results(call_compiled(run, call.arguments), call, worst)
        _count_programs(run, call.arguments, count, worst)
    return worst


def _module_programs(model: Any) -> int:
    """How many programs a model has whose own call runs on the host, its modules' ones among them."""
    call = model.forward
    modules = call.on_host.calls.functions.values() if call.on_host else ()
    return sum(function.program.compilations for function in (call.compiled, *modules))


def _count_programs(run: Any, arguments: Arguments, count: Callable[[], int], worst: Check) -> None:
    """Add how many programs the second call of these arguments compiled, and how many the third.

    A model that keeps something of its first call, such as tables that it makes, has it as an argument from then on,
    and with it one more program. The third call has none, unless the model changes with every call.
    """
    for field in ("recompilations", "later_recompilations"):
        before = count()
        torch.manual_seed(SEEDS[0])
        call_compiled(run, arguments)
        worst[field] = worst.get(field, 0) + count() - before


def _compare_results(ours: list[torch.Tensor], call: Expected, worst: Check) -> None:
    """Compare the tensors of a call; `worst` becomes the verdict of all calls."""
    if len(ours) != len(call.results):
        worst |= {"verdict": "different", "reason": f"{len(ours)} tensors, {len(call.results)} in torch"}
        return
    if call.draws:
        shapes = [list(tensor.shape) for tensor in ours]
        if shapes != [list(tensor.shape) for tensor in call.results]:
            worst |= {"verdict": "different", "reason": f"shapes {shapes}"}
        elif worst["verdict"] == "equal":
            worst |= {"verdict": "not compared", "reason": "draws random numbers"}
        return
    exact: list[Any] = [None] * len(ours)
    if call.exact is not None and len(call.exact) == len(ours):
        exact = call.exact
    for mine, theirs, referee in zip(ours, call.results, exact, strict=True):
        difference = deviation(mine, theirs, referee)
        if difference is None:
            continue
        if math.isfinite(difference.error):
            worst["error"] = max(worst["error"], difference.error)
        if not difference.is_rounding:
            worst |= {"verdict": "different", "reason": difference.describe()}


def compare_tokens(model: torch.nn.Module, call: dict[str, Any], theirs: torch.Tensor | Exception) -> Check:
    """Generate as torch did and compare the tokens."""
    if isinstance(theirs, Exception):
        return {"verdict": "torch fails", "reason": reason(theirs)}
    ours = _generate(ported(model), call)
    if theirs.is_floating_point():
        return _compare_sound(model, call, ours, theirs)
    if torch.equal(ours, theirs):
        return {"verdict": "equal"}
    return {
        "verdict": "different",
        "reason": f"{ours.tolist()}, in torch {theirs.tolist()}"[:_LONGEST_REASON],
    }


def _compare_sound(
    model: torch.nn.Module, call: dict[str, Any], ours: torch.Tensor, theirs: torch.Tensor
) -> Check:
    """Compare spectrograms or sound, of a model that draws random numbers on the device their shapes alone."""
    if ours.shape != theirs.shape:
        return {"verdict": "different", "reason": f"shape {list(ours.shape)}, in torch {list(theirs.shape)}"}
    error = float((ours - theirs).abs().max() / theirs.abs().max())
    if error <= coverage_prompts.MOST_ERROR:
        return {"verdict": "equal", "error": error}
    if not torch.equal(theirs, _torch_tokens(model, call, SEEDS[1])):
        return {"verdict": "not compared", "reason": "draws random numbers"}
    return {"verdict": "different", "reason": f"differs by {error:.0e} of the largest", "error": error}


class _Recorder(BaseStreamer):
    """Keeps the tokens of each part that a streamer is given, and its end."""

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def put(self, value: Any) -> None:
        self.parts.append(torch.as_tensor(value).flatten().tolist())

    def end(self) -> None:
        self.parts.append("end")


def compare_streams(model: torch.nn.Module, call: dict[str, Any]) -> Check:
    """Generate with a streamer, in torch and here, and compare what each was given: the prompt, then each token."""
    theirs, ours = _Recorder(), _Recorder()
    try:
        _generate(copy.deepcopy(model), call, streamer=theirs)
    except Exception as error:  # noqa: BLE001 - that torch does not stream is the finding
        return {"verdict": "torch fails", "reason": reason(error)}
    if not any(isinstance(part, list) for part in theirs.parts):
        return {"verdict": "torch fails", "reason": "the class's own generate gives a streamer nothing"}
    _generate(ported(model), call, streamer=ours)
    if ours.parts == theirs.parts:
        return {"verdict": "equal"}
    return {"verdict": "different", "reason": f"{ours.parts}, in torch {theirs.parts}"[:_LONGEST_REASON]}


def compare_prompts(model: torch.nn.Module, call: dict[str, Any], on_mesh: bool) -> Check:
    """Generate from images or the like as torch does, on one device or on four, and compare the tokens."""
    import jax

    import tpuport

    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False}
    try:
        theirs, effect = coverage_prompts.expect_contents(model, call, options)
    except Exception as error:  # noqa: BLE001 - that torch does not generate is the finding
        return {"verdict": "torch fails", "reason": reason(error)}
    mesh = tpuport.create_mesh(dp=2, tp=2, devices=jax.devices()[:4]) if on_mesh else None
    return coverage_prompts.compare_contents(ported(model, mesh), call, theirs, effect, options)


def compile_for(model: torch.nn.Module, inputs: dict[str, Any], topology: str) -> Check:
    """Compile the first call for a TPU."""
    from tpuport import topology as tpu

    report = tpu.compile_for(copy.deepcopy(model), inputs, topology=topology)
    if report.failure is not None:
        return {"verdict": "refused", "reason": shorten(str(report.failure), _LONGEST_REASON)}
    return {"verdict": "equal"}
