"""FlashAttention-3's schedules: every one keeps the rules of its ring of buffers or ends in a named deadlock."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fattn_probe.lab.study import warpgroups
from fattn_probe.lab.study.schedules import broken_rules, schedule_head, table_of
from fattn_probe.lab.study.warpgroups import RINGS, SCHEDULES, Tell, Wait, WarpgroupPlan, Work, run
from tests.lab.study.drawn_ops import made_op

plans = st.builds(
    WarpgroupPlan,
    T_c=st.integers(1, 12),
    stages=st.integers(1, 6),
    schedule=st.sampled_from(SCHEDULES),
    ring=st.sampled_from(RINGS),
    producer=st.booleans(),
    consumers=st.integers(1, 2),
    load=st.integers(1, 5),
    softmax=st.integers(1, 4),
)


@given(plans)
@settings(max_examples=400)
def test_every_schedule_keeps_the_rules_or_is_a_named_deadlock(plan):
    found = run(plan)
    assert not broken_rules(found.events, plan, complete=not found.deadlock)
    if found.deadlock:
        assert "K" in {event.what for event in found.events}
        assert all(signals for signals in found.deadlock.values())
        assert broken_rules(found.events, plan)  # it is not complete
    else:
        assert found.slots >= 2 * plan.T_c * plan.consumers  # the tensor cores do one product in a slot


@given(plans)
@settings(max_examples=200)
def test_two_stages_are_enough_with_a_producer_and_one_without_overlap(plan):
    if (plan.producer and plan.stages > 1) or plan.schedule == "none":
        assert not run(plan).deadlock
    if plan.stages >= plan.T_c:
        assert not run(plan).deadlock


@given(plans)
@settings(max_examples=100)
def test_a_unit_never_does_more_than_a_slot_of_work_in_a_slot(plan):
    events = run(plan).events
    work = {warpgroups.TMA: plan.load, warpgroups.TENSOR_CORES: plan.product, warpgroups.EXPONENTIALS: plan.softmax}
    for unit, slots in work.items():
        ends = sorted(event.end for event in events if event.unit == unit)
        first = min((event.start for event in events if event.unit == unit), default=0)
        assert all(number * slots <= end - first for number, end in enumerate(ends, 1))


@pytest.mark.parametrize("T_c", [3, 4, 9])
@pytest.mark.parametrize(
    ("schedule", "first", "each"), [("none", 2, 6), ("overlap", 4, 4), ("ping-pong", 2, 4), ("both", 2, 4)]
)
def test_slots_of_the_schedules(schedule, T_c, first, each):
    # Q and K0 take 2 slots. Without turns both warpgroups share each unit, so a tile takes 2 + 2 + 2; the tensor
    # cores need 4 in any case. With turns the last softmax is hidden by the other warpgroup's products.
    assert run(WarpgroupPlan(T_c, 2, schedule)).slots == first + each * T_c


def test_turns_hide_a_slow_softmax_and_the_overlap_hides_more():
    assert [run(WarpgroupPlan(8, 3, schedule, softmax=2)).slots for schedule in SCHEDULES] == [66, 52, 37, 36]


def test_too_few_stages_are_a_deadlock_that_says_who_waits_for_what():
    assert run(WarpgroupPlan(8, 1, "overlap", "pairs")).deadlock == {
        "producer": ("V0 released by WG1", "V0 released by WG2"),
        "WG1": ("K1 full",),
        "WG2": ("K1 full",),
    }
    assert not run(WarpgroupPlan(8, 2, "overlap", "pairs")).deadlock
    assert not run(WarpgroupPlan(8, 1, "overlap", "apart")).deadlock


def moved(events, by, **which):
    """The events with those chosen started and ended `by` slots later."""
    chosen = [event for event in events if all(getattr(event, key) == value for key, value in which.items())]
    assert chosen
    return [replace(e, start=e.start + by, end=e.end + by) if e in chosen else e for e in events]


PLAN = WarpgroupPlan(6, 2, "both")


@pytest.mark.parametrize(
    ("by", "which", "message"),
    [
        (-3, {"actor": "WG1", "what": "S", "tile": 3}, "S3 of WG1 reads K3 before it is full"),
        (+5, {"what": "V", "tile": 2}, "PV2 of WG1 reads V2 before it is full"),
        (-3, {"what": "K", "tile": 4}, "K4 overwrites K2 before WG2 has read it"),
        (-3, {"what": "V", "tile": 3}, "V3 overwrites V1 before WG2 has read it"),
        (-20, {"what": "K", "tile": 4}, "K0 overwrites K4 before WG1 has read it"),
        (+4, {"actor": "WG2", "what": "P", "tile": 1}, "PV1 of WG2 starts before P1 of WG2 is done"),
        (-2, {"actor": "WG1", "what": "P", "tile": 2}, "P2 of WG1 starts before S2 of WG1 is done"),
        (+9, {"actor": "WG1", "what": "PV", "tile": 1}, "PV2 of WG1 starts before PV1 of WG1 is done"),
        (+1, {"actor": "WG1", "what": "PV", "tile": 1}, "overlaps PV1 of WG1, out of turn"),
    ],
)
def test_a_broken_schedule_is_refused(by, which, message):
    events = run(PLAN).events
    assert not broken_rules(events, PLAN)
    assert any(message in rule for rule in broken_rules(moved(events, by, **which), PLAN))


def test_missing_repeated_and_misplaced_work_is_refused():
    events = list(run(PLAN).events)
    for event in events:
        if event.tile is None:
            continue
        without = [one for one in events if one != event]
        assert any("is done 0 times instead of 1" in rule for rule in broken_rules(without, PLAN))
        assert any("is done 2 times instead of 1" in rule for rule in broken_rules([*events, event], PLAN))
        if event.stage is not None:
            wrong = replace(event, stage=1 - event.stage)
            assert any("uses stage" in rule for rule in broken_rules([*without, wrong], PLAN))
    unread = [event for event in events if (event.what, event.tile) != ("K", 3)]
    assert any("reads K3, which is never loaded" in rule for rule in broken_rules(unread, PLAN, complete=False))


def test_a_ring_that_does_not_wait_for_the_release_is_refused():
    eager = {
        name: tuple(step for step in program if not (name == "producer" and isinstance(step, Wait)))
        for name, program in warpgroups.programs(PLAN).items()
    }
    assert any("overwrites" in rule for rule in broken_rules(warpgroups.simulate(eager).events, PLAN))


def test_two_actors_share_a_unit_and_one_that_waits_for_nothing_is_a_deadlock():
    def work(name, slots):
        return Work("unit", name, None, None, slots, name)

    found = warpgroups.simulate(
        {"A": (work("a", 1), Wait(("a",)), Tell("go"), work("b", 2)), "B": (work("c", 2), Wait(("go",)))}
    )
    assert [(event.what, event.start, event.end) for event in found.events] == [("a", 0, 2), ("c", 0, 4), ("b", 2, 5)]
    assert not found.deadlock
    assert warpgroups.simulate({"A": (Wait(("never",)),), "B": ()}).deadlock == {"A": ("never",)}


def test_slots_follow_from_the_sizes_and_setmaxnreg_moves_registers_to_the_consumers():
    assert warpgroups.slots_of(64, 128) == (1, 1)
    assert warpgroups.slots_of(64, 64) == (1, 2)  # half the products' work for each exponential
    assert warpgroups.slots_of(16, 128) == (5, 1)  # few queries share a load
    assert warpgroups.registers_of(WarpgroupPlan(4, 2, "both"), 64, 128, 128) == warpgroups.Registers(168, 24, 240, 192)
    assert warpgroups.registers_of(WarpgroupPlan(4, 2, "ping-pong"), 64, 128, 128).accumulators == 128
    assert warpgroups.registers_of(WarpgroupPlan(4, 2, "none", consumers=1), 64, 64, 64) == warpgroups.Registers(
        256, 56, 256, 64
    )
    assert warpgroups.registers_of(WarpgroupPlan(4, 2, "none", producer=False), 64, 64, 64) == warpgroups.Registers(
        256, 0, 256, 64
    )


def test_the_table_has_every_schedule_and_says_which_deadlock():
    found = {(one.schedule, one.ring, one.producer): one for one in table_of(WarpgroupPlan(8, 1, "both"))}
    assert len(found) == len(SCHEDULES) * len(RINGS) * 2
    assert found["none", "pairs", True].slots == 57
    assert found["both", "pairs", True].slots is None
    assert found["both", "apart", True].slots == 48


def test_a_head_of_one_tile_of_queries_has_one_consumer():
    head = made_op(1, n_q=4, n_kv=40, hsk=128, hsv=128).head(0, 0)
    assert schedule_head(head, 4, 8, schedule="both", stages=2, ring="apart").plan.consumers == 1
    found = schedule_head(head, 2, 8, schedule="none", stages=3, ring="pairs")
    assert (found.plan.consumers, found.plan.T_c, found.plan.stages, found.tiles) == (2, 5, 3, 5)
    assert not found.broken
