"""Objects that hold anything come back as they were, through jax's own flattening."""

from collections import OrderedDict, namedtuple

import jax
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jax import tree_util
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from transformers import LlamaConfig

from tpuport.objects import fields

Pair = namedtuple("Pair", "first second")


class Box:
    """Anything in one field."""

    def __init__(self, content):
        self.content = content


class Slotted(Box):
    __slots__ = ("extra", "unset")

    @property
    def volume(self):
        raise AssertionError("nobody asked")


class Mapping(OrderedDict):
    """Attributes beside items, as a ModelOutput has them."""


def _flatten_with_keys(value):
    children, structure = fields.flatten(value)
    return list(zip(map(tree_util.GetAttrKey, fields.labels(structure)), children, strict=True)), structure


for cls in (Box, Slotted, Mapping):
    tree_util.register_pytree_with_keys(
        cls, _flatten_with_keys, lambda s, c, cls=cls: fields.unflatten(cls, s, c), fields.flatten
    )


def identical(a, b):
    """Same types all the way down, same order, same values; nan is nan and -0.0 is not 0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(identical(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(identical, a, b))
    if isinstance(a, np.ndarray):
        return a is b
    return repr(a) == repr(b) and (a == b or a != a)


plain = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text(max_size=3),
    st.binary(max_size=3), st.sampled_from([torch.float32, torch.device("cpu"), torch.Size([1, 2]), ...,
    range(3), {1, 2}, frozenset("a")]),
)  # fmt: skip
arrays = st.integers(0, 3).map(lambda n: np.full(n, n))
keys = st.one_of(st.text(max_size=2), st.integers(0, 5))
anything = st.recursive(
    plain | arrays,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
        st.tuples(inner, inner).map(lambda t: Pair(*t)),
    ),
    max_leaves=8,
)


def _count(value):
    if isinstance(value, dict):
        return sum(map(_count, value.values()))
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return sum(map(_count, value))
    return int(isinstance(value, np.ndarray))


@given(anything)
def test_whatever_a_field_holds_comes_back(content):
    leaves, structure = jax.tree.flatten(Box(content))
    assert len(leaves) == _count(content)
    assert identical(jax.tree.unflatten(structure, leaves).content, content)


@given(anything)
def test_structures_of_equal_objects_are_equal(content):
    leaves, structure = jax.tree.flatten(Box(content))
    again = jax.tree.structure(jax.tree.unflatten(structure, leaves))
    assert structure == again
    assert hash(structure) == hash(again)
    assert jax.tree.structure(jax.tree.unflatten(structure, [object()] * len(leaves))) == structure


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, 1.0), (0.0, -0.0), ([1], (1,)), ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({1}, frozenset({1})), (torch.float16, torch.bfloat16), (None, 0), (LlamaConfig(hidden_size=32),
    LlamaConfig(hidden_size=64))],
)  # fmt: skip
def test_what_differs_is_another_structure(one, other):
    assert jax.tree.structure(Box(one)) != jax.tree.structure(Box(other))
    assert type(jax.jit(lambda x: x)(Box(other)).content) is type(other)


def test_equal_configurations_are_one_structure():
    boxes = [Box({"config": LlamaConfig(hidden_size=32), "state": np.zeros(2)}) for _ in range(2)]
    traced = []
    jitted = jax.jit(lambda box: traced.append(1) or box)
    outputs = [jitted(box) for box in boxes]
    assert len(traced) == 1
    assert outputs[1].content["config"] == boxes[1].content["config"]


@pytest.mark.parametrize(
    "value",
    [LlamaConfig, len, test_equal_configurations_are_one_structure, np.dtype("int8"), np, torch.Generator(),
     Mesh(np.array(jax.devices()[:1]), ("tp",)), AbstractMesh((2,), ("tp",))],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_is_no_array_stays_itself(value):
    leaves, structure = jax.tree.flatten(Box(value))
    assert not leaves
    assert jax.tree.unflatten(structure, leaves).content is value
    assert jax.tree.structure(Box(value)) == structure


def test_numpy_scalars_and_unknown_objects_are_leaves():
    for value in (np.float64(1), np.bool_(True), object(), jax.ShapeDtypeStruct((1,), "int8")):
        assert jax.tree.leaves(Box(value)) == [value]


@pytest.mark.parametrize("value", [None, 0, "name", 1.5, (1, 2), PartitionSpec("tp")], ids=repr)
def test_plain_values_mapped_into_the_place_of_arrays(value):
    box = Mapping(a={0: np.zeros(2), 1: 7})
    box.b = [np.ones(1)]
    mapped = jax.tree.map(lambda _: value, box)
    assert mapped.b == [value]
    assert mapped["a"] == {0: value, 1: 7}
    is_leaf = lambda x: x is value  # noqa: E731
    assert jax.tree.structure(mapped, is_leaf=is_leaf) == jax.tree.structure(box)
    mapped.b = 5  # another thing altogether
    assert jax.tree.map(lambda _: value, box).__dict__["_tpuport_structure"]
    assert jax.tree.unflatten(*reversed(jax.tree.flatten(mapped))).b == 5
    restored = jax.tree.map(lambda old, _: old, box, jax.tree.map(lambda _: value, box), is_leaf=is_leaf)
    assert restored.__dict__.keys() == {"b"}


def test_trees_of_axes_and_shardings():
    mesh = Mesh(np.array(jax.devices()[:2]), ("tp",))
    box = Box([np.zeros((4, 2)), 3])
    axes = jax.tree.map(lambda _: 1, box)
    assert jax.vmap(lambda b: b.content[0].sum(), in_axes=(axes,))(box).shape == (2,)
    for sharding in (NamedSharding(mesh, PartitionSpec("tp")), None):
        shardings = jax.tree.map(lambda _, sharding=sharding: sharding, box)
        placed = jax.jit(lambda x: x, in_shardings=(shardings,), out_shardings=shardings)(box)
        assert placed.content[1] == 3
        assert sharding is None or placed.content[0].sharding.spec == PartitionSpec("tp")


def test_changing_an_object_does_not_change_a_structure():
    box = Box({"flags": {0: False}, "names": ["a"], "seen": {1}})
    structure = jax.tree.structure(box)
    box.content["flags"][0] = True
    box.content["names"].append("b")
    box.content["seen"].add(2)
    first, second = (jax.tree.unflatten(structure, []) for _ in range(2))
    assert first.content == {"flags": {0: False}, "names": ["a"], "seen": {1}}
    first.content["flags"][0] = True
    first.content["names"].append("b")
    assert second.content == {"flags": {0: False}, "names": ["a"], "seen": {1}}


def test_slots_and_names_of_properties():
    box = Slotted(np.ones(1))
    box.extra = 3
    box.__dict__["volume"] = 4  # hidden by the property, and still there
    again = jax.tree.map(lambda x: x, box)
    assert type(again) is Slotted
    assert again.extra == 3
    assert not hasattr(again, "unset")
    assert again.__dict__ == box.__dict__


def test_items_and_attributes_of_a_mapping():
    value = Mapping(b=np.ones(1), a=None, c=3)
    value.b = value["b"]  # attribute and item alike
    value.c = 4  # and not alike
    value.d = np.ones(2)
    leaves, structure = jax.tree.flatten(value)
    assert [len(x) for x in leaves] == [1, 2]
    again = jax.tree.unflatten(structure, leaves)
    assert type(again) is Mapping
    assert list(again.items()) == list(value.items())
    assert again.__dict__ == value.__dict__


def test_paths_name_every_leaf():
    box = Box({"states": {0: np.ones(1), 1: None}, "pair": Pair(1, [np.ones(2)]), "plain": [1, 2]})
    paths = [tree_util.keystr(path) for path, _ in tree_util.tree_leaves_with_path(box)]
    assert paths == [".content['states'][0]", ".content['pair'].second[0]"]
