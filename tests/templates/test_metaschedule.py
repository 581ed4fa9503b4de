"""What the template reads in a trace before TVM does."""

import json

import pytest
from small_groups import AVX2, conv, matmul

from mapper.errors import BadInputError
from mapper.records import Choice
from mapper.templates.metaschedule import TEMPLATE, UNSCHEDULED, trace_choice

ONE = matmul((4, 8), (8, 16))
# As TVM 0.27 writes it: the loops of a matrix product split, bound to threads and vectorized.
INSTRUCTIONS = [
    ["GetSBlock", [], ["matmul", "kernel"], ["b0"]],
    ["Annotate", ["b0", '"SSRSRS"'], ["meta_schedule.tiling_structure"], []],
    ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
    ["SamplePerfectTile", ["l2"], [2, 64], ["v4", "v5"]],
    ["Split", ["l2", "v4", "v5"], [True, False], ["l6", "l7"]],
    ["Reorder", ["l6", "l3", "l7"], [], []],
    ["CacheWrite", ["b0"], [0, "global"], ["b8"]],
    ["SampleCategorical", [], [[0, 16], [0.5, 0.5]], ["v9"]],
    ["EnterPostproc", [], [], []],
    ["Parallel", ["l1"], [], []],
    ["Vectorize", ["l7"], [], []],
    ["Annotate", ["l1", 16], ["pragma_auto_unroll_max_step"], []],
]
DECISIONS = [[3, [2, 8]], [7, 1]]


def check(text):
    TEMPLATE.check(ONE.spec, trace_choice(ONE.layouts(), text))


def check_with(*instructions):
    check(json.dumps([[*INSTRUCTIONS, *instructions], DECISIONS]))


def test_a_trace_as_tvm_writes_it_is_taken():
    check_with()
    check(UNSCHEDULED)


@pytest.mark.parametrize("text", ["", "no", "{}", "[]", "[[]]", "[[],[],[]]", "[[],{}]", '["GetLoops",[]]', "[" * 5000])
def test_what_is_no_pair_of_lists_is_refused(text):
    with pytest.raises(BadInputError, match="a JSON list of instructions and one of decisions"):
        check(text)


@pytest.mark.parametrize(
    "instruction", ["Fuse", [], ["Fuse"], ["Fuse", [], []], [1, [], [], []], ["Fuse", "l1", [], []], None]
)
def test_what_is_no_instruction_is_refused(instruction):
    with pytest.raises(BadInputError, match="instruction 12 of the trace is not a kind, inputs, attributes"):
        check_with(instruction)


@pytest.mark.parametrize("kind", ["Tensorize", "TransformLayout", "UnsafeSetDType", "SetScope", "Blockize", "fuse", ""])
def test_other_instructions_are_refused(kind):
    with pytest.raises(BadInputError, match=f"instruction 12 of the trace is {kind}, which is none that"):
        check_with([kind, [], [], []])


@pytest.mark.parametrize("key", ["pragma_import_llvm", "pragma_import_c", "pragma_debug_skip_region", "", None, ["x"]])
def test_annotations_that_would_be_compiled_are_refused(key):
    with pytest.raises(BadInputError, match="annotates with a key that MetaSchedule does not use"):
        check_with(["Annotate", ["l1", '"define void @f() { ret void }"'], [key], []])


def test_a_split_without_bounds_checks_is_refused():
    with pytest.raises(BadInputError, match="splits without bounds checks"):
        check_with(["Split", ["l2", 3, 3], [True, True], ["l10", "l11"]])


def test_other_memory_is_refused():
    with pytest.raises(BadInputError, match="caches in a scope other than global"):
        check_with(["CacheWrite", ["b0"], [0, "shared"], ["b20"]])


def test_long_traces_are_refused():
    with pytest.raises(BadInputError, match="a trace of 5000 entries is too long, 4096 is most"):
        check(json.dumps([[["EnterPostproc", [], [], []]] * 5000, []]))
    with pytest.raises(BadInputError, match="a trace of 300005 bytes is too long, 262144 is most"):
        check("[[],[" + " " * 299_998 + "]]")


@pytest.mark.parametrize("tile", [{}, {"trace": 5}, {"trace": UNSCHEDULED, "v": 8}, {"v": 8}])
def test_a_tile_is_one_trace(tile):
    with pytest.raises(BadInputError, match="expected exactly one field, trace"):
        TEMPLATE.check(ONE.spec, Choice(template="metaschedule", layouts=ONE.layouts(), tile=tile))


def test_every_group_matches_and_starts_unscheduled():
    for one in (ONE, conv((1, 3, 8, 8), 4, (3, 3))):
        assert TEMPLATE.matches(one.spec)
        (only,) = TEMPLATE.choices(one.spec, AVX2, one.layouts())
        assert (only.template, only.layouts, only.tile["trace"]) == ("metaschedule", one.layouts(), "[[],[]]")
        assert TEMPLATE.packings(one.spec, only) == TEMPLATE.converters(one.spec, only) == {}


def test_the_prediction_is_what_no_kernel_goes_below():
    # 2·4·8·16 FLOPs at 200 GFLOP/s are 5.12 ns; 4·(4·8 + 8·16 + 4·16) bytes from L1 at 200 GB/s are 4.48 ns
    found = TEMPLATE.cost(ONE.spec, trace_choice(ONE.layouts(), UNSCHEDULED), AVX2)
    assert found.compute_s == pytest.approx(5.12e-9)
    assert found.memory_s == pytest.approx(4.48e-9)
