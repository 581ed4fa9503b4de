"""Probe kernels for the machine's own ceilings: register-resident multiply-add, and reading a working set."""

from typing import Any

import numpy as np
import tvm
from tvm.script import tirx

FMA_STEPS = 20_000
VECTOR_B = 64  # one cache line, and the widest vector of the machines at hand

_FMA = """
@T.prim_func(s_tir=True)
def probe(scale: T.Buffer(({lanes},), "{dtype}"), data: T.Buffer(({tasks}, {accumulators}, {lanes}), "{dtype}")):
    T.func_attr({{"global_symbol": "probe", "tirx.noalias": True}})
    for task in T.parallel({tasks}):
        with T.sblock("task"):
            t = T.axis.spatial({tasks}, task)
            acc = T.sblock_alloc_buffer(({accumulators}, {lanes}), "{dtype}")
            factor = T.sblock_alloc_buffer(({lanes},), "{dtype}")
            for v in T.vectorized({lanes}):
                factor[v] = scale[v]
            for u in T.unroll({accumulators}):
                for v in T.vectorized({lanes}):
                    acc[u, v] = data[t, u, v]
            for step in range({steps}):
                for u in T.unroll({accumulators}):
                    for v in T.vectorized({lanes}):
                        acc[u, v] = acc[u, v] * factor[v] + factor[v]
            for u in T.unroll({accumulators}):
                for v in T.vectorized({lanes}):
                    data[t, u, v] = acc[u, v]
"""

_READ = """
@T.prim_func(s_tir=True)
def probe(data: T.Buffer(({tasks}, {blocks}, 8, 16), "float32"), out: T.Buffer(({tasks}, 8, 16), "float32")):
    T.func_attr({{"global_symbol": "probe", "tirx.noalias": True}})
    for task in T.parallel({tasks}):
        with T.sblock("task"):
            t = T.axis.spatial({tasks}, task)
            acc = T.sblock_alloc_buffer((8, 16), "float32")
            for u in T.unroll(8):
                for v in T.vectorized(16):
                    acc[u, v] = T.float32(0)
            for repetition in range({repetitions}):
                for block in range({blocks}):
                    for u in T.unroll(8):
                        for v in T.vectorized(16):
                            acc[u, v] = acc[u, v] + data[t, block, u, v]
            for u in T.unroll(8):
                for v in T.vectorized(16):
                    out[t, u, v] = acc[u, v]
"""


def fma_samples(target: Any, dtype: str, tasks: int, repeats: int) -> tuple[float, list[float]]:
    """Return (FLOPs of one run, seconds of each run) of independent multiply-add chains held in registers.

    Twenty accumulators hide the latency of four cycles on two ports with room to spare, and still leave registers
    free where there are 32; where there are 16, ten do.
    """
    work, module, tensors = fma_module(target, tasks, FMA_STEPS, dtype)
    kernel = tvm.compile(module, target=target)
    results = kernel.mod.time_evaluator("probe", tvm.cpu(), number=2, repeat=repeats)(*tensors).results
    return work, [float(result) for result in results]


def fma_module(target: Any, tasks: int, steps: int, dtype: str = "float32") -> tuple[float, Any, list[Any]]:
    """Return (FLOPs of one call, module with the function `probe`, its arguments): `steps` rounds a task."""
    features = str(target)
    lanes = (64 if "avx512" in features else 32) // np.dtype(dtype).itemsize
    accumulators = 20 if "avx512" in features else 10
    text = _FMA.format(dtype=dtype, lanes=lanes, tasks=tasks, accumulators=accumulators, steps=steps)
    tensors = [np.full(lanes, 0.5, dtype), np.ones((tasks, accumulators, lanes), dtype)]
    work = 2.0 * lanes * accumulators * steps * tasks
    return work, _module(text), [tvm.runtime.tensor(value) for value in tensors]


def read_samples(target: Any, size_b: int, tasks: int, repeats: int) -> tuple[float, list[float]]:
    """Return (bytes of one run, seconds of each run) of summing `size_b` bytes in each of `tasks` threads.

    Small sets are read over and over inside one run, so that at least 64 MB pass and the clock resolves it.
    """
    blocks = max(1, size_b // (8 * VECTOR_B))
    bytes_once = blocks * 8 * VECTOR_B
    repetitions = max(1, (64 << 20) // bytes_once)
    text = _READ.format(tasks=tasks, blocks=blocks, repetitions=repetitions)
    kernel = tvm.compile(_module(text), target=target)
    data = tvm.runtime.tensor(np.ones((tasks, blocks, 8, 16), "float32"))
    out = tvm.runtime.tensor(np.zeros((tasks, 8, 16), "float32"))
    results = kernel.mod.time_evaluator("probe", tvm.cpu(), number=1, repeat=repeats)(data, out).results
    return float(bytes_once * repetitions * tasks), [float(result) for result in results]


def _module(text: str) -> Any:
    return tvm.IRModule({"probe": tvm.script.from_source(text, extra_vars={"T": tirx})})
