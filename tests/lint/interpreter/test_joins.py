"""What is left of two values where branches meet."""

from tpuport.lint.abstract_values import (
    INT,
    NONE,
    TENSOR,
    UNKNOWN,
    Choice,
    Layer,
    Sequence,
    tensor,
)
from tpuport.lint.joins import (
    choice,
    join,
)

LINEAR, NORM = Layer("torch.nn.Linear"), Layer("torch.nn.LayerNorm")


def test_things_to_call_stay_to_be_chosen_from():
    both = join(LINEAR, NORM)
    assert isinstance(both, Choice)
    assert set(both.options) == {LINEAR, NORM}
    assert join(both, LINEAR) == both
    assert join(LINEAR, NONE) == LINEAR
    assert join(LINEAR, INT) is UNKNOWN
    assert choice([LINEAR, LINEAR]) == LINEAR
    assert choice([Layer(f"torch.nn.Layer{i}") for i in range(20)]) is UNKNOWN


def test_choices_do_not_depend_on_order():
    assert join(LINEAR, NORM) == join(NORM, LINEAR)
    assert hash(join(LINEAR, NORM)) == hash(join(NORM, LINEAR))


def test_lists_remember_their_tensors():
    numbers = Sequence("list", None, INT)
    mixed = Sequence("list", (INT, TENSOR), UNKNOWN)
    assert not numbers.tensors
    assert mixed.tensors
    assert join(numbers, mixed).tensors
    assert join(Sequence("list", (), UNKNOWN), numbers) == numbers


def test_tensors_and_others():
    assert join(TENSOR, NONE) == tensor(optional=True)
    assert join(TENSOR, INT) is UNKNOWN


def test_an_empty_tuple_leaves_the_elements_of_another_apart():
    pair, nothing = Sequence("tuple", (INT, TENSOR), UNKNOWN), Sequence("tuple", (), UNKNOWN)
    assert join(pair, nothing) == join(nothing, pair) == pair
    # A list grows.
    listed, empty = Sequence("list", (INT, TENSOR), UNKNOWN), Sequence("list", (), UNKNOWN)
    assert join(listed, empty).items is None
    assert join(pair, empty).items is None
