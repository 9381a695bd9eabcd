"""Abstract values, and what is left of two of them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuport.lint.abstract_values import (
    BOOL,
    CONFIG,
    FALSE,
    INT,
    NONE,
    STATIC,
    TENSOR,
    TRUE,
    UNKNOWN,
    Choice,
    Class,
    External,
    Instance,
    Layer,
    Mapping,
    Method,
    Sequence,
    Static,
    Tensor,
    Value,
    is_tensor,
    tensor,
    without_none,
)
from tpuport.lint.joins import (
    join,
    join_all,
)


class Info:
    """Stands in for a class's or function's description."""

    def __init__(self, qualname: str) -> None:
        self.qualname = qualname


INFOS = [Info("A"), Info("B")]


def sequence(kind: str, items: list[Value]) -> Sequence:
    return Sequence(kind, tuple(items), join_all(items))


# Strategies give recipes, made into values inside the tests: the runtime type checker that the tests run under draws
# random numbers, which strategies must not.
Recipe = tuple[Any, ...]

TENSORS = st.tuples(
    st.just(tensor),
    st.sampled_from(["", "bool", "int", "float"]),
    st.sampled_from(["", "float64", "int64"]),
    st.sampled_from([-1, 0, 2]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "mask", "buffer"]),
)
ATOMS = [
    NONE, STATIC, INT, BOOL, TRUE, FALSE, CONFIG, Static("int", 1), Static("int", 2), Static("float", 1.0), UNKNOWN,
    External("torch.relu"), Layer("torch.nn.Linear"), Layer("torch.nn.SiLU"), Class(INFOS[0]), Method(TENSOR, "view"),
]  # fmt: skip
PLAIN = st.one_of(st.sampled_from(ATOMS).map(lambda value: (lambda: value,)), TENSORS)


def mapping(entries: dict[Any, Value], element: Value) -> Mapping:
    return Mapping(tuple(entries.items()), element)


def unsized(kind: str, element: Value) -> Sequence:
    return Sequence(kind, None, element)


def instance(info: Info, fields: dict[str, Value]) -> Instance:
    return Instance(info, tuple(sorted(fields.items(), key=lambda item: item[0])))


def compound(parts: st.SearchStrategy[Recipe]) -> st.SearchStrategy[Recipe]:
    kinds = st.sampled_from(["tuple", "list", "set"])
    return st.one_of(
        st.tuples(st.just(sequence), kinds, st.lists(parts, max_size=3)),
        st.tuples(st.just(unsized), kinds, parts),
        st.tuples(st.just(mapping), st.dictionaries(st.sampled_from(["a", "b", 1, None]), parts), parts),
        st.tuples(
            st.just(instance),
            st.sampled_from(INFOS),
            st.dictionaries(st.sampled_from("xyz"), parts, max_size=3),
        ),
    )


RECIPES = st.recursive(PLAIN, compound, max_leaves=6)


def make(recipe: Any) -> Any:
    """The value that a recipe describes."""
    if isinstance(recipe, tuple):
        return recipe[0](*map(make, recipe[1:]))
    if isinstance(recipe, list):
        return [make(part) for part in recipe]
    return {key: make(part) for key, part in recipe.items()} if isinstance(recipe, dict) else recipe


def agree(one: Any, other: Any) -> bool:
    """Whether both say the same, as far as both say anything."""
    if one == other or UNKNOWN in (one, other):
        return True
    if isinstance(one, Sequence) and isinstance(other, Sequence):
        same = one.items is None or other.items is None or all(map(agree, one.items, other.items))
        return same and one.kind == other.kind and agree(one.element, other.element)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        names = {name for name, _ in (*one.entries, *other.entries)}
        return all(agree(one.get(name), other.get(name)) for name in names) and agree(
            one.element, other.element
        )
    return False


@given(RECIPES, RECIPES)
def test_the_branches_order_does_not_matter(one: Recipe, other: Recipe) -> None:
    one, other = map(make, (one, other))
    assert join(one, other) == join(other, one)
    assert hash(join(one, other)) == hash(join(other, one))


@given(RECIPES)
def test_a_value_joined_with_itself_is_itself(value: Recipe) -> None:
    value = make(value)
    assert join(value, value) == value


@given(RECIPES, RECIPES, RECIPES)
def test_of_three_it_does_not_matter_which_two_are_first(one: Recipe, two: Recipe, three: Recipe) -> None:
    one, two, three = map(make, (one, two, three))
    assert agree(join(join(one, two), three), join(one, join(two, three)))


@given(RECIPES, RECIPES)
def test_joining_a_branch_again_adds_nothing(one: Recipe, other: Recipe) -> None:
    one, other = map(make, (one, other))
    both = join(one, other)
    assert agree(join(both, one), both)


@given(RECIPES, RECIPES)
def test_only_two_tensors_or_none_make_a_tensor(one: Recipe, other: Recipe) -> None:
    one, other = map(make, (one, other))
    both = join(one, other)
    if is_tensor(both):
        assert isinstance(both, Tensor)
        for value in (one, other):
            assert isinstance(value, Tensor) or value == NONE
            if isinstance(value, Tensor):
                # Nothing is claimed that does not hold for each.
                assert both.dtype in ("", value.dtype)
                assert both.exact in ("", value.exact)
                assert both.ndim in (-1, value.ndim)
                assert both.optional or not value.optional
                assert both.view or not value.view
            else:
                assert both.optional


@given(RECIPES, RECIPES)
def test_a_constant_is_left_only_where_both_branches_have_it(one: Recipe, other: Recipe) -> None:
    one, other = map(make, (one, other))
    both = join(one, other)
    if isinstance(both, Static) and both.constant is not ...:
        assert one == other == both


@given(RECIPES)
def test_unknown_swallows_all_but_none(value: Recipe) -> None:
    value = make(value)
    assert join(UNKNOWN, value) is UNKNOWN


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (TRUE, FALSE, BOOL),
        (Static("int", 1), INT, INT),
        (Static("int", 1), TRUE, STATIC),
        (NONE, INT, STATIC),
        (NONE, CONFIG, STATIC),
        (TENSOR, NONE, tensor(optional=True)),
        (TENSOR, INT, UNKNOWN),
        (tensor("float"), tensor("int"), TENSOR),
        (tensor("bool", ndim=2, origin="mask"), tensor("bool", ndim=3, origin="mask"), tensor("bool", origin="mask")),
        (Layer("torch.nn.SiLU"), Layer("torch.nn.GELU"), Choice((Layer("torch.nn.SiLU"), Layer("torch.nn.GELU")))),
        (Layer("torch.nn.SiLU"), TENSOR, UNKNOWN),
        (Layer("torch.nn.SiLU"), NONE, Layer("torch.nn.SiLU")),
        (sequence("list", []), sequence("list", [TENSOR]), Sequence("list", None, TENSOR)),
        (sequence("tuple", [TENSOR, INT]), sequence("tuple", [NONE, INT]),
         Sequence("tuple", (tensor(optional=True), INT), UNKNOWN)),
        (sequence("tuple", [INT]), sequence("list", [INT, INT]), Sequence("list", None, INT)),
        (Mapping((("a", INT),), UNKNOWN), Mapping((("a", INT), ("b", TENSOR)), UNKNOWN),
         Mapping((("a", INT), ("b", TENSOR)), UNKNOWN)),
        (Mapping((("a", INT),), UNKNOWN), Mapping((("a", INT), ("b", INT)), UNKNOWN),
         Mapping((("a", INT), ("b", UNKNOWN)), UNKNOWN)),
        (Instance(INFOS[0], (("x", NONE),)), Instance(INFOS[0], (("x", TENSOR),)),
         Instance(INFOS[0], (("x", tensor(optional=True)),))),
        (Mapping((("b", INT),), STATIC), Mapping((("a", INT),), STATIC),
         Mapping((("a", STATIC), ("b", STATIC)), STATIC)),
        (Instance(INFOS[0], (("x", INT), ("y", TENSOR))), Instance(INFOS[0], (("x", INT), ("y", INT))),
         Instance(INFOS[0], (("x", INT),))),
        (Choice((Instance(INFOS[0]), Instance(INFOS[1]))), Instance(INFOS[0], (("x", INT),)),
         Choice((Instance(INFOS[0]), Instance(INFOS[1])))),
        (Instance(INFOS[0]), Instance(INFOS[1]), Choice((Instance(INFOS[1]), Instance(INFOS[0])))),
    ],
)  # fmt: skip
def test_joins(one: Value, other: Value, both: Value) -> None:
    assert join(one, other) == both
    assert join(other, one) == both


def test_a_mapping_keeps_its_order_where_both_have_it() -> None:
    one, other = (Mapping((("b", value), ("a", value)), UNKNOWN) for value in (TRUE, FALSE))
    both = join(one, other)
    assert isinstance(both, Mapping)
    assert [name for name, _ in both.entries] == ["b", "a"]
    assert both.get("a") == BOOL
    assert both.get("c") is UNKNOWN


def test_join_of_many() -> None:
    assert join_all([]) is UNKNOWN
    assert join_all([INT]) is INT
    assert join_all([TENSOR, TENSOR, NONE]) == tensor(optional=True)
    assert join_all(value for value in (INT, TENSOR)) is UNKNOWN


def test_numbers_that_python_takes_for_equal_are_told_apart() -> None:
    assert len({Static("int", 1), Static("bool", True), Static("float", 1.0), Static("int", True)}) == 4
    assert Static("float", 1.0) != Static("float", 1)
    assert Static("int", 1) == Static("int", 1)


def test_tensors_are_interned_and_without_none_drops_one_thing_only() -> None:
    assert tensor("int", ndim=2) is tensor("int", ndim=2)
    maybe = tensor("int", "int64", 2, True, True, "buffer")
    assert without_none(maybe) is tensor("int", "int64", 2, False, True, "buffer")
    assert without_none(NONE) is NONE


@pytest.mark.parametrize("value", [INT, UNKNOWN, NONE, External("torch.Tensor"), sequence("list", [TENSOR])])
def test_what_is_no_tensor(value: Value) -> None:
    assert not is_tensor(value)


@given(RECIPES)
def test_every_value_says_what_it_is(value: Recipe) -> None:
    value = make(value)
    assert repr(value)
