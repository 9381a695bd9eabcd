"""Dtypes as the interpreter knows them: the family ("bool", "int", "float", "complex")
and, if written, the name.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from tpuport.lint.abstract_values import External, Static, Tensor, Value, changed


class Dtype(NamedTuple):
    """A family of dtypes, and the exact name if the source text tells it, else ""."""

    family: str
    exact: str = ""


_NAMES_BY_FAMILY: Final = {
    "bool": "bool",
    "int": "uint8 int8 int16 short int32 int int64 long uint16 uint32 uint64",
    "float": "float16 half bfloat16 float32 float float64 double float8_e4m3fn float8_e5m2",
    "complex": "complex64 cfloat complex128 cdouble complex32",
}
# torch's second names. `torch.int` and `torch.float` are too common to be anybody's
# deliberate choice of a width.
_EXACT_NAMES: Final = {
    "double": "float64", "half": "float16", "long": "int64", "cdouble": "complex128", "cfloat": "complex64",
    "int": "", "float": "",
}  # fmt: skip
_DTYPES: Final = {
    f"torch.{name}": Dtype(family, _EXACT_NAMES.get(name, name))
    for family, names in _NAMES_BY_FAMILY.items()
    for name in names.split()
}
# `dtype=float` is allowed too.
_PYTHON_TYPES: Final = {
    f"builtins.{family}": Dtype(family) for family in ("bool", "int", "float")
}
# In the order of type promotion: arithmetic results in the last family among its
# operands.
_FAMILIES: Final = ("bool", "int", "float", "complex")

# Tensor types in annotations, with their families.
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


def is_dtype_name(name: str) -> bool:
    """Whether a dotted name is that of a torch dtype."""
    return name in _DTYPES


def dtype_of_argument(value: Value | None) -> Dtype | None:
    """The dtype that a `dtype=` argument names; None if the source text names none."""
    match value:
        case External(name=name):
            return _DTYPES.get(name) or _PYTHON_TYPES.get(name)
        case Static(kind="dtype", constant=name):
            return _DTYPES.get(name)
        case _:
            return None


def family_of(value: Value) -> str:
    """Dtype family that a value brings into arithmetic; "" if not known."""
    if isinstance(value, Tensor):
        return value.dtype
    # Python's numbers promote as scalars of their family.
    if value.kind in _FAMILIES:
        return value.kind
    return ""


def promote(left: Value, right: Value) -> str:
    """Dtype family of arithmetic on the two; "" if not known."""
    families = {family_of(left), family_of(right)}
    if "float" in families and "complex" not in families:
        # The other could at most be complex, which is rare enough that rules ask for it
        # only where it appears.
        return "float"
    if "" in families:
        return ""
    return max(families, key=_FAMILIES.index)


def requested_dtype(keywords: Mapping[str, Value], default: str = "") -> Dtype:
    """The dtype that a call's `dtype=` names, the default family if there is no such
    argument.
    """
    if "dtype" not in keywords:
        return Dtype(default)
    return dtype_of_argument(keywords["dtype"]) or Dtype("")


def with_dtype(value: Tensor, family: str, exact: str = "") -> Tensor:
    """The tensor converted to a dtype: a copy, not a view."""
    return changed(value, dtype=family, exact=exact, view=False)
