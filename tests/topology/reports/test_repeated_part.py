"""Which part of a step is shown as one that is repeated."""

from typing import Any

import pytest

from tpuport.topology.reports.repeated_part import find_part


def instruction(module: str) -> dict[str, Any]:
    return {"name": "fusion", "module": module}


def span(
    number: int, start: float, seconds: float, waiting: float = 0.0, rounds: int = 1, *calls: str
) -> dict[str, Any]:
    return {
        "instruction": number,
        "start": start,
        "seconds": seconds,
        "waiting": waiting,
        "rounds": rounds,
        "calls": list(calls),
    }


def computation(seconds: float, *core: dict[str, Any], **beside: Any) -> dict[str, Any]:
    return {"seconds": seconds, "core": list(core), "copies": [], "collectives": [], **beside}


def trace(computations: dict[str, Any], *modules: str) -> dict[str, Any]:
    return {
        "seconds": computations["main"]["seconds"],
        "entry": "main",
        "computations": computations,
        "instructions": [instruction(module) for module in modules],
    }


def test_the_innermost_loop_that_takes_half_of_the_step() -> None:
    part = find_part(
        trace(
            {
                "main": computation(10.0, span(0, 0.0, 9.0, 0.0, 3, "condition", "tokens")),
                "tokens": computation(
                    3.0, span(0, 0.0, 2.0, 0.0, 4, "layers"), span(0, 2.0, 1.0, 0.0, 2, "small")
                ),
                "layers": computation(0.5, span(0, 0.1, 0.4, 0.1)),
                "small": computation(0.5, span(0, 0.0, 0.5)),
                "condition": computation(0.0),
            },
            "",
        )
    )
    assert (part.title, part.seconds) == ("One round of a loop of 4", 0.5)
    assert [(span.start, span.seconds, span.waiting) for span in part.core] == [
        (0.0, 0.1, True),
        (0.1, 0.4, False),
    ]


def test_a_block_in_the_middle_without_what_is_made_long_before() -> None:
    modules = ["model.layers.0.mlp", "model.layers.1.mlp", "model.layers.2.mlp", "model.norm"]
    core = [
        span(1, 0.0, 0.1),
        span(0, 0.1, 1.0),
        span(1, 1.1, 1.0, 0.0),
        span(2, 2.1, 1.0),
        span(3, 3.1, 0.9),
    ]
    copies = [{"instruction": 0, "start": 1.0, "seconds": 1.0, "axes": []}]
    collectives = [{"instruction": 0, "start": 3.0, "seconds": 0.5, "axes": ["tp"]}]
    part = find_part(
        trace({"main": computation(4.0, *core, copies=copies, collectives=collectives)}, *modules)
    )
    assert part.title == "One block, model.layers.1"
    assert part.seconds == pytest.approx(1.0)
    assert [(span.instruction, span.start, span.seconds) for span in part.core] == [
        (1, pytest.approx(0.0), pytest.approx(1.0)),
    ]
    # What goes on beside it is cut where the block begins and ends.
    assert [(copy.start, copy.seconds) for copy in part.copies] == [(0.0, pytest.approx(0.9))]
    assert part.collectives == {("tp",): []}


def test_two_blocks_are_the_whole_step() -> None:
    core = [span(0, 0.0, 1.0), span(1, 1.0, 1.0)]
    part = find_part(trace({"main": computation(2.0, *core)}, "layers.0", "layers.1"))
    assert (part.title, part.seconds, len(part.core)) == ("The whole step", 2.0, 2)
