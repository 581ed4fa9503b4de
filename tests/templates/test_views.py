"""Views of rows: indices by hand, and which reshapes are views."""

import numpy as np
import pytest
from small_groups import case, constant

from mapper.templates import views


@pytest.mark.parametrize(
    ("index", "found", "wanted", "expected"),
    [
        ((0, 5, 7), (1, 6, 8), (6, 8), (5, 7)),
        ((5, 7), (6, 8), (1, 6, 8), (0, 5, 7)),
        ((1, 2, 7), (2, 3, 8), (6, 8), (5, 7)),  # 1 · 3 + 2
        ((5, 7), (6, 8), (2, 3, 8), (1, 2, 7)),
        ((3, 1, 7), (4, 6, 8), (2, 3, 4, 8), (1, 1, 3, 7)),  # row 19 = (1 · 3 + 1) · 4 + 3
        ((7,), (8,), (1, 8), (0, 7)),
    ],
)
def test_an_index_is_regrouped(index, found, wanted, expected):
    assert views.regrouped(index, found, wanted) == expected


def test_regrouping_agrees_with_numpy():
    found, wanted = (3, 4, 5, 2), (6, 10, 2)
    values = np.arange(120).reshape(found)
    for index in np.ndindex(found):
        assert values.reshape(wanted)[views.regrouped(index, found, wanted)] == values[index]


@pytest.mark.parametrize(
    ("one", "answer"),
    [
        (case([("Reshape", "x s", "y", {})], {"x": (2, 3, 8)}, [constant("s", [6, 8], np.int64)]), True),
        (case([("Reshape", "x s", "y", {})], {"x": (2, 3, 8)}, [constant("s", [3, 16], np.int64)]), False),
        (case([("Squeeze", "x a", "y", {})], {"x": (6, 1)}, [constant("a", [1], np.int64)]), False),
        (case([("Transpose", "x", "y", {"perm": [1, 0, 2]})], {"x": (2, 3, 8)}), False),
    ],
    ids=["rows kept", "rows joined", "rows of one", "transposed"],
)
def test_a_view_keeps_rows(one, answer):
    assert views.is_view(one.spec, one.spec.operators[0]) is answer


def test_the_source_of_a_view_is_found_through_others():
    one = case(
        [
            ("Relu", "x", "a", {}),
            ("Reshape", "a s", "b", {}),
            ("Unsqueeze", "b z", "c", {}),
            ("MatMul", "c w", "y", {}),
        ],
        {"x": (2, 3, 8)},
        [constant("s", [6, 8], np.int64), constant("z", [0], np.int64), ("w", (8, 4))],
    )
    relu, _, unsqueeze, _ = one.spec.operators
    assert views.source_of(one.spec, unsqueeze.outputs[0]) == relu.outputs[0]
    assert views.source_of(one.spec, "in0") == "in0"
