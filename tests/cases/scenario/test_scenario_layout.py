"""Properties of layouts: views stay inside their roots, and are read as ggml reads them."""

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
from fattn_probe.cases.op.values import decode, view_values
from fattn_probe.cases.scenario import Scenario, expand, loads
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
        element = decode(inputs["K"][at : at + type_size(type_)], type_)[i0 % block]
        assert values[i3, i2, i1, i0] == element


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
    layout = View(kind="view", permute=[0, 2, 1, 3], rows=1024, offset=3)
    root, view = place("K", "f16", (64, 256, 2, 1), layout)
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


def test_a_mask_wider_than_K_is_visible_behind_its_rows_and_attention_does_not_read_that():
    plain, wide = masked(pad=8), masked(pad=8, columns=21)
    assert wide.op.tensors["mask"].ne == (21, 8, 1, 2)
    assert wide.op.operands["mask"].ne == (16, 8, 1, 2)
    mask = view_values(wide.op.tensors["mask"], make_inputs(wide))
    assert np.all(mask[:, :, :7, 16:] == 0)
    assert np.all(mask[:, :, 7:] == -np.inf)
    for case in (plain, wide):
        values = view_values(case.op.operands["mask"], make_inputs(case))
        np.testing.assert_array_equal(values, view_values(plain.op.tensors["mask"], make_inputs(plain)))
    expected = reference_of(plain.op, make_inputs(plain))
    np.testing.assert_array_equal(reference_of(wide.op, make_inputs(wide)), expected)
    assert Op.from_json(wide.op.to_json()) == wide.op


def test_a_mask_as_wide_as_K_keeps_the_digest_that_cases_had_before_it_could_be_wider():
    assert masked().digest == "da2a991770fef418"
    assert len({masked().digest, masked(columns=16).digest, masked(columns=24).digest}) == 3


@pytest.mark.parametrize("type_", ["f16", "q8_0", "q4_1", "bf16"])
def test_nan_outside_the_view(type_):
    layout = View(kind="view", rows=6, offset=1, pad=32, outside="nan")
    case, _ = cases(type_, (32, 3, 1, 1), layout)
    inputs = make_inputs(case)
    everything = decode(inputs["K"], type_).reshape(6, 64)
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
