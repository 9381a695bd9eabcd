"""Classes of dimensions: what a reshape divides, and what an addition makes the same."""

from tpuport.sharding.inference.factors import Factor, leaves, reshape, unify


def sizes(dimension):
    return [factor.size for factor in leaves(dimension)]


def test_a_reshape_divides_a_dimension_and_its_inverse_joins_it():
    features = (Factor(64),)
    heads, head_dim = reshape((features,), (4, 16))
    assert (sizes(heads), sizes(head_dim)) == ([4], [16])
    [joined] = reshape((heads, head_dim), (64,))
    assert list(leaves(joined)) == list(leaves(features)) == [*leaves(heads), *leaves(head_dim)]


def test_what_is_the_same_is_divided_alike():
    first, second = (Factor(64),), (Factor(64),)
    unify(first, second)
    reshape((first,), (4, 16))
    assert sizes(second) == [4, 16]
    assert list(leaves(first)) == list(leaves(second))


def test_sizes_that_differ_are_divided_until_they_agree():
    heads, groups = (Factor(8),), (Factor(2), Factor(4))
    unify(heads, groups)
    assert list(leaves(heads)) == list(leaves(groups))


def test_positions_that_no_factors_describe_are_new():
    features = (Factor(6),)
    four, _ = reshape((features, (Factor(6),)), (4, 9))
    assert sizes(features) == [6]
    assert next(leaves(four)) not in list(leaves(features))


def test_what_divides_nothing_in_common_stays_apart():
    first, second = (Factor(4), Factor(9)), (Factor(6), Factor(6))
    unify(first, second)
    assert sizes(first) == [4, 9]
    assert sizes(second) == [6, 6]


def test_dimensions_of_size_one_come_and_go():
    features = (Factor(64),)
    first, heads, last = reshape((features, ()), (1, 64, 1))
    assert (first, last) == ((), ())
    assert sizes(heads) == [64]


def test_a_factor_may_occur_twice():
    factor = Factor(4)
    unify((factor, factor), (Factor(2), Factor(8)))
    assert sizes((factor,)) == [2, 2]
