"""Attributes for as long as a block runs."""

import threading

import pytest

from tpuport.base.temporary import temporary_attributes


class Lamp:
    colour = "white"

    def __setattr__(self, name, value):
        raise TypeError(name)


class State(threading.local):
    depth = 0


def test_an_object_has_its_class_attribute_again():
    lamp = Lamp()
    with temporary_attributes(lamp, colour="red", power=5):
        assert (lamp.colour, lamp.power) == ("red", 5)
    assert lamp.colour == "white"
    assert vars(lamp) == {}


def test_an_object_has_its_own_attribute_again_after_an_error():
    lamp = Lamp()
    vars(lamp)["colour"] = "green"
    with pytest.raises(ZeroDivisionError), temporary_attributes(lamp, colour="red"):
        _ = 1 / 0
    assert lamp.colour == "green"


def test_the_attributes_of_a_local_are_those_of_the_thread():
    state, depths = State(), []
    with temporary_attributes(state, depth=1):
        with temporary_attributes(state, depth=2):
            assert state.depth == 2
        assert state.depth == 1
        thread = threading.Thread(target=lambda: depths.append(state.depth))
        thread.start()
        thread.join()
    assert (state.depth, depths) == (0, [0])
