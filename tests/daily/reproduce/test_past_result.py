"""Results of the history, with the inputs that they had."""

from dataclasses import replace

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.scenario.cases import resolve
from fattn_probe.cases.scenario.files import one_case
from fattn_probe.cases.scenario.from_ops import from_ops
from fattn_probe.cli import flags
from fattn_probe.daily.regress.history import open_history
from fattn_probe.daily.regress.records import Identity, Result, StoredCase
from fattn_probe.daily.reproduce.past_result import is_uid, past_result

OPS = "FLASH_ATTN_EXT(hsk=64,hsv=64,nh=4,nr23=[4,1],kv=512,nb=3,type_K=f16,type_V=f16)"
IDENTITY = Identity("m", "sim:h200", "9.0", "", "sim", "release", "pypi:x==1", "1", "14628-fixup-layout", "0.1")


@pytest.fixture
def found(tmp_path):
    def make(*cases, identity=IDENTITY, suite="quick"):
        with open_history(tmp_path / "h.db") as history:
            run = history.begin(identity, suite)
            history.know([StoredCase.of(case) for case in cases], identity, [])
            for case in cases:
                history.add(run, Result(case.name, case.digest, "fail"))
            history.end(run)
            return past_result(history, run.uid[:8], cases[0].name if cases else "")

    return make


def gqa():
    return one_case(flags.scenario_path("gqa"), "")


def test_a_case_of_a_suite_runs_as_it_was_run(found):
    past = found(gqa())
    assert past.case == gqa()
    assert (past.on, past.source, past.patches) == ("sim:h200", "pypi:x==1", ("faults/14628-fixup-layout",))


def test_a_case_of_a_shipped_scenario_of_an_unknown_suite(found):
    assert found(gqa(), suite="mine").case == gqa()


def test_a_case_of_upstreams(found):
    case = resolve(from_ops(OPS), OPS, "upstream")
    assert found(case, suite="upstream").case == case


def test_a_run_on_a_gpu(found):
    assert found(gqa(), identity=replace(IDENTITY, engine="cuda", device="NVIDIA H200", patches="")).on == "gpu"


def test_what_is_not_known_any_more_is_refused(found):
    other = replace(gqa(), source=replace(gqa().source, seed=5))
    with pytest.raises(InputError, match="gives this case with the same inputs"):
        found(other)
    with pytest.raises(InputError, match="which is not shipped"):
        found(gqa(), identity=replace(IDENTITY, patches="mine"))
    with pytest.raises(InputError, match="has no case ''"):
        found()


def test_the_beginning_of_a_runs_name():
    assert is_uid("27d4ae61") and is_uid("2" * 32)
    assert not any(map(is_uid, ("gqa", "27d", "27d4ae6g", "2" * 33)))
