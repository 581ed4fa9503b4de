"""From scheduled TensorIR to host code: TVM's passes for a CPU, and parallel loops whose tasks the threads claim.

TVM cuts a parallel loop into one fixed share a thread, so that a loop takes as long as its slowest thread: a core that
a neighbour disturbs, or a smaller one, holds up all others. Here the threads take task after task from a counter, and
a thread that is slowed down takes fewer. Loops of no more tasks than threads stay as TVM has them.
"""

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.tirx.compilation_pipeline import register_tir_pipeline

PIPELINE = "mapper"
_COUNTER_ELEMENTS = 8  # a cache line of its own: the threads write to it
_CLAIM = "mapper_claim_task"
# TensorIR has no atomic operations on a CPU; LLVM has. Monotonic is enough: only the number matters, and the end of
# the parallel region synchronizes what the tasks wrote.
_CLAIM_LLVM = f"""
define i64 @{_CLAIM}(ptr %counter) alwaysinline {{
  %task = atomicrmw add ptr %counter, i64 1 monotonic
  ret i64 %task
}}
"""


def register(threads: int) -> None:
    """Register the pipeline under the name `PIPELINE`, for loops that `threads` threads run."""

    def factory() -> tuple[Any, Any, Any]:
        return _passes(threads), s_tir.pipeline.finalize_host_passes, s_tir.pipeline.finalize_device_passes

    register_tir_pipeline(PIPELINE, factory)


def _passes(threads: int) -> Any:
    """Return TVM's default passes less those for GPUs, in their order, with task claiming after the loop passes."""
    before = [
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.AnnotateIrregularLoop(),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
        tirx.transform.BF16ComputeLegalize(),
        tirx.transform.NarrowDataType(32),
        s_tir.transform.LoopPartition(),
        tirx.transform.VectorizeLoop(True),
        tirx.transform.StorageRewrite(),
        s_tir.transform.HoistIfThenElse(),
        tirx.transform.UnrollLoop(),
        s_tir.transform.RenormalizeSplitPattern(),
        tirx.transform.StmtSimplify(),
        tirx.transform.RemoveNoOp(),
        s_tir.transform.RewriteUnsafeSelect(),
    ]
    after = [
        tirx.transform.CommonSubexprElim(),
        tirx.transform.FP8ComputeLegalize(),
        tirx.transform.VerifyMemory(),
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
        tirx.transform.FP8StorageLegalize(),
        tirx.transform.BF16StorageLegalize(),
    ]

    def claim_all(function: Any, _module: Any, _context: Any) -> Any:
        return claim_tasks(function, threads)

    claim = tvm.tirx.transform.prim_func_pass(claim_all, opt_level=0)
    return tvm.ir.transform.Sequential([*before, claim, *after])


def claim_tasks(function: Any, threads: int) -> Any:
    """Return a lowered function whose parallel loops of more than `threads` tasks hand them out one by one."""
    body, count = _claimed(function.body, threads, 0)
    if count == 0:
        return function
    code = tvm.ir.StringImm(_CLAIM_LLVM)
    return function.with_body(tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", code, body))


def _claimed(statement: Any, threads: int, count: int) -> tuple[Any, int]:
    """Rewrite the outermost parallel loops of a statement; return it and how many were rewritten so far."""
    if isinstance(statement, tirx.SeqStmt):
        parts = []
        for part in statement.seq:
            rewritten, count = _claimed(part, threads, count)
            parts.append(rewritten)
        return tirx.SeqStmt(parts), count
    if isinstance(statement, tirx.AttrStmt):
        body, count = _claimed(statement.body, threads, count)
        return tirx.AttrStmt(statement.node, statement.attr_key, statement.value, body), count
    if not isinstance(statement, tirx.For):
        return statement, count
    if int(statement.kind) == int(tirx.ForKind.PARALLEL):
        is_short = int(statement.extent) <= threads
        return (statement, count) if is_short else (_claiming(statement, threads, count), count + 1)
    body, count = _claimed(statement.body, threads, count)
    loop = tirx.For(
        statement.loop_var, statement.min, statement.extent, statement.kind, body, None, statement.annotations
    )
    return loop, count


def _claiming(loop: Any, threads: int, number: int) -> Any:
    """Return `for thread: while (task = counter++) < tasks: body(task)` in place of `for task: body(task)`."""
    dtype = str(loop.loop_var.ty.dtype)
    counter = tirx.decl_buffer((_COUNTER_ELEMENTS,), "int64", name=f"claimed{number}")
    mine = tirx.decl_buffer((1,), "int64", name=f"mine{number}")
    claim = tirx.BufferStore(mine, tirx.call_extern("int64", _CLAIM, tirx.address_of(counter)), [0])
    task = tirx.BufferLoad(mine, [0])
    begin = tirx.Var("task", loop.loop_var.ty)
    # a loop of one iteration, because scratch that the body allocates has to be freed where it ends
    once = tirx.For(loop.loop_var, begin, tirx.const(1, dtype), tirx.ForKind.SERIAL, loop.body)
    step = tirx.SeqStmt([tirx.Bind(begin, loop.min + task.astype(dtype)), once, claim])
    run = tirx.SeqStmt([tirx.AllocBuffer(mine), claim, tirx.While(task < loop.extent.astype("int64"), step)])
    zero, all_threads = tirx.const(0, "int32"), tirx.const(threads, "int32")
    region = tirx.For(tirx.Var("thread", "int32"), zero, all_threads, tirx.ForKind.PARALLEL, run)
    reset = tirx.BufferStore(counter, tirx.const(0, "int64"), [0])
    return tirx.SeqStmt([tirx.AllocBuffer(counter), reset, region])
