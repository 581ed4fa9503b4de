"""Which movements get loops of their own: concatenations, channel shuffles, lone transpositions."""

import numpy as np
import pytest
from small_groups import AVX512, case, constant

from mapper.records import Choice
from mapper.templates import generic, movement


def shuffle(groups, *, perm=(0, 2, 1, 3, 4), channels=24, cut=None, out=None):
    """Return a channel shuffle of `channels` in `groups`, or something close to one."""
    cut = cut or (1, groups, channels // groups, 4, 5)
    return case(
        [("Reshape", "x s", "a", {}), ("Transpose", "a", "b", {"perm": list(perm)}), ("Reshape", "b t", "y", {})],
        {"x": (1, channels, 4, 5)},
        [constant("s", cut, np.int64), constant("t", out or (1, channels, 4, 5), np.int64)],
    )


def concat(axis, *shapes, tail=()):
    names = [f"x{index}" for index in range(len(shapes))]
    node = ("Concat", " ".join(names), "t" if tail else "y", {"axis": axis})
    return case([node, *tail], dict(zip(names, shapes, strict=True)))


def transpose(shape, *, tail=(), **attributes):
    return case([("Transpose", "x", "t" if tail else "y", attributes), *tail], {"x": shape})


def test_a_concatenation_is_read_with_its_extents():
    assert movement.parts(concat(1, (1, 3, 4, 5), (1, 8, 4, 5)).spec) == (1, (3, 8))
    assert movement.parts(concat(-1, (2, 3), (2, 4), (2, 1)).spec) == (1, (3, 4, 1))
    assert movement.parts(concat(1, (1, 3, 4), (1, 8, 4), tail=[("Relu", "t", "y", {})]).spec) == (1, (3, 8))


@pytest.mark.parametrize(
    "one",
    [
        concat(0, (2, 3)),  # of one tensor
        concat(0, *[(1, 3)] * 33),
        case([("Concat", "x z", "t", {"axis": 0}), ("Add", "t k", "y", {})], {"x": (1,), "z": (1,)}, [("k", (5, 2))]),
        case([("Concat", "x z", "a", {"axis": 1}), ("Concat", "a z", "y", {"axis": 1})], {"x": (2, 3), "z": (2, 4)}),
        case([("Add", "x z", "y", {})], {"x": (3,), "z": (3,)}),
    ],
)
def test_no_single_concatenation_at_the_outputs_shape(one):
    assert movement.parts(one.spec) is None


@pytest.mark.parametrize("groups", [2, 3, 8])
def test_a_channel_shuffle_is_read_with_its_groups(groups):
    assert movement.interleaved(shuffle(groups).spec) == groups


@pytest.mark.parametrize(
    "one",
    [
        shuffle(12),  # more than LLVM turns into shuffles
        shuffle(1),
        shuffle(2, perm=(0, 1, 2, 4, 3), out=(1, 24, 5, 4)),
        shuffle(2, perm=(0, 2, 1, 4, 3)),
        shuffle(2, cut=(1, 2, 12, 2, 10)),
        shuffle(2, out=(1, 12, 8, 5)),
        transpose((2, 3)),
    ],
)
def test_other_reshapes_are_no_channel_shuffle(one):
    assert movement.interleaved(one.spec) is None


@pytest.mark.parametrize(
    ("one", "axis"),
    [
        (transpose((4, 6)), 0),
        (transpose((2, 4, 6), perm=[0, 2, 1]), 1),
        (transpose((2, 4, 6), perm=[2, 0, 1]), 0),
        (transpose((2, 4, 6), perm=[1, 0, 2]), None),  # rows stay rows
        (transpose((4,)), None),
        (transpose((4, 6), tail=[("Relu", "t", "y", {})]), None),
        (case([("Relu", "x", "y", {})], {"x": (3, 4)}), None),
    ],
)
def test_a_transposition_is_read_with_the_axis_that_was_last(one, axis):
    assert movement.turned(one.spec, ("row", "row")) == axis


def test_a_transposition_of_channels_last_is_not_read():
    assert movement.turned(transpose((1, 4, 6, 8)).spec, ("nhwc", "nhwc")) is None


def test_vectors_do_not_matter_where_llvm_finds_its_own():
    spec = shuffle(2).spec
    assert {choice.tile["v"] for choice in generic.TEMPLATE.choices(spec, AVX512, ("nhwc", "nhwc"))} == {16}
    assert {choice.tile["v"] for choice in generic.TEMPLATE.choices(spec, AVX512, ("nchw", "nchw"))} == {16, 8, 1}


class Loops:
    """A schedule double: loops are numbered, and what is done to them is written down."""

    def __init__(self, *extents):
        self.extents = dict(enumerate(extents))
        self.done = []

    def get(self, loop):
        return Loop(self.extents[loop])

    def _new(self, extent):
        self.extents[len(self.extents)] = extent
        return len(self.extents) - 1

    def fuse(self, *loops):
        return self._new(int(np.prod([self.extents[loop] for loop in loops])))

    def split(self, loop, factors):
        outer, inner = factors
        outer = outer or -(-self.extents[loop] // inner)
        inner = inner or -(-self.extents[loop] // outer)
        self.done.append((outer, inner))
        return self._new(outer), self._new(inner)

    def parallel(self, loop):
        self.done.append(("parallel", self.extents[loop]))

    def vectorize(self, loop):
        self.done.append(("vectorize", self.extents[loop]))

    def loop_partition(self, loop, factors):
        self.done.append(("partition", self.extents[loop], factors))


class Loop:
    def __init__(self, extent):
        self.extent = extent


@pytest.mark.parametrize(
    ("extents", "tasks", "done"),
    [
        ((4, 5), 8, [(10, 2), ("parallel", 10)]),  # 20 units: 10 tasks of 2 rather than 8 of 3
        ((2, 32, 7), 8, [(8, 8), ("parallel", 8)]),  # 64 units are enough: the third loop stays
        ((3, 2), 8, [("parallel", 6)]),
        ((23,), 4, [(4, 6), ("parallel", 4)]),  # a prime number
        ((8,), 8, [("parallel", 8)]),
    ],
)
def test_tasks_are_equal_pieces_of_as_few_loops_as_will_do(extents, tasks, done):
    loops = Loops(*extents)
    movement.cut_tasks(loops, list(range(len(extents))), tasks)
    assert loops.done == done


@pytest.mark.parametrize(
    ("extents", "lanes", "done"),
    [
        ((64, 32), 16, [(6, 16), ("vectorize", 16), ("partition", 6, [4, None])]),
        ((24, 8, 8), 16, [(5, 8), ("vectorize", 8), ("partition", 5, [3, 1, None])]),
        ((58, 58), 16, [("partition", 116, [58, None])]),  # two lanes would be all: LLVM does better
    ],
)
def test_each_input_of_a_concatenation_gets_a_loop(extents, lanes, done):
    loops = Loops(sum(extents))
    movement.copy_parts(loops, 0, extents, lanes)
    assert loops.done == done


def test_the_generic_template_takes_any_number_of_tasks_up_to_its_limit():
    spec = transpose((4, 6)).spec
    generic.TEMPLATE.check(spec, Choice(template="generic", layouts=("row", "row"), tile={"v": 4, "grain": 4096}))
