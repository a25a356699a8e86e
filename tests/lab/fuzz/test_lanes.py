"""Which random cases a lane runs: by its kernels' share of the time, the same in batches of any size."""

from itertools import islice

import pytest

from fattn_probe.base.errors import BuildError
from fattn_probe.cases.device import load_devices, parse_targets
from fattn_probe.lab.fuzz import run as module
from fattn_probe.lab.fuzz.run import (
    CASE_SECONDS,
    FIRST_SECONDS,
    KERNEL_SECONDS,
    UNSUPPORTED_EVERY,
    lanes,
    seconds_to_compile,
)
from fattn_probe.machine.run.prepare import op_digest
from fattn_probe.machine.run.session import RunOptions, Session

TARGETS = parse_targets("sim:h200,sim:rtx4090,sim:l40s", load_devices())


@pytest.fixture
def planned(monkeypatch):
    """Dry runs that say: a kernel for each head size."""

    def dry_runs(session, cases, target):
        sizes = {op_digest(case.op): case.op.sizes for case in cases.values()}
        return {digest: (f"mma {size.hsk}",) for digest, size in sizes.items()}

    monkeypatch.setattr(module, "dry_runs", dry_runs)


def made(share=0.4, seed=1):
    return lanes(Session(RunOptions(None)), TARGETS, seed, share)


def taken(lane, number):
    return [(drawn.number, str(drawn.target)) for drawn in islice(lane._cases, number)]


@pytest.mark.usefixtures("planned")
def test_targets_of_one_architecture_share_a_lane():
    first, second = made()
    assert [list(map(str, lane.targets)) for lane in (first, second)] == [["sim:h200"], ["sim:rtx4090", "sim:l40s"]]
    assert {number % 3 for number, on in taken(first, 50)} == {0}
    assert {(number % 3, on) for number, on in taken(second, 50)} == {(1, "sim:rtx4090"), (2, "sim:l40s")}


@pytest.mark.usefixtures("planned")
def test_batches_of_any_size_give_the_same_cases():
    (one, _), (other, _), (third, _) = made(), made(), made(seed=2)
    whole = taken(one, 60)
    assert taken(other, 7) + taken(other, 1) + taken(other, 52) == whole
    assert taken(third, 60) != whole


@pytest.mark.usefixtures("planned")
def test_new_kernels_have_their_share_of_the_time():
    for share in (0.0, 0.4):
        lane, _ = made(share)
        taken(lane, 150)
        compiling, running = sum(lane.kernels.values()) - FIRST_SECONDS, CASE_SECONDS * 150
        assert compiling / (compiling + running) <= share
        assert (len(lane.kernels) > FIRST_SECONDS / KERNEL_SECONDS) == (share > 0)


@pytest.mark.usefixtures("planned")
def test_batches_double_until_each_lane_has_its_part_of_all_cases():
    first, second = lanes(Session(RunOptions(None)), TARGETS, 1, 0.4, 1000)
    assert (first.due, second.due) == (333, 667)
    sizes = []
    while size := first.next_size:
        sizes.append(len(taken(first, size)))
    assert (sizes, second.next_size) == ([60, 120, 153], 120)
    endless, _ = made()
    endless.accepted = 5000
    assert endless.next_size == 1000


def test_a_tile_kernel_costs_by_its_head_size():
    assert seconds_to_compile("mma 64,64,8,8") == seconds_to_compile("vec 128,f16,f16") == KERNEL_SECONDS
    assert seconds_to_compile("tile 576,512") == 8 * seconds_to_compile("tile 64,64,16,1,false") > 200


@pytest.mark.network
def test_the_kernels_that_dry_runs_name_are_compiled(monkeypatch, tree):
    names = ["mma 128,128,8,1,false,false,false", "tile 64,64,16,1,false"]
    added = []
    monkeypatch.setattr(Session, "add_kernels", lambda session, target, kernels, **rest: added.extend(kernels))
    (lane,) = lanes(Session(RunOptions(tree)), TARGETS[:1], 1, 0.4)
    lane.kernels = dict.fromkeys(names, 1.0)
    lane.batch(0)
    assert [kernel.name for kernel in added] == names


def test_most_unsupported_cases_are_left_out_but_no_failing_dry_run(monkeypatch):
    monkeypatch.setattr(module, "dry_runs", lambda session, cases, target: dict.fromkeys(cases, ()))
    lane, _ = made()
    assert all(number % UNSUPPORTED_EVERY == 0 for number, _ in taken(lane, 20))
    monkeypatch.setattr(module, "dry_runs", lambda session, cases, target: {})
    lane, _ = made()
    assert [number for number, _ in taken(lane, 20)] == list(range(0, 60, 3))


@pytest.mark.usefixtures("planned")
@pytest.mark.network
def test_a_kernel_that_does_not_compile_does_not_end_the_run(monkeypatch, tree):
    added = []

    def add_kernels(session, target, kernels, **rest):
        added.append(len(tuple(kernels)))
        if kernels:
            raise BuildError("no such instance")

    monkeypatch.setattr(Session, "add_kernels", add_kernels)
    monkeypatch.setattr(module, "kernels_of", lambda session, target, ops, names: names["lane"])
    lane, _ = lanes(Session(RunOptions(tree)), TARGETS, 1, 0.4)
    assert len(lane.batch(20).cases) == 20
    assert added == [len(lane.kernels), 0]
