"""Attention as one kernel: softmax(q · kᵀ, scaled and masked) · v, with the heads' re-indexing on both sides.

A task takes one head, or some rows of it. It copies its rows of q and the head's k and v into scratch, packed for
vectors, then goes tile by tile: `rm` rows of scores stay in L1 through the softmax until they have met v.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mapper.records import Choice, GroupSpec, MachineModel, Prediction
from mapper.templates import moves, rowstages
from mapper.templates.attentionstages import AttentionShape, attention_shape, first_product, join, second_product
from mapper.templates.protocol import Convert, Packing
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
    roof,
    round_up,
    tail_efficiency,
)

FIELDS = ("v", "vb", "vd", "rm", "tm")
SOFTMAX_WORK = 30.0  # multiply-adds' worth of one score's exponential, sum and maximum
PACK_WORK = 16.0  # of copying one element to another order


@dataclass(frozen=True, slots=True)
class Attention:
    """The template value; see the module's docstring."""

    name: str = "attention"

    def matches(self, spec: GroupSpec) -> bool:
        """Take groups that are one attention and nothing else."""
        return attention_shape(spec) is not None

    def choices(self, spec: GroupSpec, machine: MachineModel, layouts: tuple[str, ...]) -> tuple[Choice, ...]:
        """Enumerate row tiles that divide the rows, with blocks of keys and of outputs that fit the registers."""
        shape = _shape(spec)
        lanes = min(machine.vector_lanes_f32, lanes_for(shape.n, machine))
        found = []
        for rm in divisors(shape.m, 14):
            room = max(1, (machine.vector_registers - 1) // (rm + 1))
            for vb in _blocks(shape.n, lanes, room):
                for vd in _blocks(shape.d, lanes, room):
                    if shape.d % vd and vd < shape.d:
                        continue
                    for tm in divisors(shape.m // rm)[-3:]:
                        tile = {"v": lanes, "vb": vb, "vd": vd, "rm": rm, "tm": tm}
                        found.append(Choice(template=self.name, layouts=layouts, tile=tile))
        return tuple(found)

    def check(self, spec: GroupSpec, choice: Choice) -> None:
        """Check divisibility; see `tiles.require`."""
        shape, t = _shape(spec), integers(spec, choice, FIELDS)
        require_counts(spec, t)
        require_vectors(spec, t)
        require(spec, t["vd"] % t["v"] == 0, f"v = {t['v']} must divide vd = {t['vd']}")
        whole = shape.d % t["vd"] == 0 or t["vd"] >= shape.d
        require(spec, whole, f"vd = {t['vd']} must divide the {shape.d} columns of the result, or hold them all")
        require(spec, t["v"] <= shape.n, f"v = {t['v']} exceeds the {shape.n} keys")
        require(spec, shape.m % t["rm"] == 0, f"rm = {t['rm']} must divide {shape.m} rows")
        tiles = shape.m // t["rm"]
        require(spec, tiles % t["tm"] == 0, f"tm = {t['tm']} must divide {tiles} row tiles")

    def cost(self, spec: GroupSpec, choice: Choice, machine: MachineModel) -> Prediction:
        """Predict from both products' register tiles, the softmax's arithmetic and the packing of k and v."""
        shape, t = _shape(spec), integers(spec, choice, FIELDS)
        keys, width = round_up(shape.n, t["vb"]), round_up(shape.d, t["vd"])
        scores, mixed = (2.0 * shape.heads * shape.m * size for size in (shape.k * keys, shape.n * width))
        tasks = shape.heads * (shape.m // t["rm"] // t["tm"])
        fill = tail_efficiency(tasks, machine.threads)
        efficiency = [fma_efficiency(t["rm"], t[name] // t["v"], t["v"], machine) for name in ("vb", "vd")]
        packed = PACK_WORK * tasks * shape.n * (shape.k + shape.d)
        softmax = SOFTMAX_WORK * shape.heads * shape.m * shape.n
        slowed = scores / efficiency[0] + mixed / efficiency[1] + packed + softmax
        return roof(
            machine,
            executed_flops=scores + mixed,
            efficiency=fill * (scores + mixed) / slowed,
            traffic_b={
                **boundary_traffic(spec, machine),
                "L1": 3.0 * FLOAT32_B * shape.heads * shape.m * shape.n + (scores + mixed) * 2 / t["rm"],
            },
        )

    def packings(self, spec: GroupSpec, choice: Choice) -> Mapping[str, Packing]:
        """Leave weights (a constant mask) as they are."""
        del spec, choice
        return {}

    def converters(self, spec: GroupSpec, choice: Choice) -> Mapping[int, Convert]:
        """Emit both products, the softmax and the joining of heads; the rest goes through TVM's importer."""
        shape = _shape(spec)
        t = {name: int(value) for name, value in choice.tile.items()}
        first, softmax, second = shape.anchors
        lead = len(shape.lead) + 1
        joins = {shape.joined: _emit(1, lambda x: join(x, spec.tensors[spec.outputs[0]].shape))} if shape.joined else {}
        return {
            **joins,
            first: _emit(2, lambda q, k: first_product(shape, t["vb"], q, k)),
            softmax: _emit(1, lambda x: rowstages.softmax(x, lead, t["v"])),
            second: _emit(2, lambda p, v: second_product(shape, t["vd"], p, v)),
        }

    def apply(self, sch: Any, spec: GroupSpec, choice: Choice) -> None:
        """Tile the output's rows, and compute everything that a tile needs where the tile is."""
        shape, t = _shape(spec), integers(spec, choice, FIELDS)
        packs = ["qpack", "kpack", "vpack"]
        stages = ["acc", "row_in", *rowstages.SOFTMAX_STAGES, "softmax_out"]
        moves.inline_all(sch, frozenset({*packs, *stages, "mix"}))
        out = moves.output_block(sch)
        shape.undo_join(sch, out, spec.tensors[spec.outputs[0]].shape)
        *lead, m, d = sch.get_loops(out)
        mo, mi, mr = sch.split(m, [None, t["tm"], t["rm"]])
        db, dv = sch.split(d, [None, t["vd"]])
        sch.reorder(*lead, mo, mi, db, mr, dv)
        task = sch.fuse(*lead, mo)
        sch.parallel(task)
        sch.unroll(mr)
        moves.vectorize_inner(sch, dv, t["v"], unroll=True)
        _place_product(sch, "mix", db, t["v"])
        names = {moves.block_name(sch, block) for block in moves.all_blocks(sch)}
        present = [name for name in stages if name in names]
        for name in reversed(present):
            sch.compute_at(sch.get_sblock(name), mi, preserve_unit_loops=True)
        for name in packs:
            moves.stage_copy(sch, name, task, t["v"])
        for name in present[1:]:
            rowstages.vectorize_stage(sch, sch.get_sblock(name), t["v"])
        _tile_scores(sch, t["v"])


def _shape(spec: GroupSpec) -> AttentionShape:
    shape = attention_shape(spec)
    assert shape is not None, f"{spec.name} is no attention"
    return shape


def _blocks(size: int, lanes: int, most: int) -> list[int]:
    """Return block sizes of whole vectors that waste little, widest first."""
    vectors = ceil_div(size, lanes)
    found = [n for n in range(1, min(vectors, most, 8) + 1) if round_up(vectors, n) <= 1.15 * vectors]
    return [n * lanes for n in reversed(found)]


def _emit(count: int, stages: Callable[..., Any]) -> Convert:
    """Return how to emit an operator as the tensor expression of its first `count` inputs."""

    def convert(builder: Any, inputs: list[Any], _attributes: Mapping[str, Any]) -> Any:
        return builder.emit_te(stages, *inputs[:count])

    return convert


def _place_product(sch: Any, name: str, at: Any, lanes: int) -> None:
    """Compute a product's register tile at the loop that copies it."""
    block = sch.get_sblock(name)
    sch.compute_at(block, at, preserve_unit_loops=True)
    m, _, v, k = sch.get_loops(block)[-4:]
    _keep_tile(sch, block, (k, m, v), lanes)


def _tile_scores(sch: Any, lanes: int) -> None:
    """Accumulate scores block by block of keys, in registers."""
    block = sch.get_sblock("acc")
    m, nb, v, k = sch.get_loops(block)[-4:]
    sch.reorder(nb, k, m, v)
    collected = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(collected, nb, preserve_unit_loops=True)
    loops = sch.get_loops(collected)
    moves.vectorize_inner(sch, loops[-1], lanes, unroll=True)
    sch.unroll(loops[-3])
    _keep_tile(sch, block, (k, m, v), lanes)


def _keep_tile(sch: Any, block: Any, loops: tuple[Any, Any, Any], lanes: int) -> None:
    k, m, v = loops
    vo, vi = sch.split(v, [None, lanes])
    sch.reorder(k, m, vo, vi)
    sch.unroll(m)
    sch.unroll(vo)
    sch.vectorize(vi)
    sch.decompose_reduction(block, k)


TEMPLATE = Attention()
