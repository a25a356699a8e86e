"""Rows, table, JSON and exit of `compare`, on captures made by hand."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from fattn_probe.base.errors import ComparisonError, InputError, LostError, UnjudgedError
from fattn_probe.cases.op import Op, Params, Sizes
from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.machine.run.capture import Capture
from fattn_probe.verdict.diagnose.diagnosis import Diagnosis
from fattn_probe.verdict.diagnose.difference import compare_captures
from fattn_probe.verdict.diagnose.faults import Said
from fattn_probe.verdict.diagnose.row import Cause
from fattn_probe.verdict.judge.bitwise import not_made, repeated
from fattn_probe.verdict.judge.judgement import Judgement, raise_if_failed
from fattn_probe.verdict.measure.expected import Expected
from fattn_probe.verdict.measure.verdict import Status, Verdict, judge, upstream_says
from fattn_probe.verdict.measure.wrong_rows import describe_rows
from fattn_probe.verdict.present.tables import difference_as_json, render, render_difference, rows_as_json
from tests.made import launch_of, shown
from tests.stand_in import StandIn
from tests.verdict.made import predicted

REFERENCE = np.random.default_rng(0).standard_normal((1, 7, 14, 8))
MMA = "flash_attn_ext_f16<64,64,8,8,false,false,false>"
TOLERANCE = Tolerance(nmse=1e-6)
LAUNCHED = ["flash_attn_mask_to_KV_max<8>", MMA, "flash_attn_stream_k_fixup_uniform<64,8,8>"]
LOST = Verdict(Status.LOST, "no answer after 60 s")
UNSUPPORTED = Verdict(Status.UNSUPPORTED, "ggml_backend_supports_op says no")


DIGEST = "0123456789abcdef"
OP = Op.contiguous(Sizes(1, 14, 2, 7, 64, 8, 8), Params(1.0), ("f16", "f16"))


@dataclass(frozen=True)
class Case(StandIn):
    name: str = "gqa"
    tolerance: Tolerance = TOLERANCE


def capture(dst, spellings=(), digest=DIGEST):
    launches = tuple(map(launch_of, spellings))
    return Capture("gqa", digest, OP, {}, dst, launches, "gpu", (0.1,), "CUDA0", "NVIDIA H200", {})


def good():
    return capture(REFERENCE.astype(np.float32), LAUNCHED)


def bad():
    dst = REFERENCE.astype(np.float32)
    dst[0, :, 3] *= 1.01
    return capture(dst, LAUNCHED)


def row_of(case, on, outcome, reference=REFERENCE, expected=None):
    """The judgement of a capture, or of a verdict without one."""
    if isinstance(outcome, Verdict):
        return Judgement(case.name, on, case.tolerance, outcome)
    return Judgement(
        case.name,
        on,
        case.tolerance,
        judge(outcome.dst, reference, case.tolerance, expected=expected),
        outcome.launches,
        upstream_says(outcome.dst, reference),
        expected.missing if expected else "",
        dst=outcome.dst,
    )


def rows(**outcomes):
    return [row_of(Case(), on, outcome) for on, outcome in outcomes.items()]


def test_a_row_for_each_backend_in_order():
    found = rows(h200=good(), cpu=capture(REFERENCE.astype(np.float32)), gpu=LOST)
    assert [(row.case, row.on, row.kernel, row.verdict.status) for row in found] == [
        ("gqa", "h200", MMA, Status.PASS),
        ("gqa", "cpu", "", Status.PASS),
        ("gqa", "gpu", "", Status.LOST),
    ]
    assert len(found[0].kernels) == 3


@pytest.mark.parametrize("spelling", ["flash_attn_tile<64,64,32,1,false>", "flash_attn_ext_vec<128,1,1,1,false>"])
def test_every_attention_kernel_is_recognised(spelling):
    assert rows(on=capture(REFERENCE.astype(np.float32), ["convert_unary<float>", spelling]))[0].kernel == spelling


def test_the_table_explains_what_failed_and_only_that():
    text = shown(render(rows(h200=good(), gpu=bad(), other=LOST)))
    assert all(part in text for part in MMA.split("<"))
    assert "fail gqa on gpu: NMSE" in text
    assert "head 3 of 14" in text
    assert "; with llama.cpp's bound it passes (OK)" in text
    assert "lost gqa on other: no answer after 60 s" in text
    assert "gqa on h200" not in text
    assert text.rstrip().endswith("1 pass, 1 fail, 1 lost")


def test_a_cause_of_rows_that_are_not_finite_explains_no_error():
    def said(**explained):
        cause = Said(Cause("unwritten", "elements are never written", "", **explained), 5, 5, 1.0)
        found = Diagnosis(5, 5, (), (), (cause,), 5)
        (row,) = rows(h200=bad())
        return shown(render([replace(row, diagnosis=found)]))

    assert "5 of 5 rows examined" in said()
    assert "of the first row's error" not in said()
    assert "5 of 5 rows examined, 100 % of the first row's error" in said(explained=1.0)


def test_a_single_wrong_row_is_not_all_rows_and_markup_in_a_name_is_shown_as_it_is():
    assert describe_rows(np.ones((1, 1, 1), bool)) == "the only row is wrong"
    assert describe_rows(np.ones((1, 2, 1), bool)) == "all 2 rows are wrong"
    assert "case[bold]" in shown(render([row_of(Case("case[bold]"), "cpu", good())]))


def test_json_has_the_keys_it_promises_and_no_nan():
    dst = REFERENCE.astype(np.float32)
    dst[0, 0, 0, 0] = np.nan
    document = json.loads(json.dumps(rows_as_json(rows(h200=capture(dst), gpu=UNSUPPORTED)), allow_nan=False))
    assert document["counts"] == {"pass": 0, "fail": 1, "changed": 0, "unjudged": 0, "unsupported": 1, "lost": 0}
    nan, unsupported = document["rows"]
    assert nan["tolerance"] == {"nmse": 1e-6, "max_abs": None}
    assert set(nan) == {
        "case", "digest", "on", "status", "reason", "tolerance", "kernel", "kernels", "upstream", "metrics",
        "design", "accuracy", "missing", "diagnosis", "checks", "sampled", "finding", "known", "output",
        "division_origin",
    }  # fmt: skip
    assert set(nan["metrics"]) == {
        "elements", "nmse", "max_abs", "worst", "rmse", "mean_error", "bias", "max_rel", "f16_ulps", "mean_f16_ulps",
        "nan", "inf", "unwritten", "first_bad",
    }  # fmt: skip
    assert nan["metrics"]["first_bad"] == {"sequence": 0, "query": 0, "head": 0, "d": 0}
    assert nan["metrics"]["nmse"] is None
    assert nan["upstream"] == {"passes": False, "nmse": None, "reason": "NaN"}
    assert (unsupported["metrics"], unsupported["upstream"]) == (None, None)


def test_exit_is_the_worst_that_happened_and_a_reason_is_given_once():
    raise_if_failed(rows(h200=good(), gpu=UNSUPPORTED))
    with pytest.raises(ComparisonError, match=r"1 of 3 comparisons failed: gqa on gpu$"):
        raise_if_failed(rows(h200=good(), gpu=bad(), cpu=LOST))
    with pytest.raises(LostError, match=r"2 of 3 comparisons were lost: gqa on cpu, gqa on other$"):
        raise_if_failed(rows(h200=good(), cpu=LOST, other=LOST))
    with pytest.raises(ComparisonError, match="nothing was compared"):
        raise_if_failed(rows(gpu=UNSUPPORTED))
    with pytest.raises(InputError, match="no case"):
        raise_if_failed([])
    # The report on stdout has it; the message at the end on stderr names the cases.
    for status, error in (("fail", ComparisonError), ("lost", LostError), ("unjudged", UnjudgedError)):
        verdict = Verdict(Status(status), "the only reason")
        found = [row_of(Case(f"case-{i}"), "sim:h200", verdict) for i in range(7)]
        assert shown(render(found)).count("case-3 on sim:h200: the only reason") == 1
        with pytest.raises(error, match=r"7 of 7 .* case-3 on sim:h200, case-4 on sim:h200 and 2 more$") as raised:
            raise_if_failed(found)
        assert "the only reason" not in str(raised.value)
        with pytest.raises(error, match=r"5 of 5 .* case-3 on sim:h200, case-4 on sim:h200$"):
            raise_if_failed(found[:5])


def test_what_cannot_be_judged_has_a_word_and_an_exit_code_of_its_own_unless_something_is_worse():
    found = [*rows(h200=good()), row_of(Case("wide"), "sim:h200", Verdict(Status.UNJUDGED, "why"))]
    assert "1 pass, 1 unjudged" in shown(render(found)) and rows_as_json(found)["counts"]["unjudged"] == 1
    with pytest.raises(UnjudgedError, match=r"^1 of 2 outputs could not be judged: wide on sim:h200$"):
        raise_if_failed(found)
    assert UnjudgedError.exit_code == 7
    for outcome, error in ((bad(), ComparisonError), (LOST, LostError)):
        with pytest.raises(error):
            raise_if_failed([*found, *rows(gpu=outcome)])


def test_two_captures_of_equal_bits():
    difference = compare_captures(good(), good(), ("sim.gguf", "gpu.gguf"))
    assert difference.status is Status.PASS
    assert "sim.gguf and gpu.gguf: pass, all 784 elements are identical" in shown(render_difference(difference))


def test_two_captures_that_differ_say_where_in_which_pattern_and_by_which_kernels():
    dst = good().dst.copy()
    dst[0, 6, 13, 7] += 2
    difference = compare_captures(good(), capture(dst))
    assert difference.status is Status.CHANGED
    text = shown(render_difference(difference))
    assert "783 of 784 elements (99.87 %) are identical in every bit" in text
    assert "largest difference 2 at sequence 0, query 6, head 13, d 7" in text
    assert "b: no kernel launched" in text
    document = json.loads(json.dumps(difference_as_json(difference), allow_nan=False))
    assert set(document) == {
        "a", "b", "status", "reason", "kernels_a", "kernels_b",
        "elements", "equal_bits", "share", "nmse", "max_abs", "worst", "patterns", "cuts", "rows",
    }  # fmt: skip
    assert document["equal_bits"] == 783
    dst = good().dst.copy()
    dst[:, :, 3] *= np.float32(1.5)
    difference = compare_captures(good(), capture(dst))
    assert "; the others: all of head 3" in difference.reason
    assert difference_as_json(difference)["patterns"][0]["recall"] == 1.0


def test_as_designed_and_accurate_are_reported_separately():
    dst = REFERENCE.astype(np.float32)
    case = Case(tolerance=Tolerance())
    row = row_of(
        case,
        "sim:h200",
        capture(dst * np.float32(1.05), LAUNCHED),
        expected=Expected(lambda: predicted(REFERENCE.shape)),
    )
    assert (row.status, row.verdict.design.passes, row.verdict.accuracy.passes) == (Status.FAIL, False, False)
    large = predicted(REFERENCE.shape, 0.1, bound=1.0)
    row = row_of(case, "sim:h200", capture(dst * np.float32(1.05), LAUNCHED), expected=Expected(lambda: large))
    assert (row.status, row.verdict.design.passes, row.verdict.accuracy.passes) == (Status.PASS, True, False)
    text = shown(render([row]))
    assert "accuracy warning gqa on sim:h200: as designed, but NMSE 2.5" in text
    assert "is above upstream's limit of 5e-04" in text
    document = json.loads(json.dumps(rows_as_json([row]), allow_nan=False))["rows"][0]
    assert document["design"]["by"] == "prediction"
    assert document["accuracy"]["passes"] is False


def test_what_is_missing_or_assumed_is_said_once_and_a_check_that_could_not_be_made_is_a_sentence():
    found = [row_of(Case(), on, good(), expected=Expected(missing="no model of it")) for on in ("a", "b")]
    assert [row.missing for row in found] == ["no model of it"] * 2
    assert shown(render(found)).count("gqa on a and 1 more: no model of it") == 1
    expected = Expected(lambda: predicted(REFERENCE.shape, 1e-2, assumed="how it rounds is not published"))
    found = [row_of(Case(), on, good(), expected=expected) for on in ("a", "b")]
    assert shown(render(found)).count("gqa on a and 1 more: how it rounds is not published") == 1
    assert rows_as_json(found)["rows"][1]["design"]["assumed"] == "how it rounds is not published"
    (row,) = rows(h200=good())
    said = shown(render([replace(row, checks=(not_made("kernels", "they are not known"),))]))
    assert "kernels not checked: gqa on h200: they are not known" in said


def test_a_repeat_with_other_bits_fails_a_passing_case():
    row = replace(rows(h200=good())[0], checks=(repeated(good().dst, [bad().dst], ""),))
    assert (row.verdict.status, row.status) == (Status.PASS, Status.FAIL)
    assert "not deterministic: 1 of 2 runs" in shown(render([row]))
    with pytest.raises(ComparisonError, match=r"1 of 1 comparisons failed: gqa on h200$"):
        raise_if_failed([row])


def test_captures_of_different_shapes_or_ops_are_refused():
    with pytest.raises(InputError, match="different shapes"):
        compare_captures(good(), capture(np.zeros((1, 7, 14, 4), np.float32)))
    dst = good().dst
    with pytest.raises(InputError, match=r"x.gguf and y.gguf have different ops .* aaaa and bbbb"):
        compare_captures(capture(dst, digest="aaaa"), capture(dst, digest="bbbb"), ("x.gguf", "y.gguf"))


def test_the_table_fits_100_columns_and_shows_what_is_not_finite():
    dst = good().dst.copy()
    dst[0, 2, 3, 4:6] = np.nan
    text = shown(render(rows(**{"sim:rtx4070": capture(dst, LAUNCHED)})), 100)
    assert "<" + MMA.split("<")[1] in text
    assert "2 not finite" in text
    assert "0, 2, 3, 4" in text


def trapped(number):
    verdict = Verdict(Status.FAIL, "trap: __trap()\n  in flash_attn_ext_f16")
    return [replace(row_of(Case(f"trap-{i}"), "sim:v100", verdict), known="volta-columns") for i in range(number)]


def test_a_known_defect_is_explained_once_and_still_fails():
    found = [*trapped(3), row_of(Case("bad"), "sim:h200", bad())]
    text = shown(render(found))
    assert text.count("in flash_attn_ext_f16") == 1
    assert text.count("3 fail because of volta-columns, a known defect of llama.cpp: on Volta ") == 1
    assert "fail bad on sim:h200" in text
    with pytest.raises(ComparisonError) as raised:
        raise_if_failed(found)
    assert str(raised.value).startswith("4 of 4 comparisons failed: bad on sim:h200, trap-0 on sim:v100, trap-1 on ")
    with pytest.raises(ComparisonError, match=r"1 of 1 comparisons failed: trap-0 on sim:v100$"):
        raise_if_failed(trapped(1))


def test_only_an_output_that_is_finite_and_right_gets_a_warning():
    biased = capture((1.02 * np.abs(REFERENCE)).astype(np.float32))
    wide, tight = Case(tolerance=Tolerance(nmse=0.1)), Case(tolerance=Tolerance(nmse=1e-9))
    assert "mean error +2 %" in row_of(wide, "cpu", biased, np.abs(REFERENCE)).warning
    assert row_of(tight, "cpu", biased, np.abs(REFERENCE)).warning == ""
    expected = Expected(model=biased.dst)
    assert row_of(tight, "cpu", biased, np.abs(REFERENCE), expected=expected).warning.startswith("as designed, but ")
    nan = biased.dst.copy()
    nan[0, 0, 0] = np.nan
    found = row_of(wide, "cpu", capture(nan), np.abs(REFERENCE), expected=Expected(model=nan))
    assert found.verdict.design.passes and found.status is Status.FAIL and found.warning == ""
