"""Predictions as numbers, for ops that together use every part of the error model: they change only if that is meant.

`python -m tests.verdict.truth.error_model.test_error_numbers` writes them anew, after a change of the model that is
meant. Whether the model is true, other tests and `scripts/calibrate` say.

Logits are exact in float32, whatever the order in which BLAS adds, but exponentials differ in their last bit. What is
rounding noise beside the largest of its field, or a sum of values that cancel, differs by any factor.
"""

import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.launch.architecture import CDNA1, CDNA2, CDNA3, GFX906, RDNA1, RDNA2, RDNA3, RDNA4
from fattn_probe.llama.launch.constants import default_constants
from fattn_probe.llama.launch.geometry import Geometry
from fattn_probe.llama.launch.tiles import Grid, tile_at, tiles_of
from fattn_probe.verdict.truth.error_model import kernel, rounding
from fattn_probe.verdict.truth.error_model.accumulate import Chains, accumulate
from fattn_probe.verdict.truth.error_model.block import RowErrors
from fattn_probe.verdict.truth.error_model.kernel import Sinking, Split, pieces_of, steps_of
from fattn_probe.verdict.truth.error_model.predict import predict_rows
from fattn_probe.verdict.truth.error_model.prediction import Prediction
from fattn_probe.verdict.truth.error_model.rounding import HALF, NARROW, SINGLE, WIDE, added_error, largest_bias
from fattn_probe.verdict.truth.error_model.sink import Contribution, sunk
from fattn_probe.verdict.truth.reference.adapter import operand_values
from tests import made
from tests.made import CAUSAL, case_of, case_with, launch_of, shape
from tests.verdict.truth.models import kernel_of, predicted

RECORDED = Path(__file__).parents[3] / "data/error-model.json"
V1 = "data: {V: {kind: uniform, mean: 1, scale: 0.1}}"
V_1_0003 = "data: {V: {kind: uniform, mean: 1.0003, scale: 1.0e-9}}"
SINKS = "sinks: true\ndata: {sinks: {kind: normal, scale: 8}, V: {kind: uniform, mean: 0.5}}"
CAPPED = "scale: 0.078125\nlogit_softcap: 10"
ONE_WEIGHT = "data: {Q: {kind: normal, scale: 40}, V: {kind: normal, scale: 1.0e-4}}"
EQUAL_LOGITS = "data: {Q: {kind: uniform, scale: 1.0e-9}, V: {kind: uniform, mean: 1, scale: 0.01}}"
SPARSE = "scale: 0.125\nn_kv_max: 64\nmask: {kind: sparse, finite: 64}"
SCATTERED = "data: {Q: {kind: normal, scale: 3}, V: {kind: normal, scale: 2}}"


def mma(head, ncols1, ncols2, blocks=1, softcap="false", sparse="false"):
    values = f"{head}, {head}, {ncols1}, {ncols2}, {softcap}, false, {sparse}"
    return made.launch_of(f"flash_attn_ext_f16<{values}>", (blocks, 1, 1))


def tile(head, ncols1, ncols2, grid, softcap="false"):
    return made.launch_of(f"flash_attn_tile<{head}, {head}, {ncols1}, {ncols2}, {softcap}>", grid)


def vec(head, grid, k="F16", v="F16", softcap="false"):
    types = f"GGML_TYPE_{k.upper()}, GGML_TYPE_{v.upper()}"
    return made.launch_of(f"flash_attn_ext_vec<{head}, 1, {types}, {softcap}>", grid)


MLA = made.launch_of("flash_attn_ext_f16<576, 512, 4, 16, false, true, false>", block=(32, 8, 1))
LATENT = (576, 16, 1, 2, 200, "scale: 0.0625\nhsv: 512\nlayout: {V: {kind: view_of_K}}")


def on(arch, launch, *sizes_and_lines):
    """The scenario, its launch and the architecture of a case."""
    return shape(*sizes_and_lines), launch, arch


CASES = {
    "mma": on(90, mma(64, 8, 4), 64, 8, 2, 8, 160, CAUSAL, SINKS),
    "mma, stream-K": on(
        90, mma(128, 8, 2, 7, softcap="true"), 128, 4, 2, 9, 700, CAPPED, "max_bias: 8", CAUSAL, SCATTERED
    ),
    "mma, Turing": on(75, mma(64, 16, 2), 64, 2, 1, 3, 300, "type_K: bf16\ntype_V: f32", V1),
    "mma, Volta": on(70, mma(64, 32, 1), 64, 2, 2, 5, 300, V1),
    "mma, warps that share a column": on(90, mma(64, 1, 8, 3), 64, 8, 1, 1, 900, SINKS),
    "mma, long": on(86, mma(64, 64, 1), 64, 1, 1, 2, 6000, V1),
    "tile in f16": on(70, tile(64, 8, 2, (1, 3, 4)), 64, 4, 2, 4, 333, SINKS),
    "tile in f16, far sinks": on(
        90, tile(64, 8, 2, (1, 1, 4)), 64, 4, 2, 4, 90, "sinks: true\ndata: {sinks: {kind: normal, scale: 30}}"
    ),
    "tile in f32": on(61, tile(40, 2, 2, (3, 1, 2)), 40, 2, 1, 6, 130, "type_K: f32\ntype_V: f32"),
    "vec": on(90, vec(128, (1, 2, 4)), 128, 4, 2, 1, 500, SINKS),
    "vec, softcap": on(61, vec(128, (2, 1, 2), softcap="true"), 128, 2, 1, 2, 300, "logit_softcap: 5", SCATTERED),
    "vec, two sequences": on(90, vec(64, (1, 1, 4)), 64, 2, 2, 1, 200, "n_seq: 2\nmask: {kind: random}", SCATTERED),
    "mma, masked rows": on(90, mma(64, 8, 2, 2), 64, 2, 1, 6, 200, "mask: {kind: masked_rows, every: 2}", V1),
    "mma, masked rows and sinks": on(90, mma(64, 8, 2), 64, 2, 1, 6, 100, "mask: {kind: masked_rows, every: 3}", SINKS),
    "tile in f16, masked rows": on(
        90, tile(64, 8, 2, (1, 2, 1)), 64, 2, 1, 5, 90, "mask: {kind: masked_rows, every: 2}", SINKS
    ),
    "mma, masked tiles": on(
        90, mma(64, 8, 2, 2), 64, 2, 1, 3, 300, "mask: {kind: masked_tiles, leading: 128, trailing: 64}", V1
    ),
    "mma, V of zeros": on(90, mma(64, 8, 2), 64, 2, 1, 3, 100, "data: {V: {kind: uniform, scale: 1.0e-30}}"),
    "mma, V without a mean": on(90, mma(64, 8, 1), 64, 1, 1, 3, 40, "data: {V: {kind: normal}}"),
    "mma, one weight": on(90, mma(64, 8, 2, 2), 64, 2, 1, 3, 400, "type_V: bf16", ONE_WEIGHT),
    "vec, masked rows": on(90, vec(64, (4, 1, 2)), 64, 2, 2, 4, 90, "mask: {kind: masked_rows, every: 2}", SCATTERED),
    "mma, softcap of a converted K": on(
        90, mma(128, 8, 2, 2, softcap="true"), 128, 2, 1, 3, 200, "type_K: q8_0\ntype_V: f16", CAPPED, SCATTERED
    ),
    "tile in f16, softcap": on(70, tile(128, 8, 2, (1, 1, 1), softcap="true"), 128, 2, 1, 3, 200, CAPPED, SCATTERED),
    "mma, one value of V and sinks": on(
        90, mma(64, 8, 2), 64, 2, 1, 3, 64, "scale: 0.125030517578125\ntype_V: f32\nsinks: true", V_1_0003
    ),
    "mma, equal logits": on(90, mma(64, 8, 2), 64, 2, 1, 3, 100, EQUAL_LOGITS),
    "mma, sparse": on(90, mma(128, 8, 8, sparse="true"), 128, 8, 1, 20, 256, SPARSE, V1),
    "MLA": on(90, MLA, *LATENT),
    "MLA, sinks": on(90, MLA, *LATENT, "sinks: true"),
    **{
        f"vec, {k} and {v}": on(90, vec(head, (1, 1, 2), k, v), head, 2, 1, 1, 256, f"type_K: {k}\ntype_V: {v}", V1)
        for head, k, v in (
            *((64, "q4_0", "q4_0"), (64, "q4_1", "q5_1"), (64, "q5_0", "q8_0")),
            *((256, "q8_0", "f16"), (64, "bf16", "bf16")),
        )
    },
}
FEW = {"mma, stream-K": 1500, "mma": 400}
"""Cases of which only some queries are evaluated, too: the number of logits."""


@cache
def op_and_values(name):
    """An op and its operands; Q and K are multiples of 1/8 unless quantised, so any order of sums is exact."""
    case = case_of(CASES[name][0])
    values = operand_values(case.op, make_inputs(case))
    plain = {key: rows for key, rows in values.items() if key in "QK" and isinstance(rows, np.ndarray)}
    return case.op, {**values, **{key: (np.round(8 * rows) / 8).astype(rows.dtype) for key, rows in plain.items()}}


def predictions(name):
    """The prediction of a case, of all its rows and of some."""
    op, values = op_and_values(name)
    _, launch, arch = CASES[name]
    yield name, predicted(op, values, [launch], arch)
    if name in FEW:
        yield f"{name}, some queries", predicted(op, values, [launch], arch, most=FEW[name])
        sizes = op.sizes
        rows = np.array(
            [(0, query, head) for head in range(sizes.n_head) for query in (0, sizes.n_q // 2, sizes.n_q - 1)]
        )
        yield f"{name}, some rows", predict_rows(op, values, kernel_of(op, [launch], arch), rows, most=FEW[name])


def numbers_of(prediction: Prediction) -> dict[str, list[float]]:
    """What is kept of a prediction: of each field, the first and the last row and the sum."""
    values = {field.name: getattr(prediction.rows, field.name) for field in fields(RowErrors)}
    values |= {name: getattr(prediction, name) for name in ("row_rmse", "row_mean_error", "bound", "unsampled_bound")}
    values |= {name: getattr(prediction, name) for name in ("sampled", "may_overflow", "unsampled_loss", "rmse")}
    values |= {"cause": np.array(list(prediction.causes.values()))}
    return {name: kept(np.asarray(array, np.float64)) for name, array in values.items()}


def kept(array: np.ndarray) -> list[float]:
    """Some numbers of an array."""
    flat = array.ravel()
    finite = flat[np.isfinite(flat)]
    return [float(f"{value:.8g}") for value in (flat[0], flat[-1], finite.sum(), np.abs(finite).max(initial=0.0))]


def sums():
    """The errors of sums whose maximum rises, without weights, with scales of 0, and of sums that stagnate."""
    rng: Any = np.random.default_rng(0)
    shape, steps = (4, 2, 48), (4, 2, 6)
    weight, raised = rng.random(shape, np.float32) / 8, (rng.random(steps) < 0.5)[:, :, 1:]
    scale = np.repeat(np.sort(rng.random(steps, np.float32), axis=2), 8, axis=2)
    scale[1, :, :8], scale[1, 0, 8:16], weight[2], weight[3, 1, ::3] = 0, 1e-16, 0, 0
    top = np.where(rng.random(shape) < 0.2, weight / 2, 0).astype(np.float32)
    square = (0.02 * weight**2).astype(np.float32)
    chains = Chains(weight, square, (1e-4 * weight**2).astype(np.float32), top, square * (top > 0) / 4, scale, raised)
    even = np.full((5, 2, 2079), 0.125, np.float32)
    even[1] *= np.linspace(0, 2, 2079, dtype=np.float32)  # a sum that stagnates late
    even[2, 1], even[2, 0, 64:], even[1, 1], even[3, :, 1000:], even[4, :, 1500:] = 0, 0, 0, 0, 0
    scatter = np.array([1e-6, 1e-6, 1e-6, 1e-2, 1e-2], np.float32)[:, None, None]  # the last two lose little
    nothing, once = np.zeros_like(even), np.ones_like(even)
    stagnant = Chains(even, scatter * even**2, nothing, nothing, nothing, once, np.zeros((5, 2, 2), np.bool_))
    one = rng.random((6, 4, 1), np.float32)
    small, largest = (1e-8 * one**2).astype(np.float32), (0.8 * one).astype(np.float32)
    first = Chains(one, small, small, largest, small / 5, np.ones_like(one), one[:, :, 1:] < 0)
    for number, mean_square in ((HALF, 0.9), (HALF, 0.1), (HALF, 0.0), (HALF, 1e-4), (SINGLE, 0.9)):
        for name, one in (("rising", chains), ("stagnant", stagnant), ("first", first)):
            yield f"sums {name} {number.fraction} {mean_square}", vars(accumulate(one, number, mean_square, 0.0))


def sinks():
    """The errors of scaling to sinks that are below, above and far above the maximum of each block."""
    rng = np.random.default_rng(1)
    below = [[0.5, -1.0], [-8.0, -12.5], [-21.0, -19.0], [-20.1, -3.0], [-3e38, -3.0], [-1200.0, -30.0], [-20.0, -0.5]]
    maximum, varied = np.array(below)[:, :, None, None], np.arange(7)[:, None, None, None] < 6
    maximum = maximum + np.where(varied, 0.3 * rng.random((7, 2, 1, 3)), 0.0)
    share = np.where(maximum < -1000, 0.0, rng.random(maximum.shape))
    spread = np.array([1e-8, 0.7, 1e-7, 1e-7, 1e-8, 1e-7, 1e-7])[:, None, None, None] * share**2
    held = Contribution(2.0 + maximum, share, share / 3, spread)
    total = np.array([0.2, 0.9, 0.9999, 0.8, 1.0, 0.9, 0.0])
    for mean, largest in ((0.7, (0.0, 0.03, 4.0)), (0.0, (2.0, 1e-6))):
        kv: Any = SimpleNamespace(mean_square_V=mean, channel_largest=np.array(largest))
        sinkings = {"none": None, "mma": Sinking(-1, slice(1), True), "tile": Sinking(0, slice(None), False)}
        for name, sinking in sinkings.items():
            yield f"sunk {name} {mean}", vars(sunk(held, sinking, np.full(7, 2.0), total, kv))


def kernels():
    """The arithmetic of the kernels of the cases on each generation of GPUs."""
    for name in CASES:
        op, launch = op_and_values(name)[0], CASES[name][1]
        for arch in (61, 70, 75, 80, 90, 120):
            if (kernel := kernel_of(op, [launch], arch)) is not None:
                formats = [kernel.accumulator.fraction, kernel.weights.fraction, kernel.largest_weight]
                flags = [kernel.converts_K, kernel.converts_V, kernel.products_f16, *kernel.shares_maximum]
                yield f"kernel {name} {arch}", {"": [*vars(kernel.split).values(), *kernel.chain, *formats, *flags]}


def functions():
    """Of one rounding, and of tanh."""
    means, deviations = (
        axis.ravel() for axis in np.meshgrid(np.linspace(-1.6, 2.7, 18), [0, 1e-10, 0.05, 0.24, NARROW, 0.4, 0.6, WIDE])
    )
    powers = [2.0 ** np.arange(-10, 6) * sign * part for sign in (-1, 1) for part in (1, 1.99)]
    x = np.concatenate([[0.0], *powers, [1e9]])
    yield "added", dict(zip(("mean", "square"), added_error(means, deviations), strict=True))
    yield "bias", {"": largest_bias(np.linspace(0, 0.8, 30))}
    yield "tanh", {"": rounding.tanh_error(x.astype(np.float32))}


PARTS = {"functions": functions, "sums": sums, "sinks": sinks, "kernels": kernels}
"""Parts of the model, for inputs that reach each of their branches."""


def numbers_of_part(part):
    """All numbers of a part."""
    made = PARTS[part]()
    return {name: {key: [float(f"{x:.8g}") for x in np.ravel(v)] for key, v in found.items()} for name, found in made}


def every():
    """All numbers by case and field, and those of parts."""
    of_cases = {label: numbers_of(found) for name in CASES for label, found in predictions(name)}
    return of_cases | {part: numbers_of_part(part) for part in PARTS}


KEPT = json.loads(RECORDED.read_text())
SHARES = ("loss_logits", "loss_weights", "loss_sums", "loss_sink", "stuck", "unsampled_loss")
LEAST = dict.fromkeys(SHARES, 1e-9) | {"loss_rounding": 1e-6, "row_mean_error": 1e-6, "floor": 1e-45}
"""Differences that are nothing: in shares of V's mean; and where a last bit decides which way a weight is rounded."""


NEAR = 2e-4
WIDER = {"mma, stream-K": 2e-3, "tile in f16, softcap": 2e-3, "mma, one weight": 2e-2}
WIDER |= {"mma, softcap of a converted K": 1e-2}
"""Cases in which the last bit of a tanh or of a weight decides about more."""


@pytest.mark.parametrize("name", CASES)
def test_a_prediction_is_what_it_was(name):
    near = WIDER.get(name, NEAR)
    for label, prediction in predictions(name):
        for field, values in numbers_of(prediction).items():
            kept, least = KEPT[label][field], LEAST.get(field, 1e-37)
            of_each = [max(least, 1e-9 * kept[-1])] * len(kept)
            of_each[2] = max(least, 3 * near * kept[-1])  # the sum
            assert values == [
                pytest.approx(was, rel=near, abs=most) for was, most in zip(kept, of_each, strict=True)
            ], f"{label}: {field}"


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_the_model_is_what_it_was(part):
    for name, found in numbers_of_part(part).items():
        for field, values in found.items():
            kept = KEPT[part][name][field]
            assert values == pytest.approx(kept, rel=1e-4, abs=1e-7 * np.abs(kept).max()), (name, field)


def test_a_prediction_is_what_it_was_where_blas_adds_in_another_order():
    """It failed on a machine with AVX-512, and OpenBLAS's kernels for an old processor show the same."""
    words = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "not another_order")
    environment = os.environ | {"OPENBLAS_CORETYPE": "Prescott"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


F16_TYPES = "(ggml_type)1, (ggml_type)1"
NO = "false, false, false"
Q8_TYPES = "(ggml_type)8, (ggml_type)8"


def op_of(**fields):
    return case_with(**{"hsk": 128, "n_head": 8, "n_head_kv": 2, "n_q": 16, "n_kv": 1024} | fields).op


def launch(kernel, threads, grid=(64, 1, 1), wave=32):
    return launch_of(kernel, grid, (wave, threads // wave, 1))


@pytest.mark.parametrize(
    ("kernel", "threads", "arch", "split"),
    [
        ("flash_attn_ext_f16<64, 64, 8, 8, false, false, false>", 128, 90, Split(1, 4, 1, 1, 16)),
        ("flash_attn_ext_f16<128, 128, 2, 4, false, false, false>", 128, 90, Split(1, 2, 4, 1, 16)),
        ("flash_attn_ext_f16<256, 256, 8, 2, false, false, false>", 256, 90, Split(1, 1, 4, 1, 16)),
        ("flash_attn_ext_f16<64, 64, 4, 8, false, false, false>", 128, 75, Split(1, 2, 2, 2, 8)),
        ("flash_attn_ext_f16<64, 64, 64, 1, false, false, false>", 128, 70, Split(1, 4, 2, 2, 4)),
        ("flash_attn_tile<40, 40, 1, 2, false>", 128, 90, Split(1, 64, 2, 1, 1)),
        (f"flash_attn_ext_vec<128, 1, {F16_TYPES}, false>", 128, 90, Split(4, 8, 4, 1, 1)),
        (f"flash_attn_ext_vec<128, 1, {Q8_TYPES}, false>", 128, 90, Split(4, 32, 1, 1, 1)),
        ("flash_attn_tile<128, 128, 1, 2, false>", 256, GFX906, Split(1, 32, 4, 1, 1)),
        ("flash_attn_tile<128, 128, 1, 2, false>", 64, RDNA2, Split(1, 32, 1, 1, 1)),
        (f"flash_attn_ext_vec<128, 1, {F16_TYPES}, false>", 128, GFX906, Split(4, 8, 4, 1, 1)),
        ("flash_attn_ext_f16<128, 128, 2, 8, false, false, false>", 64, RDNA3, Split(1, 1, 2, 8, 2)),
        ("flash_attn_ext_f16<128, 128, 4, 8, false, false, false>", 128, RDNA4, Split(1, 2, 2, 4, 4)),
        ("flash_attn_ext_f16<128, 128, 4, 8, false, false, false>", 256, CDNA1, Split(1, 2, 2, 4, 4)),
        ("flash_attn_ext_f16<64, 64, 2, 8, false, false, false>", 256, CDNA3, Split(1, 1, 4, 2, 8)),
    ],
)
def test_a_launch_says_how_kv_rows_go_to_accumulators(kernel, threads, arch, split):
    wave = 64 if "f16<" in kernel and arch in (CDNA1, CDNA3) else 32
    assert kernel_of(op_of(), [launch(kernel, threads, wave=wave)], arch).split == split


def test_what_is_rounded_to_what_on_amd():
    def mma(D, arch, wave=32):
        return kernel_of(op_of(hsk=D), [launch(f"flash_attn_ext_f16<{D}, {D}, 8, 2, {NO}>", 128, wave=wave)], arch)

    tile = kernel_of(op_of(), [launch("flash_attn_tile<128, 128, 4, 1, false>", 128)], GFX906)
    vec = kernel_of(op_of(), [launch(f"flash_attn_ext_vec<128, 1, {F16_TYPES}, false>", 128)], RDNA2)
    q8 = kernel_of(op_of(type_V="q8_0"), [launch(f"flash_attn_ext_vec<128, 1, {Q8_TYPES}, false>", 128)], RDNA2)
    assert [k.accumulator for k in (tile, vec, q8)] == [HALF, HALF, HALF]
    assert [k.q for k in (tile, vec, q8)] == ["f16", "f16 twice", "q8_1"]
    assert not tile.products_f16 and q8.converts_V
    scaled = Sinking(block=0, warps=slice(None), flushes=False, factor=HALF)  # all sums of the block that has the sink
    assert (tile.sinking, vec.sinking) == (scaled, replace(scaled, to_maximum=True))
    kernels = [mma(128, RDNA3), mma(80, RDNA3), mma(80, RDNA4), mma(128, CDNA2, 64)]
    assert [k.accumulator for k in kernels] == [HALF, SINGLE, HALF, SINGLE]
    assert not any(k.fast_math for k in (tile, vec, *kernels))
    assert [k.joining for k in kernels] == ["f32", "f32 from f16", "f32", "f32 from f16"]
    assert tile.assumed == vec.assumed == kernel.ASSUMED_DOT2 and not q8.assumed
    for name in ("tile<128, 128, 4, 1, false>", f"ext_vec<128, 1, {F16_TYPES}, false>"):
        assert not any(kernel_of(op_of(), [launch(f"flash_attn_{name}", 128)], arch).assumed for arch in (90, RDNA3))
    assert [bool(k.assumed) for k in kernels] == [False, False, True, False]  # RDNA4 is a gfx1200
    assert [k.least_factor for k in kernels] == [0, 0, 0, 2.0**-14]
    one = launch(f"flash_attn_ext_f16<128, 128, 8, 2, {NO}>", 128, wave=64)
    older = kernel_of(op_of(), [one], CDNA3, replace(default_constants(), cdna_in_f32=False))
    assert (older.accumulator, older.joining, older.split.group) == (HALF, "f32", 16)


def test_what_is_rounded_to_what():
    mma = kernel_of(op_of(), [launch("flash_attn_ext_f16<128, 128, 8, 8, false, false, false>", 128)], 90)
    vec = kernel_of(op_of(), [launch(f"flash_attn_ext_vec<128, 1, {F16_TYPES}, false>", 128)], 90)
    pascal = kernel_of(op_of(), [launch("flash_attn_tile<128, 128, 4, 1, false>", 128)], 61)
    volta = kernel_of(op_of(), [launch("flash_attn_tile<128, 128, 4, 1, false>", 128)], 70)
    quantised = op_of(type_K="q8_0")
    q8 = kernel_of(quantised, [launch(f"flash_attn_ext_vec<128, 1, {Q8_TYPES}, false>", 128)], 90)
    fallback = kernel_of(quantised, [launch(f"flash_attn_ext_vec<128, 1, {F16_TYPES}, false>", 128)], 90)
    assert all(k.fast_math for k in (mma, vec, pascal))
    assert [k.accumulator for k in (mma, vec, pascal, volta)] == [HALF, SINGLE, SINGLE, HALF]
    assert [k.q for k in (mma, vec, pascal, volta, q8)] == ["f16 twice", "f32", "f32", "f16", "q8_1"]
    assert [k.converts_K for k in (mma, vec, pascal, q8, fallback)] == [True, False, True, False, True]


MMA_128, TILE_256 = f"f16<128, 128, 8, 2, {NO}>", "tile<256, 256, 4, 1, false>"
F16, BF16, Q8 = (f"vec<256, 1, {types}, false>" for types in (F16_TYPES, "(ggml_type)30, (ggml_type)30", Q8_TYPES))
LANES = {
    MMA_128: [(RDNA4, 32, 1), (RDNA3, 64, 1)],
    TILE_256: [(RDNA2, 256, 1), (RDNA3, 128, 1)],
    BF16: [(RDNA3, 256, 8)],
}
LANES |= {F16: [(61, 256, 16), (RDNA2, 256, 8), (RDNA3, 128, 8)], Q8: [(CDNA1, 64, 4), (RDNA1, 64, 2)]}


@pytest.mark.parametrize(("kernel", "case"), [(kernel, case) for kernel, found in LANES.items() for case in found])
def test_partial_sums_of_a_logit_are_a_walk_to_it_on_each_lane_and_then_pairwise(kernel, case):
    """Products are added one after another or, by a dot product, two or four at once (fattn-*.cuh)."""
    (arch, additions, lanes), name = case, f"flash_attn_{'' if kernel == TILE_256 else 'ext_'}{kernel}"
    each, rounds = additions // lanes, range(lanes.bit_length() - 1)
    shares = [(at + 1) / additions for at in range(each)] * lanes + [2.0**-n for n in rounds for _ in range(2**n)]
    expected = np.square(shares).sum(), np.multiply(shares, 1 - np.array(shares)).sum()
    assert kernel_of(op_of(hsk=256), [launch(name, 128)], arch).chain == pytest.approx(expected, rel=0.07)


def test_no_prediction_for_a_kernel_that_is_not_known(monkeypatch):
    assert kernel_of(op_of(), [launch("mul_mat_vec<1>", 128)], 90) is None
    monkeypatch.setattr(kernel, "BY_FAMILY", {})
    assert kernel_of(op_of(), [launch("flash_attn_tile<128, 128, 4, 1, false>", 128)], 61) is None


def test_stream_k_seams_are_those_of_the_inspected_arithmetic_and_other_kernels_take_turns():
    op = op_of(n_q=40, n_kv=1000)
    kernel = kernel_of(op, [launch("flash_attn_ext_f16<128, 128, 8, 4, false, false, false>", 128, (23, 1, 1))], 90)
    geometry, grid = kernel.geometry, Grid(iter_k=16, iter_j=5, iter_z_gqa=1, ne12=2, ne03=1)
    assert isinstance(geometry, Geometry) and geometry.grid == grid
    found: dict = {}
    for block in range(23):
        for tile in tiles_of(block * 160 // 23, (block + 1) * 160 // 23, grid):
            found.setdefault(tile.tile, []).append(tile.steps)
    for index in range(10):
        _, z_KV, _, jt = tile_at(index, grid)
        place = geometry.tile_of(0, 8 * jt + 5, 4 * z_KV + 3)
        assert place == tile_at(index, grid)
        assert pieces_of(geometry, place) == tuple(found[place])
    op = op_of(n_q=1, n_kv=1024)
    kernel = kernel_of(op, [launch(f"flash_attn_ext_vec<128, 1, {F16_TYPES}, false>", 128, (1, 3, 8))], 90)
    geometry = kernel.geometry
    pieces = pieces_of(geometry, geometry.tile_of(0, 0, 0))
    assert [list(piece) for piece in pieces] == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert steps_of(pieces, 8).tolist() == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_the_largest_weight_is_the_source_s():
    one = launch("flash_attn_ext_f16<128, 128, 8, 8, false, false, false>", 128)
    first_era = replace(default_constants(), max_offset=float(np.float32(0.6931)))
    assert kernel_of(op_of(), [one], 90).largest_weight == 0.125
    assert kernel_of(op_of(), [one], 90, first_era).largest_weight == 0.5


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(every(), indent=1) + "\n")
