"""The frozen values that flow between rooms: no I/O and no third-party import.

Every field says its unit in its name and what None means in its comment. Tuples, not lists. The mapping sheet
(`sheet.json`) is the JSON form of `MappingSheet`, field for field; docs/sheet.md explains each one to a reader.
"""

from collections.abc import Mapping as MappingABC
from dataclasses import dataclass, field
from typing import Literal

SCHEMA_VERSION = "1.0"

Grade = Literal["measured", "modelled", "declared"]
Objective = Literal["latency", "energy", "edp"]  # edp: energy × time
Step = Literal["lower", "build", "run", "timeout", "numerics", "crash"]
NodeReason = Literal["folded", "elided"]
BottleneckClass = Literal[
    "compute.peak",
    "compute.inefficient",
    "compute.longlat",
    "memory.dram_bandwidth",
    "memory.cache_bandwidth",
    "memory.latency",
    "memory.amplified",
    "parallel.underfilled",
    "parallel.sync",
    "overhead.launch",
    "overhead.movement",
    "frontend.code",
    "capped",
    "undetermined",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One number together with how it was obtained.

    `value` None means it could not be had, and `reason` then says why. `low` and `high` bound a 95 % interval
    and are None when none was taken; `n` counts the samples behind the value.
    """

    value: float | None
    unit: str
    method: str
    grade: Grade | None = None  # None only when value is None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    reason: str | None = None
    threads: int | None = None  # None when the number does not depend on a thread count


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeReading:
    """A time distribution in seconds: median with a 95 % bootstrap interval.

    `p5` and `p95` are None below 40 samples, and every figure is None when nothing could be timed (`reason`).
    """

    median: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    p5: float | None = None
    p95: float | None = None
    unit: str = "s"
    method: str = "rounds"
    grade: Grade | None = "measured"
    reason: str | None = None


# --- the model -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A static tensor: name, shape in elements, ONNX-style lower-case dtype (`float32`, `int64`, `bool`)."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DimBinding:
    """How one dynamic input dimension became a number."""

    input: str
    axis: int
    name: str | None  # None when the model left the dimension unnamed
    value: int
    source: Literal["--dim", "--shape", "--inputs", "default", "zoo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where a model came from and what it takes and gives, dimensions bound."""

    name: str
    path: str
    sha256: str
    opset: int
    ir_version: int
    producer: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    bound_dims: tuple[DimBinding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRef:
    """One node of the original ONNX file: the kernels that compute it, or a checked reason why none does.

    `folded`: every input is constant. `elided`: its output equals its input. `evidence` says how that was checked.
    `canonical` are the indices of the operators of the canonical graph that stand for it.
    """

    index: int
    name: str
    op_type: str
    domain: str = ""
    outputs: tuple[str, ...] = ()
    canonical: tuple[int, ...] = ()
    kernels: tuple[str, ...] = ()
    reason: NodeReason | None = None
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator of the canonical graph. An absent optional input is the empty string, as in ONNX."""

    index: int
    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: MappingABC[str, object]  # JSON values only; tensors as {"dtype", "shape", "data"}
    flops: int  # useful FLOPs, docs/flops.md
    longlat_flops: int = 0  # how many of them are exp, div, sqrt, erf, …


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorGraph:
    """The canonical graph: topologically sorted operators over named static tensors."""

    operators: tuple[Operator, ...]
    tensors: MappingABC[str, TensorSpec]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: frozenset[str]  # constants that become kernel arguments (may be packed)
    constants: MappingABC[str, object]  # constants baked into kernels: shapes, axes, scalars (JSON values)


# --- groups, plans, choices --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One fusion group: a connected set of canonical operators that becomes one kernel.

    The kernel's arguments are `inputs` (activations), then `weights`, then `outputs`, in that order; equal groups
    (same `key`) list them in corresponding order, so that one kernel serves all of them.
    """

    key: str
    name: str
    family: str  # op type of the operator with most FLOPs: Conv, MatMul, …
    operators: tuple[int, ...]  # indices into OperatorGraph.operators, topological
    anchor: int  # the operator that gives the family
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]
    flops: int
    longlat_flops: int
    bytes_compulsory: int  # inputs + weights + outputs, each once


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """A group on its own, under local names, equal for groups of equal key: all that a template needs to know.

    Tensors are named `in0…`, `w0…`, `t0…`, `out0…`; `operators` are renumbered from 0 in topological order.
    """

    key: str
    name: str
    family: str
    operators: tuple[Operator, ...]
    tensors: MappingABC[str, TensorSpec]
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: MappingABC[str, object]  # baked constants by local name (JSON values)
    anchor: int
    flops: int
    longlat_flops: int
    bytes_compulsory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionPlan:
    """A partition of the canonical operators into groups, in execution order."""

    label: str
    groups: tuple[Group, ...]
    rejected: tuple[str, ...] = ()  # why operators that the planner wanted together stayed apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How one group is implemented: template, physical layout of each activation argument, tile parameters.

    `layouts` follow the kernel's activation arguments (inputs, then outputs): `nhwc`, `nchw` for rank 4, `row` for
    every other rank. `tile` holds the template's parameters by name, integers or short words.
    """

    template: str
    layouts: tuple[str, ...]
    tile: MappingABC[str, int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the analytic cost model expects of one choice, per call, on one machine."""

    time_s: float
    compute_s: float
    memory_s: float
    overhead_s: float
    executed_flops: float
    bytes_by_level: MappingABC[str, float]  # traffic between a level and the one above it, in bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A bad candidate, mapping or reading: kept in the sheet, never fatal."""

    subject: str
    step: Step
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One choice that was considered for a group, and what became of it."""

    group: str
    choice: Choice
    choice_key: str
    predicted_s: float | None  # None when the template has no cost model for it
    time_s: float | None  # isolated median; None when it failed or was not measured
    samples_s: tuple[float, ...] = ()
    failure: Failure | None = None
    source: Literal["measured", "journal"] = "measured"


# --- the machine ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """One cache level as one core sees it; `shared_by` cores share the instance."""

    level: int
    size_b: int
    line_b: int
    ways: int | None  # None when the operating system does not say
    shared_by: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A measured ceiling: `flops` by dtype (FLOP/s) or `bandwidth` by level (B/s), at a thread count."""

    kind: Literal["flops", "bandwidth"]
    name: str  # float32, float64, … or L1, L2, L3, DRAM
    threads: int
    reading: Reading
    theoretical: Reading | None = None  # None when no clock frequency is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What kernels run on."""

    id: str
    kind: Literal["cpu", "cuda"]
    name: str
    cores: int  # usable physical cores
    isa: tuple[str, ...]
    caches: tuple[Cache, ...]
    peaks: tuple[Peak, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine a sheet is about. `id` hashes what identifies it; load and versions are `Environment`."""

    id: str
    devices: tuple[Device, ...]
    threads: int
    threads_because: str  # which limit set the thread count: affinity, cgroup quota, cores, --threads
    target: str  # TVM target as JSON text


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What can differ between two runs on one machine: recorded and compared, never hashed into its id."""

    time_utc: str
    command: str
    seed: int
    versions: MappingABC[str, str]
    os: str
    load_1min: float | None
    cpu_quota: float | None  # cores, None when unlimited
    virtual_machine: bool | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineModel:
    """What a cost model needs to know of a machine. `_1` is one thread, `_n` all `threads` together."""

    vector_bits: int
    vector_lanes_f32: int
    vector_registers: int
    has_fma: bool
    cores: int
    threads: int
    flops_per_s_1: float  # float32
    flops_per_s_n: float
    bandwidth_b_per_s_1: MappingABC[str, float]  # by level, L1 first, DRAM last
    bandwidth_b_per_s_n: MappingABC[str, float]
    cache_b: MappingABC[str, int]  # one instance of each level, L1 first
    cache_shared_by: MappingABC[str, int]  # how many cores share that instance
    line_b: int
    launch_serial_s: float = 0.17e-6  # a call without a parallel loop. Source: measured on a 2-core VM, as the next
    launch_parallel_s: float = 1.5e-6
    assumed: tuple[str, ...] = ()  # figures that are assumptions, for want of a measured peak

    def launch_overhead_s(self, is_parallel: bool) -> float:
        """Return the fixed time of one kernel call."""
        return self.launch_parallel_s if is_parallel else self.launch_serial_s


# --- measuring and judging -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Every sample of one subject in one process, in seconds per call."""

    subject: str
    samples_s: tuple[float, ...]
    rounds: int
    threads: int
    process: int  # which fresh process pair
    cache_state: Literal["warm", "flushed"] = "warm"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputCheck:
    """One compared tensor: errors against the reference and the tolerance that was applied."""

    tensor: str
    max_abs_err: float | None  # None when a value is not comparable (NaN against a number, wrong shape)
    max_rel_err: float | None  # relative to the reference tensor's largest magnitude
    tolerance_rel: float
    tolerance_abs: float
    passed: bool
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Agreement of a subject with the reference, and how strong the check itself is."""

    subject: str
    reference: str
    checks: tuple[OutputCheck, ...]
    passed: bool
    mutants: int = 0
    mutants_caught: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The class expected before measuring and the class observed after, with evidence."""

    expected: BottleneckClass
    observed: BottleneckClass
    secondary: tuple[BottleneckClass, ...] = ()
    grade: Literal["proven", "consistent", "guess"] = "consistent"
    evidence: tuple[str, ...] = ()


# --- the sheet -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes that a mapping holds."""

    weights_b: int
    workspace_b: int
    code_b: int | None  # None: looked up for the best mapping only, as each kernel costs a code generation


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedMapping:
    """One whole-model mapping, ranked by freshly measured time. `rank` None: not verified, hence not ranked."""

    rank: int | None
    key: str
    label: str
    fusion_plan: str
    layout: str
    kernel_count: int
    time_s: TimeReading
    flop_fraction: Reading
    executed_fraction: Reading
    stall_share: Reading
    energy_j: Reading
    memory: Memory
    verified: Verification
    ratio_onnxruntime: Reading  # ours ÷ onnxruntime; under 1 is better
    is_pareto: bool = False  # no other is as good in time, memory and (where metered) energy, and better in one


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """One distinct kernel of the best mapping."""

    key: str
    name: str
    family: str
    group_key: str
    nodes: tuple[int, ...]  # original ONNX node indices, over all calls
    calls: int
    layout: str
    tile: MappingABC[str, int | str]
    loop_nest: str
    template: str
    choice_key: str
    ir_hash: str
    flops_per_call: int
    bytes_per_call: int
    time_isolated_s: TimeReading
    time_in_situ_s: Reading
    share_of_time: Reading
    flop_fraction: Reading
    executed_fraction: Reading
    stall_share: Reading
    energy_j: Reading
    predicted_s: float | None
    bottleneck: Bottleneck
    verified: Verification
    code_b: int
    workspace_b: int
    searched: str  # how much was tried, or why nothing was
    next_step: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerType:
    """Sums over the kernels of one operator type: percent of model FLOPs sustained, stall fraction."""

    op_type: str
    kernels: int
    flops: int
    time_s: float
    share_of_time: float
    flop_fraction: Reading
    stall_share: Reading
    coverage: float  # share of the type's time that has a stall reading
    fused_into: MappingABC[str, int]  # operators of this type that live in kernels of another type


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCandidates:
    """The best candidates of one kernel; the rest only counted."""

    group: str
    name: str
    best: tuple[Candidate, ...]
    measured: int
    failed: int
    predicted_only: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPart:
    """One named part of the reconciliation, in seconds per inference."""

    name: str
    time_s: float
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """Sum of the kernels against the end-to-end time, in seconds per inference."""

    kernels_sum_s: float | None  # None when the model was not timed
    end_to_end_s: float | None
    remainder_s: float | None
    parts: tuple[NamedPart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRow:
    """onnxruntime beside us: speed at ORT_ENABLE_ALL, numerics at ORT_DISABLE_ALL."""

    onnxruntime_version: str
    time_s: TimeReading
    threads: int
    max_abs_err: float | None
    max_rel_err: float | None
    tolerance: str
    verification_strength: str
    tensors: tuple[str, ...] = ()
    stable: bool | None = None  # does onnxruntime agree with itself, optimised and not; None when not checked


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSummary:
    """What the search did: budget, trials, where it stopped."""

    strategy: str
    budget: str
    trials_measured: int
    trials_failed: int
    trials_from_journal: int
    explore_s: float
    lowering_s: float
    stopped: str  # budget; exhausted: nothing left worth a trial; known: an earlier run searched the same
    objective: Objective
    prediction_error: Reading  # mean absolute error of the predictions made before measuring, relative to the times
    prediction_rank: Reading  # Spearman's rank correlation of the same pairs
    not_searched: tuple[str, ...] = ()  # kernels that kept their constructed schedule unmeasured against others


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingSheet:
    """Everything one exploration saw, versioned."""

    schema_version: str
    mapper_version: str
    model: ModelSource
    machine: Machine
    environment: Environment
    search: SearchSummary
    mappings: tuple[RankedMapping, ...]
    kernels: tuple[KernelRow, ...]
    layer_types: tuple[LayerType, ...]
    nodes: tuple[NodeRef, ...]
    candidates: tuple[GroupCandidates, ...]
    failures: tuple[Failure, ...]
    reconciliation: Reconciliation
    reference: ReferenceRow
    warnings: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFile:
    """A replayable set of choices: what `--schedules FILE` reads and `explore` writes."""

    schema_version: str
    model_sha256: str
    fusion_plan: str
    partition: tuple[tuple[int, ...], ...]  # canonical operator indices, a tuple a group
    layout: str
    target: str
    compiler: str
    choices: MappingABC[str, Choice]  # by group key and boundary layouts: `KEY:nhwc,nhwc`


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorLine:
    """One thing that `mapper doctor` looked for: what was found and, when it is not there, what would bring it."""

    name: str
    status: Literal["ok", "missing", "off"]  # off: present, but switched off or not permitted
    detail: str
    remedy: str = ""  # empty when nothing is to be done
