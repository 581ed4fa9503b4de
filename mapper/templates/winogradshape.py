"""Winograd's minimal filtering as numbers: the transforms, their sums written out, and how tiles cover an image.

F(m×m, 3×3) computes m×m outputs from an (m+2)×(m+2) input tile d and a kernel g as Aᵀ[(G g Gᵀ) ⊙ (Bᵀ d B)]A: (m+2)²
multiplications instead of 9m². The matrices interpolate polynomials at 0, ± each of `POINTS[m]`, and infinity.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015; the Toom-Cook construction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import numpy as np

from mapper.records import MachineModel
from mapper.templates.convshape import STAGE_ROOT, STAGE_TASK, ConvShape
from mapper.templates.tiles import FLOAT32_B, ceil_div, divisors, fma_efficiency, lanes_for, resident_level, round_up

KERNEL = 3
# Points near 1 whose squares are exact keep rounding small: √2 and 1/√2 err by a fourth of what the usual 1 and 2 do
# (3e-6 against 1.3e-5 of the largest output, 512 input channels of normal data).
POINTS = {2: (1.0,), 4: (sqrt(2.0), sqrt(0.5))}
# Additions and multiplications of `input_sums` and `output_sums`, for one column of m + 2 values.
SUM_FLOPS = {2: (4, 4), 4: (20, 16)}

WORTHWHILE = 0.75  # of the direct convolution's multiplications; images of a few pixels stay above it
HIDING = 8  # sums in flight that hide an FMA's latency: four cycles on two ports
FILLED_UP = 1.2  # tiles computed ÷ tiles needed

LEAST_TASK_FLOPS = 1e6  # some microseconds: the threads claim shorter tasks from one another's hands

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How output tiles of `m`×`m` pixels cover an image: `rows` × `columns` of them, some in part or wholly beyond."""

    m: int
    rows: int
    columns: int

    @property
    def taps(self) -> int:
        """Side of an input tile."""
        return self.m + KERNEL - 1


def tiling(shape: ConvShape, m: int, rows: int = 1, columns: int = 1) -> Tiling:
    """Return the tiling of a convolution's output, filled up to whole blocks of `rows` × `columns` tiles."""
    return Tiling(m=m, rows=round_up(ceil_div(shape.oh, m), rows), columns=round_up(ceil_div(shape.ow, m), columns))


def multiplications_left(shape: ConvShape, m: int) -> float:
    """Return the multiplications of F(m×m, 3×3) ÷ those of the direct convolution."""
    tiles = tiling(shape, m)
    return tiles.taps**2 * tiles.rows * tiles.columns / (KERNEL**2 * shape.oh * shape.ow)


def kernel_matrix(m: int) -> Array:
    """Return G, (m+2, 3), in float64: a kernel's value at each point, divided by the point's Lagrange weight."""
    points = [0.0, *(sign * point for point in POINTS[m] for sign in (1.0, -1.0))]
    rows = [[x**k / prod(x - y for y in points if y != x) for k in range(KERNEL)] for x in points]
    return np.array([*rows, [0.0, 0.0, 1.0]])


def transform_kernels(weight: Array, m: int) -> Array:
    """Return G g Gᵀ of kernels (co, ci, 3, 3) as (m+2, m+2, co, ci) in float64."""
    g = kernel_matrix(m)
    return np.asarray(np.einsum("ak,oikl,bl->aboi", g, weight.astype(np.float64), g, optimize=True))


def input_sums(d: Sequence[Any]) -> list[Any]:
    """Return Bᵀ d of m+2 values, the even and odd part of each pair ± of points shared.

    A row of Bᵀ holds the coefficients of the polynomial that has a root at every point but the row's own.
    """
    if len(d) == 2 + KERNEL - 1:
        return [d[2] - d[0], d[2] + d[1], d[2] - d[1], d[3] - d[1]]
    p, q = POINTS[4]
    both = _square(p) + _square(q)  # their product is 1
    sums = [d[0] - d[2] * both + d[4]]
    for point, other in ((p, q), (q, p)):
        even = d[4] - d[2] * _square(other)
        odd = (d[3] - d[1] * _square(other)) * point
        sums += [even + odd, even - odd]
    return [*sums, d[1] - d[3] * both + d[5]]


def output_sums(s: Sequence[Any]) -> list[Any]:
    """Return Aᵀ s of m+2 values: output k is the sum of point^k times the point's value, the last plus infinity's."""
    if len(s) == 2 + KERNEL - 1:
        return [s[0] + (s[1] + s[2]), (s[1] - s[2]) + s[3]]
    p, q = POINTS[4]
    near, far = s[1] + s[2], s[3] + s[4]
    near_odd, far_odd = (s[1] - s[2]) * p, (s[3] - s[4]) * q
    return [
        s[0] + (near + far),
        near_odd + far_odd,
        near * _square(p) + far * _square(q),
        near_odd * _square(p) + far_odd * _square(q) + s[5],
    ]


def _square(point: float) -> float:
    """Return a point's square without the rounding of its root: 2, not 2.0000000000000004."""
    return round(point * point, 12)


def is_worthwhile(shape: ConvShape, m: int) -> bool:
    """Say whether F(m×m, 3×3) saves enough multiplications of this image to pay for its transforms."""
    return multiplications_left(shape, m) <= WORTHWHILE


def channel_lanes(channels: int, lanes: int) -> int:
    """Return the widest vector, up to `lanes`, that divides the input channels: the transforms run over those."""
    while channels % lanes:
        lanes //= 2
    return lanes


def register_choices(shape: ConvShape, m: int, machine: MachineModel) -> list[dict[str, int]]:
    """Return register tiles (v, vb, rw, rh): for each number of vectors a block of tiles that wastes little."""
    tiles, lanes = tiling(shape, m), lanes_for(shape.co, machine)
    found = []
    for vectors in (1, 2, 4):
        vb = vectors * lanes
        if vectors > 1 and round_up(shape.co, vb) > 1.15 * round_up(shape.co, lanes):
            continue
        room = max(1, (machine.vector_registers - vectors - 1) // vectors)
        best: dict[int, tuple[float, int, int]] = {}
        for rw in sorted({ceil_div(tiles.columns, parts) for parts in range(1, tiles.columns + 1)}, reverse=True):
            for rh in range(1, min(tiles.rows, room // rw) + 1):
                filled = tiling(shape, m, rh, rw)
                waste = filled.rows * filled.columns / (tiles.rows * tiles.columns)
                hidden = min(1.0, rw * rh * vectors / HIDING)
                score = hidden * fma_efficiency(rw * rh, vectors, lanes, machine) / waste
                if waste <= FILLED_UP and score > best.get(rw * rh, (0.0, 0, 0))[0]:
                    best[rw * rh] = (score, rw, rh)
        ranked = sorted(best.values(), key=lambda one: (-one[0], one[2], one[1]))
        found += [{"v": lanes, "vb": vb, "rw": rw, "rh": rh} for _, rw, rh in ranked[:3]]
    return found


def grain_choices(shape: ConvShape, m: int, register: dict[str, int], machine: MachineModel) -> list[dict[str, int]]:
    """Return (stage, th, tc): strips that leave every thread something to do, and whole phases for heavy weights."""
    rows, rh = tiling(shape, m, register["rh"]).rows, register["rh"]
    blocks = ceil_div(shape.co, register["vb"])
    found = []
    for th in dict.fromkeys(rh * count for count in (1, 2, 4, rows // rh) if rh * count <= rows):
        filled = round_up(rows, th)
        if th == rh or (shape.n * filled // th >= machine.threads and filled <= FILLED_UP * rows):
            found.append({"stage": STAGE_TASK, "th": th, "tc": 1})
    weights_b = FLOAT32_B * (m + KERNEL - 1) ** 2 * shape.ci * blocks * register["vb"]
    # strips read all weights each, phases hand what lies between them from core to core
    if weights_b > machine.cache_b["L2"] / 2 or shape.n * rows // rh < 2 * machine.threads:
        found += [{"stage": STAGE_ROOT, "th": rh, "tc": tc} for tc in _shares(shape, m, register, machine)]
    return found


def _shares(shape: ConvShape, m: int, register: dict[str, int], machine: MachineModel) -> list[int]:
    """Return the smallest and the largest share of channel blocks whose tasks are neither too short nor too few."""
    tiles, blocks = tiling(shape, m, register["rh"], register["rw"]), ceil_div(shape.co, register["vb"])
    whole = product_flops(shape, tiles, blocks * register["vb"]) / (tiles.taps**2 * blocks)
    fitting = [
        tc
        for tc in divisors(blocks)
        if whole * tc >= LEAST_TASK_FLOPS and tiles.taps**2 * blocks // tc >= 4 * machine.threads
    ]
    return sorted({fitting[0], fitting[-1]}) if fitting else [blocks]


def moved_bytes(
    shape: ConvShape, tiles: Tiling, channels: int, strips: int, machine: MachineModel
) -> tuple[tuple[str, float], ...]:
    """Return the level and bytes of the weights, and of what lies between the stages; `strips` 0 for whole phases."""
    weights_b = float(FLOAT32_B * tiles.taps**2 * shape.ci * channels)
    between_b = float(FLOAT32_B * tiles.taps**2 * shape.n * tiles.rows * tiles.columns * (shape.ci + channels))
    if strips:  # each reads all weights, of which every thread's cache holds a copy
        held_b = between_b / strips * machine.threads
        return (
            (resident_level(weights_b * machine.threads, machine), weights_b * strips),
            (resident_level(held_b, machine), 2 * between_b),
        )
    handed = "L3" if machine.threads > 1 and "L3" in machine.cache_b else resident_level(between_b, machine)
    return (resident_level(weights_b, machine), weights_b), (handed, 2 * between_b)


def product_flops(shape: ConvShape, tiles: Tiling, channels: int) -> float:
    """Return the FLOPs of the matrix products."""
    return 2.0 * tiles.taps**2 * shape.n * tiles.rows * tiles.columns * shape.ci * channels


def transform_flops(shape: ConvShape, tiles: Tiling, channels: int) -> float:
    """Count the additions and multiplications of `rows` and `vee`, then those of `down` and `tile`."""
    into, back = SUM_FLOPS[tiles.m]
    into_columns = tiles.columns * tiles.m + KERNEL - 1 + tiles.taps * tiles.columns
    back_columns = (tiles.taps + tiles.m) * tiles.columns
    return float(shape.n * tiles.rows * (into * into_columns * shape.ci + back * back_columns * channels))
