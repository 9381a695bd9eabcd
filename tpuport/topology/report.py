"""What the compiler says of a program for a described TPU, in plain values."""

import dataclasses
from typing import Any

from tpuport.attention.calls import Call


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of HBM of one device. `used` counts what is there together, outputs in donated arguments once.

    Attributes:
        capacity: what the compiler lets a program have.
        weights: parameters and buffers of the model.
        arguments: all other arguments, and what tiles add to arguments.
        outputs, temporaries, code: as the compiler says.
        used: None where the program does not fit and the compiler does not say by how much.
    """

    capacity: int
    weights: int
    arguments: int
    outputs: int
    temporaries: int
    code: int
    used: int | None

    @property
    def fits(self) -> bool:
        """Whether the device has that much."""
        return self.used is not None and self.used <= self.capacity


@dataclasses.dataclass(frozen=True)
class Collective:
    """Collectives of one kind: how many there are in the program, and the bytes they leave on each device."""

    kind: str
    count: int
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Buffer:
    """Arrays of one shape that the program keeps in memory: bytes of one, what makes them, and how many do."""

    shape: str
    nbytes: int
    operation: str
    count: int


@dataclasses.dataclass(frozen=True)
class Report:
    """A compiled program: made by `compile_for`.

    Attributes:
        topology: its full name; generation: "v6e"; devices: how many the mesh has.
        mesh: axis sizes.
        model: the class; parameters: how many numbers it has; weight_bytes: of all of it, once.
        inputs: shape and dtype of each, as HLO writes them, or the repr of a static value.
        memory: of one device.
        flops, bytes_accessed: of one device and one call, by the compiler's count, kernels by their own estimate;
            None where it does not fit.
        collectives: in one device's program; one in a loop counts once.
        attention: each distinct attention call that was traced, and how often.
        buffers: the largest, largest first.
        refused: what the compiler said where the program does not fit.
        effort: the compiler's, where it is not what runs have.
        seconds: of tracing and lowering ("lower"), and of compiling ("compile").
        program: the jax.stages.Compiled; not in `to_dict`.
    """

    topology: str
    generation: str
    devices: int
    mesh: dict[str, int]
    model: str
    parameters: int
    weight_bytes: int
    inputs: dict[str, str]
    memory: Memory
    flops: float | None
    bytes_accessed: float | None
    collectives: tuple[Collective, ...]
    attention: tuple[tuple[Call, int], ...]
    buffers: tuple[Buffer, ...]
    refused: str | None
    effort: float | None
    seconds: dict[str, float]
    program: Any = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def fits(self) -> bool:
        """Whether the program fits into the devices' memory."""
        return self.memory.fits

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        shallow = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del shallow["program"]
        return shallow | {
            "memory": dataclasses.asdict(self.memory) | {"fits": self.fits},
            "collectives": [dataclasses.asdict(one) for one in self.collectives],
            "attention": [dataclasses.asdict(call) | {"calls": count} for call, count in self.attention],
            "buffers": [dataclasses.asdict(one) for one in self.buffers],
        }
