"""What of a run, its repeats and of its rows goes into a judgement; the session is a stand-in, but for hidden rows."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from fattn_probe.cases.scenario import Scenario, expand
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.launch.architecture import CDNA3
from fattn_probe.llama.launch.constants import default_constants
from fattn_probe.llama.launch.geometry import geometry_of
from fattn_probe.llama.launch.selection import LaunchBlocks, Selection, rows_of_tiles
from fattn_probe.machine.run.base import Base
from fattn_probe.machine.run.capture import Capture, Part, inputs_of
from fattn_probe.machine.run.outcome import Finding, Lost, Unsupported
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.verdict.judge import cases as judge_module
from fattn_probe.verdict.judge.cases import (
    Answers,
    JudgedCase,
    expect,
    explained,
    judge_on,
    judged,
    judged_case,
    signature,
)
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.judge.known import Known
from fattn_probe.verdict.measure.sampled import Sampled
from fattn_probe.verdict.measure.verdict import Status
from fattn_probe.verdict.truth.reference.sampled import sample
from tests.made import CAUSAL, CPU, GPU, H200, case_of, shape
from tests.made import launch_of as made_launch
from tests.stand_in import StandIn
from tests.verdict.truth.models import model_of

CASE = case_of(shape(64, 4, 1, 20, 32, CAUSAL))
MMA = "flash_attn_ext_f16<64, 64, 8, 4, false, false, false>"
RELEASE = {"engine": "sim", "flavour": "release"}


def launch_of(kernel=MMA):
    return made_launch(kernel, (3, 1, 1), origin="measured")


LAUNCH = launch_of()
PART_ROWS = rows_of_tiles(geometry_of(CASE.op, [LAUNCH], 90), CASE.op.sizes, np.array([1]))
PART = Part(Selection((LaunchBlocks((3, 1, 1), ((1, 2),)),), np.array([1]), np.array([1]), 0), PART_ROWS)


@dataclass
class Runs(StandIn):
    """A session whose runs have these outputs, by the number of the repeat; `asked` has the number, case and part."""

    outputs: Any
    number: int = 0
    asked: list = field(default_factory=list)
    options: Any = field(default_factory=lambda: SimpleNamespace(tree=None, build=None, sanitize=(), patches=()))

    def reordered(self, number):
        return replace(self, number=number)

    def build_for(self, target):
        return SimpleNamespace(manifest=SimpleNamespace(build_number="11549", source="/mine", patches=()))

    def capture(self, case, inputs, target, part=None):
        self.asked.append((self.number, case.name, part))
        found = self.outputs(case) if callable(self.outputs) else self.outputs[min(self.number, len(self.outputs) - 1)]
        return found if isinstance(found, Lost | Unsupported) else captured(case, inputs, found)


def captured(case, inputs, dst, launches=(LAUNCH,), provenance=None):
    where = ("gpu", (), "CUDA0", "NVIDIA H200")
    return Capture(case.name, case.digest, case.op, inputs, dst, launches, *where, provenance or RELEASE)


@pytest.fixture(scope="module")
def made():
    inputs = make_inputs(CASE)
    return inputs, model_of(CASE, dict(inputs), [LAUNCH], 90)


@pytest.fixture
def subject(made):
    """A case whose runs have these outputs; a correct one by default."""

    def of(*outputs, target=H200, part=None, baseline=None, steps=None, known=True, **checks):
        answers = Answers(CASE, made[0], steps.append if steps is not None else lambda step: None)
        session, constants = Runs(outputs or (made[1],)), default_constants() if known else None
        return JudgedCase(session, answers, target, Checks(**checks), 90, constants, part, None, baseline)

    return of


def judgement(subject, *launches, **more):
    return judged(subject, replace(subject.run(), **({"launches": launches} if launches else {}), **more))


def spoilt(dst, rows, by=0.5):
    wrong = dst.copy()
    wrong[tuple(np.array(rows).T)] += np.float32(by)
    return wrong


@pytest.mark.parametrize(("arch", "cc"), [(61, "6.1"), (90, "9.0"), (121, "12.1")])
def test_a_compute_capability_is_that_of_the_architecture(subject, arch, cc):
    assert replace(subject(), arch=arch).cc == cc


def test_a_correct_output_is_judged_with_both_models(subject, made):
    row = judgement(subject(roundings=True))
    assert (row.status, row.missing, row.sampled, row.diagnosis, row.division) == (Status.PASS, "", None, None, None)
    assert row.dst is not None and (row.dst == made[1]).all()
    assert row.verdict.design.equal_bits == 1.0 and row.upstream.passes
    (check,) = row.checks
    assert (check.name, check.passes, check.made) == ("roundings", True, True) and check.reason.startswith("100 % ")


def test_a_source_without_configurations_has_no_model_and_an_unknown_division(subject):
    row = judgement(subject(known=False, roundings=True))
    assert row.status is Status.PASS and "lacks the configurations" in row.missing
    assert row.verdict.design.by == "prediction" and row.division == LAUNCH.origin
    assert [(check.name, check.made) for check in row.checks] == [("roundings", False)]
    assert judgement(subject(target=GPU)).division is None


def test_a_kernel_with_an_unknown_configuration_is_judged_by_the_tolerance(subject):
    row = judgement(
        replace(subject(), constants=default_constants().with_mma((64, 64, 32), 90, None)).launched([LAUNCH])
    )
    assert (row.status, row.verdict.design) == (Status.PASS, None)
    assert row.missing == "this kernel's configuration is not known from the source: the scenario's tolerance decides"


def test_an_unknown_kernel_is_named_and_judged_by_the_tolerance(subject):
    row = judgement(subject(), replace(LAUNCH, kernel="mine", template_args=()))
    assert (row.status, row.verdict.design) == (Status.PASS, None)
    assert (
        row.missing
        == "none of the launched kernels is known (mine): the scenario's tolerance decides, and small errors pass"
    )


@pytest.mark.parametrize(
    ("sanitize", "provenance", "is_made"),
    [((), RELEASE, True), (("thread",), RELEASE, False), ((), RELEASE | {"flavour": "debug"}, False)],
)
def test_roundings_are_checked_where_correct_kernels_have_the_bits_of_the_model(subject, sanitize, provenance, is_made):
    one = subject(roundings=True)
    one.session.options.sanitize = sanitize
    (check,) = judgement(one, provenance=provenance).checks
    assert check.made == is_made


def test_other_roundings_fail_a_correct_output(subject, made):
    other = np.nextafter(made[1], np.float32(9))
    row = judgement(subject(other, roundings=True))
    (check,) = row.checks
    assert (row.verdict.status, row.status, check.passes, check.fails) == (Status.PASS, Status.FAIL, False, True)
    assert not judgement(subject(other)).checks


def test_ggml_on_the_cpu_is_judged_by_the_tolerance(subject, made):
    one = subject(target=CPU, kernels=True)
    row = judged(one, replace(one.run(), launches=()))
    assert row.status is Status.PASS and row.missing.startswith("ggml's CPU backend has no error model")
    assert not row.checks
    (check,) = judgement(subject(kernels=True)).checks
    assert (check.name, check.made) == ("kernels", False)  # the table has no such op


def test_vec_kernels_that_add_in_f16_have_no_model(subject, monkeypatch):
    vec = launch_of("flash_attn_ext_vec<64, 1, GGML_TYPE_F16, GGML_TYPE_F16, false>")
    adds_in_f16 = Mock(return_value=True)
    monkeypatch.setattr(judge_module, "vec_adds_in_f16", adds_in_f16)
    one = subject()
    run = captured(CASE, one.inputs, None, (vec,))
    assert "adds V in f16" not in expect(one.launched([vec]), run).missing  # without a source, the present form
    one.session.options.tree = "tree"
    assert "adds V in f16" not in expect(one.launched([LAUNCH]), captured(CASE, one.inputs, None)).missing
    assert not adds_in_f16.called
    assert "adds V in f16" in expect(one.launched([vec]), run).missing
    adds_in_f16.assert_called_once_with("tree", 90)


def test_a_run_of_some_blocks_says_so(subject, made):
    steps: list[str] = []
    for target, part in ((H200, None), (H200, PART), (GPU, PART)):
        subject(target=target, part=part, steps=steps).run()
    assert [step.partition(": ")[2] for step in steps] == ["running", "running 33 % of its blocks", "running"]


@pytest.mark.parametrize(("part", "checked"), [(None, Sampled(24, 80)), (PART, Sampled(8, 80, 1, 3, 32))])
def test_a_sample_of_rows_decides_alone(subject, made, part, checked, monkeypatch):
    """The rows of a part are those of its blocks; others were not computed, and heads without one are not generated."""
    sample_of = Mock(side_effect=sample)
    monkeypatch.setattr(judge_module, "sample", sample_of)
    first = PART_ROWS[0] if part else (0, 0, 0)
    right = made[1].copy()
    if part:
        computed = np.zeros(right.shape[:3], bool)
        computed[tuple(PART_ROWS.T)] = True
        right[~computed] = np.nan
    row = judgement(subject(right, part=part, sample=8))
    assert (row.status, row.sampled, row.dst, row.diagnosis) == (Status.PASS, checked, None, None)
    assert row.upstream.passes and row.verdict.metrics.elements == 64 * checked.rows
    assert [call.kwargs for call in sample_of.mock_calls] == [{"all_heads": part is None}]
    row = judgement(subject(spoilt(right, [first]), part=part, sample=8))
    assert row.status is Status.FAIL and not row.upstream.passes and row.diagnosis is not None
    assert row.verdict.deviation.wrong.any(axis=3).sum() == 1
    assert f"({', '.join(map(str, map(int, first)))})" in row.reason


def test_rows_of_an_unknown_kernel_are_sampled_from_all_and_a_sample_is_not_all_rows(subject, made):
    one = subject(part=PART, sample=8)
    assert judged(one, replace(one.run(), launches=(launch_of("mine<1>"),))).sampled.rows >= 8
    row = judgement(subject(spoilt(made[1], [(0, 9, 1)], by=90), sample=8))
    assert row.status is Status.FAIL and row.diagnosis is None
    one = subject(sample=8)
    sampled = judgement(one)
    whole = judgement(replace(one, checks=Checks()))
    assert sampled.status is whole.status is Status.PASS and len(one.answers.expected) == 2
    assert whole.verdict.metrics.elements == 80 * 64 > sampled.verdict.metrics.elements


@pytest.mark.parametrize("sample", ["auto", 8])
def test_a_baseline_is_the_model_of_runs_with_the_same_launches(subject, made, sample):
    other = spoilt(made[1], [(0, 0, 0), (0, 19, 3)], by=1e-6)
    baseline = captured(CASE, made[0], other)
    row = judgement(subject(other, baseline=baseline, sample=sample, roundings=True))
    assert (
        row.verdict.design.equal_bits == 1.0
        and row.missing == "the rounding model was skipped (to compute it: --model always)"
    )
    assert judgement(subject(baseline=baseline, sample=sample)).verdict.design.equal_bits < 1
    for lacking in (
        {"baseline": replace(baseline, launches=())},
        {"baseline": baseline, "known": False},
        {"baseline": baseline, "model": "never"},
    ):
        assert judgement(subject(other, sample=sample, **lacking)).verdict.design.by == "prediction", lacking
    unknown = launch_of("mine<1>")
    row = judgement(subject(other, baseline=replace(baseline, launches=(unknown,))), unknown)
    assert row.status is Status.PASS and row.verdict.design is None
    assert judgement(subject(spoilt(made[1], [(0, 0, 0)]), baseline=baseline)).diagnosis is None


@pytest.mark.parametrize(
    ("factor", "signs", "defect", "asked", "kinds"),
    [
        (1.0, (1, -1, 1), "", [0, 1], ["nondeterministic"]),
        (1.0, (1, -1, 1), "q8-race", [0, 1], ["v-sum"]),
        (1.0, (1, 1, 1), "", [0, 1], ["v-sum"]),
        (0.75, (0, -1, -1), "", [0], ["output-scale"]),
    ],
    ids=["a race", "a race of llama.cpp itself", "always the same", "a cause that predicts the output"],
)
def test_a_wrong_output_that_no_cause_predicts_is_run_once_more(
    subject, made, monkeypatch, factor, signs, defect, asked, kinds
):
    known_of = Mock(side_effect=lambda _, verdict, *__, **___: Known(defect * (verdict.status is Status.PASS)))
    monkeypatch.setattr(judge_module, "known_of", known_of)
    noise = np.random.default_rng(0).normal(0, 0.01, made[1].shape).astype(np.float32)
    outputs = [np.float32(factor) * made[1] + np.float32(sign) * noise for sign in signs]
    one = subject(*outputs)
    row = judgement(one)
    assert [number for number, _, _ in one.session.asked] == asked
    assert [said.cause.kind for said in row.diagnosis.causes] == kinds
    assert explained(one, judgement(subject()).verdict, made[1]) is None
    assert explained(one, replace(row.verdict, deviation=None), outputs[0]) is None


@pytest.mark.parametrize(
    ("base", "known", "doubt"),
    [
        ((0, 0, 0), "masked-rows", ""),
        (None, "", "this looks like masked-rows, a known defect of llama.cpp, but the release does not fail"),
        ((0, 19, 3), "", "but the release fails differently (not as designed"),
    ],
    ids=["fails too", "passes", "fails for another reason"],
)
def test_a_known_defect_counts_only_if_the_base_has_it_too(subject, made, monkeypatch, base, known, doubt):
    """A fault in 32-bit offsets of V had the signs of kv-head-offset, and `regress` ended with exit code 0."""
    first = spoilt(made[1], [(0, 0, 0)])
    other = made[1] if base is None else spoilt(made[1], [base])
    without = Base(RunOptions(None), "the release")
    monkeypatch.setattr(judge_module, "base_of", lambda options: without if options.patches else None)
    monkeypatch.setattr(judge_module, "prepare", Mock())
    monkeypatch.setattr(judge_module, "judged_case", lambda *_: subject(other))
    known_of = Mock(side_effect=lambda *_, capture: Known("masked-rows" * bool((capture.dst == first).all())))
    monkeypatch.setattr(judge_module, "known_of", known_of)
    one = subject(first)
    one.session.options, one.session.progress = RunOptions(None, patches=(Mock(),)), None
    row = judgement(one)
    assert (row.known, doubt in row.doubt, row.status) == (known, True, Status.FAIL)
    assert not (known and row.diagnosis.causes), "the defect is the cause"
    monkeypatch.setattr(judge_module, "base_of", lambda options: replace(without, missing="offline"))
    assert judgement(one).doubt == "maybe masked-rows, a known defect of llama.cpp, but the release cannot run: offline"


def test_a_finding_is_the_base_s_if_an_edit_changed_lines_or_the_type_of_an_argument():
    """A cached KV_max of type `const int *` in launch_fattn made six known failures of `quick` alarms."""
    frames = (
        "no_device_code at ggml/src/ggml-cuda/common.cuh:424",
        "flash_attn_ext_f16<128, 128, 16, 1, false> at ggml/src/ggml-cuda/fattn-mma-f16.cuh:1849",
        "ggml_cuda_kernel_launch<char const*, int*&> at ggml/src/ggml-cuda/common.cuh:1713",
    )
    base = Finding("trap", "__trap() in common.cuh:424", "flash_attn_ext_f16<128,128,16,1,false>", frames=frames)
    moved = (frames[0], frames[1].replace("1849", "1851"), frames[2].replace("int*&", "int const*&"))
    assert signature(replace(base, message="__trap() in common.cuh:425", frames=moved)) == signature(base)
    elsewhere = (frames[0].replace("no_device_code", "vec_dot"), *frames[1:])
    for other in ({"frames": elsewhere}, {"kind": "race"}, {"kernel": "flash_attn_ext_f16<64,64,16,1,false>"}):
        assert signature(replace(base, **other)) != signature(base)


def test_a_session_takes_another_order_of_warps_each_time():
    session = Session(RunOptions(None))
    assert [session.reordered(number).options.simulation.schedule for number in (1, 2)] == [1, 2]
    assert session.reordered(1).reordered(1).options.simulation.schedule == 2


@pytest.mark.parametrize(
    ("repeat", "others", "asked", "passes", "words"),
    [
        (1, (), [0], None, ""),
        (2, (0,), [1, 0], True, "the same bits in 2 runs with different orders of warps"),
        (3, (0, 1), [1, 2, 0], False, "1 of 3 runs with different orders of warps"),
        (3, (None, 0), [1, 0], False, "run 2 did not finish: lost: gone"),
    ],
)
def test_repeats_have_the_same_bits(subject, made, repeat, others, asked, passes, words):
    outputs = [Lost("gone") if more is None else made[1] + np.float32(1e-7 * more) for more in others]
    one = subject(made[1], *outputs, repeat=repeat)
    found = judged(one, captured(CASE, made[0], made[1])).checks
    assert [number for number, _, _ in one.session.asked] == asked[:-1]
    assert [(check.name, check.passes, check.fails) for check in found] == (
        [] if passes is None else [("deterministic", passes, not passes)]
    )
    assert all(words in check.reason for check in found)
    if repeat == 2:
        gpu = judged(subject(made[1], *outputs, repeat=2, target=GPU), captured(CASE, made[0], made[1])).checks
        assert gpu[0].reason == "the same bits in 2 runs"


def test_only_the_rows_of_a_part_are_compared_between_runs(subject, made):
    elsewhere, inside = (spoilt(made[1], [place]) for place in ((0, 0, 0), PART_ROWS[3]))
    for again, passes in ((elsewhere, True), (inside, False)):
        one = subject(made[1], again, part=PART, repeat=2, sample=8, batch_invariance=2)
        alike, alone = judged(one, captured(CASE, made[0], made[1])).checks[:2]
        assert (alike.passes, alone.made) == (passes, False)
        assert [number for number, _, _ in one.session.asked] == [1]


def test_queries_are_computed_alone(subject, made):
    alone = {f"{CASE.name}-query={query}": made[1][:, query : query + 1] for query in (0, 19)}
    one = subject(made[1], batch_invariance=2)
    one.session.outputs = lambda case: alone[case.name]
    (check,) = judged(one, captured(CASE, made[0], made[1])).checks
    assert (
        check.passes
        and "2 queries have the same bits" in check.reason
        and f"in the batch with {LAUNCH.spelling}" in check.reason
    )
    one.session.outputs = lambda case: Lost("gone") if "=19" in case.name else alone[case.name] + np.float32(1e-7)
    (check,) = judged(one, captured(CASE, made[0], made[1])).checks
    assert not check.passes and check.reason.startswith("1 of 1 queries have different bits alone (0)")
    one.session.outputs = lambda case: Lost("gone")
    (check,) = judged(one, captured(CASE, made[0], made[1], ())).checks
    assert not check.made
    assert not judgement(subject()).checks


def test_an_output_that_is_correct_for_another_op_is_known_as_that(subject, made, monkeypatch):
    """`known_defect` asks whether a wrong output is correct for an op with another view of the memory."""
    known_defect = Mock(return_value=Known())
    monkeypatch.setattr(judge_module, "known_defect", known_defect)
    doubled = replace(CASE.op, params=replace(CASE.op.params, scale=2 * CASE.op.params.scale))
    dst = model_of(replace(CASE, op=doubled), dict(made[0]), [LAUNCH], 90)
    assert judgement(subject(dst)).status is Status.FAIL
    ((failure, _),) = (call.args for call in known_defect.mock_calls)
    assert failure.right_for(doubled, {}) and not failure.right_for(CASE.op, {})
    assert failure.right_for(CASE.op, {"Q": (2 * made[0]["Q"].view(np.float32)).view(np.uint8)})
    assert failure.inputs == made[0] and not failure.scanned
    assert failure.kernel == LAUNCH.spelling and failure.cc == "9.0"
    one = subject(Unsupported("refused"))
    monkeypatch.setattr(judge_module, "supporting", lambda *_: 11549)
    judged(one, one.run())
    assert not known_defect.call_args.args[0].right_for(CASE.op, {})


@pytest.mark.parametrize(("arch", "gpu"), [(90, "compute capability 9.0"), (CDNA3, "gfx942")])
def test_a_loss_of_support_names_the_gpu(subject, arch, gpu, monkeypatch):
    monkeypatch.setattr(judge_module, "supporting", lambda *_: 11549)
    one = replace(subject(Unsupported("refused")), arch=arch)
    assert f"b11549 supports this op on {gpu}: refused" in judged(one, one.run()).reason


@pytest.mark.parametrize(("target", "last", "is_made"), [(CPU, None, []), (H200, None, [False]), (H200, 11549, [])])
def test_a_refused_op_is_held_against_releases(subject, target, last, is_made, monkeypatch):
    monkeypatch.setattr(judge_module, "last_known", lambda *_: last)
    one = subject(Unsupported("refused"), target=target)
    row = judged(one, one.run())
    assert row.status is Status.UNSUPPORTED
    assert [check.made for check in row.checks] == is_made


def test_a_part_is_chosen_from_the_launches_of_a_large_case(subject, made, monkeypatch):
    session, answers = Runs((made[1],)), Answers(CASE, made[0])
    launches: list[Any] = []
    monkeypatch.setattr(judge_module, "dry_launches", lambda *_: launches)
    monkeypatch.setattr(Checks, "may_take_part", lambda self, case: self.sample != "all")
    monkeypatch.setattr(Checks, "part", lambda self, case, geometry, found, target: (geometry.kernel.ncols1, found))
    assert judged_case(session, answers, H200, Checks()).part is None
    launches.append(LAUNCH)
    chosen: Any = judged_case(session, answers, H200, Checks()).part
    assert chosen == (8, launches)
    for target, checks in ((CPU, Checks()), (H200, Checks(sample="all"))):
        assert judged_case(session, answers, target, checks).geometry is None
    row = judge_on(session, answers, H200, Checks(sample="all", repeat=2))
    assert row.status is Status.PASS and len(row.checks) == 1


HIDDEN = 64
ENTRY = {"version": 1, "about": "x", "hsk": 128, "n_head": 8, "n_head_kv": 2, "n_q": 1, "n_kv": 512}


def uninitialised(inputs, case):
    """The inputs with 1e30 in one value in 50 of K's hidden rows."""
    view = case.op.tensors["K"]
    data = inputs[view.root].copy()
    hidden = data.view(np.uint16).reshape(-1, case.op.sizes.n_kv, case.op.sizes.hsk)[:, -HIDDEN:]
    hidden[np.random.default_rng(3).random(hidden.shape) < 0.02] = np.float32(1e30).view(np.uint32) >> 16
    return {**inputs, view.root: data}


def run(session, n_q, model):
    """The case with its capture; its inputs hold the huge values."""
    mask = {"kind": "masked_tiles", "trailing": HIDDEN}
    entry = ENTRY | {"n_q": n_q, "type_K": "bf16", "type_V": "bf16", "mask": mask}
    (case,) = expand(Scenario.model_validate(entry).named("hidden"))
    with inputs_of(case) as inputs:
        found = judged_case(session, Answers(case, uninitialised(inputs, case)), H200, Checks(model=model))
        capture = found.run()
        assert isinstance(capture, Capture)
        return found, capture


@pytest.mark.build
@pytest.mark.parametrize("model", ["never", "always"])
def test_huge_values_in_hidden_rows_of_k_hide_no_wrong_output(session, model):
    """As in an uninitialised cache."""
    case, capture = run(session, 1, model)
    found = judged(case, capture)
    assert found.status is Status.PASS, found.reason
    assert found.verdict.design is not None and found.verdict.design.rmse_by_predicted < 2
    for dst in (2 * capture.dst, 0 * capture.dst, capture.dst + np.float32(1)):
        assert judged(case, replace(capture, dst=dst)).status is Status.FAIL


@pytest.mark.build
def test_a_kernel_that_makes_infinities_of_hidden_rows_fails(session):
    case, capture = run(session, 2, "always")  # two queries take mma, which converts K to f16
    found = judged(case, capture)
    assert found.status is Status.FAIL and "NaN" in found.reason
