"""Arithmetic that tile spaces share: divisors, rounding up, checked integer parameters, port and roof models."""

from collections.abc import Mapping, Sequence

from mapper.errors import BadInputError
from mapper.records import Choice, GroupSpec, MachineModel, Operator, Prediction

FLOAT32_B = 4


def ceil_div(value: int, unit: int) -> int:
    """Return `value / unit`, rounded up."""
    return -(-value // unit)


def round_up(value: int, unit: int) -> int:
    """Return the smallest multiple of `unit` that is at least `value`."""
    return ceil_div(value, unit) * unit


def divisors(value: int, most: int | None = None) -> list[int]:
    """Return the divisors of `value`, ascending, none above `most`."""
    return [d for d in range(1, min(value, most or value) + 1) if value % d == 0]


def sole_operator(spec: GroupSpec, op_types: frozenset[str]) -> Operator | None:
    """Return the group's only operator of these types; None when there is none or more than one."""
    found = [operator for operator in spec.operators if operator.op_type in op_types]
    return found[0] if len(found) == 1 else None


def anchor_of(spec: GroupSpec, op_types: frozenset[str]) -> Operator:
    """Return the operator that a template is about, of a group that the template matches."""
    found = sole_operator(spec, op_types)
    assert found is not None, f"{spec.name} has no single {'/'.join(sorted(op_types))}"
    return found


def keeps_shape(spec: GroupSpec, anchor: Operator) -> bool:
    """Say whether the group has one output, of the shape of the anchor's own.

    A template that stores tile by tile cannot place an epilogue that broadcasts a tile over something larger.
    """
    return len(spec.outputs) == 1 and spec.tensors[spec.outputs[0]].shape == spec.tensors[anchor.outputs[0]].shape


def integers(spec: GroupSpec, choice: Choice, fields: Sequence[str]) -> dict[str, int]:
    """Return the tile as integers.

    Raises:
        BadInputError: a field is missing, unknown, no integer or below 1.
    """
    unknown = sorted(set(choice.tile) - set(fields))
    missing = sorted(set(fields) - set(choice.tile))
    if unknown or missing:
        found = f"unknown {', '.join(unknown)}" if unknown else f"missing {', '.join(missing)}"
        raise BadInputError(
            f"tile of {spec.name} (template {choice.template}): {found}; expected exactly {', '.join(fields)}"
        )
    values = {}
    for name in fields:
        value = choice.tile[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise BadInputError(f"tile of {spec.name}: {name} = {value!r}; expected a whole number, 0 or more")
        values[name] = value
    return values


def require(spec: GroupSpec, condition: bool, rule: str) -> None:
    """Raise BadInputError naming the group and the rule that its tile breaks."""
    if not condition:
        raise BadInputError(f"illegal tile for {spec.name}: {rule}")


def require_vectors(spec: GroupSpec, t: Mapping[str, int]) -> None:
    """Raise BadInputError unless vectors of `v` lanes, a power of two, fill a channel block of `vb`."""
    require(spec, t["vb"] % t["v"] == 0, f"v = {t['v']} must divide vb = {t['vb']}")
    require(spec, t["v"] & (t["v"] - 1) == 0, f"v = {t['v']} must be a power of two")


def require_counts(spec: GroupSpec, t: Mapping[str, int]) -> None:
    """Raise BadInputError unless every field of the tile but `stage` counts something."""
    counts = all(value >= 1 for name, value in t.items() if name != "stage")
    require(spec, counts, "every field but stage must be 1 or more")


def lanes_for(channels: int, machine: MachineModel) -> int:
    """Return the float32 lanes of a vector, halved as long as half of them still hold all channels."""
    lanes = machine.vector_lanes_f32
    while lanes > 1 and lanes // 2 >= channels:
        lanes //= 2
    return lanes


def fma_efficiency(rows: int, vectors: int, lanes: int, machine: MachineModel) -> float:
    """Return the share of FMA peak that a `rows` × `vectors` register tile can sustain out of L1.

    Per step of the reduction the tile issues rows·vectors FMAs on two ports and loads `vectors` weight vectors and
    `rows` broadcast scalars on two load ports; at least eight accumulators hide the latency of four cycles on two
    ports; a tile that does not fit the register file spills.
    Source: port counts of current x86 cores (Intel and AMD optimisation manuals).
    """
    fmas = rows * vectors
    cycles = max(fmas / 2, (rows + vectors) / 2, 4.0 * min(1.0, fmas / 8) if fmas < 8 else 0.0)
    efficiency = (fmas / 2) / max(cycles, 1e-9) * min(1.0, lanes / machine.vector_lanes_f32)
    if fmas + vectors + 1 > machine.vector_registers:
        efficiency *= 0.35
    return 0.92 * efficiency


def tail_efficiency(tasks: int, threads: int) -> float:
    """Return the share of the threads' time that `tasks` equal tasks fill."""
    return tasks / (threads * ceil_div(tasks, threads)) if tasks else 1.0


def roof(
    machine: MachineModel,
    *,
    executed_flops: float,
    efficiency: float,
    traffic_b: Mapping[str, float],
    launches: int = 1,
) -> Prediction:
    """Predict a time: the larger of computing and moving, plus a third of the smaller (imperfect overlap)."""
    compute_s = executed_flops / (machine.flops_per_s_n * max(efficiency, 1e-3))
    memory_s = max((traffic_b[level] / machine.bandwidth_b_per_s_n[level] for level in traffic_b), default=0.0)
    overhead_s = launches * machine.launch_parallel_s
    time_s = max(compute_s, memory_s) + min(compute_s, memory_s) / 3 + overhead_s
    return Prediction(
        time_s=time_s,
        compute_s=compute_s,
        memory_s=memory_s,
        overhead_s=overhead_s,
        executed_flops=executed_flops,
        bytes_by_level=dict(traffic_b),
    )


def boundary_traffic(spec: GroupSpec, machine: MachineModel) -> dict[str, float]:
    """Return the compulsory bytes, charged to the level that holds them between two runs of the kernel."""
    return {resident_level(spec.bytes_compulsory, machine): float(spec.bytes_compulsory)}


def resident_level(size_b: float, machine: MachineModel) -> str:
    """Return the level in which `size_b` bytes live, with half of each cache usable."""
    if size_b <= machine.cache_b["L1"] * machine.threads / 2:
        return "L1"
    if size_b <= machine.cache_b["L2"] * machine.threads / 2:
        return "L2"
    return "L3" if size_b <= machine.cache_b.get("L3", 0) / 2 else "DRAM"
