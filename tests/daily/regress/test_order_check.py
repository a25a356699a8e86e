"""The check `order` of a suite's entry."""

import dataclasses

import pytest

from fattn_probe.cases.scenario.files import cases_of
from fattn_probe.cases.shipped import find
from fattn_probe.daily.regress import runner as module
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.runner import SuiteRunner
from fattn_probe.daily.regress.suite import CheckSpec
from fattn_probe.machine.run.orders import OrderDifference
from fattn_probe.verdict.judge.checks import Checks

DIFFERENCE = OrderDifference("gqa", ("softcap", "mla"), "other", shrunk=True)
SAID = "not the same in every order: different bits or launches than alone after [softcap, mla]"


@pytest.fixture
def runner(monkeypatch):
    """A runner of a suite whose orders show a difference in `gqa` alone."""
    asked = []

    def differences(session, cases, target, orders, jobs):
        asked.append(([case.name for case in cases], orders))
        return {"gqa": DIFFERENCE}, len(cases)

    monkeypatch.setattr(module, "order_differences", differences)
    monkeypatch.setattr(SuiteRunner, "workers_on", lambda self, target: 2)
    made = SuiteRunner(None, None, "quick", checks=Checks(order=3))
    return made, asked


def cases():
    return cases_of([find("scenario", name) for name in ("gqa", "sinks")])


def test_a_case_that_passes_fails_if_an_order_changes_it(runner):
    made, asked = runner
    of_orders = made._of_orders(cases(), None)
    assert asked == [(["gqa", "sinks"], 3)]
    failed = of_orders(Result("gqa", "d", "pass", "as designed", output="00"))
    assert (failed.status, failed.reason, failed.failure) == ("fail", f"as designed; {SAID}", SAID)
    assert [(check.name, check.fails) for check in failed.checks] == [("order", True)]
    right = of_orders(Result("sinks", "d", "pass", "as designed", output="00"))
    assert (right.status, right.reason) == ("pass", "as designed")
    (check,) = right.checks
    assert (check.passes, check.reason) == (True, "the same bits in 3 orders of 2 ops in one process")


def test_a_failure_or_a_case_without_an_output_stays_what_it_is(runner):
    of_orders = runner[0]._of_orders(cases(), None)
    wrong = of_orders(Result("gqa", "d", "fail", "wrong", output="00"))
    assert (wrong.status, wrong.reason, [check.fails for check in wrong.checks]) == ("fail", "wrong", [True])
    refused = Result("gqa", "d", "unsupported")
    assert of_orders(refused) == refused


def test_without_the_check_no_order_runs(runner):
    made, asked = runner
    of_orders = dataclasses.replace(made, checks=Checks())._of_orders(cases(), None)
    result = Result("gqa", "d", "pass", output="00")
    assert (of_orders(result), asked) == (result, [])


def test_a_suite_asks_for_orders():
    assert CheckSpec(order=5).checks.order == 5
    assert CheckSpec().checks.order == 0
