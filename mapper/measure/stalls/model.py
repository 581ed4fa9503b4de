"""The stall method `model`: predicted memory time beyond the first-level cache against predicted compute time."""

from collections.abc import Mapping

from mapper.records import Reading


def stall_share_model(compute_s: float, memory_s_by_level: Mapping[str, float], threads: int | None = None) -> Reading:
    """Predict the share of a kernel's time in which it waits for memory beyond the first-level cache.

        t_core   = max(compute, traffic between registers and L1)
        t_memory = the slowest of L2, L3, …, DRAM: predicted bytes ÷ measured bandwidth
        share    = 1 − t_core / max(t_core, t_memory)

    It predicts what the intervention `l1_fold` measures, 1 − t_folded / t_real: with all operands in L1 the kernel
    would take t_core, really it takes the longer of the two, since prefetching overlaps them. The slowest level and
    not the sum of the levels, because a measured bandwidth of an outer level already contains the way through the
    inner ones. Overlap is never perfect, so the share is a lower estimate: latency and half-hidden transfers are
    *not* seen, and a kernel bound by arithmetic reads 0.

    Args:
        compute_s: Predicted time of the arithmetic alone.
        memory_s_by_level: Predicted time of the traffic at each level, by name; `L1` is counted as core time.
        threads: The thread count of both; part of the reading.

    Raises:
        ValueError: A time below 0.

    Source: Williams, Waterman and Patterson, Roofline, CACM 52(4), 2009, for the overlap assumption.
    """
    if compute_s < 0 or min(memory_s_by_level.values(), default=0.0) < 0:
        raise ValueError(f"expected times of 0 or more, found compute {compute_s} and {dict(memory_s_by_level)}")
    core_s = max(compute_s, memory_s_by_level.get("L1", 0.0))
    memory_s = max((time_s for level, time_s in memory_s_by_level.items() if level != "L1"), default=0.0)
    longest_s = max(core_s, memory_s)
    if longest_s == 0:
        return Reading(
            value=None, unit="1", method="model", threads=threads, reason="the model predicts neither work nor traffic"
        )
    return Reading(value=1.0 - core_s / longest_s, unit="1", method="model", grade="modelled", threads=threads)
