"""The JSON Schema of what `tpuport compile --format json` prints, made from the
dataclasses of `compile_report`.

`python -m tpuport.topology.reports.json_schema FILE` writes it;
docs/data/compile-schema.json is that file.
"""

import dataclasses
import inspect
import json
import re
import sys
import types
import typing
from pathlib import Path
from typing import Any, Final

from tpuport.attention.call_report import Call
from tpuport.topology import compile_report, step_trace, whole_runs
from tpuport.topology.reports import SCHEMA

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_DATACLASSES: Final = (
    compile_report.Report, compile_report.Memory, compile_report.Costs, compile_report.Kernel,
    compile_report.Collective, compile_report.Buffer, compile_report.Estimate, compile_report.Finding,
    compile_report.Failure, compile_report.Source, compile_report.Scanned, compile_report.Profile,
    compile_report.ModuleTime, compile_report.LineTime, compile_report.InstructionTime, Call,
    step_trace.StepTrace, step_trace.TracedComputation, step_trace.CoreSpan, step_trace.Transfer,
    step_trace.TracedInstruction, whole_runs.WholeRun, whole_runs.RunPart,
)  # fmt: skip
_HIDDEN_FIELDS: Final = {
    (compile_report.Report, name)
    for name in ("program", "seconds", "timeline", "trace")
}
_TYPE_NAMES: Final = {
    int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null",
}  # fmt: skip

_TEXT: Final = {"type": "string"}
_FLAG: Final = {"type": "boolean"}
_OPTIONAL_TEXT: Final = {"type": ["string", "null"]}
_OPTIONAL_INTEGER: Final = {"type": ["integer", "null"]}
_OPTIONAL_NUMBER: Final = {"type": ["number", "null"]}
_SIZES: Final = {"type": "object", "additionalProperties": {"type": "integer"}}


def _optional_reference(name: str) -> dict[str, Any]:
    return {"anyOf": [{"$ref": f"#/$defs/{name}"}, {"type": "null"}]}


# The type of each field, and its description.
_RESULT: Final = {
    "target": (_TEXT, "the name of what was compiled: of a component or a model"),
    "topology": (_TEXT, "the slice's full name"),
    "notes": ({"type": "array", "items": _TEXT}, "what was assumed, a sentence each"),
    "report": (
        _optional_reference("Report"),
        "what the compiler made of it; null if the model cannot be traced",
    ),
    "failure": (
        _optional_reference("Failure"),
        "why it cannot be traced; null if there is a report, whose own failure says why it does not fit",
    ),
    "trace": (
        _optional_reference("StepTrace"),
        "when each instruction runs; null without --profile, or if the program does not fit",
    ),
}
_SPLIT: Final = {
    "target": (_TEXT, "as in results"),
    "topology": (_TEXT, "the slice's full name"),
    "mesh": (_SIZES, "axis sizes"),
    "quantize": (
        _OPTIONAL_TEXT,
        "the scheme that weights were quantised by, also where only that fits; null for weights as they are",
    ),
    "tried": (
        _FLAG,
        "whether it was compiled; false for a split that is left out, with the reason in why",
    ),
    "fits": (
        _FLAG,
        "whether the program, compiled with effort -1, fits; false if it was not tried",
    ),
    "used": (
        _OPTIONAL_INTEGER,
        "bytes of HBM of one device; null if the compiler does not say",
    ),
    "capacity": (
        _OPTIONAL_INTEGER,
        "bytes of HBM that it can have; null if nothing was compiled",
    ),
    "seconds": (
        _OPTIONAL_NUMBER,
        "a step's estimate, as in the profile of its program; null unless it fits",
    ),
    "roofline": (
        _OPTIONAL_NUMBER,
        "seconds that a step takes at least; null unless it fits",
    ),
    "unit": (_OPTIONAL_TEXT, "what a step produces"),
    "units_per_second": (_OPTIONAL_NUMBER, "how many of them, by the same estimate"),
    "binds": (
        _OPTIONAL_TEXT,
        "compute, memory or interconnect; null if it does not fit",
    ),
    "why": (
        _TEXT,
        "why it does not fit, cannot be, or was not tried; empty if it fits",
    ),
}


def schema() -> dict[str, Any]:
    """The whole schema."""
    definitions = {
        dataclass.__name__: _dataclass_schema(dataclass) for dataclass in _DATACLASSES
    }
    # What `Report.to_dict` adds to the fields.
    definitions["Report"]["properties"] |= {
        "schema": {"const": compile_report.SCHEMA, "description": "of this object"},
        "fits": {
            "type": "boolean",
            "description": "whether there is a program, and a device has room for it",
        },
        "attention": _array({"$ref": "#/$defs/Call"}, "each distinct attention call"),
    }
    definitions["Memory"]["properties"]["fits"] = {
        "type": "boolean",
        "description": "whether `used` is at most `capacity`",
    }
    definitions["Call"]["properties"]["calls"] = {
        "type": "integer",
        "description": "how often it was traced",
    }
    for name in ("Report", "Memory", "Call"):
        definitions[name]["required"] = list(definitions[name]["properties"])
    results = _array(
        _object(_RESULT), "one for each program and topology, in the order asked for"
    )
    splits = _array(
        _object(_SPLIT),
        "mesh splits, the best first, and after them those that were not tried",
    )
    runs = _array({"$ref": "#/$defs/WholeRun"}, "programs added up, on each topology")
    document = {
        "schema": (
            {"const": SCHEMA},
            "raised when something goes or changes its meaning",
        ),
        "tpuport": (_TEXT, "the version that wrote this"),
        "results": (results, results["description"]),
        "suggestion": ({"anyOf": [splits, {"type": "null"}]}, "null without --suggest"),
        "runs": (
            {"anyOf": [runs, {"type": "null"}]},
            "null without --steps or --new-tokens",
        ),
    }
    return {
        "$schema": DIALECT,
        "$id": f"tpuport-compile-{SCHEMA}",
        "title": "tpuport compile --format json",
        **_object(document),
        "$defs": definitions,
    }


def _object(fields: dict[str, tuple[dict[str, Any], str]]) -> dict[str, Any]:
    """An object with exactly these fields, given by type and description."""
    # The dialect lets a description stand beside a reference.
    return _closed_object(
        {name: {**kind, "description": text} for name, (kind, text) in fields.items()}
    )


def _closed_object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _array(items: dict[str, Any], description: str) -> dict[str, Any]:
    return {"type": "array", "items": items, "description": description}


def _dataclass_schema(dataclass: Any) -> dict[str, Any]:
    """An object with the fields of a dataclass, described by its docstring."""
    types_by_name = typing.get_type_hints(dataclass)
    docstring = inspect.getdoc(dataclass) or ""
    descriptions = _field_descriptions(docstring)
    properties = {}
    for field in dataclasses.fields(dataclass):
        # `Report.to_dict` leaves these out.
        if (dataclass, field.name) in _HIDDEN_FIELDS:
            continue
        properties[field.name] = _type_schema(types_by_name[field.name])
        if field.name in descriptions:
            properties[field.name]["description"] = descriptions[field.name]
    summary = docstring.split("\n\n")[0].replace("\n", " ")
    return {"description": summary, **_closed_object(properties)}


def _type_schema(hint: Any) -> dict[str, Any]:
    if hint in _TYPE_NAMES:
        return {"type": _TYPE_NAMES[hint]}
    if dataclasses.is_dataclass(hint):
        return {"$ref": f"#/$defs/{typing.cast(type, hint).__name__}"}
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is types.UnionType:
        return {"anyOf": list(map(_type_schema, arguments))}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type_schema(arguments[1])}
    # All others are tuples of any length.
    return {"type": "array", "items": _type_schema(arguments[0])}


def _field_descriptions(docstring: str) -> dict[str, str]:
    """What the Attributes section says about each field. Several fields may share a
    line or a description.
    """
    section = docstring.partition("Attributes:\n")[2].split("\n\n")[0]
    text = " ".join(map(str.strip, section.splitlines()))
    # Splits "a: first. b, c: second" into "", "a", "first. ", "b, c", "second".
    parts = re.split(r"(?:^|(?<=[.;] ))((?:\w+, )*\w+): ", text)
    descriptions = {}
    for names, description in zip(parts[1::2], parts[2::2], strict=True):
        for name in names.split(", "):
            descriptions[name] = (
                description.strip().rstrip(".;").replace("None", "null")
            )
    return descriptions


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(
        json.dumps(schema(), indent=2) + "\n", encoding="utf-8"
    )
