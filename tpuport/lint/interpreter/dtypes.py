"""Dtypes as the interpreter knows them: the family ("bool", "int", "float", "complex") and, where said, the name."""

from collections.abc import Mapping
from typing import Final

from tpuport.lint.abstract_values import External, Static, Tensor, Value, tensor

FAMILY: Final = {
    "bool": "bool",
    **dict.fromkeys("uint8 int8 int16 short int32 int int64 long uint16 uint32 uint64".split(), "int"),
    **dict.fromkeys(
        "float16 half bfloat16 float32 float float64 double float8_e4m3fn float8_e5m2".split(), "float"
    ),
    **dict.fromkeys("complex64 cfloat complex128 cdouble complex32".split(), "complex"),
}
_EXACT: Final = {
    "double": "float64",
    "half": "float16",
    "long": "int64",
    "cdouble": "complex128",
    "cfloat": "complex64",
}
_ORDER: Final = {"bool": 0, "int": 1, "float": 2, "complex": 3}

# Tensor types in annotations.
TENSOR_CLASSES: Final = {
    "Tensor": "",
    "FloatTensor": "float",
    "HalfTensor": "float",
    "DoubleTensor": "float",
    "BFloat16Tensor": "float",
    "LongTensor": "int",
    "IntTensor": "int",
    "ShortTensor": "int",
    "ByteTensor": "int",
    "BoolTensor": "bool",
}


def of_name(name: str) -> tuple[str, str] | None:
    """Family and exact name of `torch.float32`, `torch.bool`; None if that is no dtype."""
    if not name.startswith("torch."):
        return None
    last = name[6:]
    family = FAMILY.get(last)
    return (
        None if family is None else (family, _EXACT.get(last, last if last not in {"int", "float"} else ""))
    )


def of_value(value: Value | None) -> tuple[str, str] | None:
    """Family and exact name of a value given as `dtype=`; None if it is no dtype that the text says."""
    if isinstance(value, External):
        if value.name.startswith("builtins."):
            return {"bool": ("bool", ""), "int": ("int", ""), "float": ("float", "")}.get(value.name[9:])
        return of_name(value.name)
    if isinstance(value, Static) and value.kind == "dtype" and isinstance(value.constant, str):
        return of_name(value.constant)
    return None


def of_python(value: Value) -> str:
    """Dtype family that a Python value brings into arithmetic; "" if that is not known."""
    if isinstance(value, Static):
        return {"bool": "bool", "int": "int", "float": "float", "complex": "complex"}.get(value.kind, "")
    if isinstance(value, Tensor):
        return value.dtype
    return ""


def promote(left: Value, right: Value) -> str:
    """Dtype family of arithmetic on the two; "" if that is not known."""
    one, other = of_python(left), of_python(right)
    if "float" in (one, other) and "complex" not in (one, other):
        # An unknown partner could at most be complex, which is rare enough to say so where it appears.
        return "float"
    if not one or not other:
        return ""
    return one if _ORDER[one] >= _ORDER[other] else other


def given(keywords: Mapping[str, Value], default: str = "") -> tuple[str, str]:
    """Family and exact name of a call's `dtype=`, else the default family."""
    return of_value(keywords.get("dtype")) or ("" if "dtype" in keywords else default, "")


def with_dtype(value: Tensor, family: str, exact: str = "") -> Tensor:
    """The same tensor in another dtype: a copy, no view."""
    return tensor(family, exact, value.ndim, value.optional, False, value.origin)
