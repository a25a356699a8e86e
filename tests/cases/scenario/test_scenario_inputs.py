"""The inputs of a case: views stay inside their roots and are read as ggml does; distributions, bytes and digests."""

import itertools

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op import Op
from fattn_probe.cases.op.op import TYPE_NAMES, block_size, type_size
from fattn_probe.cases.op.values import count_non_finite, decode, encode, nan_block, view_values
from fattn_probe.cases.scenario import Scenario, expand, loads
from fattn_probe.cases.scenario.data import Constant, Extreme, Fa3Outliers, FarBelowZero, LargeLogits, Normal, Uniform
from fattn_probe.cases.scenario.draw import draw, stream
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cases.scenario.layout import Contiguous, MaskLayout, View, place, place_mask
from fattn_probe.verdict.truth.reference.adapter import reference_of

PERMUTATIONS = [[0, *rest] for rest in itertools.permutations([1, 2, 3])]


@st.composite
def views(draw, rows, heads, block):
    offset = draw(st.integers(0, 3))
    return View(
        kind="view",
        permute=draw(st.sampled_from(PERMUTATIONS)),
        offset=offset,
        rows=draw(st.none() | st.integers(offset + rows, offset + rows + 3)),
        heads=draw(st.none() | st.integers(heads, heads + 2)),
        pad=block * draw(st.integers(0, 2)),
        outside=draw(st.sampled_from(["random", "zero", "nan"])),
    )


@st.composite
def placed(draw):
    """(type, ne, layout) of an operand."""
    type_ = draw(st.sampled_from(TYPE_NAMES))
    block = block_size(type_)
    ne = (block * draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 2)))
    return type_, ne, draw(st.just(Contiguous()) | views(ne[1], ne[2], block))


def addresses(view):
    """The byte at which every row of a view begins."""
    numbers = [np.arange(n) * stride for n, stride in zip(view.ne[1:], view.nb[1:], strict=True)]
    return view.offset + numbers[2][:, None, None] + numbers[1][None, :, None] + numbers[0][None, None, :]


@settings(max_examples=150)
@given(placed())
def test_a_view_lies_in_its_root_and_no_two_rows_overlap(operand):
    type_, ne, layout = operand
    root, view = place("K", type_, ne, layout)
    row = ne[0] // block_size(type_) * type_size(type_)
    starts = np.sort(addresses(view).ravel())
    assert starts[0] >= 0
    assert starts[-1] + row == view.end <= root.nbytes
    assert np.all(np.diff(starts) >= row)
    assert view.ne == ne
    assert view.nb[0] == type_size(type_)


def cases(type_, ne, layout):
    base = Scenario(version=1, about="x", hsk=ne[0], n_head=ne[2], n_q=2, n_kv=ne[1], n_seq=ne[3], type_K=type_, seed=7)
    moved = base.model_copy(update={"layout": base.layout.model_copy(update={"K": layout})})
    return expand(moved)[0], expand(base)[0]


@settings(max_examples=100)
@given(placed())
def test_view_values_are_what_ggml_reads_element_by_element(operand):
    type_, ne, layout = operand
    case, _ = cases(type_, ne, layout)
    inputs = make_inputs(case)
    values = view_values(case.op.tensors["K"], inputs)
    assert values.shape == ne[::-1]
    assert values.dtype == np.float64
    view, block = case.op.tensors["K"], block_size(type_)
    for i3, i2, i1, i0 in np.ndindex(values.shape):
        at = view.offset + i3 * view.nb[3] + i2 * view.nb[2] + i1 * view.nb[1] + i0 // block * view.nb[0]
        assert values[i3, i2, i1, i0] == decode(inputs["K"][at : at + type_size(type_)], type_)[i0 % block]


@settings(max_examples=60)
@given(placed())
def test_the_layout_moves_values_and_does_not_change_them(operand):
    moved, plain = cases(*operand)
    moved_inputs, plain_inputs = make_inputs(moved), make_inputs(plain)
    assert {name: root.nbytes for name, root in moved.op.roots.items()} == {n: d.size for n, d in moved_inputs.items()}
    for name in ("Q", "K", "V"):
        np.testing.assert_array_equal(
            view_values(moved.op.tensors[name], moved_inputs), view_values(plain.op.tensors[name], plain_inputs)
        )


def test_strides_and_offsets_of_layouts():
    root, view = place("K", "f16", (64, 256, 2, 1), View(kind="view", permute=[0, 2, 1, 3], rows=1024, offset=3))
    assert root.ne == (64, 2, 1024, 1)
    assert (view.nb, view.offset) == ((2, 256, 128, 262144), 3 * 256)
    _, view = place("K", "f16", (64, 256, 2, 1), View(kind="view", pad=4))
    assert view.nb[1] % 16 == 8
    root, view = place_mask(256, 7, 2, MaskLayout(pad=64, offset=3, per_sequence=True))
    assert root.ne == (256, 3 + 128, 1, 1)
    assert view.ne == (256, 64, 1, 2)
    assert (view.nb, view.offset) == ((2, 512, 32768, 32768), 1536)
    assert view.end == root.nbytes


MASKED = {"version": 1, "about": "x", "hsk": 8, "n_head": 1, "n_q": 7, "n_kv": 16, "mask": {"kind": "random"}}


def masked(**mask):
    """A case whose mask is laid out so."""
    (case,) = expand(Scenario.model_validate(MASKED | {"n_seq": 2, "layout": {"mask": mask}}))
    return case


def test_padded_mask_rows_are_minus_infinity_and_the_others_as_without_padding():
    values = [view_values(case.op.tensors["mask"], make_inputs(case)) for case in (masked(), masked(pad=8, offset=2))]
    np.testing.assert_array_equal(values[0], values[1][:, :, :7])
    assert np.all(values[1][:, :, 7:] == -np.inf)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"layout": {"mask": {"columns": 15}}}, "layout.mask.columns: found 15 is less than the 16 KV rows"),
        ({"layout": {"mask": {"columns": 24}}, "n_kv_max": 16}, "24 with n_kv_max, which bounds the finite entries"),
    ],
)
def test_a_mask_that_is_too_narrow_is_refused(settings, said):
    with pytest.raises((InputError, ValidationError)) as caught:
        loads(yaml.safe_dump(MASKED | settings), "wide.yaml")
    assert said.replace("found ", "") in str(caught.value).replace("found ", "")


def test_a_mask_wider_than_K_is_visible_behind_its_rows_and_one_as_wide_keeps_its_digest():
    plain, wide = masked(pad=8), masked(pad=8, columns=21)
    assert wide.op.tensors["mask"].ne == (21, 8, 1, 2)
    assert wide.op.operands["mask"].ne == (16, 8, 1, 2)
    mask = view_values(wide.op.tensors["mask"], make_inputs(wide))
    assert np.all(mask[:, :, :7, 16:] == 0)
    assert np.all(mask[:, :, 7:] == -np.inf)
    for case in (plain, wide):
        values = view_values(case.op.operands["mask"], make_inputs(case))
        np.testing.assert_array_equal(values, view_values(plain.op.tensors["mask"], make_inputs(plain)))
    np.testing.assert_array_equal(reference_of(wide.op, make_inputs(wide)), reference_of(plain.op, make_inputs(plain)))
    assert Op.from_json(wide.op.to_json()) == wide.op
    assert masked().digest == "da2a991770fef418"
    assert len({masked().digest, masked(columns=16).digest, masked(columns=24).digest}) == 3


@pytest.mark.parametrize("type_", ["f16", "q8_0", "q4_1", "bf16"])
def test_nan_outside_the_view(type_):
    case, _ = cases(type_, (32, 3, 1, 1), View(kind="view", rows=6, offset=1, pad=32, outside="nan"))
    everything = decode(make_inputs(case)["K"], type_).reshape(6, 64)
    inside = np.zeros((6, 64), bool)
    inside[1:4, :32] = True
    assert np.array_equal(np.isnan(everything), ~inside)


def test_v_as_a_view_of_k_shares_its_root_and_values():
    scenario = Scenario.model_validate(
        {"version": 1, "about": "x", "hsk": 48, "hsv": 32, "n_head": 4, "n_head_kv": 1, "n_q": 2, "n_kv": 5}
        | {"layout": {"K": {"kind": "view", "offset": 2}, "V": {"kind": "view_of_K", "offset": 16}}}
    )
    (case,) = expand(scenario)
    inputs = make_inputs(case)
    assert set(inputs) == {"Q", "K"}
    assert case.op.tensors["V"].offset == case.op.tensors["K"].offset + 32
    np.testing.assert_array_equal(
        view_values(case.op.tensors["V"], inputs), view_values(case.op.tensors["K"], inputs)[..., 16:]
    )


def sampled(data, name, shape, rng):
    return draw(data, name, shape, rng, scale=0.125, hsk=64)


MANY = (400, 1000)


def sample(data, name="V"):
    return sampled(data, name, MANY, stream(1, 2))


def test_moments_of_the_distributions():
    values = sample(Uniform(scale=0.1, mean=1))
    assert 0.9 <= values.min() < 0.901
    assert 1.099 < values.max() <= 1.1
    assert values.mean() == pytest.approx(1, abs=1e-3)
    values = sample(Normal(kind="normal", scale=3, mean=-2))
    assert values.mean() == pytest.approx(-2, abs=0.03)
    assert values.std() == pytest.approx(3, rel=0.01)
    assert np.all(sample(Constant(kind="constant", value=0.5)) == 0.5)
    values = sample(Fa3Outliers(kind="fa3_outliers"))
    assert values.var() == pytest.approx(1 + 0.001 * 100, rel=0.02)
    assert 0.0003 < (np.abs(values) > 5).mean() < 0.001
    values = sample(Extreme(kind="extreme", magnitude=5000, probability=0.02))
    assert (np.abs(values) == 5000).mean() == pytest.approx(0.02, rel=0.05)
    assert (values == 5000).sum() > 0 < (values == -5000).sum()
    assert np.abs(values[np.abs(values) < 5000]).max() <= 1


def test_logits_are_as_large_and_as_far_below_zero_as_asked_for():
    Q = sampled(LargeLogits(kind="large_logits", logit=60), "Q", (500, 64), stream(0, 1))
    K = sampled(Normal(kind="normal"), "K", (500, 64), stream(0, 2))
    assert (0.125 * Q @ K.T).std() == pytest.approx(60, rel=0.05)
    data = FarBelowZero(kind="far_below_zero", logit=-1000)
    Q, K = (sampled(data, name, (500, 64), stream(0, number)) for number, name in enumerate("QK"))
    logits = 0.125 * Q @ K.T
    assert logits.mean() == pytest.approx(-1000, rel=0.01)
    assert logits.max() < -900


def scenario(**more):
    return Scenario.model_validate(
        {"version": 1, "about": "x", "hsk": 32, "n_head": 4, "n_q": 5, "n_kv": 40, "sinks": True} | more
    )


def test_inputs_depend_on_the_seed_and_a_tensor_can_have_one_of_its_own():
    first, again, other = (make_inputs(expand(scenario(seed=seed))[0]) for seed in (1, 1, 2))
    for name, data in first.items():
        np.testing.assert_array_equal(data, again[name])
        assert not np.array_equal(data, other[name])
    plain = make_inputs(expand(scenario(seed=1))[0])
    reseeded = make_inputs(expand(scenario(seed=1, data={"K": {"kind": "uniform", "seed": 2}}))[0])
    assert {name for name in plain if not np.array_equal(plain[name], reseeded[name])} == {"K"}


def test_the_bytes_of_a_case_never_change_silently_and_its_digest_follows_op_and_inputs_only():
    """If this fails, captures and histories made before are of other inputs: raise INPUTS_VERSION with it."""
    (case,) = expand(scenario(seed=3, mask={"kind": "random"}))
    inputs = make_inputs(case)
    first = view_values(case.op.tensors["Q"], inputs)[0, 0, 0, :3]
    assert first.tolist() == [0.6295431852340698, 0.4801926612854004, 0.043451786041259766]
    sums = {name: int(data.astype(np.int64).sum()) for name, data in inputs.items()}
    assert sums == {"Q": 312351, "K": 1256248, "V": 1252948, "mask": 46719, "sinks": 1951}
    plain = expand(scenario())[0].digest
    assert len(plain) == 16
    same: list[dict] = [
        {"about": "y"},
        {"device": "cpu"},
        {"tolerance": {"nmse": 1}},
        {"expect": {"a": 1}},
        {"hsv": 32},
    ]
    assert {expand(scenario(**more))[0].digest for more in same} == {plain}
    different: list[dict] = [{"seed": 1}, {"n_kv": 41}]
    different += [{"data": {"V": {"kind": "normal"}}}, {"layout": {"K": {"kind": "view"}}}]
    assert len({expand(scenario(**more))[0].digest for more in different} | {plain}) == 5


ERRORS = {"f32": 0, "f16": 5e-4, "bf16": 4e-3, "q8_0": 4.5e-3, "q5_0": 0.065, "q5_1": 0.035, "q4_0": 0.13, "q4_1": 0.07}


@pytest.mark.parametrize("type_", TYPE_NAMES)
def test_encoding_loses_no_more_than_the_type_must_and_keeps_zeros_and_nan(type_):
    values = 2 * stream(0, 0).random((100, 64), np.float32) - 1
    back = decode(encode(values, type_), type_).reshape(values.shape)
    assert np.abs(back - values).max() <= ERRORS.get(type_, 0.13)
    # Values beyond a type are not finite and raise no warning; judging refuses them, with a message of its own.
    values = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32) * np.float32(1e30)
    assert (count_non_finite(encode(values, type_), type_) == 0) == (type_ in ("f32", "bf16"))
    assert np.all(decode(encode(np.zeros((3, 32), np.float32), type_), type_) == 0)
    assert np.all(np.isnan(decode(nan_block(type_), type_)))
