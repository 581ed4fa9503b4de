"""Winograd as numbers: transforms against the convolution they replace, packed weights, spaces, rules and costs."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_groups import AVX2, AVX512, NEON, RELU, case, conv, machine

from mapper.errors import BadInputError
from mapper.records import Choice
from mapper.templates import winogradshape
from mapper.templates.convshape import conv_shape
from mapper.templates.winograd import TEMPLATE
from mapper.validate.numerics import TOLERANCES

SAME = {"pads": [1, 1, 1, 1]}
SIZES = [2, 4]


def transformed_back(products):
    """Apply the output sums down, then across."""
    return np.stack(winogradshape.output_sums(np.stack(winogradshape.output_sums(products)).swapaxes(0, 1))).swapaxes(
        0, 1
    )


def transformed(values):
    """Apply the input sums down, then across."""
    return np.stack(winogradshape.input_sums(np.stack(winogradshape.input_sums(values)).swapaxes(0, 1))).swapaxes(0, 1)


def correlated(d, g):
    """Return the outputs of a 3×3 kernel over one input tile, (m+2, m+2, …) and (3, 3, …), by definition."""
    m = len(d) - 2
    return np.array([[(d[i : i + 3, j : j + 3] * g).sum((0, 1)) for j in range(m)] for i in range(m)])


# --- the transforms -------------------------------------------------------------------------------


@pytest.mark.parametrize("m", SIZES)
def test_one_axis_gives_the_sliding_sums(m):
    rng = np.random.default_rng(m)
    d, g = rng.standard_normal(m + 2), rng.standard_normal(3)
    found = winogradshape.output_sums((winogradshape.kernel_matrix(m) @ g) * np.array(winogradshape.input_sums(d)))
    np.testing.assert_allclose(found, [d[k : k + 3] @ g for k in range(m)], rtol=0, atol=1e-13)


@pytest.mark.parametrize("m", SIZES)
def test_two_axes_give_the_convolution(m):
    rng = np.random.default_rng(m)
    d, g = rng.standard_normal((m + 2, m + 2)), rng.standard_normal((3, 3))
    kernels = winogradshape.transform_kernels(g[None, None], m)[:, :, 0, 0]
    found = transformed_back(kernels * transformed(d))
    np.testing.assert_allclose(found, correlated(d, g), rtol=0, atol=1e-13)


def test_the_kernel_matrix_of_the_smaller_tile():
    # at 0 the weight is (0 - 1)(0 + 1) = -1, at 1 it is (1 - 0)(1 + 1) = 2, at -1 it is (-1 - 0)(-1 - 1) = 2
    np.testing.assert_array_equal(
        winogradshape.kernel_matrix(2), [[-1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]
    )


@pytest.mark.parametrize("positive", [False, True], ids=["normal data", "positive data"])
@pytest.mark.parametrize("m", SIZES)
def test_the_error_in_float32_stays_below_a_fifth_of_the_tolerance(m, positive):
    """512 input channels, every sum in float32 in the kernel's order, against float64."""
    rng, ci, tiles = np.random.default_rng(7), 512, 200
    d = rng.standard_normal((m + 2, m + 2, tiles, ci)).astype(np.float32)
    d = np.maximum(d, 0) if positive else d
    g = rng.standard_normal((3, 3, ci)).astype(np.float32)
    kernels = winogradshape.transform_kernels(g.transpose(2, 0, 1)[None], m)[:, :, 0].astype(np.float32)
    sums = transformed(d) * kernels[:, :, None, :]
    total = np.add.accumulate(sums, axis=3, dtype=np.float32)[..., -1]  # one after the other, as the kernel adds
    found = transformed_back(total)
    assert found.dtype == np.float32
    wanted = correlated(d.astype(np.float64), g.astype(np.float64)[:, :, None]).sum(-1)
    error = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert error < TOLERANCES["kernel"]["float32"].rel / 5


@pytest.mark.parametrize("m", SIZES)
def test_the_operations_of_the_sums_are_counted(m):
    class Term:
        done = 0

        def _next(self, *_operands):
            Term.done += 1
            return Term()

        __add__ = __sub__ = __mul__ = _next

    for sums, flops in zip(
        (winogradshape.input_sums, winogradshape.output_sums), winogradshape.SUM_FLOPS[m], strict=True
    ):
        Term.done = 0
        sums([Term() for _ in range(m + 2)])
        assert Term.done == flops


# --- tiles and weights ----------------------------------------------------------------------------


def test_tiles_cover_the_image():
    shape = conv_shape(conv((1, 8, 13, 27), 8, (3, 3), **SAME).spec)
    exact = winogradshape.tiling(shape, 4)
    assert (exact.rows, exact.columns, exact.taps) == (4, 7, 6)
    filled = winogradshape.tiling(shape, 2, rows=4, columns=5)
    assert (filled.rows, filled.columns, filled.taps) == (8, 15, 4)  # 7 and 14, filled up


def test_multiplications_left():
    shape = conv_shape(conv((1, 8, 8, 8), 8, (3, 3), **SAME).spec)
    assert winogradshape.multiplications_left(shape, 2) == pytest.approx(16 / 36)
    assert winogradshape.multiplications_left(shape, 4) == pytest.approx(36 / 144)


@pytest.mark.parametrize(("channels", "lanes", "wanted"), [(64, 16, 16), (24, 16, 8), (20, 8, 4), (12, 4, 4)])
def test_transforms_take_whole_vectors_of_input_channels(channels, lanes, wanted):
    assert winogradshape.channel_lanes(channels, lanes) == wanted


@pytest.mark.parametrize(("m", "co", "vb"), [(2, 16, 8), (4, 20, 8), (4, 5, 16)])
def test_weights_are_transformed_then_packed(m, co, vb):
    one = conv((1, 8, 12, 12), co, (3, 3), **SAME)
    weight = np.random.default_rng(0).standard_normal((co, 8, 3, 3)).astype(np.float32)
    ((name, packing),) = TEMPLATE.packings(one.spec, choice_of(one, m=m, vb=vb)).items()
    value = packing.pack(weight)
    assert name == one.spec.operators[one.spec.anchor].inputs[1]
    assert value.shape == packing.shape == ((m + 2) ** 2, -(-co // vb), 8, vb)
    assert value.dtype == np.float32
    assert value.flags.c_contiguous
    g = winogradshape.kernel_matrix(m)
    for tap, block, lane in np.ndindex(value.shape[0], value.shape[1], vb):
        channel = block * vb + lane
        down, across = divmod(tap, m + 2)
        wanted = [g[down] @ kernel @ g[across] for kernel in weight[channel]] if channel < co else np.zeros(8)
        np.testing.assert_allclose(value[tap, block, :, lane], wanted, rtol=1e-6, atol=1e-7)


# --- what it takes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "taken"),
    [
        (conv((1, 64, 56, 56), 64, (3, 3), **SAME), True),
        (conv((2, 4, 9, 9), 5, (3, 3), tail=[RELU]), True),
        (conv((1, 8, 7, 7), 8, (3, 3), pads=[0, 2, 1, 0], bias=False), True),
        (conv((1, 64, 56, 56), 64, (3, 3), strides=[2, 2], **SAME), False),
        (conv((1, 64, 56, 56), 64, (3, 3), strides=[1, 2], **SAME), False),
        (conv((1, 64, 56, 56), 64, (3, 3), dilations=[2, 2]), False),
        (conv((1, 64, 56, 56), 64, (3, 3), group=2, **SAME), False),
        (conv((1, 64, 56, 56), 64, (1, 3)), False),
        (conv((1, 64, 56, 56), 64, (5, 5)), False),
        (conv((1, 64, 56), 64, (3,)), False),
        (conv((1, 6, 56, 56), 64, (3, 3)), False),  # 6 input channels fill no vector
        (conv((1, 64, 3, 3), 64, (3, 3), **SAME), True),  # one tile of 36, not 81
        (conv((1, 64, 1, 1), 64, (3, 3), **SAME), False),  # 16 or 36, not 9
        (conv((1, 64, 3, 40), 64, (3, 3)), False),  # one row: half of every tile is thrown away
        (case([("Conv", "x w", "y", {})], {"x": (1, 4, 9, 9), "w": (4, 4, 3, 3)}), False),
    ],
)
def test_it_takes_what_it_can_compute_with_fewer_multiplications(one, taken):
    assert TEMPLATE.matches(one.spec) is taken


def test_it_does_not_take_an_epilogue_that_grows_the_output():
    one = conv((1, 8, 1, 12), 8, (3, 3), tail=[("Add", "t r", "y", {})], inputs={"r": (1, 8, 9, 12)}, **SAME)
    assert not TEMPLATE.matches(one.spec)


# --- the space ------------------------------------------------------------------------------------

IMAGES = {
    "64@56": conv((1, 64, 56, 56), 64, (3, 3), **SAME),
    "512@7": conv((1, 512, 7, 7), 512, (3, 3), **SAME),
    "prime": conv((2, 12, 37, 19), 23, (3, 3), **SAME),
    "one channel": conv((1, 8, 160, 160), 1, (3, 3), **SAME),
}


@pytest.mark.parametrize("on", [AVX2, AVX512, NEON, machine(threads=1)], ids=["8", "16", "4", "one thread"])
@pytest.mark.parametrize("name", IMAGES)
def test_choices_are_legal_distinct_and_fit_the_registers(name, on):
    one = IMAGES[name]
    space = TEMPLATE.choices(one.spec, on, one.layouts())
    assert space
    assert len({tuple(sorted(choice.tile.items())) for choice in space}) == len(space)
    for choice in space:
        TEMPLATE.check(one.spec, choice)
        tile = choice.tile
        rows, vectors = tile["rw"] * tile["rh"], tile["vb"] // tile["v"]
        assert rows == 1 or rows * vectors + vectors < on.vector_registers
        predicted = TEMPLATE.cost(one.spec, choice, on)
        figures = (predicted.compute_s, predicted.memory_s, predicted.overhead_s)
        assert all(math.isfinite(figure) and figure > 0 for figure in figures)
        assert predicted.time_s >= max(figures)
        assert set(predicted.bytes_by_level) <= set(on.bandwidth_b_per_s_n)


def test_both_tile_sizes_and_both_grains_are_offered_where_weights_are_heavy():
    one = IMAGES["512@7"]
    kinds = {(choice.tile["m"], choice.tile["stage"]) for choice in TEMPLATE.choices(one.spec, AVX512, one.layouts())}
    assert kinds == {(2, 1), (2, 2), (4, 1), (4, 2)}


def test_light_weights_stay_in_strips():
    one = conv((1, 16, 56, 56), 16, (3, 3), **SAME)  # 36 · 16 · 16 · 4 B = 36 KiB of weights
    assert {choice.tile["stage"] for choice in TEMPLATE.choices(one.spec, AVX2, one.layouts())} == {1}


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    n=st.integers(1, 2),
    ci=st.integers(1, 40).map(lambda quarter: 4 * quarter),
    co=st.integers(1, 70),
    image=st.tuples(st.integers(4, 60), st.integers(4, 60)),
    on=st.sampled_from([AVX2, AVX512, NEON, machine(threads=1)]),
)
def test_any_image_has_legal_choices(n, ci, co, image, on):
    one = conv((n, ci, *image), co, (3, 3), **SAME)
    assert TEMPLATE.matches(one.spec)
    space = TEMPLATE.choices(one.spec, on, one.layouts())
    assert space
    for choice in space[:: max(1, len(space) // 20)]:
        TEMPLATE.check(one.spec, choice)
        assert TEMPLATE.cost(one.spec, choice, on).time_s > 0


# --- rules ----------------------------------------------------------------------------------------

TILE = {"m": 4, "v": 8, "vb": 8, "rw": 2, "rh": 1, "th": 2, "tc": 1, "stage": 1}


def choice_of(one, **changes):
    return Choice(template="winograd", layouts=one.layouts(), tile={**TILE, **changes})


def test_the_unchanged_tile_is_legal():
    one = conv((1, 8, 12, 12), 16, (3, 3), **SAME)
    TEMPLATE.check(one.spec, choice_of(one))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"m": 3}, "m = 3 must be 2 or 4"),
        ({"rw": 0}, "every field but stage must be 1 or more"),
        ({"vb": 12}, "v = 8 must divide vb = 12"),
        ({"v": 3, "vb": 6}, "v = 3 must be a power of two"),
        ({"stage": 0}, r"stage = 0 must be 1 \(task\) or 2 \(root\)"),
        ({"rh": 2, "th": 3}, "rh = 2 must divide th = 3 tile rows"),
        ({"tc": 3}, "tc = 3 must divide 2 channel blocks"),
        ({"ku": 1}, "unknown ku"),
    ],
)
def test_an_illegal_tile_is_rejected_by_its_rule(changes, message):
    one = conv((1, 8, 12, 12), 16, (3, 3), **SAME)
    with pytest.raises(BadInputError, match=message):
        TEMPLATE.check(one.spec, choice_of(one, **changes))


# --- the cost -------------------------------------------------------------------------------------


def test_executed_flops_are_those_of_winograd():
    one = conv((1, 8, 8, 8), 16, (3, 3), **SAME)  # 2 × 2 tiles of 4 × 4 pixels
    predicted = TEMPLATE.cost(one.spec, choice_of(one), AVX2)
    products = 2 * 36 * 4 * 8 * 16
    # down over 10 columns and across 6 taps · 2 tiles, a tile row: 20 operations; back, 6 and 4 columns a tile: 16
    transforms = 2 * 20 * (10 + 12) * 8 + 4 * 16 * (6 + 4) * 16
    assert predicted.executed_flops == products + transforms
    assert predicted.executed_flops < one.spec.operators[one.spec.anchor].flops


def test_tiles_that_fill_up_are_executed():
    one = conv((1, 8, 8, 8), 16, (3, 3), **SAME)
    flops = [TEMPLATE.cost(one.spec, choice_of(one, rw=rw), AVX2).executed_flops for rw in (2, 3)]
    assert flops[1] > flops[0]  # three columns of tiles instead of two


def test_strips_read_the_weights_each_and_phases_once():
    one = IMAGES["512@7"]  # two tile rows; 36 · 512 · 512 · 4 B of weights lie in DRAM, beyond half of L3
    weights_b = 36 * 512 * 512 * 4
    moved = [
        TEMPLATE.cost(one.spec, choice_of(one, th=1, stage=stage), AVX2).bytes_by_level["DRAM"] for stage in (1, 2)
    ]
    assert moved[0] - moved[1] == weights_b
    assert moved[1] >= weights_b
