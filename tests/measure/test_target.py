import dataclasses
import json

from mapper.measure.device import describe_cpu
from mapper.measure.target import tvm_target
from mapper.records import Device

LEVEL_4 = " avx512f avx512bw avx512cd avx512dq avx512vl"


def target_of(flags, threads=2):
    device = Device(id="cpu0", kind="cpu", name="x", cores=2, isa=tuple(flags), caches=())
    return json.loads(tvm_target(device, threads))


def test_zen3_is_level_3(vm):
    target = json.loads(tvm_target(describe_cpu(vm.root), 2))
    assert (target["kind"], target["mcpu"], target["num-cores"]) == ("llvm", "x86-64-v3", 2)
    assert {"+avx2", "+fma", "+f16c"} <= set(target["mattr"])
    assert not any("512" in feature for feature in target["mattr"])


def test_avx512_with_vnni_is_level_4_and_names_vnni(vm):
    cpu = describe_cpu(vm.root)
    target = target_of([*cpu.isa, *LEVEL_4.split(), "avx512_vnni", "amx_tile"])
    assert target["mcpu"] == "x86-64-v4"
    assert {"+avx512f", "+avx512vnni", "+amx-tile"} <= set(target["mattr"])


def test_a_host_name_that_promises_avx512_is_not_trusted(vm):
    cpu = dataclasses.replace(describe_cpu(vm.root), name="Intel(R) Xeon(R) Platinum 8480C (Sapphire Rapids)")
    assert json.loads(tvm_target(cpu, 2))["mcpu"] == "x86-64-v3"


def test_one_masked_flag_lowers_the_level_and_keeps_the_rest(vm):
    cpu = describe_cpu(vm.root)
    target = target_of([flag for flag in cpu.isa if flag != "bmi2"])
    assert target["mcpu"] == "x86-64-v2"
    assert {"+avx2", "+fma"} <= set(target["mattr"])


def test_no_flags_mean_the_baseline():
    assert target_of([], 4) == {"kind": "llvm", "mcpu": "x86-64", "mattr": [], "num-cores": 4}


def test_arm_gets_features_but_not_sve():
    target = target_of(["asimd", "asimddp", "sve"])
    assert (target["mcpu"], target["mattr"]) == ("generic", ["+neon", "+dotprod"])
