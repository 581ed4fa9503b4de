"""Kernels of the attention template compute what ONNX says."""

import numpy as np
import pytest
from attention_groups import attention, bare
from small_groups import AVX512, NEON, matmul

from mapper import templates

CASES = {
    "three heads": attention(24, 32, 3, 16),
    "odd everywhere": attention(7, 21, 2, 5),
    "one query": attention(1, 50, 4, 8),
    "two sequences": attention(8, 40, 2, 16, batch=2),
    "two sequences, rows in one axis": attention(8, 40, 2, 16, batch=2, flat=True),
    "values wider than keys": attention(6, 33, 2, 16, values=24),
    "masked": attention(8, 40, 2, 16, batch=2, mask=(2, 1, 1, 40)),
    "causal": attention(18, 18, 2, 8, mask=(18, 18)),
    "queries scaled": attention(6, 20, 2, 8, scale_q=True),
    "heads apart": attention(6, 20, 2, 8, joined=False),
    "of rank 3": bare(4, rows=12, keys=20, width=16),
    "of rank 4": bare(2, 3, rows=5, keys=17, width=8),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_attention(kernels, few, name):
    one = CASES[name]
    assert templates.template_for(one.spec).name == "attention"
    assert kernels.wrong(one, few(one, count=2, policy="nchw")) == []


@pytest.mark.parametrize("machine", [AVX512, NEON], ids=["16 lanes", "4 lanes"])
@pytest.mark.parametrize("name", ["odd everywhere", "values wider than keys"])
def test_tiles_of_other_machines_give_the_same_values(kernels, few, name, machine):
    one = CASES[name]
    assert kernels.wrong(one, few(one, count=2, machine=machine, policy="nchw")) == []


@pytest.mark.parametrize("name", ["odd everywhere", "masked"])
def test_any_legal_schedule_keeps_the_values(kernels, few, name):
    one = CASES[name]
    assert kernels.wrong(one, few(one, count=8, policy="nchw")) == []


@pytest.mark.parametrize("name", ["heads apart", "of rank 4", "masked"])
def test_tensors_of_rank_4_may_lie_channels_last(kernels, few, name):
    one = CASES[name]
    assert kernels.wrong(one, few(one, count=1, policy="nhwc")) == []


def test_masked_keys_weigh_nothing_and_large_scores_do_not_overflow(kernels, few):
    one = CASES["causal"]
    values = one.values()
    name = next(name for name in one.spec.inputs if one.spec.tensors[name].shape == (18, 18))
    values[name] = np.where(np.tri(18, dtype=bool), np.float32(0), np.float32(-np.inf))
    values["in0"] = values["in0"] * np.float32(100)
    assert kernels.wrong(one, few(one, count=2, policy="nchw"), values) == []


def test_two_products_in_a_row_are_no_attention():
    assert templates.template_for(matmul((4, 8), (8, 16)).spec).name == "matmul"
