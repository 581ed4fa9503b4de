"""Schedule moves that the families share. Each takes a `tvm.s_tir.Schedule` and works on names, not on loop counts."""

from typing import Any


def output_block(sch: Any) -> Any:
    """Return the block that writes the kernel's (single) output."""
    blocks = sch.get_output_blocks("root")
    if len(blocks) != 1:
        raise ValueError(f"expected one output block, found {len(blocks)}")
    return blocks[0]


def block_name(sch: Any, block: Any) -> str:
    """Return a block's name hint."""
    return str(sch.get(block).name_hint)


def all_blocks(sch: Any) -> list[Any]:
    """Return every block below the root, producers first."""
    return list(sch.get_child_blocks(sch.get_sblock("root")))


def is_reduction(sch: Any, block: Any) -> bool:
    """Say whether any of the block's iterators reduces."""
    return any(int(var.iter_type) != 0 for var in sch.get(block).iter_vars)


def extent(sch: Any, loop: Any) -> int:
    """Return a loop's constant extent."""
    return int(sch.get(loop).extent)


def inline_all(sch: Any, keep: frozenset[str]) -> None:
    """Inline every element-wise block that is neither kept by name nor an output.

    A block that TVM cannot inline stays where it is; the caller schedules or refuses it.
    """
    outputs = {block_name(sch, block) for block in sch.get_output_blocks("root")}
    for block in all_blocks(sch):
        name = block_name(sch, block)
        if name in outputs or name in keep or is_reduction(sch, block):
            continue
        try:
            sch.compute_inline(block)
        except Exception as error:
            if "ScheduleError" not in type(error).__name__ and "ScheduleError" not in str(error):
                raise


def vectorize_inner(sch: Any, loop: Any, lanes: int, *, unroll: bool) -> None:
    """Vectorize `loop` by `lanes`; unroll what is left on request.

    A longer loop that `lanes` does not divide is cut into whole vectors and a tail (TVM's loop partitioning); a
    shorter one takes the widest power of two that divides it.
    """
    size = extent(sch, loop)
    width = lanes
    while size < lanes and width > 1 and size % width:
        width //= 2
    if width == 1:
        if unroll and size <= 16:
            sch.unroll(loop)
        return
    outer, inner = sch.split(loop, [None, width])
    sch.vectorize(inner)
    if size % width:
        sch.annotate(outer, "pragma_loop_partition_hint", 1)
    elif unroll and size // width <= 8:
        sch.unroll(outer)


def physical_order(sch: Any, block: Any) -> list[Any]:
    """Return the block's spatial loops ordered as the dimensions of the buffer that it writes lie in memory."""
    statement = sch.get(block)
    loops = sch.get_loops(block)
    position = {
        var.var.name: loop for var, loop in zip(statement.iter_vars, loops[-len(statement.iter_vars) :], strict=True)
    }
    ordered = []
    for dimension in statement.writes[0].region:
        name = str(getattr(dimension.min, "name", ""))
        if name in position:
            ordered.append(position.pop(name))
    return [*_unnamed(statement, position), *ordered]


def _unnamed(statement: Any, position: dict[str, Any]) -> list[Any]:
    """Return the spatial loops that the write region does not name directly, in block order."""
    return [position[v.var.name] for v in statement.iter_vars if v.var.name in position and int(v.iter_type) == 0]


def store_tile(sch: Any, out: Any, layout: str, lanes: int, rank: int) -> None:
    """Write a tile back in the order of the output's layout, vectorized along its innermost axis.

    `out` is logically (n, c, spatial…) and already sits below the tile loops.
    """
    loops = sch.get_loops(out)[-rank:]
    channel, spatial = loops[1], loops[2:]
    if layout == "nhwc":
        sch.reorder(*spatial, channel)
        for loop in spatial:
            sch.unroll(loop)
        vectorize_inner(sch, channel, lanes, unroll=True)
    else:
        vectorize_inner(sch, spatial[-1], lanes, unroll=False)


def stage_copy(sch: Any, block: str, task: Any, lanes: int) -> None:
    """Place a staged copy: inside each task, or (`task` None) as a parallel nest of its own before all tasks."""
    copy = sch.get_sblock(block)
    rank = len(sch.get(copy).iter_vars)
    if task is not None:
        sch.compute_at(copy, task, preserve_unit_loops=True)
        loops = sch.get_loops(copy)[-rank:]
    else:
        loops = sch.get_loops(copy)
        sch.parallel(sch.fuse(loops[0], loops[1]))
    vectorize_inner(sch, loops[-1], lanes, unroll=False)


def task_from_output(sch: Any, acc: Any, rows: int, layout: str, lanes: tuple[int, int]) -> Any:
    """Cut the output (n, c, h, w) into tasks of `rows` rows, and compute the accumulators that a task needs in it.

    For outputs whose channels do not map one to one on lanes: tiles are collected in a scratch and dealt out at the
    end of the task. `lanes` is (vector width, channels that lie side by side in the scratch). Returns the task loop.
    """
    out = output_block(sch)
    n, c, h, w = sch.get_loops(out)
    ho, hi = sch.split(h, [None, rows])
    cut, inner = sch.split(c, [None, lanes[1]])
    sch.reorder(*((n, ho, hi, w, cut, inner) if layout == "nhwc" else (n, ho, cut, inner, hi, w)))
    task = sch.fuse(n, ho)
    sch.parallel(task)
    sch.compute_at(acc, task, preserve_unit_loops=True)
    vectorize_inner(sch, inner if layout == "nhwc" else w, lanes[0], unroll=False)
    return task


def keep_in_registers(sch: Any, acc: Any, tile: Any, lanes: int) -> None:
    """Accumulate in registers, and copy each finished tile to the scratch at the loop `tile`."""
    collected = sch.cache_write(acc, 0, "local")
    sch.reverse_compute_at(collected, tile, preserve_unit_loops=True)
    loops = sch.get_loops(collected)
    vectorize_inner(sch, loops[-1], lanes, unroll=True)
    for loop in loops[-3:-1]:
        if extent(sch, loop) <= 32:
            sch.unroll(loop)
