"""Kernels of the matmul template compute what ONNX says."""

import numpy as np
import pytest
from small_groups import AVX512, NEON, RELU, SILU, case, constant, matmul

from mapper import templates


def gemm(a, b, c=(), *, held=("w", "c"), tail=(), **attributes):
    """Return a Gemm of shapes `a`, `b` and, unless empty, `c`; the tensors that `held` names are constants."""
    shapes = {"w": b, **({"c": c} if c else {})}
    constants = [(name, shape) for name, shape in shapes.items() if name in held]
    taken = {name: shape for name, shape in shapes.items() if name not in held}
    node = ("Gemm", "x w c" if c else "x w", "t" if tail else "y", attributes)
    return case([node, *tail], {"x": a, **taken}, constants)


def view(source, result, shape):
    return ("Reshape", f"{source} {shape}", result, {})


SHAPES = [constant("rows", [16, 24], np.int64), constant("deep", [2, 8, 20], np.int64)]

CASES = {
    "square": matmul((16, 16), (16, 16)),
    "odd everywhere": matmul((13, 11), (11, 21)),
    "one row": matmul((1, 32), (32, 40)),
    "one column": matmul((7, 9), (9, 1)),
    "one row, one column": matmul((1, 9), (9, 1)),
    "inner extent 1": matmul((5, 1), (1, 12)),
    "computed right side": matmul((12, 8), (8, 20), b_is_constant=False),
    "batch, constant right side": matmul((2, 3, 7, 10), (10, 12)),
    "batch, computed right side": matmul((2, 3, 7, 10), (2, 3, 10, 13), b_is_constant=False),
    "batch, one computed matrix for all": matmul((2, 7, 10), (10, 13), b_is_constant=False),
    "three dimensions": matmul((1, 9, 16), (16, 24)),
    "then bias and relu": matmul(
        (6, 16), (16, 20), tail=[("Add", "t b", "s", {}), ("Relu", "s", "y", {})], constants=[("b", (20,))]
    ),
    "then silu": matmul((6, 16), (16, 20), tail=SILU),
    "then a scalar factor": matmul(
        (2, 4, 6, 8), (2, 4, 8, 6), b_is_constant=False, tail=[("Mul", "t s", "y", {})], constants=[constant("s", 0.5)]
    ),
    "after a sum": case(
        [("Add", "x b", "h", {}), ("MatMul", "h w", "y", {})], {"x": (6, 9)}, [("b", (9,)), ("w", (9, 20))]
    ),
    "views around it": case(
        [view("x", "a", "rows"), ("Gemm", "a w", "t", {}), view("t", "y", "deep")],
        {"x": (2, 8, 24)},
        [("w", (24, 20)), *SHAPES],
    ),
    "views of extent 1 and gelu": case(
        [
            *(view("x", "a", "rows"), ("Gemm", "a w b", "t", {}), view("t", "u", "one")),
            *(("Div", "u root", "d", {}), ("Erf", "d", "e", {}), ("Mul", "u e", "g", {}), view("g", "y", "back")),
        ],
        {"x": (1, 16, 24)},
        [
            *(("w", (24, 20)), ("b", (20,)), SHAPES[0], constant("root", 2**0.5)),
            *(constant("one", [1, 16, 20], np.int64), constant("back", [16, 20], np.int64)),
        ],
    ),
    "a view of a sum before it": case(
        [("Add", "x b", "h", {}), view("h", "a", "rows"), ("Gemm", "a w", "y", {})],
        {"x": (2, 8, 24)},
        [("w", (24, 20)), ("b", (24,)), SHAPES[0]],
    ),
    "rows of a batch in one axis, then a residual": case(
        [("MatMul", "x w", "t", {}), view("t", "u", "flat"), ("Add", "u r", "y", {})],
        {"x": (2, 3, 7, 10), "r": (42, 13)},
        [("w", (10, 13)), constant("flat", [42, 13], np.int64)],
    ),
    "batch, computed right side, one axis more": case(
        [("MatMul", "x w", "t", {}), ("Unsqueeze", "t axis", "y", {})],
        {"x": (6, 7, 10), "w": (6, 10, 13)},
        [constant("axis", [0], np.int64)],
    ),
    "gemm": gemm((5, 8), (8, 12), (12,)),
    "gemm without addend": gemm((5, 8), (8, 12)),
    "gemm, A transposed": gemm((8, 5), (8, 12), (12,), transA=1),
    "gemm, B transposed": gemm((5, 8), (11, 8), (11,), transB=1),
    "gemm, both transposed": gemm((8, 5), (11, 8), (11,), transA=1, transB=1),
    "gemm, B transposed and computed": gemm((5, 8), (11, 8), (11,), held=("c",), transB=1),
    "gemm, alpha and beta": gemm((5, 8), (8, 12), (5, 12), alpha=0.5, beta=-2.0),
    "gemm, alpha alone": gemm((5, 8), (8, 12), alpha=3.0),
    "gemm, beta 0": gemm((5, 8), (8, 12), (12,), beta=0.0),
    "gemm, a column added": gemm((5, 8), (8, 12), (5, 1)),
    "gemm, one number added": gemm((5, 8), (8, 12), (1,)),
    "gemm, a computed addend": gemm((5, 8), (8, 12), (5, 12), held=("w",)),
    "gemm, then relu": gemm((1, 24), (10, 24), (10,), transB=1, tail=[RELU]),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_the_product(kernels, few, name):
    one = CASES[name]
    assert templates.template_for(one.spec).name == "matmul"
    assert kernels.wrong(one, few(one, count=2, policy="nchw")) == []


@pytest.mark.parametrize("inside", ["nhwc", "nchw"])
@pytest.mark.parametrize("outside", ["nhwc", "nchw"])
@pytest.mark.parametrize("name", ["batch, constant right side", "batch, computed right side", "then a scalar factor"])
def test_products_of_rank_4_take_any_layout(kernels, few, name, inside, outside):
    one = CASES[name]
    assert kernels.wrong(one, few(one, count=2, policy=inside, output=outside)) == []


@pytest.mark.parametrize("machine", [AVX512, NEON], ids=["16 lanes", "4 lanes"])
@pytest.mark.parametrize("name", ["odd everywhere", "batch, computed right side", "gemm, both transposed"])
def test_tiles_of_other_machines_give_the_same_values(kernels, few, name, machine):
    one = CASES[name]
    assert kernels.wrong(one, few(one, count=2, machine=machine, policy="nchw")) == []


@pytest.mark.parametrize("name", ["odd everywhere", "batch, computed right side"])
def test_any_legal_schedule_keeps_the_values(kernels, few, name):
    one = CASES[name]
    assert kernels.wrong(one, few(one, count=10, policy="nchw")) == []


def test_a_right_side_with_other_batches_goes_to_the_generic_template(kernels, few):
    one = matmul((2, 1, 4, 5), (3, 5, 6), b_is_constant=False)
    assert templates.template_for(one.spec).name == "generic"
    assert kernels.wrong(one, few(one, count=2, policy="nchw")) == []


def test_a_vector_goes_to_the_generic_template(kernels, few):
    one = matmul((5,), (5, 6))
    assert templates.template_for(one.spec).name == "generic"
    assert kernels.wrong(one, few(one, count=2)) == []
