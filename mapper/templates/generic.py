"""Whatever has no template of its own: every operator inlined where legal, the rest parallel and vectorized as it lies.

Reductions keep their reduction loops inside the parallel ones and vectorize along the innermost spatial axis in memory
order; a reduction with no such axis (one row to one number) is left to one vector-free loop a row. Concatenations,
channel shuffles and transpositions of the axis that is innermost in memory get the loops of `movement.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from mapper.records import Choice, GroupSpec, MachineModel, Prediction
from mapper.templates import movement, moves
from mapper.templates.protocol import Convert, Packing
from mapper.templates.tiles import boundary_traffic, ceil_div, integers, require, roof, round_up

FIELDS = ("v", "grain")


@dataclass(frozen=True, slots=True)
class Generic:
    """The template value; see the module's docstring."""

    name: str = "generic"

    def matches(self, spec: GroupSpec) -> bool:
        """Take everything."""
        return bool(spec.operators)

    def choices(self, spec: GroupSpec, machine: MachineModel, layouts: tuple[str, ...]) -> tuple[Choice, ...]:
        """Offer full and half vectors and none; serial, a task a thread, or four."""
        lanes, threads = machine.vector_lanes_f32, machine.threads
        is_llvms = movement.interleaved(spec) is not None and layouts[-1] == "nhwc"
        widths = (lanes,) if is_llvms else dict.fromkeys((lanes, max(1, lanes // 2), 1))
        grains = dict.fromkeys((threads, 4 * threads, 0))
        tiles = [{"v": v, "grain": grain} for v in widths for grain in grains]
        return tuple(Choice(template=self.name, layouts=layouts, tile=tile) for tile in tiles)

    def check(self, spec: GroupSpec, choice: Choice) -> None:
        """Check the two fields."""
        t = integers(spec, choice, FIELDS)
        require(spec, t["v"] >= 1 and t["v"] & (t["v"] - 1) == 0, f"v = {t['v']} must be a power of two")
        require(
            spec, t["grain"] <= 4096, f"grain = {t['grain']} must be the least number of parallel tasks, 0 for none"
        )

    def cost(self, spec: GroupSpec, choice: Choice, machine: MachineModel) -> Prediction:
        """Predict from compulsory traffic; arithmetic runs at an eighth of FMA peak, transcendentals at a sixtieth."""
        t = integers(spec, choice, FIELDS)
        threads = machine.threads if t["grain"] else 1
        share = threads / machine.threads
        work = 8.0 * (spec.flops - spec.longlat_flops) + 60.0 * spec.longlat_flops
        efficiency = min(1.0, t["v"] / machine.vector_lanes_f32) * share
        traffic = {level: moved / share for level, moved in boundary_traffic(spec, machine).items()}
        return roof(
            machine, executed_flops=work, efficiency=efficiency, traffic_b=traffic, launches=int(t["grain"] > 0)
        )

    def packings(self, spec: GroupSpec, choice: Choice) -> Mapping[str, Packing]:
        """Leave weights as they are."""
        del spec, choice
        return {}

    def converters(self, spec: GroupSpec, choice: Choice) -> Mapping[int, Convert]:
        """Leave every operator to TVM's importer."""
        del spec, choice
        return {}

    def apply(self, sch: Any, spec: GroupSpec, choice: Choice) -> None:
        """Inline what can be inlined; parallelize and vectorize every block that is left."""
        t = integers(spec, choice, FIELDS)
        moves.inline_all(sch, _expensive(sch))
        outputs = {moves.block_name(sch, block) for block in sch.get_output_blocks("root")}
        for block in moves.all_blocks(sch):
            is_output = moves.block_name(sch, block) in outputs
            turned = movement.turned(spec, choice.layouts) if is_output else None
            if turned is None or not movement.turn(sch, block, turned, t["v"], t["grain"]):
                _schedule_block(sch, block, t, movement.along_axis(spec) if is_output else None)


def _expensive(sch: Any) -> frozenset[str]:
    """Name the blocks that a reduction and somebody else read: inlining them would compute them twice."""
    kept = set()
    for block in moves.all_blocks(sch):
        consumers = sch.get_consumers(block)
        if len(consumers) > 1 and any(moves.is_reduction(sch, consumer) for consumer in consumers):
            kept.add(moves.block_name(sch, block))
    return frozenset(kept)


def _schedule_block(sch: Any, block: Any, t: Mapping[str, int], move: movement.Move | None) -> None:
    """Order a block's loops as its output lies in memory, cut parallel tasks, vectorize the innermost axis."""
    statement = sch.get(block)
    loops = sch.get_loops(block)
    if len(loops) != len(statement.iter_vars) or not loops:
        return
    spatial = sorted(moves.physical_order(sch, block), key=lambda loop: moves.extent(sch, loop) > 1)
    reductions = [loop for loop, var in zip(loops, statement.iter_vars, strict=True) if int(var.iter_type) != 0]
    if not spatial:
        return
    *outer, inner = spatial
    is_moved = move is not None and bool(outer) and sch.get(inner).same_as(sch.get(loops[move.axis]))
    if not is_moved:
        outer, inner = _cut_row(sch, outer, inner, t)
    sch.reorder(*outer, *reductions, inner)
    if outer and t["grain"]:
        movement.cut_tasks(sch, outer, t["grain"])
    if is_moved and move is not None:
        move.apply(sch, inner, t["v"])
    else:
        _vectorize(sch, inner, t["v"], str(statement.body), unroll=bool(reductions))
    if reductions:
        sch.decompose_reduction(block, reductions[0])


def _cut_row(sch: Any, outer: list[Any], inner: Any, t: Mapping[str, int]) -> tuple[list[Any], Any]:
    """Cut the innermost loop into pieces where the loops above it are too few for the tasks."""
    if t["grain"] <= prod(moves.extent(sch, loop) for loop in outer):
        return outer, inner
    size = moves.extent(sch, inner)
    chunk = round_up(ceil_div(size, t["grain"]), t["v"])
    if chunk >= size:
        return outer, inner
    piece, inner = sch.split(inner, [None, chunk])
    return [*outer, piece], inner


def _vectorize(sch: Any, inner: Any, lanes: int, body: str, *, unroll: bool) -> None:
    # TVM cannot cut a loop whose body casts to integers into whole vectors and a tail
    while moves.extent(sch, inner) % lanes and 'Cast("int' in body:
        lanes //= 2
    if lanes > 1 and moves.extent(sch, inner) >= lanes:
        moves.vectorize_inner(sch, inner, lanes, unroll=unroll)


TEMPLATE = Generic()
