"""Which tiles of a direct convolution are worth considering: channel blocks, register rows, task grains."""

from itertools import product

from mapper.records import GroupSpec, MachineModel
from mapper.templates.convshape import (
    CONV,
    STAGE_NONE,
    STAGE_ROOT,
    STAGE_TASK,
    ConvShape,
    channel_blocks,
    is_aligned,
    is_exact,
    is_unpadded,
)
from mapper.templates.tiles import anchor_of, ceil_div, divisors, lanes_for, round_up


def block_choices(shape: ConvShape, machine: MachineModel) -> list[tuple[int, int]]:
    """Return (v, vb): register vectors and channel blocks that suit the output channels of one group."""
    channels = shape.co_group
    lanes = lanes_for(channels, machine)
    found = []
    if shape.rank == 3 and shape.groups > 1:
        return [(_dividing(lanes, vb), vb) for vb in divisors(channels, 8 * lanes)[-3:]]
    for vectors in (1, 2, 3, 4, 6):
        vb = vectors * lanes
        if vb <= round_up(channels, lanes) and (round_up(channels, vb) <= 1.15 * channels or vectors == 1):
            found.append((lanes, vb))
    if round_up(channels, lanes) == round_up(channels, 2 * lanes):
        found.append((lanes, 2 * lanes))
    half = lanes // 2
    if half >= 4 and round_up(channels, lanes) > 1.15 * channels >= round_up(channels, half):
        found.append((half, half * min(4, ceil_div(channels, half))))
    return list(dict.fromkeys(found))


def _dividing(lanes: int, size: int) -> int:
    """Return the widest power of two up to `lanes` that divides `size`."""
    while size % lanes:
        lanes //= 2
    return lanes


def _register_rows(shape: ConvShape, registers: int, vectors: int) -> list[tuple[int, int]]:
    """Return (rw, rh) that fit the register file beside the weights and waste little of the image.

    A tile is one row of pixels, unless the whole row is so short that several fit.
    """
    room = max(1, (registers - vectors - 1) // vectors)
    found = []
    for rw in range(1, min(shape.ow, room) + 1):
        for rh in range(1, min(shape.oh, room // rw, 8 if rw > 1 else room) + 1):
            if rh > 1 and rw < shape.ow and (rh > 2 or shape.ow > 16):
                continue
            waste = _padded(shape, (rw, rh)) / (shape.ow * shape.oh)
            if waste <= 1.2 and (rw * rh * vectors >= 6 or rw * rh == min(shape.ow * shape.oh, room)):
                found.append((rw, rh))
    found.sort(key=lambda rows: (-rows[0] * rows[1] * (shape.ow * shape.oh) / _padded(shape, rows), rows[1]))
    return found[:6] or [(1, 1)]


def row_choices(shape: ConvShape, registers: int, v: int, vb: int) -> list[tuple[int, int]]:
    """Return the register rows for a channel block; where groups end inside a vector they must divide the image."""
    rows = _register_rows(shape, registers, vb // v)
    if is_aligned(shape, vb):
        return rows
    room = max(1, (registers - vb // v - 1) // (vb // v))
    exact = [pair for pair in rows if is_exact(shape, {"rw": pair[0], "rh": pair[1]})]
    return exact or [(divisors(shape.ow, room)[-1], 1)]


def _padded(shape: ConvShape, rows: tuple[int, int]) -> int:
    return round_up(shape.ow, rows[0]) * round_up(shape.oh, rows[1])


def grain_choices(
    shape: ConvShape, spec: GroupSpec, rw: int, rh: int, vb: int, machine: MachineModel
) -> list[tuple[int, int, int]]:
    """Return (stage, th, tc): task heights and channel shares that leave every thread something to do."""
    row_tiles = ceil_div(shape.oh, rh)
    blocks = channel_blocks(shape, vb)
    exact = is_exact(shape, {"rw": rw, "rh": rh})
    has_prologue = anchor_of(spec, CONV).inputs[0] not in spec.inputs
    grains = []
    heights = [th for th in divisors(row_tiles) if th * rh <= 32]
    if not is_aligned(shape, vb):
        return [(STAGE_TASK, th, blocks) for th in heights[:5]] if exact and shape.rank == 4 else []
    for th in heights[:5]:
        tasks = shape.n * row_tiles // th
        if not (exact and is_unpadded(shape) and not has_prologue and shape.is_pointwise) or tasks >= machine.threads:
            grains.append((STAGE_TASK, th, blocks))
    shares = [tc for tc in divisors(blocks) if blocks // tc <= 16]
    stages = [STAGE_ROOT]
    if exact and is_unpadded(shape) and not has_prologue:
        stages.append(STAGE_NONE)
    for stage, th, tc in product(stages, sorted({1, heights[-1], row_tiles}), shares[:3]):
        if row_tiles // th * (blocks // tc) >= min(machine.threads, row_tiles * blocks):
            grains.append((stage, th, tc))
    return grains
