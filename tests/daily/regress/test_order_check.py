"""The check `order` of a suite's entry."""

from dataclasses import replace

from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.runner import with_orders
from fattn_probe.daily.regress.schedule import Ordering, Orders
from fattn_probe.daily.regress.suite import CheckSpec
from fattn_probe.machine.run.orders import ENDED, OrderDifference

DIFFERENCE = OrderDifference("gqa", ("softcap", "mla"), "other", shrunk=True)
SAID = "not the same in every order: different bits or launches than alone after [softcap, mla]"
ORDERS = Orders({"gqa": DIFFERENCE}, 2)


def test_a_case_that_passes_fails_if_an_order_changes_it():
    failed = with_orders(Result("gqa", "d", "pass", "as designed", output="00"), ORDERS, 3)
    assert (failed.status, failed.reason, failed.failure) == ("fail", f"as designed; {SAID}", SAID)
    assert [(check.name, check.fails) for check in failed.checks] == [("order", True)]
    right = with_orders(Result("sinks", "d", "pass", "as designed", output="00"), ORDERS, 3)
    assert (right.status, right.reason) == ("pass", "as designed")
    (check,) = right.checks
    assert (check.passes, check.reason) == (True, "the same bits in 3 orders of 2 ops in one process")


def test_a_failure_stays_what_it_is():
    wrong = with_orders(Result("gqa", "d", "fail", "wrong", output="00"), ORDERS, 3)
    assert (wrong.status, wrong.reason, [check.fails for check in wrong.checks]) == ("fail", "wrong", [True])


def test_the_first_order_that_differs_is_the_one_that_is_told():
    later = OrderDifference("gqa", ("mla",), "third")
    ordering = Ordering({"gqa": "x", "mla": "y", "odd": ENDED}, {2: [later], 1: [DIFFERENCE, later]})
    assert ordering.found == ORDERS


def test_an_order_that_was_lost_hides_no_difference_and_is_no_check():
    lost = replace(ORDERS, missing="killed by SIGKILL")
    assert with_orders(Result("gqa", "d", "pass", "as designed", output="00"), lost, 3).status == "fail"
    (check,) = with_orders(Result("sinks", "d", "pass", "as designed", output="00"), lost, 3).checks
    assert (check.passes, check.fails, check.reason) == (False, False, "killed by SIGKILL")


def test_a_suite_asks_for_orders():
    assert CheckSpec(order=5).checks.order == 5
    assert CheckSpec().checks.order == 0
