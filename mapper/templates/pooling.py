"""Pooling: every window written out over vectors of channels, whole images summed in registers; NaN stays NaN.

A window that leaves the image reads the nearest pixel inside instead; a sum then takes 0 for it, so that no load is
guarded. A pool over the whole image is one sum a channel, or `parts` of them that rows share.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from mapper.records import Choice, GroupSpec, MachineModel, Prediction
from mapper.templates import moves, poolstages
from mapper.templates.poolshape import PoolShape, pool_operator, pool_shape
from mapper.templates.protocol import Convert, Packing
from mapper.templates.tiles import (
    FLOAT32_B,
    boundary_traffic,
    divisors,
    integers,
    keeps_shape,
    lanes_for,
    require,
    roof,
    tail_efficiency,
)

FIELDS = ("v", "vb", "parts", "grain")
WORK = 5.0  # multiply-adds' worth of loading and combining one element of a window
MOST_PARTS = 16


@dataclass(frozen=True, slots=True)
class Pooling:
    """The template value; see the module's docstring."""

    name: str = "pooling"

    def matches(self, spec: GroupSpec) -> bool:
        """Take float32 pools of images that the group reads as they come in."""
        pool = pool_operator(spec)
        if pool is None or not keeps_shape(spec, pool) or pool.inputs[0] not in spec.inputs:
            return False
        return pool_shape(spec) is not None

    def choices(self, spec: GroupSpec, machine: MachineModel, layouts: tuple[str, ...]) -> tuple[Choice, ...]:
        """Offer channel blocks that divide the channels, parts of a whole image, and few or many tasks.

        None where channels are not innermost in memory: `generic` is as good there.
        """
        shape, pool = _shape(spec), pool_operator(spec)
        if pool is None or layouts[spec.inputs.index(pool.inputs[0])] != "nhwc":
            return ()
        parts = divisors(shape.ih, MOST_PARTS)[-2:] if shape.is_global else []
        found = []
        for (v, vb), part in product(_blocks(shape, machine), dict.fromkeys((1, *parts))):
            units = _units(shape, vb, part)
            for grain in dict.fromkeys((0, *(min(units, n * machine.threads) for n in (1, 4, 12)))):
                tile = {"v": v, "vb": vb, "parts": part, "grain": grain}
                found.append(Choice(template=self.name, layouts=layouts, tile=tile))
        return tuple(found)

    def check(self, spec: GroupSpec, choice: Choice) -> None:
        """Check divisibility; see `tiles.require`."""
        shape, t = _shape(spec), integers(spec, choice, FIELDS)
        require(spec, t["v"] >= 1 and t["v"] & (t["v"] - 1) == 0, f"v = {t['v']} must be a power of two")
        whole = t["vb"] == shape.c or (t["vb"] >= 1 and shape.c % t["vb"] == 0 and t["vb"] % t["v"] == 0)
        require(spec, whole, f"vb = {t['vb']} must be whole vectors that divide the {shape.c} channels, or all of them")
        require(
            spec, t["parts"] >= 1 and shape.ih % t["parts"] == 0, f"parts = {t['parts']} must divide {shape.ih} rows"
        )
        require(spec, t["parts"] == 1 or shape.is_global, f"parts = {t['parts']} needs a pool over the whole image")
        units = _units(shape, t["vb"], t["parts"])
        require(spec, t["grain"] <= units, f"grain = {t['grain']} tasks, 0 for none, exceed the {units} pieces of work")

    def cost(self, spec: GroupSpec, choice: Choice, machine: MachineModel) -> Prediction:
        """Predict from traffic, and from a load and a few instructions for each element of a window."""
        shape, t = _shape(spec), integers(spec, choice, FIELDS)
        share = tail_efficiency(t["grain"], machine.threads) if t["grain"] else 1.0 / machine.threads
        elements = float(shape.n * shape.c * shape.oh * shape.ow * shape.kh * shape.kw)
        efficiency = share * min(1.0, t["v"] / machine.vector_lanes_f32)
        if shape.is_global:
            efficiency *= min(1.0, max(1, t["vb"] // t["v"]) / 4)  # sums in flight hide each other's latency
        traffic = {level: moved / share for level, moved in boundary_traffic(spec, machine).items()}
        traffic["L1"] = traffic.get("L1", 0.0) + FLOAT32_B * elements / share
        executed = WORK * elements
        launches = 0 if not t["grain"] else 1
        return roof(machine, executed_flops=executed, efficiency=efficiency, traffic_b=traffic, launches=launches)

    def packings(self, spec: GroupSpec, choice: Choice) -> Mapping[str, Packing]:
        """Leave weights as they are."""
        del spec, choice
        return {}

    def converters(self, spec: GroupSpec, choice: Choice) -> Mapping[int, Convert]:
        """Emit the pool as one expression a window, or as one sum a channel."""
        pool, shape, parts = pool_operator(spec), _shape(spec), int(choice.tile["parts"])
        assert pool is not None
        wanted = spec.tensors[pool.outputs[0]].shape

        def convert(builder: Any, inputs: list[Any], _attributes: Mapping[str, Any]) -> Any:
            if shape.is_global:
                return builder.emit_te(lambda x: poolstages.whole(shape, parts, wanted, x), inputs[0])
            return builder.emit_te(lambda x: poolstages.windows(shape, x), inputs[0])

        return {pool.index: convert}

    def apply(self, sch: Any, spec: GroupSpec, choice: Choice) -> None:
        """Cut the output into tasks of rows and channel blocks, and vectorize along channels."""
        shape, t = _shape(spec), integers(spec, choice, FIELDS)
        moves.inline_all(sch, frozenset({"pool"}))
        if shape.is_global:
            _apply_whole(sch, t)
        else:
            _apply_windows(sch, t)


def _shape(spec: GroupSpec) -> PoolShape:
    shape = pool_shape(spec)
    assert shape is not None, f"{spec.name} is no pool"
    return shape


def _blocks(shape: PoolShape, machine: MachineModel) -> list[tuple[int, int]]:
    """Return (v, vb): all channels a task, or a few vectors of them; also vectors that leave no tail."""
    lanes = exact = lanes_for(shape.c, machine)
    while shape.c % exact:
        exact //= 2
    widths = [lanes, exact] if exact >= 4 else [lanes]
    found = [(v, shape.c) for v in widths]
    for v in widths:
        counts = [count for count in divisors(shape.c // v, 8) if shape.c % v == 0 and count * v < shape.c]
        found += [(v, count * v) for count in counts[-2:]]
    return list(dict.fromkeys(found))


def _units(shape: PoolShape, vb: int, parts: int) -> int:
    return shape.n * (parts if shape.is_global else shape.oh) * (shape.c // vb)


def _cut_tasks(sch: Any, loops: list[Any], grain: int) -> Any:
    """Fuse loops and run `grain` pieces of them in parallel, 0 for none; return the loop of one unit of work."""
    unit = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    if not grain:
        return unit
    task, unit = sch.split(unit, [grain, None])
    sch.parallel(task)
    return unit


def _apply_windows(sch: Any, t: Mapping[str, int]) -> None:
    out = moves.output_block(sch)
    n, c, h, w = sch.get_loops(out)
    cb, ci = sch.split(c, [None, t["vb"]])
    sch.reorder(n, h, cb, w, ci)
    _cut_tasks(sch, [n, h, cb], t["grain"])
    pool = sch.get_sblock("pool")
    if moves.block_name(sch, out) != "pool":
        sch.compute_at(pool, w, preserve_unit_loops=True)
        moves.vectorize_inner(sch, sch.get_loops(pool)[-3], t["v"], unroll=False)
    moves.vectorize_inner(sch, ci, t["v"], unroll=False)


def _apply_whole(sch: Any, t: Mapping[str, int]) -> None:
    acc, out, pool = sch.get_sblock("acc"), moves.output_block(sch), sch.get_sblock("pool")
    n, c, *rest = sch.get_loops(out)
    cb, ci = sch.split(c, [None, t["vb"]])
    sch.reorder(n, cb, *rest, ci)
    is_pool_inside = moves.block_name(sch, out) != "pool"
    if t["parts"] == 1:
        unit = _cut_tasks(sch, [n, cb], t["grain"])
        if is_pool_inside:
            sch.compute_at(pool, unit, preserve_unit_loops=True)
            moves.vectorize_inner(sch, sch.get_loops(pool)[-1 - len(rest)], t["v"], unroll=True)
        sch.compute_at(acc, unit, preserve_unit_loops=True)
        _, _, k, r, w = sch.get_loops(acc)[-5:]
        sch.reorder(r, w, k)
    else:
        if is_pool_inside:
            sch.compute_inline(pool)
        p, m, k, r, w = sch.get_loops(acc)
        kb, k = sch.split(k, [None, t["vb"]])
        sch.reorder(p, m, kb, r, w, k)
        _cut_tasks(sch, [p, m, kb], t["grain"])
    moves.vectorize_inner(sch, k, t["v"], unroll=True)
    moves.vectorize_inner(sch, ci, t["v"], unroll=True)
    sch.decompose_reduction(acc, r)


TEMPLATE = Pooling()
