"""The JSON Schema of what `tpuport compile --format json` prints, made from the dataclasses of `report`.

`python -m tpuport.topology.reports.json_schema FILE` writes it; docs/data/compile-schema.json is that file.
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
from tpuport.topology import compile_report as report
from tpuport.topology.reports import SCHEMA

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_PLAIN: Final = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_RESULT: Final = {
    "target": "the name of what was compiled: of a component or a model",
    "topology": "the slice's full name",
    "notes": "what was assumed, a sentence each",
    "report": "what the compiler made of it; null where the model cannot be traced",
    "failure": "why it cannot be traced; null where there is a report, whose own failure says why it does not fit",
}
_SPLIT: Final = {
    "target": "as in results",
    "topology": "the slice's full name",
    "mesh": "axis sizes",
    "tried": "whether it was compiled; false for a split that is left out, with the reason in why",
    "fits": "whether the program, compiled with effort -1, fits; false where it was not tried",
    "used": "bytes of HBM of one device; null where the compiler does not say",
    "capacity": "bytes of HBM that it can have; null where nothing was compiled",
    "seconds": "a step's estimate: the longer of compute and memory, then the interconnect; null unless it fits",
    "unit": "what a step makes",
    "units_per_second": "how many of them, at most, by the same estimate",
    "binds": "compute, memory or interconnect; null where it does not fit",
    "why": "why it does not fit, cannot be, or was not tried; empty where it fits",
}


def schema() -> dict[str, Any]:
    """The whole schema."""
    definitions = {
        one.__name__: _dataclass(one)
        for one in (
            report.Report, report.Memory, report.Costs, report.Kernel, report.Collective, report.Buffer,
            report.Estimate, report.Finding, report.Failure, report.Source, report.Scanned, Call,
        )
    }  # fmt: skip
    definitions["Report"]["properties"] |= {
        "schema": {"const": report.SCHEMA, "description": "of this object"},
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
    definitions["Call"]["properties"]["calls"] = {"type": "integer", "description": "how often it was traced"}
    for name in ("Report", "Memory", "Call"):
        definitions[name]["required"] = list(definitions[name]["properties"])
    return {
        "$schema": DIALECT,
        "$id": f"tpuport-compile-{SCHEMA}",
        "title": "tpuport compile --format json",
        **_object(
            {
                "schema": {
                    "const": SCHEMA,
                    "description": "raised when something goes or changes its meaning",
                },
                "tpuport": {"type": "string", "description": "the version that wrote this"},
                "results": _array(_result(), "one for each program and topology, in the order asked for"),
                "suggestion": {
                    "anyOf": [
                        _array(
                            _split(), "mesh splits, the best first, and after them those that were not tried"
                        ),
                        {"type": "null"},
                    ],
                    "description": "null without --suggest",
                },
            }
        ),
        "$defs": definitions,
    }


def _result() -> dict[str, Any]:
    text, strings = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
    kinds = (text, text, strings, _nullable("Report"), _nullable("Failure"))
    return _described(_RESULT, kinds)


def _split() -> dict[str, Any]:
    def maybe(kind: str) -> dict[str, Any]:
        return {"type": [kind, "null"]}

    sizes = {"type": "object", "additionalProperties": {"type": "integer"}}
    text, flag, number = {"type": "string"}, {"type": "boolean"}, maybe("number")
    kinds = (
        text, text, sizes, flag, flag, maybe("integer"), maybe("integer"), number, maybe("string"), number,
        maybe("string"), text,
    )  # fmt: skip
    return _described(_SPLIT, kinds)


def _described(descriptions: dict[str, str], kinds: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    pairs = zip(descriptions.items(), kinds, strict=True)
    return _object({name: {**kind, "description": text} for (name, text), kind in pairs})


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _array(items: dict[str, Any], description: str) -> dict[str, Any]:
    return {"type": "array", "items": items, "description": description}


def _nullable(name: str) -> dict[str, Any]:
    return {"anyOf": [{"$ref": f"#/$defs/{name}"}, {"type": "null"}]}


def _dataclass(kind: Any) -> dict[str, Any]:
    """An object with the fields of a dataclass, and what its docstring says of them."""
    hints = typing.get_type_hints(kind)
    told = _told(inspect.getdoc(kind) or "")
    left_out = ("program", "seconds") if kind is report.Report else ()
    properties = {}
    for field in dataclasses.fields(kind):
        if field.name not in left_out:
            described = {"description": told[field.name]} if field.name in told else {}
            properties[field.name] = {**_type(hints[field.name]), **described}
    return {
        "description": (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " "),
        **_object(properties),
    }


def _type(hint: Any) -> dict[str, Any]:
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if dataclasses.is_dataclass(hint):
        return {"$ref": f"#/$defs/{typing.cast(type, hint).__name__}"}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return {"anyOf": [_type(one) for one in arguments]}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type(arguments[1])}
    return {"type": "array", "items": _type(arguments[0])}


def _told(docstring: str) -> dict[str, str]:
    """What the Attributes section says of each field; several may share a line."""
    _, _, section = docstring.partition("Attributes:\n")
    text = " ".join(line.strip() for line in section.split("\n\n")[0].splitlines())
    parts = re.split(r"(?:^|(?<=[.;] ))((?:\w+, )*\w+): ", text)
    found = {}
    for names, said in zip(parts[1::2], parts[2::2], strict=True):
        for name in names.split(", "):
            found[name] = said.strip().rstrip(".;").replace("None", "null")
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(schema(), indent=2) + "\n", encoding="utf-8")
