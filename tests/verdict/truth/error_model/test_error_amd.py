"""On AMD's GPUs, the output of a simulated kernel is as wrong as predicted.

`python -m tests.verdict.truth.error_model.test_error_amd` simulates the cases and writes their outputs anew.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fattn_probe.cases.device import load_devices
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.llama.launch.architecture import arch_number
from fattn_probe.llama.launch.families import BY_KERNEL
from fattn_probe.llama.launch.geometry import geometry_of
from fattn_probe.llama.launch.record import parse_launches
from fattn_probe.llama.launch.tiles import ntiles
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.verdict.measure.expected import Expected, hold
from fattn_probe.verdict.measure.verdict import Status, judge
from fattn_probe.verdict.truth.error_model.rounding import HALF
from fattn_probe.verdict.truth.reference.adapter import operand_values, reference_of
from tests import made
from tests.made import CAUSAL, captured, shape, target
from tests.verdict.truth.models import predicted

RECORDED = Path(__file__).parents[3] / "data/amd.npz"
SINKS = "sinks: true\ndata: {sinks: {kind: normal, scale: 8}, V: {kind: uniform, mean: 0.5}}"
FAR_SINKS = "sinks: true\ndata: {sinks: {kind: normal, scale: 30}}"
LARGE_LOGITS = "data: {Q: {kind: large_logits}}"
WIDE = "data: {Q: {kind: normal, scale: 3}}"
V_3, V_N3 = "{kind: uniform, mean: 3}", "{kind: normal, mean: 3}"
LOGITS_6 = "{kind: large_logits, logit: 6.73}"
OUTLIERS = "data: {Q: {kind: large_logits}, K: {kind: fa3_outliers}}"
THOUSANDS = "data: {Q: {kind: normal, scale: 40}, K: {kind: normal, scale: 42.36}}"
TEN_THOUSANDS = "data: {Q: {kind: uniform, scale: 44.86}, K: {kind: uniform, scale: 44.86}}"
NORMAL_60 = "data: {Q: {kind: normal, scale: 55.31}, K: {kind: normal, scale: 60.0}}"
V_10000 = "data: {Q: {kind: normal, scale: 2.36}, K: {kind: normal}, V: {kind: extreme, magnitude: 10000}}"
SAME_K = "data: {K: {kind: constant, value: 0.1}, V: {kind: uniform, mean: 1}}"
SMALL_K = "data: {K: {kind: normal, scale: 0.03}, V: {kind: uniform, mean: 1}}"
FAR = "{kind: far_below_zero, logit: -5000}"
FAR_V = f"data: {{Q: {FAR}, K: {FAR}, V: {{kind: uniform, scale: 0.1, mean: 0.1}}}}"


DECODE = shape(128, 4, 2, 1, 2048, CAUSAL)
GROUPED = shape(64, 4, 1, 8, 512, CAUSAL)
CASES = {
    "tile, four warps a column": (DECODE, "mi50"),
    "tile, RDNA": (DECODE, "rx6800xt"),
    "tile, biased V": (shape(128, 2, 1, 2, 2048, "data: {V: {kind: uniform, mean: 1, scale: 0.1}}"), "mi50"),
    "tile, sinks": (shape(64, 2, 1, 2, 256, CAUSAL, SINKS), "mi50"),
    "tile, softcap": (shape(128, 2, 1, 4, 512, "logit_softcap: 10", CAUSAL, WIDE), "rx6800xt"),
    "vec": (shape(64, 4, 4, 1, 1024, CAUSAL), "mi50"),
    "vec, wide logits": (shape(64, 4, 4, 1, 1024, CAUSAL, WIDE), "rx6800xt"),
    "vec, sinks": (shape(64, 4, 4, 1, 512, CAUSAL, SINKS), "mi50"),
    "vec, far sinks": (shape(64, 4, 4, 1, 512, CAUSAL, FAR_SINKS), "rx6800xt"),
    "vec, q8_0": (shape(128, 4, 4, 2, 512, "type_K: q8_0\ntype_V: q8_0", CAUSAL), "rx6800xt"),
    "vec, q4_0": (shape(128, 4, 4, 1, 512, "type_K: q4_0\ntype_V: q4_0", CAUSAL), "mi50"),
    "vec, KV rows that no query sees": (
        shape(64, 5, 1, 1, 256, "type_K: q8_0\nseed: 789\nmask: {kind: masked_tiles, leading: 75}", LARGE_LOGITS),
        "rx7900xtx",
    ),
    "vec, bf16": (shape(64, 4, 4, 1, 512, "type_K: bf16\ntype_V: bf16", CAUSAL), "mi50"),
    "mma, RDNA3": (GROUPED, "rx7900xtx"),
    "mma, RDNA3, heads of 80": (shape(80, 4, 1, 8, 512, CAUSAL), "rx7900xtx"),
    "mma, RDNA4": (GROUPED, "rx9070xt"),
    "mma, RDNA4, sinks": (shape(64, 4, 1, 8, 512, CAUSAL, SINKS), "rx9070xt"),
    "mma, CDNA1": (GROUPED, "mi100"),
    "mma, CDNA2 flushes": (shape(64, 2, 1, 16, 512, CAUSAL, WIDE), "mi210"),
    "mma, CDNA2 flushes, logits known to 1e-3": (shape(64, 1, 1, 25, 754, "scale: 0.2371\nseed: 326", FAR_V), "mi210"),
    "mma, CDNA3": (GROUPED, "mi300x"),
    "mma, CDNA3, sinks": (shape(64, 4, 1, 8, 512, CAUSAL, SINKS), "mi300x"),
    "mma, CDNA3, far sinks": (shape(64, 4, 1, 8, 512, CAUSAL, FAR_SINKS), "mi300x"),
}
FAR_BELOW = "sinks: true\ndata: {{Q: {{kind: far_below_zero, logit: {}}}, K: {{kind: far_below_zero, logit: {}}}}}"
TINY = {
    "vec, f16 sums below a sink": (shape(64, 8, 8, 1, 1024, FAR_BELOW.format(-88, -88)), "mi50"),
    "tile, subnormal floats": (shape(64, 16, 2, 1, 481, "type_K: q8_0", FAR_BELOW.format(-100, -100)), "rx9070xt"),
    "mma, zeros": (shape(64, 8, 8, 9, 1024, FAR_BELOW.format(-88, -88)), "mi100"),
    "mma, 5e-75": (shape(64, 4, 1, 3, 1, FAR_BELOW.format(-1000, -30)), "mi300x"),
}
"""Answers that are too small for the kernel's numbers, with all logits far below the sinks. `fuzz` found them."""
ALARMS = {
    name: (shape(*sizes, f"data: {{{data}}}"), device)
    for name, device, sizes, data in (
        ("vec, f16 factors", "rx9070xt", (64, 1, 1, 1, 768, "seed: 653"), f"Q: {{kind: fa3_outliers}}, V: {V_3}"),
        ("vec, f16 factors, long", "mi300x", (64, 1, 1, 1, 12288, "seed: 723"), f"Q: {{kind: normal}}, V: {V_N3}"),
        ("vec, V of 3", "mi210", (64, 1, 1, 1, 768, "seed: 716"), f"Q: {LOGITS_6}, V: {{kind: constant, value: 3}}"),
        ("vec, V of 1", "rx7900xtx", (128, 1, 1, 1, 512), "K: {kind: normal}, V: {kind: constant, value: 1}"),
        ("tile, V of 3", "rx9070xt", (40, 1, 1, 1, 22, "seed: 964"), "V: {kind: constant, value: 3}"),
        ("tile, subnormal products", "rx7900xtx", (80, 1, 1, 1, 1, "seed: 131"), "V: {kind: uniform, scale: 0.005}"),
        ("tile, one KV row", "mi50", (128, 1, 1, 1, 1), "V: {kind: uniform, scale: 0.1, mean: 0.1, seed: 69}"),
        ("mma, subnormal sums of warps", "mi210", (128, 2, 1, 9, 1), "V: {kind: uniform, scale: 0.006}"),
        ("mma, a subnormal sum", "mi100", (128, 1, 1, 17, 1), "V: {kind: uniform, scale: 0.01}"),
        (
            "mma, a sum of V of 1 is rounded up",
            "rx9070xt",
            (64, 8, 1, 5, 256, "seed: 279", CAUSAL),
            "V: {kind: constant, value: 1}",
        ),
        (
            "mma, a rare sum of V of -1 is rounded up",
            "rx9060xt",
            (64, 5, 1, 9, 256, CAUSAL),
            "K: {kind: uniform, scale: 0.3}, V: {kind: constant, value: -1.0}",
        ),
        (
            "vec, sums near a power of two",
            "mi100",
            (64, 1, 1, 1, 8448, "scale: 1.0\nmask: {kind: sliding_window, window: 24}"),
            "Q: {kind: normal}, K: {kind: normal, scale: 0.485}, V: {kind: uniform, scale: 0.1, mean: -1}",
        ),
    )
}
"""Correct outputs whose errors were larger than predicted, most of them of one row. `fuzz` found them."""


WIDE_ROWS = {
    "vec, errors of Q decide": (
        shape(128, 18, 3, 1, 512, "type_K: q4_0\ntype_V: q4_0\nseed: 230", OUTLIERS),
        "rx7900xtx",
    ),
    "mma, logits in thousands": (shape(64, 1, 1, 9, 58, "scale: 1.0\nseed: 329", THOUSANDS), "mi300x"),
    "mma, 12 KV rows, logits in ten thousands": (
        shape(128, 1, 1, 131, 12, "scale: 1.0\nseed: 292\nmask: {kind: random}", TEN_THOUSANDS),
        "mi100",
    ),
    "mma, 13 KV rows, logits in ten thousands": (shape(64, 4, 1, 14, 13, "scale: 1.0", NORMAL_60), "mi300x"),
    "mma, flushed weights of V of 10000": (shape(64, 14, 2, 25, 3, "type_K: q8_0\ntype_V: q8_0", V_10000), "mi210"),
}
"""Correct outputs with rows whose predicted error is as large as the answer. `fuzz` found them."""
EQUAL = {
    "vec, few values": (shape(64, 16, 2, 1, 4096, "type_K: q4_0", SAME_K), "rx9060xt"),
    "tile, few values": (shape(64, 2, 2, 3, 507, "type_V: q5_0", SAME_K), "mi50"),
    "tile, nearly equal weights": (shape(64, 2, 1, 8, 1024, "type_V: q4_0", SMALL_K), "rx7900xtx"),
}
"""Correct outputs of equal weights and a quantised V. `fuzz` found the first: 2.2 times the predicted error."""
EVERY = CASES | TINY | ALARMS | WIDE_ROWS | EQUAL


def case_of(name):
    return made.case_of(EVERY[name][0])


def prediction_of(name):
    """The output, the exact answer and the prediction of a case."""
    case, (dst, launches) = case_of(name), recorded()[name]
    inputs, arch = make_inputs(case), arch_number(load_devices()[EVERY[name][1]].arch)
    return dst, reference_of(case.op, inputs), predicted(case.op, operand_values(case.op, inputs), launches, arch)


@cache
def recorded():
    """The output and the launches of each case."""
    with np.load(RECORDED) as kept:
        launches = json.loads(str(kept["launches"]))
        return {name: (kept[name], parse_launches("\n".join(launches[name]))) for name in launches}


@pytest.mark.parametrize("name", CASES)
def test_an_output_is_as_wrong_as_predicted(name):
    dst, reference, found = prediction_of(name)
    error = np.abs(dst - reference)
    ratio = np.sqrt(np.square(error / found.row_rmse[..., None]).mean())  # far sinks: rows differ by powers of ten
    assert found.known.all() and (error <= found.bound).all()
    assert 0.85 <= ratio <= 1.15, ratio
    assert (error / found.bound).max() > 0.02  # the bound says something


@pytest.mark.parametrize("name", TINY)
def test_an_answer_below_the_kernels_numbers_is_as_designed_and_anything_larger_is_wrong(name):
    dst, reference, found = prediction_of(name)
    assert judge(dst, reference, Tolerance(), expected=Expected(lambda: found)).status is Status.PASS
    assert np.abs(dst - reference).max() <= found.bound.max() < 1e-31
    for off in (1e-3, 2 * found.bound[0, 0, 0, 0]):
        wrong = dst.copy()
        wrong[0, 0, 0, 0] += np.float32(off)
        assert judge(wrong, reference, Tolerance(), expected=Expected(lambda: found)).status is Status.FAIL


@pytest.mark.parametrize("name", ALARMS)
def test_the_only_row_is_as_designed_and_a_slightly_wrong_one_is_not(name):
    dst, reference, found = prediction_of(name)
    assert judge(dst, reference, Tolerance(), expected=Expected(lambda: found)).status is Status.PASS
    for wrong in wrong_outputs(name, dst, reference):
        assert judge(wrong, reference, Tolerance(), expected=Expected(lambda: found)).status is Status.FAIL


def wrong_outputs(name, dst, reference):
    """The output times 1 + 2^-9, with two channels swapped, and without its main KV row, if that changes anything."""
    yield dst * np.float32(1 + 2.0**-9)
    values = operand_values(case_of(name).op, make_inputs(case_of(name)))
    q, k, v = (np.asarray(values[key], np.float64)[0] for key in "QKV")
    if np.ptp(v):
        yield dst[..., [1, 0, *range(2, dst.shape[3])]]
    if np.ptp(v) and k.shape[1] > 1:
        weights = np.exp(case_of(name).op.params.scale * (q @ k.swapaxes(1, 2)))
        weights[..., weights.argmax(axis=2)] = 0
        yield (dst + (weights / weights.sum(axis=2, keepdims=True) @ v)[None] - reference).astype(np.float32)


@pytest.mark.parametrize("name", WIDE_ROWS)
def test_a_row_is_judged_by_the_kernels_own_weights_where_they_decide_about_the_answer(name):
    dst, reference, found = prediction_of(name)
    verdict = judge(dst, reference, Tolerance(), expected=Expected(lambda: found))
    assert verdict.status is Status.PASS and "rows follow from the weights that the kernel rounds" in verdict.reason
    wide = hold(dst, reference, Expected(lambda: found)).too_wide
    assert 1 <= wide.sum() <= 2
    for times in (0.0, 2.0, 1 + 2.0**-7):
        wrong = np.where(wide[..., None], np.float32(times) * dst, dst)
        assert judge(wrong, reference, Tolerance(), expected=Expected(lambda: found)).status is not Status.PASS
    swapped = np.where(wide[..., None], dst[..., [1, 0, *range(2, dst.shape[3])]], dst)
    assert judge(swapped, reference, Tolerance(), expected=Expected(lambda: found)).status is not Status.PASS


@pytest.mark.parametrize("name", [name for name in ALARMS if name.startswith(("vec, f16", "vec, V", "tile, V"))])
def test_the_error_that_all_channels_have_is_known_with_its_sign(name):
    """The kernel's own logits decide which way it rounds its weights, and its factors between maxima, to f16."""
    dst, reference, found = prediction_of(name)
    error = dst - reference
    assert found.row_mean_error.item() == pytest.approx(error.mean(), rel=0.03)
    assert np.sqrt(np.square(error).mean()) == pytest.approx(found.rmse, rel=0.03)


@pytest.mark.parametrize("name", EQUAL)
def test_equal_weights_round_the_few_values_of_a_quantised_V_with_a_mean_error(name):
    dst, reference, found = prediction_of(name)
    assert judge(dst, reference, Tolerance(), expected=Expected(lambda: found)).status is Status.PASS
    assert found.mean_error == pytest.approx((dst - reference).mean(), rel=0.2)
    assert 0.85 <= np.sqrt(np.square(dst - reference).mean()) / found.rmse <= 1.15
    op, V = case_of(name).op, operand_values(case_of(name).op, make_inputs(case_of(name)))["V"]
    v = np.array([V[0, head // op.sizes.group, :] for head in range(op.sizes.n_head)], np.float64)
    without = v[:, : -v.shape[1] // 8].mean(axis=1) - v.mean(axis=1)  # the last eighth of the KV rows
    for wrong in (dst * np.float32(1 + 2.0**-9), np.roll(dst, 1, axis=3), dst + without.astype(np.float32)):
        assert judge(wrong, reference, Tolerance(), expected=Expected(lambda: found)).status is Status.FAIL


def test_of_equal_weights_the_rounded_sum_of_a_warp_has_the_largest_error():
    """Each of four warps has a quarter of the weights of a row, and rounds its sum to f16."""
    case = made.case_of(shape(128, 2, 1, 3, 1024, "data: {Q: {kind: uniform, scale: 1.0e-9}}"))
    launch = made.launch_of("flash_attn_ext_f16<128, 128, 8, 2, false, false, false>", block=(64, 4, 1))
    found = predicted(case.op, operand_values(case.op, make_inputs(case)), [launch], arch_number("gfx90a"))
    assert found.rows.single == pytest.approx(HALF.half_ulp / 4, rel=2e-4)  # P is 1/8, not exp(-2.0793)


def test_each_sum_of_a_warp_that_is_not_zero_may_be_rounded_to_a_subnormal_number():
    """A warp does 16 of 40 KV rows, so one of four has none. Each of the weights is 1/8, and their sum is 5."""
    case = made.case_of(shape(64, 2, 1, 3, 40, "data: {Q: {kind: uniform, scale: 1.0e-9}}"))
    launch = made.launch_of("flash_attn_ext_f16<64, 64, 2, 8, false, false, false>", block=(64, 4, 1))
    rows = predicted(case.op, operand_values(case.op, make_inputs(case)), [launch], arch_number("gfx942")).rows
    assert rows.steps_worst == pytest.approx(3 * 2.0**-25 / 5, rel=1e-3, abs=0)
    assert rows.steps == pytest.approx(3 * (2.0**-25 / 5) ** 2, rel=1e-3, abs=0)


@pytest.mark.parametrize("name", CASES)
def test_a_launch_has_the_grid_that_its_geometry_says(name):
    (_, launches), device = recorded()[name], load_devices()[CASES[name][1]]
    found = geometry_of(case_of(name).op, launches, arch_number(device.arch))
    launch, grid = next(launch for launch in launches if launch.kernel in BY_KERNEL), found.grid
    if found.kernel.family.stream_k:
        assert launch.block == (device.warpSize, found.kernel.warps, 1)
        assert launch.grid[0] == ntiles(grid) or len(launches) > 1  # blocks that share a tile are put together
    else:
        assert launch.block == (32, found.kernel.warps, 1)
        assert (launch.grid[0], launch.grid[2]) == (grid.iter_j, grid.iter_z_gqa * grid.ne12 * grid.ne03)


def record():
    """Simulate the cases; the launches are kept as lines of JSON."""
    session, lines = Session(RunOptions(resolve(DEFAULT_SOURCE))), {}
    kept: dict[str, Any] = {}
    for name, (_, device) in EVERY.items():
        capture = captured(session, case_of(name), target(f"sim:{device}"))
        kept[name] = capture.dst
        lines[name] = [launch.to_json() for launch in capture.launches]
        print(name, lines[name][0])
    np.savez_compressed(RECORDED, launches=json.dumps(lines), **kept)


if __name__ == "__main__":
    record()
