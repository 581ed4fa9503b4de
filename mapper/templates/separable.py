"""Depthwise convolution and the 1×1 convolution that reads it as one kernel: what lies between never leaves the cache.

A task takes a strip of output rows. Channel block by channel block (`db`) it pads the input into a scratch, sums a row
of `dr` pixels in registers, and writes bias and activation into a second scratch, (rows, width, channels). The 1×1
convolution then runs over that scratch like any other: `rh·rw` pixels × `vb` channels in registers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from mapper.records import Choice, GroupSpec, MachineModel, Prediction
from mapper.templates import moves
from mapper.templates.protocol import Convert, Packing
from mapper.templates.separableshape import (
    SeparableShape,
    depthwise_stages,
    packings,
    pointwise_stages,
    separable_shape,
)
from mapper.templates.tiles import (
    FLOAT32_B,
    boundary_traffic,
    ceil_div,
    divisors,
    fma_efficiency,
    integers,
    lanes_for,
    require,
    require_counts,
    require_vectors,
    resident_level,
    roof,
    round_up,
    tail_efficiency,
)

FIELDS = ("v", "vb", "rw", "rh", "th", "dv", "db", "dr")
STAGE_WORK = 4.0  # multiply-adds' worth of copying one element to a scratch


@dataclass(frozen=True, slots=True)
class Separable:
    """The template value; see the module's docstring."""

    name: str = "separable"

    def matches(self, spec: GroupSpec) -> bool:
        """Take float32 pairs of a depthwise and a 1×1 convolution, the first read by the second alone."""
        return separable_shape(spec) is not None

    def choices(self, spec: GroupSpec, machine: MachineModel, layouts: tuple[str, ...]) -> tuple[Choice, ...]:
        """Enumerate register tiles of both convolutions that divide the image, and heights of a task."""
        shape = _shape(spec)
        blocks = _depthwise_blocks(shape, machine)
        found = []
        for v, vb in _pointwise_blocks(shape, machine):
            for rw, rh in _rows(shape, machine, vb // v):
                heights = [th for th in divisors(shape.oh // rh) if th * rh <= 16]
                for th, (dv, db, dr) in product(heights[:4], blocks):
                    tile = {"v": v, "vb": vb, "rw": rw, "rh": rh, "th": th, "dv": dv, "db": db, "dr": dr}
                    found.append(Choice(template=self.name, layouts=layouts, tile=tile))
        return tuple(found)

    def check(self, spec: GroupSpec, choice: Choice) -> None:
        """Check divisibility; see `tiles.require`."""
        shape, t = _shape(spec), integers(spec, choice, FIELDS)
        require_counts(spec, t)
        require_vectors(spec, t)
        require(spec, t["dv"] & (t["dv"] - 1) == 0, f"dv = {t['dv']} must be a power of two")
        require(spec, t["db"] % t["dv"] == 0, f"dv = {t['dv']} must divide db = {t['db']}")
        require(spec, shape.c % t["db"] == 0, f"db = {t['db']} must divide {shape.c} channels between")
        require(spec, shape.ow % t["rw"] == 0, f"rw = {t['rw']} must divide {shape.ow} columns")
        require(spec, shape.ow % t["dr"] == 0, f"dr = {t['dr']} must divide {shape.ow} columns")
        rows = t["rh"] * t["th"]
        require(spec, shape.oh % rows == 0, f"rh · th = {rows} must divide {shape.oh} rows")

    def cost(self, spec: GroupSpec, choice: Choice, machine: MachineModel) -> Prediction:
        """Predict from the port use of both register tiles, the fill of the threads, staging and weight traffic."""
        shape, t = _shape(spec), integers(spec, choice, FIELDS)
        channels = round_up(shape.co, t["vb"])
        pixels = shape.n * shape.oh * shape.ow
        pointwise = 2.0 * pixels * shape.c * channels
        depthwise = 2.0 * pixels * shape.c * shape.outer.kh * shape.outer.kw
        tasks = shape.n * (shape.oh // (t["rh"] * t["th"]))
        fill = tail_efficiency(tasks, machine.threads)
        gemm = fma_efficiency(t["rw"] * t["rh"], t["vb"] // t["v"], t["v"], machine) * (1 - 4.0 / (shape.c + 4.0))
        # every multiply-add of the depthwise convolution loads its input vector
        taps = 0.5 * fma_efficiency(t["dr"], t["db"] // t["dv"], t["dv"], machine)
        staged = float(tasks * shape.rows_read(t["rh"] * t["th"]) * shape.columns_read * shape.c)
        slowed = pointwise / gemm + depthwise / taps + STAGE_WORK * (staged + pixels * shape.c)
        weights_b = FLOAT32_B * shape.c * channels
        strip_b = FLOAT32_B * t["rh"] * t["th"] * shape.ow * shape.c
        traffic = boundary_traffic(spec, machine)
        for level, moved in (
            (resident_level(weights_b, machine), weights_b * tasks),
            (resident_level(strip_b * machine.threads, machine), float(strip_b * tasks * ceil_div(channels, t["vb"]))),
        ):
            traffic[level] = traffic.get(level, 0.0) + moved
        executed = pointwise + depthwise
        return roof(machine, executed_flops=executed, efficiency=fill * executed / slowed, traffic_b=traffic)

    def packings(self, spec: GroupSpec, choice: Choice) -> Mapping[str, Packing]:
        """Pack (c, 1, kh, kw) as (c/db, kh, kw, db), and (co, c, 1, 1) as (co/vb, c, vb) filled up with zeros."""
        return packings(_shape(spec), int(choice.tile["db"]), int(choice.tile["vb"]))

    def converters(self, spec: GroupSpec, choice: Choice) -> Mapping[int, Convert]:
        """Emit both convolutions in stages; what is between and after them goes through TVM's importer."""
        shape = _shape(spec)
        t = {name: int(value) for name, value in choice.tile.items()}

        def emit(stages: Any) -> Convert:
            def convert(builder: Any, inputs: list[Any], _attributes: Mapping[str, Any]) -> Any:
                tensors = [item for item in inputs[:3] if item is not None]
                return builder.emit_te(stages, *tensors)

            return convert

        return {
            shape.depthwise: emit(lambda *tensors: depthwise_stages(shape, t["db"], *tensors)),
            shape.pointwise: emit(lambda *tensors: pointwise_stages(shape, t["vb"], *tensors)),
        }

    def apply(self, sch: Any, spec: GroupSpec, choice: Choice) -> None:
        """Tile the 1×1 convolution, and compute a strip of the depthwise one where a task begins."""
        t = integers(spec, choice, FIELDS)
        moves.inline_all(sch, frozenset({"pad", "taps", "between", "acc"}))
        acc, out = sch.get_sblock("acc"), moves.output_block(sch)
        n, h, w, cb, v, ci = sch.get_loops(acc)
        ho, hi, hr = sch.split(h, [None, t["th"], t["rh"]])
        wo, wr = sch.split(w, [None, t["rw"]])
        vo, vi = sch.split(v, [None, t["v"]])
        sch.reorder(n, ho, cb, hi, wo, ci, hr, wr, vo, vi)
        task = sch.fuse(n, ho)
        sch.parallel(task)
        for loop in (hr, wr, vo):
            sch.unroll(loop)
        sch.vectorize(vi)
        sch.reverse_compute_at(out, wo, preserve_unit_loops=True)
        moves.store_tile(sch, out, choice.layouts[-1], t["v"], 4)
        _place_depthwise(sch, task, t)
        sch.decompose_reduction(acc, ci)


def _place_depthwise(sch: Any, task: Any, t: Mapping[str, int]) -> None:
    between, taps = sch.get_sblock("between"), sch.get_sblock("taps")
    sch.compute_at(between, task, preserve_unit_loops=True)
    _, h, w, c = sch.get_loops(between)[-4:]
    wo, wr = sch.split(w, [None, t["dr"]])
    co, ci = sch.split(c, [None, t["db"]])
    sch.reorder(co, h, wo, wr, ci)
    sch.unroll(wr)
    sch.compute_at(taps, wo, preserve_unit_loops=True)
    wr, _, v, kh, kw = sch.get_loops(taps)[-5:]
    vo, vi = sch.split(v, [None, t["dv"]])
    sch.reorder(kh, kw, wr, vo, vi)
    for loop in (wr, vo):
        sch.unroll(loop)
    sch.vectorize(vi)
    moves.vectorize_inner(sch, ci, t["dv"], unroll=True)
    moves.stage_copy(sch, "pad", co, t["dv"])
    sch.decompose_reduction(taps, kh)


def _shape(spec: GroupSpec) -> SeparableShape:
    shape = separable_shape(spec)
    assert shape is not None, f"{spec.name} is no depthwise and 1×1 convolution"
    return shape


def _pointwise_blocks(shape: SeparableShape, machine: MachineModel) -> list[tuple[int, int]]:
    """Return (v, vb) that waste little of the output channels; one and two vectors besides wider ones that do not."""
    lanes = lanes_for(shape.co, machine)
    found = []
    for v in dict.fromkeys((lanes, max(4, lanes // 2))):
        for vectors in (2, 1, 3, 4):
            waste = round_up(shape.co, vectors * v) / shape.co
            if waste <= 1.15 or (vectors == 1 and v == lanes):
                found.append((v, vectors * v))
    return found[:4]


def _rows(shape: SeparableShape, machine: MachineModel, vectors: int) -> list[tuple[int, int]]:
    """Return (rw, rh) that divide the image and fit the registers, most sums first."""
    room = max(1, (machine.vector_registers - vectors - 1) // vectors)
    found = [(rw, 1) for rw in divisors(shape.ow, room)]
    if shape.ow <= room // 2:
        found += [(shape.ow, rh) for rh in divisors(shape.oh, room // shape.ow) if rh > 1]
    found.sort(key=lambda rows: -rows[0] * rows[1])
    return found[:2]


def _depthwise_blocks(shape: SeparableShape, machine: MachineModel) -> list[tuple[int, int, int]]:
    """Return (dv, db, dr): vectors and channel blocks that divide the channels, with a row of pixels in registers."""
    lanes = min(machine.vector_lanes_f32, shape.c & -shape.c)
    found = []
    for vectors in divisors(shape.c // lanes, 4)[-2:]:
        room = max(1, (machine.vector_registers - 2 * vectors) // vectors)
        found += [(lanes, vectors * lanes, dr) for dr in divisors(shape.ow, min(room, 16))[-2:]]
    return found


TEMPLATE = Separable()
