"""What to try next for each bottleneck class, as one sentence."""

from collections.abc import Mapping

from mapper.records import Bottleneck, BottleneckClass

_REMEDIES: Mapping[BottleneckClass, str] = {
    "compute.peak": "{kernel} runs near the arithmetic peak; only fewer FLOPs (Winograd for 3×3 convolutions) or a "
    "lower precision make it faster",
    "compute.inefficient": "{kernel} waits on its own instructions; try a tile with more accumulators or a vector axis "
    "that fills whole registers (now {tile})",
    "compute.longlat": "{kernel} is held up by exp, div, sqrt or erf; approximate them, or fuse them into a kernel "
    "that waits for memory",
    "memory.dram_bandwidth": "{kernel} fills the memory bus; fuse it with its producer or consumer so that the "
    "intermediate tensor never leaves the caches",
    "memory.cache_bandwidth": "{kernel} is limited by cache transfers; a larger register tile or a smaller L1 tile "
    "reuses more per load (now {tile})",
    "memory.latency": "{kernel} waits for single misses; make its innermost axis contiguous (layout now {layout}) or "
    "run more independent rows at once",
    "memory.amplified": "{kernel} moves more bytes than it needs; change the layout (now {layout}) or pack the strided "
    "operand",
    "parallel.underfilled": "{kernel} has too few tasks for the threads; use smaller tiles (now {tile}), or split the "
    "reduction",
    "parallel.sync": "{kernel} loses time between its threads; hand out larger, equal chunks",
    "overhead.launch": "{kernel} is so short that starting it costs as much; fuse it with a neighbour",
    "overhead.movement": "{kernel} only moves data; choose layouts so that the transform disappears, or fold it into a "
    "neighbour",
    "frontend.code": "{kernel} outgrows the instruction cache; unroll less (now {tile})",
    "capped": "the machine was throttled or busy while {kernel} was timed; measure again when it is idle",
    "undetermined": "the evidence on {kernel} does not decide; {evidence}",
}


def next_step(bottleneck: Bottleneck, words: Mapping[str, str] | None = None) -> str:
    """Return one sentence on what to try next.

    Args:
        bottleneck: The kernel's class.
        words: What the sentence may name: `kernel`, `tile`, `layout`, as text. Missing ones read neutrally.
    """
    neutral = {"kernel": "this kernel", "tile": "the tile in the sheet", "layout": "as in the sheet"}
    evidence = bottleneck.evidence[0] if bottleneck.evidence else "take a stall reading"
    sentence = _REMEDIES[bottleneck.observed].format_map({**neutral, **(words or {}), "evidence": evidence})
    return f"{sentence[0].upper()}{sentence[1:]}."
