"""Scheduled PrimFuncs to machine code: build, arguments, inspect."""

import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir

from mapper.backends.tvm.lower import KERNEL, Lowered
from mapper.backends.tvm.pipeline import PIPELINE
from mapper.records import Choice, GroupSpec
from mapper.templates import moves

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A built kernel under the global name `symbol`."""

    symbol: str
    spec: GroupSpec
    choice: Choice
    lowered: Lowered
    module: Any  # of the runtime: holds the machine code under `symbol`
    ir_hash: str


def build_kernel(spec: GroupSpec, choice: Choice, lowered: Lowered, symbol: str, target: Any) -> Kernel:
    """Compile a lowered group for `target` and check that its code runs once the memory it needs is there."""
    function = lowered.module[KERNEL]
    ir_hash = f"{tvm_ffi.structural_hash(function.without_attr('global_symbol')) & (2**64 - 1):016x}"
    module = tvm.IRModule({symbol: function.with_attr("global_symbol", symbol)})
    return Kernel(
        symbol=symbol,
        spec=spec,
        choice=choice,
        lowered=lowered,
        module=tvm.compile(module, target=target, tir_pipeline=PIPELINE).mod,
        ir_hash=ir_hash,
    )


def arguments(kernel: Kernel, seed: int) -> list[Any]:
    """Return device tensors of the kernel's argument shapes: seeded normal floats, 0 or 1 for integers and bools."""
    rng = np.random.default_rng(seed)
    free = len(kernel.lowered.shapes) - len(kernel.lowered.constants) - len(kernel.spec.outputs)
    made = []
    for index, (shape, dtype) in enumerate(zip(kernel.lowered.shapes, kernel.lowered.dtypes, strict=True)):
        if free <= index < free + len(kernel.lowered.constants):
            made.append(tvm.runtime.tensor(kernel.lowered.constants[index - free]))
        elif dtype.startswith("float"):
            made.append(tvm.runtime.tensor(rng.standard_normal(shape, "float32").astype(dtype)))
        else:
            made.append(tvm.runtime.tensor(rng.integers(0, 2, shape).astype(dtype)))
    return made


def inspect(kernel: Kernel, folder: Path, stem: str) -> dict[str, Any]:
    """Write a kernel's scheduled TIR and assembly to `folder`; return its sizes and loop nest."""
    tir, assembly = sources(kernel)
    (folder / f"{stem}.tir").write_text(tir, encoding="utf-8")
    (folder / f"{stem}.s").write_text(assembly, encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "kernel.o"
        kernel.module.write_to_file(str(path), "o")
        code_b = code_bytes(path.read_bytes())
    return {"code_b": code_b, "workspace_b": workspace_bytes(kernel), "loop_nest": loop_nest(kernel)}


def code_bytes(elf: bytes) -> int:
    """Sum the sizes of executable sections of a little-endian ELF64 object, 0 for other formats.

    Source: ELF-64 object file format 1.5.
    """
    if elf[:5] != b"\x7fELF\x02":
        return 0
    table, entry, count = struct.unpack_from("<Q", elf, 0x28)[0], *struct.unpack_from("<HH", elf, 0x3A)
    total = 0
    for index in range(count):
        _name, _kind, flags, _address, _offset, size = struct.unpack_from("<IIQQQQ", elf, table + index * entry)
        if flags & 0x4:  # SHF_EXECINSTR
            total += size
    return total


def workspace_bytes(kernel: Kernel) -> int:
    """Return the bytes of scratch buffers inside the kernel, after TVM has compacted them to what is live.

    Scratch inside a parallel loop is counted once, not once a thread.
    """
    passes = tvm.ir.transform.Sequential(
        [
            s_tir.transform.LowerInitBlock(),
            s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
            s_tir.transform.ConvertBlocksToOpaque(),
            s_tir.transform.CompactBufferAllocation(),
        ]
    )
    buffers = _scratch(passes(kernel.lowered.module)[KERNEL].body)
    return sum(_buffer_bytes(buffer) for buffer in buffers)


def _scratch(statement: Any) -> list[Any]:
    """Return the buffers that blocks below a statement allocate. TVM 0.27 has no statement visitor in Python."""
    found, pending = [], [statement]
    while pending:
        node = pending.pop()
        if isinstance(node, s_tir.SBlock):
            found += list(node.alloc_buffers)
        for name in ("body", "block", "init", "then_case", "else_case"):
            child = getattr(node, name, None)
            if child is not None:
                pending.append(child)
        pending += list(getattr(node, "seq", ()))
    return found


def _buffer_bytes(buffer: Any) -> int:
    elements = int(np.prod([int(size) for size in buffer.ty.shape]))
    return elements * np.dtype(str(buffer.ty.dtype)).itemsize


def loop_nest(kernel: Kernel) -> str:
    """Return the loops around the kernel's heaviest block, outermost first: `parallel 28 · 4 · unroll 14 · vec 16`."""
    sch = s_tir.Schedule(kernel.lowered.module)
    sch.work_on(KERNEL)
    heaviest, most = "", 0
    for text, size in (_nest(sch, block) for block in moves.all_blocks(sch)):
        if size > most:
            heaviest, most = text, size
    return heaviest


def _nest(sch: Any, block: Any) -> tuple[str, int]:
    words, size = [], 1
    for loop in sch.get_loops(block):
        statement = sch.get(loop)
        extent = int(statement.extent)
        size *= extent
        kind = {1: "parallel ", 2: "vec ", 3: "unroll "}.get(int(statement.kind), "")
        if extent > 1 or kind.strip() == "parallel":
            words.append(f"{kind}{extent}")
    return " · ".join(words), size


def sources(kernel: Kernel) -> tuple[str, str]:
    """Return (scheduled TIR as TVMScript, assembly)."""
    return kernel.lowered.module.script(), str(kernel.module.inspect_source("asm"))
