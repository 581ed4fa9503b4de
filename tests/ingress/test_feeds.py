import numpy as np
import pytest
from ingress_models import FLOAT, INT64, load, model_of, relu, tensor, weight
from onnx import TensorProto, helper

from mapper.errors import BadInputError
from mapper.ingress.feeds import load_feeds, make_feeds, read_npz


def test_floats_are_seeded_and_every_shift_shows(tmp_path):
    loaded = load(tmp_path, relu([1, 3, 8, 8]))
    first, again, other = (make_feeds(loaded, seed)["x"] for seed in (1, 1, 2))
    assert first.dtype == np.float32
    assert first.shape == (1, 3, 8, 8)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1
    for moved in (np.roll(first, 1, 2), np.roll(first, 1, 1), first.swapaxes(2, 3)):
        assert np.abs(first - moved).max() > 0.5


def test_ramp_is_added_to_normal_values(tmp_path):
    values = make_feeds(load(tmp_path, relu([2, 50000])), 0)["x"].reshape(-1)
    # the ramp runs from -0.25 to 0.25: mean -0.125 over the first half, 0.125 over the second; noise 1 / sqrt(50000)
    assert values[:50000].mean() == pytest.approx(-0.125, abs=0.02)
    assert values[50000:].mean() == pytest.approx(0.125, abs=0.02)
    assert values.std() == pytest.approx(1.01, abs=0.02)


def gather_model(through):
    nodes = [*through, helper.make_node("Gather", ["table", "i"], ["y"], axis=0)]
    return model_of(
        nodes, [tensor("x", [200], INT64)], [tensor("y", None)], [weight("table", np.zeros((5, 2), np.float32))]
    )


@pytest.mark.parametrize(
    "through",
    [
        [helper.make_node("Identity", ["x"], ["i"])],
        [helper.make_node("Cast", ["x"], ["c"], to=TensorProto.INT32), helper.make_node("Flatten", ["c"], ["i"])],
    ],
)
def test_indices_fill_the_gathered_axis_and_stay_inside(tmp_path, through):
    values = make_feeds(load(tmp_path, gather_model(through)), 0)["x"]
    assert values.dtype == np.int64
    assert sorted(set(values.tolist())) == [0, 1, 2, 3, 4]


def test_bytes_with_a_padding_token_end_in_padding(tmp_path):
    nodes = [
        helper.make_node("Unsqueeze", ["x", "last"], ["u"]),
        helper.make_node("Equal", ["u", "vocabulary"], ["e"]),
        helper.make_node("Cast", ["e"], ["y"], to=FLOAT),
    ]
    weights = [weight("last", np.array([2], np.int64)), weight("vocabulary", np.arange(257, dtype=np.int32))]
    model = model_of(nodes, [tensor("x", [1, 2048], TensorProto.INT32)], [tensor("y", None)], weights)
    values = make_feeds(load(tmp_path, model), 0)["x"]
    assert values.dtype == np.int32
    assert (values[0, 1792:] == 256).all()
    assert values[0, :1792].max() == 255
    assert values[0, :1792].min() == 0


def test_integers_without_a_known_use(tmp_path):
    names = ("sr", "attention_mask", "count")
    nodes = [helper.make_node("Neg", [name], [f"y_{name}"]) for name in names]
    inputs = [tensor(name, [] if name == "sr" else [64], INT64) for name in names]
    feeds = make_feeds(load(tmp_path, model_of(nodes, inputs, [tensor(f"y_{n}", None, INT64) for n in names])), 0)
    assert feeds["sr"].shape == ()
    assert feeds["sr"] == 16000
    assert (feeds["attention_mask"] == 1).all()
    assert set(feeds["count"].tolist()) <= set(range(8))
    assert len(set(feeds["count"].tolist())) > 4


def test_booleans_are_both(tmp_path):
    nodes = [helper.make_node("Not", ["x"], ["y"])]
    model = model_of(nodes, [tensor("x", [64], TensorProto.BOOL)], [tensor("y", None, TensorProto.BOOL)])
    values = make_feeds(load(tmp_path, model), 0)["x"]
    assert values.dtype == np.bool_
    assert 0 < values.sum() < 64


def test_own_inputs_are_taken_as_they_are(tmp_path):
    path = tmp_path / "in.npz"
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(path, x=np.asfortranarray(array))
    feeds = load_feeds(path, load(tmp_path, relu([2, 3])))
    np.testing.assert_array_equal(feeds["x"], array)
    assert feeds["x"].flags.c_contiguous


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"z": np.zeros((2, 3), np.float32)}, r"missing \['x'\], unknown \['z'\]"),
        ({"x": np.zeros((3, 2), np.float32)}, r"expected shape \[2, 3\], found \[3, 2\]"),
        ({"x": np.zeros((2, 3), np.float64)}, "expected dtype float32, found float64"),
    ],
)
def test_own_inputs_that_do_not_fit_are_refused(tmp_path, arrays, says):
    path = tmp_path / "in.npz"
    np.savez(path, **arrays)
    with pytest.raises(BadInputError, match=says):
        load_feeds(path, load(tmp_path, relu([2, 3])))


def test_files_that_are_no_npz_are_refused(tmp_path):
    with pytest.raises(BadInputError, match=r"cannot be read as \.npz"):
        read_npz(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(BadInputError, match=r"cannot be read as \.npz"):
        read_npz(tmp_path / "text.npz")
    np.save(tmp_path / "one.npy", np.zeros(2))
    with pytest.raises(BadInputError, match="found a single array"):
        read_npz(tmp_path / "one.npy")
    np.savez(tmp_path / "pickled.npz", x=np.array([{}], dtype=object))
    with pytest.raises(BadInputError, match=r"cannot be read as \.npz"):
        read_npz(tmp_path / "pickled.npz")
