"""What the compiler says of a program for a described TPU, in plain values: everything that a report shows.

Bytes and FLOPs are those of one device and one step: one call of the program. A collective, an array or a kernel in the
body of a loop counts as often as the loop runs.
"""

import dataclasses
from typing import Any, Final

from tpuport.attention.calls import Call

# Of `Report.to_dict` and of what `tpuport compile --format json` prints; docs/compile.md describes it.
SCHEMA: Final = 1


@dataclasses.dataclass(frozen=True)
class Source:
    """A line of the model's code, or the user's: where the innermost call stands that is not a library's.

    Attributes:
        file: as Python knows it; line: from 1; function: the name that it is in.
        code: the line's text without indentation; empty where the file cannot be read.
    """

    file: str
    line: int
    function: str
    code: str = ""


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of HBM of one device. `used` counts what is there together, outputs in donated arguments once.

    Attributes:
        capacity: what the compiler lets a program have.
        weights: parameters and buffers of the model.
        cache: keys and values (or states) that a step is given.
        arguments: all other arguments, and what tiles add to arguments.
        outputs, temporaries, code: as the compiler says; for `outputs`, those that are not in a donated argument.
            None where nothing says it: of a program that does not fit, `code` often, and all where the compiler lists
            nothing; `used` then has them where it is known.
        used: None where the program does not fit and the compiler does not say by how much.
    """

    capacity: int
    weights: int
    cache: int
    arguments: int | None
    outputs: int | None
    temporaries: int | None
    code: int | None
    used: int | None

    @property
    def fits(self) -> bool:
        """Whether the device has that much."""
        return self.used is not None and self.used <= self.capacity


@dataclasses.dataclass(frozen=True)
class Collective:
    """Collectives of one kind, over the same axes, from one line of code.

    Attributes:
        kind: "all-reduce" and so on.
        axes: of the mesh, in its order, that the devices of a group differ in; empty where they are not whole axes.
        group: how many devices take part in one.
        count: times a step.
        nbytes: that all of them leave on each device in a step.
        source: None where the compiler does not say.
        overlapped: how many of `count` are started and ended apart, so that other work can go on.
    """

    kind: str
    axes: tuple[str, ...]
    group: int
    count: int
    nbytes: int
    source: Source | None = None
    overlapped: int = 0


@dataclasses.dataclass(frozen=True)
class Buffer:
    """Arrays of one shape that the program keeps in memory.

    Attributes:
        shape: as HLO writes it, "bf16[8,128]".
        nbytes: of one, as tiles pad it.
        operation: the opcode that makes it.
        count: how many instructions make one.
        source: the line of code; None where the compiler does not say.
    """

    shape: str
    nbytes: int
    operation: str
    count: int
    source: Source | None = None


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Pallas kernels of one name, or the compiler's own: times a step, and FLOPs and HBM bytes of all of them.

    Attributes:
        source: "kernel" where they are the kernel's own estimate (zeros where it gives none and nothing was counted),
            "counted" where they were counted over its grid: the products of its body, or the FLOPs of its own estimate
            where that has fewer, and the blocks that it brings in.
        bound: of what was counted and depends on data, "at most" (each branch taken, each block anew), "at least" (a
            loop of unknown length once) or "about" (both; of a product by groups, rows spread evenly over the groups
            and the devices that share them out); None where the count is exact, or is the kernel's own.
    """

    name: str
    count: int
    flops: float
    hbm_bytes: float
    source: str = "kernel"
    bound: str | None = None


@dataclasses.dataclass(frozen=True)
class Costs:
    """What one device does in a step.

    Attributes:
        flops: by the compiler's count; kernels as in `Kernel`.
        hbm_bytes: read from HBM and written to it, by the program's text and its memory spaces; kernels as in
            `Kernel`. What stays in VMEM is not in it.
        bytes_accessed: the compiler's count, of operands and results in whatever memory.
        model_flops: matrix products, convolutions and attention as the model was traced, divided by the devices: what
            has to be done if nothing is done twice.
        product_flops: of `flops`, those in matrix products, convolutions and kernels; a product of a matrix and a
            vector is not in it where the compiler makes it elementwise.
        kernels: which Pallas kernels there are, and which the compiler has made by itself.
        expanded_flops: of `product_flops`, those beyond what is needed in products by groups, such as experts', of
            which the compiler multiplies few rows by all groups.
        int8_flops, fp8_flops: of `product_flops`, those with both operands of 8 bits; kernels' are not in them.
        pass_flops: what float32 products at a precision above the default take beyond `flops`: five times their own
            at "highest", twice at "high".
    """

    flops: float
    hbm_bytes: float
    bytes_accessed: float
    model_flops: float
    kernels: tuple[Kernel, ...] = ()
    product_flops: float = 0.0
    expanded_flops: float = 0.0
    int8_flops: float = 0.0
    fp8_flops: float = 0.0
    pass_flops: float = 0.0


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A roofline, from public peak figures: what the hardware could not beat, no prediction.

    Attributes:
        compute, memory, interconnect: seconds a step that each takes alone, at its peak.
        binds: which of the three is the largest.
        seconds: a step's, with compute, memory and interconnect at the same time: their maximum.
        seconds_apart: a step's, one after another: their sum.
        unit: what a step makes: "tokens", "images", "frames" or "steps"; units: how many, on the whole mesh.
        units_per_second: at `seconds`; units_per_second_apart: at `seconds_apart`.
        mfu: model_flops over what the device's bf16 peak does in `seconds`: above 1 where products run at a higher
            one; mfu_apart: in `seconds_apart`.
    """

    compute: float
    memory: float
    interconnect: float
    binds: str
    seconds: float
    seconds_apart: float
    unit: str
    units: float
    units_per_second: float
    units_per_second_apart: float
    mfu: float
    mfu_apart: float


@dataclasses.dataclass(frozen=True)
class Finding:
    """Advice: a rule that fired, what was measured, and what to do.

    Attributes:
        rule: its id, "TPC001"; name: "width-sharded-activations".
        message: the measured cause, in a sentence.
        remedy: what to do.
        cost: what it costs a step, in `unit` ("bytes" of HBM, "bytes sent", "flops"); findings are sorted by it.
        source: the line of code where there is one.
    """

    rule: str
    name: str
    message: str
    remedy: str
    cost: float = 0.0
    unit: str = "bytes"
    source: Source | None = None


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why there is no program that fits.

    Attributes:
        kind: "trace" where the model's code cannot be traced, "memory", "compiler", or "defect" where no code of the
            model's has a part in it.
        message: what happened, in a sentence.
        source: the line of the user's or the model's code.
        rule: the lint rule that finds it ("TPU102"), or None; remedy: what to do.
        buffers: for "memory", the compiler's list, largest first.
        traceback: what Python or the compiler said, whole.
    """

    kind: str
    message: str
    source: Source | None = None
    rule: str | None = None
    remedy: str = ""
    buffers: tuple[Buffer, ...] = ()
    traceback: str = ""


@dataclasses.dataclass(frozen=True)
class Scanned:
    """Identical blocks that the program runs in one loop: where they are ("model.layers"), and how many."""

    name: str
    count: int


@dataclasses.dataclass(frozen=True)
class Report:
    """A compiled program: made by `compile_for`.

    Attributes:
        topology: its full name; generation: "v6e"; devices: how many the mesh has.
        mesh: axis sizes.
        model: the class; parameters: how many numbers it has; weight_bytes: of all of it, once; dtypes: bytes of
            weights by dtype.
        task: "forward", "prefill" or "decode".
        inputs: shape and dtype of each, as HLO writes them, or the repr of a static value.
        memory: of one device.
        costs: None where there is no program.
        collectives: most bytes first.
        attention: each distinct attention call that was traced, and how often.
        buffers: the largest temporaries, largest first.
        estimate: None where it does not fit.
        advice: findings, the costliest first.
        failure: where the program does not fit.
        scanned: the blocks that run in loops.
        effort: the compiler's, where it is not what runs have.
        versions: of the packages that decide.
        seconds: of tracing and lowering ("lower"), and of compiling ("compile"); not in `to_dict`, which is the same
            for every run.
        program: the jax.stages.Compiled; not in `to_dict`. None where it does not fit or came from the cache.
    """

    topology: str
    generation: str
    devices: int
    mesh: dict[str, int]
    model: str
    parameters: int
    weight_bytes: int
    dtypes: dict[str, int]
    task: str
    inputs: dict[str, str]
    memory: Memory
    costs: Costs | None
    collectives: tuple[Collective, ...]
    attention: tuple[tuple[Call, int], ...]
    buffers: tuple[Buffer, ...]
    estimate: Estimate | None
    advice: tuple[Finding, ...]
    failure: Failure | None
    scanned: tuple[Scanned, ...]
    effort: float | None
    versions: dict[str, str]
    seconds: dict[str, float] = dataclasses.field(default_factory=dict, compare=False)
    program: Any = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def fits(self) -> bool:
        """Whether the program fits into the devices' memory."""
        return self.failure is None and self.memory.fits

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: the same for two runs, so without the seconds that they took."""
        shallow = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del shallow["program"], shallow["seconds"]
        plain = {name: _plain(value) for name, value in shallow.items()}
        plain["memory"]["fits"] = plain["fits"] = self.fits
        plain["attention"] = [{**_plain(call), "calls": count} for call, count in self.attention]
        return {"schema": SCHEMA, **plain}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return [_plain(one) for one in value] if isinstance(value, tuple) else value
