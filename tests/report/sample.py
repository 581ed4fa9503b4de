"""A synthetic mapping sheet with everything in it that a report has to show, hostile names included."""

from mapper.records import (
    Bottleneck,
    Cache,
    Candidate,
    Choice,
    Device,
    DimBinding,
    Environment,
    Failure,
    GroupCandidates,
    KernelRow,
    LayerType,
    Machine,
    MappingSheet,
    Memory,
    ModelSource,
    NamedPart,
    NodeRef,
    OutputCheck,
    Peak,
    RankedMapping,
    Reading,
    Reconciliation,
    ReferenceRow,
    ScheduleFile,
    SearchSummary,
    TensorSpec,
    TimeReading,
    Verification,
)

NO_RAPL = "no readable RAPL: /sys/class/powercap is empty"
HOSTILE = "</td><script>alert(1)</script>|[red]`x`\x1b[31m\u202eevil"
TILE = {"rows": 6, "cols": 16, "unroll": 4}


def measured(value, unit="1", method="rounds", **more):
    return Reading(value=value, unit=unit, method=method, grade="measured", **more)


def modelled(value, unit="1", method="model", **more):
    return Reading(value=value, unit=unit, method=method, grade="modelled", **more)


def missing(unit, method, reason):
    return Reading(value=None, unit=unit, method=method, reason=reason)


def time_ms(median, spread=0.02, n=12):
    return TimeReading(
        median=median / 1e3, low=median * (1 - spread) / 1e3, high=median * (1 + spread) / 1e3, n=n, method="rounds"
    )


def check(passed=True, error=2.5e-6):
    return OutputCheck(
        tensor="softmaxout_1",
        max_abs_err=error,
        max_rel_err=error * 2,
        tolerance_rel=1e-4,
        tolerance_abs=1e-6,
        passed=passed,
    )


def verification(subject, passed=True, error=2.5e-6):
    return Verification(
        subject=subject,
        reference="onnxruntime 1.31.1 at ORT_DISABLE_ALL",
        checks=(check(passed, error),),
        passed=passed,
        mutants=20,
        mutants_caught=20,
    )


def mapping(rank, plan, layout, kernels, median, **more):
    defaults = {
        "key": f"{plan}-{layout}",
        "label": f"{plan}, {layout}",
        "time_s": time_ms(median),
        "flop_fraction": measured(0.05 / median * 75),
        "executed_fraction": measured(0.05 / median * 75),
        "stall_share": modelled(0.31, threads=2),
        "energy_j": missing("J", "rapl", NO_RAPL),
        "memory": Memory(weights_b=4_953_888, workspace_b=1_605_632, code_b=210_000),
        "verified": verification(f"{plan}-{layout}"),
        "ratio_onnxruntime": measured(median / 7.05, low=median / 7.2, high=median / 6.9, n=12),
    }
    return RankedMapping(rank=rank, fusion_plan=plan, layout=layout, kernel_count=kernels, **{**defaults, **more})


def kernel(index, family, nodes, calls, share, milliseconds, **more):
    name = more.pop("name", f"{family.lower()}_{index}")
    defaults = {
        "layout": "nhwc",
        "tile": TILE,
        "loop_nest": "for oc_outer in parallel(8):\n  for row in range(9):\n    for lane in vectorized(16): ...",
        "template": "conv2d",
        "choice_key": f"{index:016x}",
        "ir_hash": f"{index + 4096:016x}",
        "flops_per_call": 231_211_008,
        "bytes_per_call": 3_500_000,
        "time_isolated_s": time_ms(milliseconds),
        "time_in_situ_s": measured(milliseconds * 1.05e-3, "s", "vm-instrument", n=20),
        "share_of_time": measured(share),
        "flop_fraction": measured(0.72),
        "executed_fraction": measured(0.72),
        "stall_share": modelled(0.12, low=0.1, high=0.15, threads=2),
        "energy_j": missing("J", "rapl", NO_RAPL),
        "predicted_s": milliseconds * 0.9e-3,
        "bottleneck": Bottleneck(
            expected="compute.peak", observed="compute.peak", evidence=("executed fraction 0.72 >= 0.6",)
        ),
        "verified": verification(name),
        "code_b": 4_200,
        "workspace_b": 65_536,
        "searched": "24 candidates measured",
        "next_step": "fewer multiplications (Winograd)",
    }
    return KernelRow(
        key=f"k{index}",
        name=name,
        family=family,
        group_key=f"{index + 256:016x}",
        nodes=tuple(nodes),
        calls=calls,
        **{**defaults, **more},
    )


def kernels():
    plain = {"template": "elementwise", "layout": "row", "tile": {}, "flops_per_call": 0}
    slow = Bottleneck(
        expected="memory.dram_bandwidth",
        observed="memory.cache_bandwidth",
        secondary=("parallel.underfilled",),
        grade="guess",
        evidence=("L2 at 0.7 of its roof", "stall share 0.55 >= 0.3"),
    )
    rows = [
        kernel(0, "Conv", (0, 1), 1, 0.21, 1.41, name="conv_relu_0"),
        kernel(1, "Conv", (3, 4), 1, 0.17, 1.12, bottleneck=slow, stall_share=modelled(0.55, threads=2)),
        kernel(2, "MaxPool", (2,), 2, 0.11, 0.37, template="pool", stall_share=modelled(0.01, low=-0.02, high=0.03)),
        kernel(3, "Softmax", (16,), 1, 0.057, 0.021, name=HOSTILE, **plain, next_step=""),
        kernel(
            4,
            "Transpose",
            (5,),
            3,
            0.02,
            0.0042,
            **plain,
            flop_fraction=missing("1", "rounds", "the kernel does no floating-point work"),
            time_in_situ_s=missing("s", "vm-instrument", "shorter than 50 µs"),
            bottleneck=Bottleneck(expected="overhead.movement", observed="overhead.movement", grade="proven"),
        ),
    ]
    rows += [kernel(i, "Conv", (i + 1, i + 2), 2, 0.06 - i / 1000, 0.2 - i / 100) for i in range(5, 14)]
    return tuple(rows)


def sheet():
    return MappingSheet(
        schema_version="1.0",
        mapper_version="0.1.0",
        model=ModelSource(
            name="squeezenet",
            path="models/light_squeezenet.onnx",
            sha256="ab" * 32,
            opset=9,
            ir_version=3,
            producer="onnx-caffe2",
            inputs=(TensorSpec(name="data_0", shape=(1, 3, 224, 224), dtype="float32"),),
            outputs=(TensorSpec(name="softmaxout_1", shape=(1, 1000, 1, 1), dtype="float32"),),
            bound_dims=(DimBinding(input="data_0", axis=0, name=None, value=1, source="default"),),
        ),
        machine=Machine(id="feedc0de00000001", devices=(device(),), threads=2, threads_because="cores", target="{}"),
        environment=Environment(
            time_utc="2025-01-02T03:04:05Z",
            command="mapper explore squeezenet.onnx",
            seed=0,
            versions={"apache-tvm": "0.27.0.post1", "llvm": "20.1", "onnx": "1.23.2", "onnxruntime": "1.31.1"},
            os="Linux x86_64",
            load_1min=0.12,
            cpu_quota=None,
            virtual_machine=True,
            notes=("clock frequency is not known",),
        ),
        search=SearchSummary(
            strategy="cost-guided",
            budget="120 s",
            trials_measured=412,
            trials_failed=2,
            trials_from_journal=30,
            explore_s=96.4,
            lowering_s=3.2,
            stopped="exhausted",
            objective="latency",
            prediction_error=measured(0.23, n=442, threads=2),
            prediction_rank=measured(0.94, n=442, threads=2),
            not_searched=("transpose_4",),
        ),
        mappings=(
            mapping(1, "epilogue", "nhwc", 14, 6.81),
            mapping(2, "tvm-default", "nhwc", 16, 7.44, stall_share=modelled(0.36, threads=2)),
            mapping(3, "unfused", "nchw", 66, 12.9, stall_share=modelled(0.52, threads=2)),
            mapping(None, "epilogue", "nchw", 14, 6.2, verified=verification("bad", passed=False, error=0.31)),
        ),
        kernels=kernels(),
        layer_types=layer_types(),
        nodes=nodes(),
        candidates=(candidates(),),
        failures=(
            Failure(subject="k1/a1b2", step="timeout", reason="no answer within 10 s"),
            Failure(subject="k2/c3d4", step="crash", reason="the worker died by signal 11\x1b[2J"),
        ),
        reconciliation=Reconciliation(
            kernels_sum_s=6.55e-3,
            end_to_end_s=6.81e-3,
            remainder_s=0.26e-3,
            parts=(
                NamedPart(name="dispatch", time_s=0.15e-3, how="17 kernels x 8.8 µs"),
                NamedPart(name="gaps", time_s=0.11e-3, how="what is left"),
            ),
        ),
        reference=ReferenceRow(
            onnxruntime_version="1.31.1",
            time_s=time_ms(7.05),
            threads=2,
            max_abs_err=2.5e-6,
            max_rel_err=5e-6,
            tolerance="1e-4 of the largest magnitude + 1e-6",
            verification_strength="strong (20 of 20 mutants caught)",
            tensors=("softmaxout_1", "pool10_1"),
            stable=True,
        ),
        warnings=("data_0: the unbound batch dimension was set to 1",),
    )


def device():
    return Device(
        id="d0",
        kind="cpu",
        name="Example CPU 3000",
        cores=2,
        isa=("avx2", "fma"),
        caches=(Cache(level=1, size_b=32768, line_b=64, ways=8, shared_by=1),),
        peaks=(
            Peak(kind="flops", name="float32", threads=1, reading=measured(1.01e11, "FLOP/s", "fma")),
            Peak(kind="flops", name="float32", threads=2, reading=measured(1.99e11, "FLOP/s", "fma", n=9)),
            Peak(kind="bandwidth", name="L2", threads=2, reading=measured(1.4e11, "B/s", "read sweep", n=9)),
            Peak(kind="bandwidth", name="DRAM", threads=2, reading=measured(2.31e10, "B/s", "read sweep", n=9)),
        ),
    )


def layer_types():
    return (
        LayerType(
            op_type="Conv",
            kernels=11,
            flops=1_540_000_000,
            time_s=5.7e-3,
            share_of_time=0.87,
            flop_fraction=measured(0.68),
            stall_share=modelled(0.3, threads=2),
            coverage=1.0,
            fused_into={},
        ),
        LayerType(
            op_type="Relu",
            kernels=0,
            flops=9_100_000,
            time_s=0.0,
            share_of_time=0.0,
            flop_fraction=missing("1", "sum", "no kernel of this type"),
            stall_share=missing("1", "sum", "no kernel of this type"),
            coverage=0.0,
            fused_into={"Conv": 26},
        ),
    )


def nodes():
    rows = [NodeRef(index=0, name="conv1", op_type="Conv", canonical=(0,), kernels=("k0",), outputs=("conv1_1",))]
    rows += [NodeRef(index=i, name="", op_type="Relu", canonical=(i,), kernels=("k0",)) for i in range(1, 16)]
    rows.append(NodeRef(index=16, name=HOSTILE, op_type="Softmax", canonical=(16,), kernels=("k3",)))
    rows.append(NodeRef(index=17, name="shape", op_type="Shape", reason="folded", evidence="all inputs are constant"))
    return tuple(rows)


def candidates():
    choice = Choice(template="conv2d", layouts=("nhwc", "nhwc"), tile=TILE)
    failed = Failure(subject="k0/0002", step="build", reason="too many registers")
    return GroupCandidates(
        group="0000000000000100",
        name="conv_relu_0",
        best=(
            Candidate(
                group="0000000000000100",
                choice=choice,
                choice_key="0001",
                predicted_s=1.2e-3,
                time_s=1.41e-3,
                samples_s=(1.4e-3, 1.41e-3, 1.43e-3),
            ),
            Candidate(
                group="0000000000000100",
                choice=choice,
                choice_key="0002",
                predicted_s=None,
                time_s=None,
                failure=failed,
            ),
        ),
        measured=24,
        failed=1,
        predicted_only=310,
    )


def schedule():
    return ScheduleFile(
        schema_version="1.0",
        model_sha256="ab" * 32,
        fusion_plan="epilogue",
        partition=((0, 1), (2,)),
        layout="nhwc",
        target='{"kind": "llvm"}',
        compiler="tvm 0.27.0.post1",
        choices={"0000000000000100": Choice(template="conv2d", layouts=("nhwc", "nhwc"), tile=TILE)},
    )
