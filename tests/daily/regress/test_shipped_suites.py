"""The suites that come with fattn-probe, and the faults that `quick` once missed: its case of each class shows it."""

from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.base.regex import compiled
from fattn_probe.cases.device import is_amd, load_devices, parse_target
from fattn_probe.cases.shipped import find
from fattn_probe.daily.regress.entries import Given, names_of, own_cases
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.selection import CaseSelection
from fattn_probe.daily.regress.suite import Suite, cases_of, load_suite
from fattn_probe.lab.detect.measure import on_simulated
from fattn_probe.llama.source.patches import find as find_patch
from fattn_probe.machine.run.session import RunOptions, Session, arch_of
from fattn_probe.verdict.judge.cases import judge_case
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.measure.verdict import Status

SUITES = Path(__file__).parents[3] / "suites"
PATCHES = Path(__file__).parents[2] / "data/classes"
LATENT = "latent-type_K=q8_0-n_kv=256-n_seq=2-pad=64-K=view+rows320+offset32"
FAULTS = {
    "ada-configuration": ("ada", "sim:rtx4090", "mqa"),
    "ungrouped-chunks": ("", "sim:h200", "ungrouped-hsk=80-n_q=5"),
    "mask-alignment": ("", "sim:h200", "alignment-n_q=5-mask=columns258+offset1"),
    "first-of-two-queries": ("", "sim:h200", "boundaries-past=31"),
    "rows-to-convert": ("", "sim:h200", "long-rows-type_K=bf16"),
    "latent-strides": ("pascal", "sim:gtx1060", LATENT),
    "scan-of-another-tile": ("", "sim:h200", "scan-n_head=5-n_q=130-seed=7-mask=blocks+q64+kv256+fraction0.5"),
    "even-rows-scanned": ("few-sms", "sim:h200-5", "scan-n_seq=6-mask=blocks+kv1+fraction0.995"),
}
CHECKS = Checks(roundings=True)
CLASSES = {
    "kernels of one function, more than 48 KB": ("one-process", "sim:h200-5", "siblings-logit_softcap=10"),
    "another type of K, one launcher": ("one-process", "sim:h200-5", "decode-type_K=q8_0-n_kv=512-n_head_kv=4"),
    "a type of V, one type of K": ("one-process", "sim:h200-5", "decode-type_K=q8_0-type_V=f16"),
    "Turing's row of head size 256, 8 columns": ("turing", "sim:rtx2060", "ungrouped-hsk=256-n_q=5"),
    "Turing's row of head size 256, 16 columns": ("turing", "sim:rtx2060", "ungrouped-hsk=256-n_q=12"),
    "Turing's row of head size 256, 32 columns": ("turing", "sim:rtx2060", "heads-hsk=256-n_q=9-n_kv=256"),
    "large logits under a softcap, Volta": ("volta", "sim:v100", "params-logit_softcap=10-n_q=1-Q=large_logits"),
    "large logits under a softcap, Pascal": ("pascal", "sim:gtx1060", "params-logit_softcap=10-n_q=1-Q=large_logits"),
    "the last visible row is a step's first": ("", "sim:h200", "scan-n_q=1-mask=masked_tiles+trailing255"),
    "kept ALiBi slopes": ("one-process", "sim:h200-5", "siblings-hsk=64-n_head=12-n_head_kv=12-max_bias=8-mask=random"),
    "sums in f16 of WMMA": ("rdna3", "sim:rx7900xtx", "softcap"),
    "sums in float32 of MFMA": ("cdna3", "sim:mi300x", "sinks"),
    "several tiles of a block, K's heads wider than V's": ("checked-few-sms", "sim:h200-5", "several-tiles-n_q=96"),
    "a conversion, checked": ("checked", "sim:h200", "steps-n_q=16-type_K=q8_0-mask=blocks+q1+kv128+fraction0.4"),
}


def entries_of(suite):
    path = find("suite", suite)
    return {entry.name: entry for entry in load_suite(path).parts}, path.parent


def case_of(name, case):
    """A case of an entry of `quick`."""
    entries, folder = entries_of("quick")
    return next(found for found in own_cases(entries[name], folder) if found.name == case)


@pytest.mark.parametrize(("entry", "on", "case"), (FAULTS | CLASSES).values(), ids=FAULTS | CLASSES)
def test_quick_has_a_case_of_each_class(entry, on, case):
    assert on in entries_of("quick")[0][entry].on
    assert case_of(entry, case)


@pytest.mark.build
@pytest.mark.network
@pytest.mark.night  # each has kernels of its own, to compile twice
@pytest.mark.parametrize("fault", FAULTS)
def test_the_case_shows_a_fault_of_its_class(tree, fault):
    entry, on, name = FAULTS[fault]
    case, target = case_of(entry, name), parse_target(on, load_devices())
    patched = Session(RunOptions(tree, patches=(find_patch(str(PATCHES / f"{fault}.patch"), tree),)))
    assert judge_case(Session(RunOptions(tree)), case, target, CHECKS).status is Status.PASS
    found = judge_case(patched, case, target, CHECKS)
    assert found.status is Status.FAIL, found.reason
    assert not found.known


def jobs_of(suite):
    """The checks of each case of a suite on each target, by build."""
    entries, folder = entries_of(suite)
    jobs = defaultdict[tuple[object, str], list[dict[str, Any]]](list)
    for entry in entries.values():
        for on, name in product(entry.on, names_of(entry, folder)):
            build = on, entry.flavour, frozenset(entry.sanitize), frozenset(entry.quants)
            jobs[build, name].append(entry.check.model_dump())
    return jobs


def includes(checks, others):
    """Whether checks include others: the same model and sample, at least as many runs, orders, further checks."""
    same = {"model", "sample"}
    return all(checks[name] == value if name in same else checks[name] >= value for name, value in others.items())


def test_nightly_checks_what_quick_does_and_each_vec_kernel_that_a_build_can_have():
    """So it catches whatever quick catches: the same case in the same build, on the same GPU."""
    quick, nightly = jobs_of("quick"), jobs_of("nightly") | jobs_of("nightly-amd")
    assert len(quick) > 2_000
    missing = [
        job
        for job, all_checks in quick.items()
        for checks in all_checks
        if not any(includes(more, checks) for more in nightly.get(job, ()))
    ]
    assert not missing
    entries = entries_of("nightly")[0]
    assert entries["checked-quants"].flavour == "check"
    assert set(entries["checked-quants"].quants) == set(entries["quants"].quants)


def test_each_vendor_has_its_own_nightly_suite():
    for name, amd in (("nightly", False), ("nightly-amd", True)):
        pairs = on_simulated("regress", find("suite", name), Given())
        assert {is_amd(arch_of(target)) for _, target in pairs} == {amd}


@pytest.mark.parametrize("name", ["quick", "nightly", "nightly-amd"])
def test_a_shipped_suite_has_cases(name):
    path = find("suite", name)
    assert len(cases_of(load_suite(path), path.parent)) > 300


MOST_FLOP = 1e9
"""Of a case of the quick suite: 2 seconds of one core on the simulator."""


def test_the_quick_suite_is_quick_and_has_every_shipped_scenario():
    suite = load_suite(SUITES / "quick.yaml")
    chosen = CaseSelection(tuple(cases_of(suite, SUITES))).some(suite.only).cases
    assert len(chosen) >= 300
    assert max(case.op.sizes.flop for case in chosen) < MOST_FLOP
    left_out = {case.scenario for case in cases_of(suite, SUITES)} - {case.scenario for case in chosen}
    assert left_out == {"streamk-fractional", "long-context", "several-tiles"}  # the last is in an entry of its own
    assert {case.op.sizes.hsk for case in chosen} >= {40, 64, 72, 80, 96, 128, 192, 256, 512, 576}
    types = {"f16", "f32", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl"}
    assert {case.op.type_K for case in chosen} == types


def test_the_upstream_suite_is_of_the_gpu_of_this_machine():
    suite = load_suite(SUITES / "upstream.yaml")
    assert (suite.upstream, suite.scenarios, suite.on) == (True, [], ["gpu"])
    assert (suite.check.model, load_suite(SUITES / "quick.yaml").check.model) == ("never", "auto")


def test_the_schema_of_suites_has_every_check():
    check = Suite.model_json_schema()["$defs"]["CheckSpec"]["properties"]
    assert set(check) == {"model", "sample", "repeat", "batch_invariance", "roundings", "kernels", "order"}


def test_a_filter_is_an_expression_over_results_too():
    suite = load_suite(SUITES / "quick.yaml")
    settled = (Result("gqa-old", "", "unsupported"), Result("other", "", "unsupported"))
    assert CaseSelection(tuple(cases_of(suite, SUITES)), settled).some("^gqa").names == ["gqa", "gqa-old"]
    with pytest.raises(InputError, match=r"--filter '\[': unterminated character set"):
        compiled("[", "--filter")


def test_a_suite_without_cases(tmp_path):
    path = tmp_path / "empty.yaml"
    path.write_text("version: 1\nabout: x\n")
    with pytest.raises(InputError, match="a suite needs scenarios, or upstream: true"):
        load_suite(path)
