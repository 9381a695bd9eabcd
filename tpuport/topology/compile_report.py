"""The report of a program that was compiled for a described TPU, in plain values.

Bytes and FLOPs are those of one device and one step, which is one call of the program.
A collective, an array or a kernel in the body of a loop counts as often as the loop
runs.

The docstrings of these classes are also the descriptions in the JSON Schema (see
`reports.json_schema`).
"""

import dataclasses
from typing import Any, Final

from tpuport.attention.call_report import Call
from tpuport.topology.step_trace import StepTrace
from tpuport.trace_errors import Source as Source

# The version of `Report.to_dict`, which `tpuport compile --format json` prints;
# docs/compile.md describes it.
SCHEMA: Final = 1


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of HBM of one device. `used` is the sum of the parts; outputs in donated
    arguments count once.

    Attributes:
        capacity: what the compiler lets a program have.
        weights: parameters and buffers of the model.
        cache: keys and values (or states) that a step receives.
        arguments: all other arguments, and the padding of arguments to whole tiles.
        outputs, temporaries, code: as the compiler reports them; `outputs` without
            those in a donated argument. None if the compiler does not report them:
            often `code` of a program that does not fit, and all three if it lists
            nothing; `used`, if known, includes them.
        used: None if the program does not fit and the compiler does not say by how
            much.
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
        """Whether the device has that much memory."""
        return self.used is not None and self.used <= self.capacity


@dataclasses.dataclass(frozen=True)
class Collective:
    """Collectives of one kind, over the same axes, from one line of code.

    Attributes:
        kind: "all-reduce" and so on.
        axes: of the mesh, in its order, along which the devices of a group differ;
            empty if they are not whole axes.
        group: how many devices take part in one.
        count: times a step.
        nbytes: the size of all their results on each device in a step.
        source: None if the compiler does not name a line.
        overlapped: how many of `count` start and finish separately, so that other work
            can run in between.
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
        nbytes: of one array, padded to whole tiles.
        operation: the opcode that produces it.
        count: how many instructions produce one.
        source: the line of code; None if the compiler does not name it.
    """

    shape: str
    nbytes: int
    operation: str
    count: int
    source: Source | None = None


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Pallas kernels of one name, or the compiler's own: times a step, and FLOPs and
    HBM bytes of all of them.

    Attributes:
        source: "kernel" if the figures are the kernel's own estimate (zeros if it has
            none and nothing was counted), "counted" if they were counted over its grid:
            the products of its body, or the FLOPs of its own estimate if that has
            fewer, and the blocks that it reads and writes.
        bound: of a count that depends on data, "at most" (every branch taken, every
            block fetched again), "at least" (a loop of unknown length counted once) or
            "about" (both; for a grouped product, rows spread evenly over the groups and
            over the devices that divide them); None if the count is exact, or the
            kernel's own.
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
        hbm_bytes: read from HBM and written to it, by the program's text and its memory
            spaces; kernels as in `Kernel`. What stays in VMEM does not count.
        bytes_accessed: the compiler's count of the bytes of operands and results, in
            any memory.
        model_flops: matrix products, convolutions and attention as the model was
            traced, divided by the devices: the work that remains if nothing is computed
            twice.
        product_flops: the part of `flops` in matrix products, convolutions and kernels;
            without a product of a matrix and a vector that the compiler turns into
            elementwise work.
        kernels: the Pallas kernels, and the compiler's own.
        expanded_flops: the part of `product_flops` beyond what grouped products need,
            such as those of experts: the compiler multiplies a few rows by all groups.
        digit_flops: the part of `product_flops` beyond one for each number, where a few
            rows are multiplied by weights in few bits: numbers are written with several
            digits, and groups of inputs are joined.
        int8_flops, fp8_flops: the part of `product_flops` with two 8-bit operands,
            without kernels.
        pass_flops: what float32 products at a precision above the default take in
            addition to `flops`: five times their own at "highest", twice at "high".
    """

    flops: float
    hbm_bytes: float
    bytes_accessed: float
    model_flops: float
    kernels: tuple[Kernel, ...] = ()
    product_flops: float = 0.0
    expanded_flops: float = 0.0
    digit_flops: float = 0.0
    int8_flops: float = 0.0
    fp8_flops: float = 0.0
    pass_flops: float = 0.0


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A roofline from public peak figures: a bound that the hardware cannot beat, not a
    prediction.

    Attributes:
        compute, memory, interconnect: seconds a step that each takes alone, at its
            peak; of the interconnect, the links along the busiest axis, as collectives
            along different axes can go on at the same time.
        binds: which of the three is the largest.
        seconds: of a step with compute, memory and interconnect at the same time: their
            maximum.
        seconds_apart: of a step that does one after another: their sum, with the
            collectives along all axes.
        unit: what a step produces: "tokens", "images", "frames" or "steps"; units: how
            many, on the whole mesh.
        units_per_second: at `seconds`; units_per_second_apart: at `seconds_apart`.
        mfu: model_flops over what the device computes at its bf16 peak in `seconds`:
            above 1 if products run at a higher peak; mfu_apart: the same in
            `seconds_apart`.
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
class ModuleTime:
    """The time of a part of the model.

    Attributes:
        name: its path in the model, "transformer_blocks.*.attn" for the same module of
            all blocks; empty for code that is in no module.
        seconds: a step; kinds: the same by kind.
    """

    name: str
    seconds: float
    kinds: dict[str, float]


@dataclasses.dataclass(frozen=True)
class LineTime:
    """The time of what a line of code compiles to.

    Attributes:
        source: None for what the compiler names no line of.
        seconds: a step; kinds: the same by kind.
    """

    source: Source | None
    seconds: float
    kinds: dict[str, float]


@dataclasses.dataclass(frozen=True)
class InstructionTime:
    """The time of an instruction of the compiled program, and of the same ones of other
    blocks.

    Attributes:
        name: in the program, of the one that takes longest; operation: likewise; kind:
            as in `Profile.kinds`.
        shape: of its result, with the layout.
        times: executions a step.
        seconds: a step, of all executions, with those that the core waits for it.
        bound: what takes longest: "core", "memory" or "links".
        mfu: its products a second over the device's bf16 peak; 0 without products.
        hbm: bytes a second that it reads and writes over the device's bandwidth.
        module: as in `ModuleTime`; source: the line of code.
    """

    name: str
    operation: str
    kind: str
    shape: str
    times: int
    seconds: float
    bound: str
    mfu: float
    hbm: float
    module: str
    source: Source | None = None


@dataclasses.dataclass(frozen=True)
class Profile:
    """Where the time of a step goes, by the schedules of the compiled program.

    Attributes:
        seconds: of a step on each device.
        kinds: seconds of matrix products, attention and so on; "waiting" is when the
            core waits for copies and collectives that run beside it.
        modules, lines: all of a step, what takes longest first.
        instructions: the ten that take longest.
        matrix_units: seconds of all products, those of attention and other kernels too,
            at the peak of the matrix units: no order of the same work takes less.
        schedule_share: the part of the core's cycles that is from schedules; the rest
            is the compiler's own estimate.
        clock: cycles a second.
    """

    seconds: float
    kinds: dict[str, float]
    modules: tuple[ModuleTime, ...]
    lines: tuple[LineTime, ...]
    instructions: tuple[InstructionTime, ...]
    matrix_units: float
    schedule_share: float
    clock: float


@dataclasses.dataclass(frozen=True)
class Finding:
    """Advice: a rule that fired, what was measured, and what to do.

    Attributes:
        rule: its id, "TPC001"; name: "width-sharded-activations".
        message: the measured cause, in a sentence.
        remedy: what to do.
        cost: what it costs a step, in `unit` ("bytes" of HBM, "bytes sent", "flops",
            "seconds").
        seconds: the same as time: what the profile says of the instructions, or else
            the cost at the device's published peak; findings are sorted by it.
        source: the line of code, if one is known.
        rules: all sharding rules that the remedy proposes, as a file for --rules has
            them; the text has the largest.
    """

    rule: str
    name: str
    message: str
    remedy: str
    cost: float = 0.0
    unit: str = "bytes"
    seconds: float = 0.0
    source: Source | None = None
    rules: dict[str, tuple[str | None, ...]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why there is no program that fits.

    Attributes:
        kind: "trace" if the model's code cannot be traced, "memory", "compiler", or
            "defect" if the model's code has no part in it.
        message: what happened, in a sentence.
        source: the line of the user's or the model's code.
        rule: the lint rule that finds it ("TPU102"), or None; remedy: what to do.
        buffers: for "memory", the compiler's list, largest first.
        traceback: the whole message of Python or the compiler.
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
    """Identical blocks that the program runs in one loop: their path ("model.layers"),
    and how many there are.
    """

    name: str
    count: int


@dataclasses.dataclass(frozen=True)
class Report:
    """A compiled program, as `compile_for` returns it.

    Attributes:
        topology: its full name; generation: "v6e"; devices: how many the mesh has.
        mesh: axis sizes.
        model: the class; parameters: how many numbers it has; weight_bytes: of the
            whole model, once; dtypes: bytes of weights by dtype.
        task: "forward", "prefill" or "decode".
        inputs: shape and dtype of each, as HLO writes them, or the repr of a static
            value.
        memory: of one device.
        costs: None if there is no program.
        collectives: most bytes first.
        attention: each distinct attention call that was traced, and how often.
        buffers: the largest temporaries, largest first.
        estimate: None if the program does not fit; profile: likewise.
        advice: findings, the costliest first.
        failure: why the program does not fit, or None.
        scanned: the blocks that run in loops.
        effort: the compiler's, or None for the one that `tpuport.compile` uses.
        versions: of the packages that decide what the program is.
        seconds: of tracing and lowering ("lower"), and of compiling ("compile"); not in
            `to_dict`, which is the same for every run.
        program: the jax.stages.Compiled, or None if the program does not fit; not in
            `to_dict`.
        timeline: when each instruction runs, a `timing.Timeline`, or None; not in
            `to_dict`.
        trace: the same in plain values, or None; not in `to_dict`, as it is large.
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
    profile: Profile | None = None
    seconds: dict[str, float] = dataclasses.field(default_factory=dict, compare=False)
    program: Any = dataclasses.field(default=None, repr=False, compare=False)
    timeline: Any = dataclasses.field(default=None, repr=False, compare=False)
    trace: StepTrace | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def fits(self) -> bool:
        """Whether the program fits into the devices' memory."""
        return self.failure is None and self.memory.fits

    def plain_trace(self) -> dict[str, Any] | None:
        """The trace as plain values, of a program that fits."""
        if self.trace is None:
            return None
        return dataclasses.asdict(self.trace)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, the same for every run: without the seconds that
        compiling took.
        """
        # `asdict` would copy the program, which cannot be copied.
        plain = dataclasses.asdict(
            dataclasses.replace(self, program=None, timeline=None, trace=None)
        )
        for name in ("program", "timeline", "trace", "seconds"):
            del plain[name]
        plain["memory"]["fits"] = plain["fits"] = self.fits
        plain["attention"] = [
            {**dataclasses.asdict(call), "calls": count}
            for call, count in self.attention
        ]
        return {"schema": SCHEMA, **plain}
