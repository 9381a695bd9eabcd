"""Parts of mappings are in their order, and things with one key are together."""

from tpuport.base.mappings import group_by, names_of_each, only, without, without_nones


def test_parts_of_a_mapping_keep_its_order() -> None:
    mapping = {"c": 3, "a": None, "b": 2}
    assert list(without_nones(mapping).items()) == [("c", 3), ("b", 2)]
    assert list(only(mapping, {"b", "c", "missing"}).items()) == [("c", 3), ("b", 2)]
    assert list(without(mapping, ("c", "missing")).items()) == [("a", None), ("b", 2)]


def test_items_are_grouped_in_their_order() -> None:
    groups = group_by([3, 4, 1, 6], lambda number: number % 2)
    assert list(groups.items()) == [(1, [3, 1]), (0, [4, 6])]
    assert type(groups) is dict, "a key that nothing has must stay missing"


def test_names_of_one_object_are_together() -> None:
    shared, equal = [1], [1]
    assert names_of_each([("a", shared), ("b", equal), ("c", shared)]) == [["a", "c"], ["b"]]
