"""The compiler target of a CPU: what code may be generated for it."""

import json

from mapper.records import Device

# The levels of the x86-64 psABI, by Linux flag names. Source: x86-64 psABI 1.0, table 3.1.
_V2 = {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}
_V3 = _V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_LEVELS = (("x86-64-v4", _V4), ("x86-64-v3", _V3), ("x86-64-v2", _V2))

# Linux flag names to LLVM feature names, where a feature decides which instructions are chosen.
_X86_FEATURES = {
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512cd": "avx512cd",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx_vnni": "avxvnni",
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "amx_tile": "amx-tile",
    "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16",
}
_ARM_FEATURES = {
    "neon": "neon",
    "asimd": "neon",
    "asimdhp": "fullfp16",
    "asimddp": "dotprod",
    "i8mm": "i8mm",
    "bf16": "bf16",
}


def tvm_target(device: Device, threads: int) -> str:
    """Return the JSON text of the TVM target for `device`.

    The processor is named by the x86-64 level that its flags complete, and further features one by one, all from
    flags the operating system shows. A brand or code name is never trusted: a hypervisor may hide instruction sets
    that the name promises, and code for them dies. Without any flags the target is the architecture's baseline.
    SVE is left out: its vectors have no fixed length.
    """
    has = set(device.isa)
    is_arm = bool(has & {"neon", "asimd"})
    features = _ARM_FEATURES if is_arm else _X86_FEATURES
    level = next((name for name, needed in _LEVELS if needed <= has), "x86-64")
    mattr = list(dict.fromkeys(f"+{features[flag]}" for flag in device.isa if flag in features))
    target = {"kind": "llvm", "mcpu": "generic" if is_arm else level, "mattr": mattr, "num-cores": threads}
    return json.dumps(target, sort_keys=True)
