"""The suites that come with fattn-probe."""

import pytest

from fattn_probe.cases.shipped import find
from fattn_probe.daily.regress.entries import own_cases
from fattn_probe.daily.regress.suite import cases_of, load_suite


@pytest.mark.parametrize("name", ["quick", "nightly"])
def test_a_shipped_suite_has_cases(name):
    path = find("suite", name)
    assert len(cases_of(load_suite(path), path.parent)) > 300


def parts_of(suite):
    path = find("suite", suite)
    return {part.name: part for part in load_suite(path).parts}, path.parent


CLASSES = {
    "kernels of one function, more than 48 KB": ("one-process", "sim:h200-5", "siblings-logit_softcap=10"),
    "another type of K, one launcher": (
        "one-process",
        "sim:h200-5",
        "decode-type_K=q8_0-n_kv=512-n_head_kv=4",
    ),
    "Turing's row of head size 256, 8 columns": ("turing", "sim:rtx2060", "ungrouped-hsk=256-n_q=5"),
    "Turing's row of head size 256, 16 columns": ("turing", "sim:rtx2060", "ungrouped-hsk=256-n_q=12"),
    "Turing's row of head size 256, 32 columns": ("turing", "sim:rtx2060", "heads-hsk=256-n_q=9-n_kv=256"),
    "large logits under a softcap, Volta": ("volta", "sim:v100", "params-logit_softcap=10-n_q=1-Q=large_logits"),
    "large logits under a softcap, Pascal": ("pascal", "sim:gtx1060", "params-logit_softcap=10-n_q=1-Q=large_logits"),
    "the last visible row is a step's first": ("", "sim:h200", "scan-n_q=1-mask=masked_tiles+trailing255"),
    "slopes of ALiBi that the host keeps": (
        "one-process",
        "sim:h200-5",
        "siblings-hsk=64-n_head=12-n_head_kv=12-max_bias=8-mask=random",
    ),
    "several tiles of a block, K's heads wider than V's": ("checked-few-sms", "sim:h200-5", "several-tiles-n_q=96"),
    "a conversion, checked": ("checked", "sim:h200", "steps-n_q=16-type_K=q8_0-mask=blocks+q1+kv128+fraction0.4"),
}


@pytest.mark.parametrize(("entry", "on", "case"), CLASSES.values(), ids=CLASSES)
def test_quick_has_a_case_of_each_class_that_blind_faults_showed_to_be_missing(entry, on, case):
    parts, folder = parts_of("quick")
    assert on in parts[entry].on
    assert case in {found.name for found in own_cases(parts[entry], folder)}


def test_nightly_checks_each_vec_kernel_that_a_build_can_have():
    quick, (nightly, _) = parts_of("quick")[0], parts_of("nightly")
    assert nightly["checked-quants"].flavour == "check"
    assert set(nightly["checked-quants"].quants) == set(quick["quants"].quants)
