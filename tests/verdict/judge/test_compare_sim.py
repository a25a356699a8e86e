"""`compare` on the simulated H200: shipped kernels, planted faults, and runs of some blocks."""

import dataclasses
from difflib import unified_diff

import numpy as np
import pytest

from fattn_probe.cases.device import load_devices
from fattn_probe.cases.scenario import expand, load, loads
from fattn_probe.cases.scenario import layout as rule
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.launch.constants import default_constants
from fattn_probe.llama.launch.geometry import geometry_of
from fattn_probe.llama.source import patches
from fattn_probe.llama.source.features import CUDA
from fattn_probe.machine.run.capture import Part
from fattn_probe.machine.run.outcome import Finding, Lost, Ran
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.verdict.judge import checks
from fattn_probe.verdict.judge.cases import Answers, judge_case, judge_cases, judged_case
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.judge.expectation import expected_of
from fattn_probe.verdict.measure.metrics import nmse, unwritten_elements
from fattn_probe.verdict.measure.verdict import Status, judge, upstream_says
from fattn_probe.verdict.truth.reference.adapter import reference_of
from tests import made
from tests.made import CAUSAL, CPU, H200, SCENARIOS, at_night, shape
from tests.planted import FAULTS, case_of, planted

pytestmark = [pytest.mark.build, pytest.mark.network]

DEVICES = load_devices()
LONG_CACHE = shape(64, 16, 2, 3, 32768, CAUSAL)
"""stream-K seams within tiles"""


def rows_of(session, text, targets=(H200,), options=None):
    case = expand(load(SCENARIOS / text) if text.endswith(".yaml") else loads(text, "case.yaml"))[0]
    return list(judge_cases(session, [(case, targets)], options))


@pytest.mark.slow  # ggml's CPU backend is compiled
def test_several_backends_in_one_go(session):
    sim, cpu = rows_of(session, "gqa.yaml", (H200, CPU))
    assert (sim.status, cpu.status) == (Status.PASS, Status.PASS)
    assert sim.verdict.design.equal_bits > 0.999
    assert 0.5 < sim.verdict.design.rmse_by_predicted < 1.5
    assert cpu.verdict.design is None
    assert "CPU backend has no error model" in cpu.missing


def test_a_conversion_stops_at_a_misaligned_word_as_on_a_gpu(session):
    """x86-64 reads it. K and V begin at byte 102."""
    (row,) = rows_of(session, "known-faults/q8-alignment.yaml")
    assert (row.status, row.known, row.finding.kind) == (Status.FAIL, "q8-alignment", "misaligned")
    assert row.finding.message == "misaligned: an access to a 'const int' at an address that is not a multiple of 4"
    assert row.finding.frames[0] == "dequantize_block_q8_0_f16<false> at ggml/src/ggml-cuda/convert.cu:61"


def edited(tree, *replaced):
    """A patch that replaces (before, after) texts in the vec kernel's file."""
    name = f"{CUDA}/fattn-vec.cuh"
    text = made = (tree.root / name).read_text()
    for before, after in replaced:
        assert before in made
        made = made.replace(before, after)
    texts = (text.splitlines(keepends=True), made.splitlines(keepends=True))
    return patches.Patch("edited", None, "", (), "".join(unified_diff(*texts, f"a/{name}", f"b/{name}")))


def test_a_kernel_that_is_launched_without_the_softcap_of_the_op_fails(tree):
    """The rounding model once left the softcap out too, since it read the launch: all bits were equal."""
    case = shape(128, 4, 4, 1, 256, "logit_softcap: 10", "data: {Q: {kind: large_logits}}")
    patch = edited(tree, ("if (logit_softcap == 0.0f)", "if (logit_softcap <= 50.0f)"))
    (row,) = rows_of(Session(RunOptions(tree, patches=(patch,))), case)
    assert row.status is Status.FAIL and row.verdict.reason.startswith("not as designed: the output differs from the")
    assert row.verdict.design.equal_bits < 0.1


def test_a_renamed_kernel_has_the_models_of_its_family(tree):
    """It once counted as unknown, and small errors passed."""
    renamed = [
        (f"{word}flash_attn_ext_vec{end}", f"{word}flash_attn_mine{end}") for word, end in ((" ", "("), (" ", "<"))
    ]
    text = shape(128, 4, 4, 1, 256)
    (row,) = rows_of(Session(RunOptions(tree, patches=(edited(tree, *renamed),))), text)
    assert (row.status, row.kernel, row.missing) == (
        Status.PASS,
        "flash_attn_mine<128,1,GGML_TYPE_F16,GGML_TYPE_F16,false>",
        "",
    )
    assert row.verdict.design.by == "model" and row.verdict.design.equal_bits == 1.0
    wrong = ("KQ_sum[j_VKQ] *= kqmax_scale;", "KQ_sum[j_VKQ] *= 1.001f*kqmax_scale;")
    (row,) = rows_of(Session(RunOptions(tree, patches=(edited(tree, *renamed, wrong),))), text)
    assert row.status is Status.FAIL and row.upstream.passes


def test_a_vec_kernel_is_judged_by_the_threads_of_its_own_blocks(tree):
    """Tuning `nthreads` changes the steps, and so the bits, of a correct kernel and of its models."""
    tuned = edited(tree, ("return 128;", "return 256;"))
    case = "version: 1\nabout: several steps a block\nhsk: 64\nn_head: 4\nn_q: 1\nn_kv: 1024\n"
    (row,) = rows_of(Session(RunOptions(tree, patches=(tuned,))), case, options=Checks(roundings=True))
    assert (row.launches[0].kernel, row.launches[0].block) == ("flash_attn_ext_vec", (32, 8, 1))
    assert (row.status, row.verdict.design.equal_bits) == (Status.PASS, 1.0)


@pytest.mark.slow  # smaller batches have kernels of their own
def test_a_correct_kernel_is_deterministic_and_batches_differ_by_their_kernels(session):
    (row,) = rows_of(session, "gqa.yaml", options=Checks(repeat=3, batch_invariance=3))
    deterministic, invariant = row.checks
    assert deterministic.passes
    assert "3 runs with different orders of warps" in deterministic.reason
    assert not invariant.passes
    assert "in the batch with flash_attn_ext_f16<64,64,8,8" in invariant.reason
    assert row.status is Status.PASS


@pytest.mark.slow
@pytest.mark.parametrize("n_kv", [4096, *at_night(512, 2048, 16384)])
def test_all_planted_faults_are_caught(session, n_kv):
    case = case_of(n_kv)
    inputs = make_inputs(case)
    capture = session.capture(case, inputs, H200)
    reference, geometry = reference_of(case.op, inputs), geometry_of(case.op, capture.launches, 90)
    expected = expected_of(case, inputs, geometry, 90, "always", constants=default_constants())
    assert judge(capture.dst, reference, case.tolerance, expected=expected).status is Status.PASS
    upstream = 0
    for fault in FAULTS:
        dst = planted(fault, case, inputs, capture.dst, geometry)
        assert judge(dst, reference, case.tolerance, expected=expected).status is Status.FAIL, fault.__name__
        upstream += not upstream_says(dst, reference).passes
    assert upstream <= 5


@pytest.mark.night
def test_a_stream_k_fault_is_placed_at_its_seams(tree):
    (row,) = rows_of(Session(RunOptions(tree, patches=(patches.find("fault-stream-k-seam", tree),))), LONG_CACHE)
    assert row.status is Status.FAIL
    said = row.diagnosis.causes[0]
    assert said.cause.words == "the KV step before each seam between blocks is left out"
    assert said.cause.explained > 0.99
    assert row.diagnosis.worst[0].blocks[0] in (0, 132)


def outcome_of(tree, flavour, *names):
    """Run the scenario with patches, and measure its output."""
    applied = tuple(patches.find(name, tree) for name in names)
    case = made.case_of(shape(64, 16, 2, 3, 256, CAUSAL))
    inputs = make_inputs(case)
    outcome = Session(RunOptions(tree, flavour=flavour, patches=applied)).run(case, inputs, H200)
    return outcome, nmse(outcome.result.dst, reference_of(case.op, inputs)) if isinstance(outcome, Ran) else None


@pytest.mark.night  # CI judges others in test_regress_cli.py, test_keep.py and test_checked_faults.py
@pytest.mark.parametrize("flavour", ["release", "check"])
def test_a_barrier_that_a_kernel_lacks(tree, flavour):
    _, right = outcome_of(tree, flavour)
    assert right < 1e-6
    outcome, wrong = outcome_of(tree, flavour, "fault-missing-syncthreads")
    if flavour == "release":
        assert isinstance(outcome, Ran)
        assert not wrong < 3e-5  # the tolerance of the shipped scenarios; NaN, of rows masked by mistake, is wrong too
    else:
        assert isinstance(outcome, Finding)
        assert outcome.kind == "race"
        assert "flash_attn_ext_f16" in outcome.kernel
        assert "fattn-mma-f16.cuh:" in outcome.frames[0]


HEAD = "version: 1\nabout: a case of which some blocks run\n"
BATCH = HEAD + "hsk: 64\nn_head: 8\nn_head_kv: 2\nn_q: 300\nn_kv: 2048\nmask: {kind: causal}\n"
SHORT = BATCH.replace("n_q: 300", "n_q: 33")
MANY = HEAD + "hsk: 64\nn_head: 16\nn_head_kv: 4\nn_q: 1200\nn_kv: 256\nn_seq: 2\nmask: {kind: causal}\n"
MANY += "layout: {mask: {pad: 64}}\n"
DECODE = HEAD + "hsk: 128\nn_head: 8\nn_head_kv: 2\nn_q: 1\nn_kv: 4096\nn_seq: 2\n"
TILE = HEAD + "hsk: 72\nn_head: 8\nn_head_kv: 2\nn_q: 40\nn_kv: 512\nn_seq: 2\n"


@pytest.fixture(scope="module")
def lasting(session):
    with session.persistent_runner():
        yield session


@pytest.fixture
def slow(monkeypatch):
    """Every case takes too long, and may run the fewest blocks."""
    monkeypatch.setattr(checks, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(checks, "PART_SECONDS", 0.0)


@pytest.mark.parametrize(
    ("text", "fixup"),
    [
        pytest.param(BATCH, "flash_attn_stream_k_fixup_general", id="blocks-end-inside-tiles"),
        pytest.param(SHORT, "flash_attn_stream_k_fixup_uniform", id="several-blocks-a-tile"),
        pytest.param(MANY, "flash_attn_stream_k_fixup_general", id="several-tiles-a-block"),
        pytest.param(DECODE, "flash_attn_combine_results", id="vec"),
        pytest.param(TILE, "flash_attn_combine_results", id="tile", marks=pytest.mark.slow),
    ],
)
def test_some_blocks_give_the_bits_of_all(lasting, slow, text, fixup):
    case, inputs = made.case_of(text), make_inputs(made.case_of(text))
    part = judged_case(lasting, Answers(case, inputs), H200, Checks()).part
    whole = lasting.capture(case, inputs, H200)
    assert whole.launches[-1].kernel == fixup
    some = lasting.capture(case, inputs, H200, part)
    assert some.launches == whole.launches
    ran = part.selection.launches[part.selection.attention]
    assert ran.number < ran.of
    rows = tuple(part.rows.T)
    assert len(part.rows) < some.dst[..., 0].size
    assert not unwritten_elements(whole.dst).any()
    np.testing.assert_array_equal(some.dst[rows].view(np.uint32), whole.dst[rows].view(np.uint32))
    again = lasting.capture(case, inputs, H200)
    np.testing.assert_array_equal(again.dst.view(np.uint32), whole.dst.view(np.uint32))


def test_a_part_is_judged_and_named(lasting, slow):
    found = judge_case(lasting, made.case_of(BATCH), H200, Checks(model="always"))
    assert found.status is Status.PASS
    assert found.verdict.design.equal_bits == 1.0
    assert found.sampled.rows < found.sampled.complete < found.sampled.of == 2400
    assert found.sampled.blocks < found.sampled.of_blocks == 264
    assert str(found.sampled).startswith(f"ran {found.sampled.blocks} of 264 blocks of the attention kernel, checked ")
    everything = judge_case(lasting, made.case_of(BATCH), H200, Checks(sample="all"))
    assert everything.status is Status.PASS
    assert everything.sampled is None


def test_the_runner_refuses_blocks_of_other_launches(lasting, slow):
    case, inputs = made.case_of(BATCH), make_inputs(made.case_of(BATCH))
    part = judged_case(lasting, Answers(case, inputs), H200, Checks()).part
    launches = [dataclasses.replace(one, grid=(one.grid[0] + 1, *one.grid[1:])) for one in part.selection.launches]
    other = Part(dataclasses.replace(part.selection, launches=tuple(launches)), part.rows)
    found = lasting.run(case, inputs, H200, other)
    assert isinstance(found, Lost)
    assert "launch 0 has a grid of 264x1x1 blocks, and blocks were chosen from 265x1x1" in found.message


def test_memory_that_repeats_gives_the_bits_of_memory_that_is_written(lasting, monkeypatch):
    """K, V and mask repeat; their bytes, written as any others, give the same output."""
    monkeypatch.setattr(rule, "REPEATS_ABOVE", 1 << 17)
    monkeypatch.setattr(rule, "LEAST_PERIOD", 1 << 14)
    case = made.case_of(BATCH)
    assert {name for name, root in case.op.roots.items() if root.period} == {"Q", "K", "V", "mask"}
    inputs = make_inputs(case)
    roots = {name: dataclasses.replace(root, period=None) for name, root in case.op.roots.items()}
    written = dataclasses.replace(case, op=dataclasses.replace(case.op, roots=roots))
    found, expected = lasting.capture(case, inputs, H200), lasting.capture(written, inputs, H200)
    np.testing.assert_array_equal(found.dst.view(np.uint32), expected.dst.view(np.uint32))
    assert judge_case(lasting, case, H200).status is Status.PASS
