"""Random scenarios (legal, reproducible, all of the schema), and which of them a lane runs."""

import typing
from collections import Counter
from itertools import islice

import pytest
import yaml

from fattn_probe.base.errors import BuildError
from fattn_probe.cases.device import load_devices, parse_targets
from fattn_probe.cases.op.op import TYPE_NAMES
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.cases.scenario.data import AnyData
from fattn_probe.cases.scenario.mask import AnyMask
from fattn_probe.cases.scenario.schema import Scenario
from fattn_probe.lab.fuzz import run as module
from fattn_probe.lab.fuzz.run import lanes, seconds_to_compile
from fattn_probe.lab.fuzz.scenarios import case_of, draw, flop, simplest
from fattn_probe.machine.run.session import RunOptions, Session

NOT_drawn = {"version", "about", "tolerance", "inspect", "expect", "device", "matrix"}


@pytest.fixture(scope="module")
def drawn():
    return [draw(7, number) for number in range(3000)]


def kinds_of(union):
    return {part.model_fields["kind"].annotation.__args__[0] for part in typing.get_args(union)}


def test_every_case_is_legal_small_and_that_of_its_seed_and_number(drawn):
    for settings in drawn[:200]:
        (case,) = expand(loads(yaml.safe_dump({"version": 1, "about": "one", **settings})))
        assert case.digest == case_of(settings, "one").digest
        assert case.op.sizes.flop == flop(settings) <= 100e6
    assert [draw(7, number) for number in range(50)] == drawn[:50]
    assert max(Counter(case_of(settings, "one").digest for settings in drawn[:500]).values()) == 1
    assert draw(8, 0) != drawn[0]


def test_every_setting_kind_and_type_of_the_schema_is_drawn(drawn):
    assert {key for settings in drawn for key in settings} == Scenario.model_fields.keys() - NOT_drawn
    masks = [settings.get("mask", {"kind": "none"}) for settings in drawn]
    assert {mask["kind"] for mask in masks} == kinds_of(AnyMask)
    data = {data["kind"] for settings in drawn for data in settings.get("data", {}).values()}
    assert data | {"uniform"} == kinds_of(AnyData)
    layouts = [layout for settings in drawn for layout in settings.get("layout", {}).values()]
    assert {layout["kind"] for layout in layouts if "kind" in layout} == {"view", "view_of_K"}
    assert {key for layout in layouts for key in layout} == {
        "kind", "permute", "rows", "heads", "offset", "pad", "outside", "per_sequence", "columns",
    }  # fmt: skip
    assert {settings.get("type_K", "f16") for settings in drawn} == set(TYPE_NAMES)


def test_the_regions_of_old_bugs_are_reached(drawn):
    def share(holds):
        return sum(map(holds, drawn)) / len(drawn)

    assert share(lambda s: s["n_kv"] % 32) > 0.2
    assert share(lambda s: s["n_q"] & (s["n_q"] - 1)) > 0.3
    assert share(lambda s: s.get("layout", {}).get("V", {}).get("kind") == "view_of_K") > 0.1
    assert share(lambda s: s.get("data", {}).get("Q", {}).get("kind") == "far_below_zero") > 0.01
    assert share(lambda s: s["n_kv"] >= 4096) > 0.05
    assert share(lambda s: s.get("n_seq", 1) > 1) > 0.15


def test_the_simplest_form_is_the_same_scenario(drawn):
    for settings in drawn[:200]:
        full = settings | {"n_seq": settings.get("n_seq", 1), "type_K": settings.get("type_K", "f16")}
        assert simplest(full) == settings
        assert case_of(full, "one").digest == case_of(settings, "one").digest


TARGETS = parse_targets("sim:h200,sim:rtx4090,sim:l40s", load_devices())


@pytest.fixture
def planned(monkeypatch):
    """Dry runs that say: a kernel for each head size."""

    def dry_runs(session, cases, target):
        sizes = {case.op.digest: case.op.sizes for case in cases.values()}
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
def test_batches_of_any_size_give_the_same_cases_and_double_until_each_lane_has_its_part():
    (one, _), (other, _), (third, _) = made(), made(), made(seed=2)
    whole = taken(one, 60)
    assert taken(other, 7) + taken(other, 1) + taken(other, 52) == whole
    assert taken(third, 60) != whole
    first, second = lanes(Session(RunOptions(None)), TARGETS, 1, 0.4, 1000)
    assert (first.due, second.due) == (333, 667)
    sizes = []
    while size := first.next_size:
        sizes.append(len(taken(first, size)))
    assert (sizes, second.next_size) == ([60, 120, 153], 120)
    endless, _ = made()
    endless.accepted = 5000
    assert endless.next_size == 1000


@pytest.mark.usefixtures("planned")
def test_new_kernels_have_their_share_of_the_time():
    for share in (0.0, 0.4):
        lane, _ = made(share)
        taken(lane, 150)
        compiling, running = sum(lane.kernels.values()) - module.FIRST_SECONDS, module.CASE_SECONDS * 150
        assert compiling / (compiling + running) <= share
        assert (len(lane.kernels) > module.FIRST_SECONDS / module.KERNEL_SECONDS) == (share > 0)


def test_a_tile_kernel_costs_by_its_head_size():
    assert seconds_to_compile("mma 64,64,8,8") == seconds_to_compile("vec 128,f16,f16") == module.KERNEL_SECONDS
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
    assert all(number % module.UNSUPPORTED_EVERY == 0 for number, _ in taken(lane, 20))
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
    assert len(lane.batch(20)[0]) == 20
    assert added == [len(lane.kernels), 0]
