"""What releases support, and which kernels the default one launches, known without a run; runs without an output."""

from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest

from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario.cases import cases_of as cases_in
from fattn_probe.cases.scenario.cases import resolve
from fattn_probe.cases.scenario.schema import Scenario
from fattn_probe.cases.shipped import files
from fattn_probe.daily.regress.changes import ChangeKind, changes
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.suite import cases_of, load_suite
from fattn_probe.llama.launch.families import BY_CASE
from fattn_probe.machine.run.outcome import Failed, Finding, Lost, Missing, Unsupported
from fattn_probe.machine.run.session import RunOptions
from fattn_probe.verdict.judge import support
from fattn_probe.verdict.judge.cases import Answers, judged, judged_case
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.judge.support import (
    BETWEEN,
    Supported,
    capabilities,
    choices_of,
    finding_of,
    kernels,
    last_known,
    shipped,
    shipped_choices,
    support_of,
    supporting,
    verdict_without_output,
)
from fattn_probe.verdict.measure.verdict import Status
from maintain.tables import kernels_as_text, support_as_text
from tests.as_user import answer
from tests.made import H200, ROOT, at_night, launch_of
from tests.made import shipped as shipped_case
from tests.verdict.made import OneBuild

EVERY, AMD = frozenset({"6.1", "9.0", "12.0"}), frozenset({"gfx906", "gfx1201"})
GROUPS = {"yes": EVERY, "amd": AMD}
TEXT = """op,case,7551,8156,11549
1234,gqa,yes,yes,yes amd
5678,mla,no,9.0 12.0 gfx906 gfx1201,
"""
OP = {"version": 1, "about": "x", "hsk": 64, "n_head": 2, "n_q": 1, "n_kv": 64}
CASE = resolve(Scenario.model_validate(OP), "x", "x")
ROW = {"case": "x", "build": "11549", "6.1": "vec 64,GGML_TYPE_F16,GGML_TYPE_F16", "9.0": "mma 64,64,8,8"}
KNOWN = {CASE.op.digest: ROW}


MMA = launch_of("flash_attn_ext_f16<64, 64, 8, 8, false, false, false>")
COMBINE = launch_of("flash_attn_combine_results<64>")


@pytest.fixture
def known_choices(monkeypatch):
    monkeypatch.setattr(support, "shipped_choices", lambda: KNOWN)


@pytest.fixture(autouse=True)
def asked_anew():
    yield
    support.asked.cache_clear()


def ship(monkeypatch, table):
    """Make `table` the shipped one."""
    monkeypatch.setattr(support, "shipped", lambda: table)
    support.asked.cache_clear()


def test_a_table_is_read_and_written():
    groups = {**GROUPS, "amd": AMD | {"gfx942"}}
    found = support_of(TEXT, groups)
    assert found == {
        "1234": Supported("gqa", {7551: EVERY, 8156: EVERY, 11549: EVERY | AMD | {"gfx942"}}),
        "5678": Supported("mla", {7551: frozenset(), 8156: frozenset({"9.0", "12.0"}) | AMD}),
    }
    assert support_as_text(found, groups) == TEXT
    assert choices_of(kernels_as_text(KNOWN, ["6.1", "9.0"])) == KNOWN
    two = {op: Supported("gqa", {7551: EVERY}) for op in ("2", "1", "3")}
    assert [line[0] for line in support_as_text(two, GROUPS).splitlines()[1:]] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("build_number", "cc", "found"),
    [
        ("7551", "9.0", None),
        ("8155", "9.0", None),
        ("8156", "9.0", 8156),
        ("8156", "6.1", None),
        ("9000", "12.0", 8156),
        ("?", "9.0", 11549),
        ("11549", "6.1", 11549),
        ("7000", "9.0", None),
        ("11549", "gfx906", 11549),
        ("8156", "gfx906", None),
        ("11549", "gfx1201", None),
    ],
)
def test_the_last_release_before_a_source_decides(monkeypatch, build_number, cc, found):
    known = Supported("x", {7551: frozenset(), 8156: frozenset({"9.0", "12.0"}), 11549: EVERY | {"gfx906"}})
    ship(monkeypatch, {CASE.op.digest: known, "another": Supported("y", {7551: EVERY})})
    assert supporting(CASE.op, cc, build_number) == found


def test_an_op_that_the_table_lacks_and_a_gpu_that_a_release_was_not_asked_about_are_not_judged(monkeypatch):
    ship(monkeypatch, {})
    assert supporting(CASE.op, "9.0", "11549") is last_known(CASE.op, "9.0", "11549") is None
    refused = {CASE.op.digest: Supported("x", {8156: frozenset()}), "another": Supported("y", {8156: EVERY})}
    ship(monkeypatch, refused)
    assert [last_known(CASE.op, "9.0", number) for number in ("7551", "11549")] == [None, 8156]
    ship(monkeypatch, {CASE.op.digest: Supported("x", {8156: EVERY, 11549: EVERY | AMD})})
    assert [last_known(CASE.op, "gfx906", number) for number in ("9000", "11549")] == [None, 11549]


def test_the_shipped_tables_have_every_op_of_the_shipped_cases():
    """If this fails: scripts/support."""
    suites = (
        case for path in files("suite") for entry in load_suite(path).parts for case in cases_of(entry, path.parent)
    )
    cases = {case.op.digest: case.name for case in chain(cases_in(list(files("scenario"))), suites)}
    supported, launched = shipped(), shipped_choices()
    assert not [name for op, name in cases.items() if len(supported.get(op, Supported("")).on) < 5]
    every = frozenset().union(*capabilities().values())
    assert not [name for op, name in cases.items() if not every <= launched.get(op, {}).keys()]


def test_the_default_source_supports_nearly_all_shipped_cases_and_its_table_has_whole_kernel_cases():
    on = [known.on[11549] for known in shipped().values()]
    for named in capabilities().values():
        assert sum(named <= cc for cc in on) > 0.95 * len(on)
    cells = {cell for row in shipped_choices().values() for column, cell in row.items() if "." in column}
    for name in {name for cell in cells for name in cell.split(BETWEEN) if name}:
        family, _, values = name.partition(" ")
        assert len(values.split(",")) == len(BY_CASE[family].case_parameters), name


def test_a_case_that_is_refused_now_is_a_loss_of_support():
    before = Result("c", "d", "pass", output="00")
    after = Result("c", "d", "fail", "support lost: b11549 supports this op on compute capability 9.0: refused")
    (change,) = changes({"c": before}, {"c": after})
    assert (change.kind, change.alarm) == (ChangeKind.SUPPORT_LOST, True)


@pytest.mark.build
@pytest.mark.network
@pytest.mark.slow
def test_a_refused_op_is_an_alarm_without_a_history(tmp_path):
    words = ("regress", "quick", "--filter", "^types-type_K=q5_0-n_q=5-n_kv=64$", "--history", tmp_path / "h.db")
    (result,) = answer(*words, "--patch", "faults/28455-kv-types", code=5)["runs"][0]["results"]
    assert result["status"] == "fail"
    assert result["reason"].startswith("support lost: b11549 supports this op on compute capability 9.0: ")


@pytest.mark.parametrize(
    ("source", "number", "status"),
    [
        ("pypi:xllamacpp==2026.10.11549", "11549", Status.FAIL),
        ("/home/me/llama.cpp", "?", Status.FAIL),
        ("pypi:llama-cpp-python==0.3.17", "?", Status.UNSUPPORTED),
    ],
)
def test_a_release_of_unknown_age_is_not_compared_with_earlier_ones(source, number, status):
    subject = judged_case(OneBuild(source, number), Answers(shipped_case("gqa"), {}), H200, Checks())
    found = judged(subject, Unsupported("no"))
    assert found.verdict.status == status
    assert bool(found.checks) == (status is Status.UNSUPPORTED)


@pytest.mark.parametrize(
    ("engine", "built", "patches", "launches", "taken"),
    [
        ("sim", None, ("a patch",), {"x": ("a launch",)}, True),
        ("sim", None, ("a patch",), {"x": ()}, False),
        ("sim", None, ("a patch",), {}, False),  # the dry run failed
        ("cuda", None, ("a patch",), {"x": ("a launch",)}, False),
        ("sim", "a build", ("a patch",), {"x": ("a launch",)}, False),
        ("sim", None, (), {"x": ("a launch",)}, False),
    ],
)
def test_only_a_dry_run_without_the_patches_shows_that_these_refuse(
    engine, built, patches, launches, taken, monkeypatch
):
    monkeypatch.setattr(support, "dry_runs", lambda session, cases, target: {} if session.options.patches else launches)
    session: Any = SimpleNamespace(options=RunOptions(None, build=built, patches=patches), progress=None)
    assert support.taken_without_patches(session, CASE, Target(engine)) == taken


@pytest.mark.build
@pytest.mark.network
@pytest.mark.night
def test_a_patch_that_refuses_an_op_of_a_release_of_unknown_age_fails(tmp_path):
    refuse = tmp_path / "refuse.patch"
    refuse.write_text(
        "# Refuse 64.\n--- a/ggml/src/ggml-cuda/fattn.cu\n+++ b/ggml/src/ggml-cuda/fattn.cu\n@@ -377 +377 @@\n"
        "-        case  64:\n+        case  63:\n"
    )
    words = ("compare", "gqa", "--on", "sim:h200", "--source", "pypi:llama-cpp-python==0.3.30", "--patch", str(refuse))
    (row,) = answer(*words, code=5)["rows"]
    assert row["reason"].startswith("support lost: without the patches the source supports this op")


@pytest.mark.parametrize(
    ("cc", "build_number", "passes", "fails", "reason"),
    [
        ("9.0", "11549", True, False, ""),
        (
            "6.1",
            "11549",
            False,
            True,
            "another kernel: mma 64,64,8,8, but b11549 launches vec 64,GGML_TYPE_F16,GGML_TYPE_F16",
        ),
        ("9.0", "11550", False, False, ""),
    ],
)
def test_the_kernels_of_the_release_are_asked_for(known_choices, cc, build_number, passes, fails, reason):
    check = kernels(CASE.op, cc, build_number, [MMA, COMBINE])
    assert (check.passes, check.fails) == (passes, fails) and (check.reason == reason or not fails)


def test_an_op_whose_kernels_the_table_lacks_is_not_judged(monkeypatch):
    monkeypatch.setattr(support, "shipped_choices", dict)
    check = kernels(CASE.op, "9.0", "11549", [COMBINE])
    assert (check.made, check.fails) == (False, False)


@pytest.mark.build
@pytest.mark.network
@pytest.mark.parametrize("patch", [(), *at_night(("--patch", "faults/27109-silent-conversion"))])
def test_a_fault_that_only_changes_the_kernel_fails_if_it_is_asked_for(patch):
    case = ROOT / "patches/faults/27109-silent-conversion.yaml"
    (row,) = answer("compare", case, "--on", "sim:h200", "--kernels", *patch, code=5 if patch else 0)["rows"]
    (check,) = row["checks"]
    assert (row["status"], check["name"], check["fails"]) == ("fail" if patch else "pass", "kernels", bool(patch))


KERNEL = "void flash_attn_tile<64, 64, 2, 1, false>(char const*)"
FAULT = Finding("race", "byte 16 is read", KERNEL, "a.cuh", 7, (1, 2, 0), (3, 4, 0), ("f<1> at a.cuh:7",))


def test_a_fault_has_its_kernel_and_its_place_and_an_abort_the_place_in_its_message():
    found = finding_of(FAULT)
    assert (found.kind, found.file, found.line, found.block, found.thread) == ("race", "a.cuh", 7, (1, 2, 0), (3, 4, 0))
    assert found.place == f"{found.kernel}, block (1, 2, 0), thread (3, 4, 0), a.cuh:7"
    inner = replace(FAULT, frames=("f<1> at a.cuh:7", "g at x/fattn-tile.cuh:44", "h at x/fattn.cu:9"))
    assert finding_of(inner).place == f"{found.place}, called at x/fattn-tile.cuh:44"
    assert found.kernel.startswith("flash_attn_tile<64")
    bare = finding_of(Finding("race", "somewhere"))
    assert (bare.kernel, bare.place) == ("", "") and bare == Finding("race", "race: somewhere")
    found = finding_of(Failed("/x/ggml/src/ggml-cuda/fattn.cu:284: fatal error\nmore", ()))
    assert (found.kind, found.line) == ("abort", 284) and found.file.endswith("fattn.cu")
    assert found.message.endswith("fatal error")
    for api in ("CUDA", "ROCm"):
        error = finding_of(Failed(f"{api} error: invalid argument", ()))
        assert (error.kind, error.file, error.line) == ("CUDA error", "", 0)
    assert finding_of(Unsupported("no")) is None


STOPPED = Finding(
    "out-of-bounds",
    "read of 16 bytes, 32 past the end of K",
    "flash_attn_ext_f16",
    block=(3, 0, 0),
    thread=(5, 1, 0),
    frames=("fattn-mma-f16.cuh:517 load_tile",),
)


@pytest.mark.parametrize(
    ("outcome", "status", "reason"),
    [
        (Unsupported("CUDA0 does not support the op"), Status.UNSUPPORTED, "CUDA0 does not support the op"),
        (Missing("_Z3foov"), Status.LOST, "the build lacks a function that was called: _Z3foov"),
        (Lost("no answer after 60 s"), Status.LOST, "no answer after 60 s"),
        (
            Lost("the runner was killed by SIGSEGV", ("init(int) at ggml-cuda.cu:257", "main at runner.cpp:9")),
            Status.LOST,
            "the runner was killed by SIGSEGV\n  init at ggml-cuda.cu:257\n  main at runner.cpp:9",
        ),
        (
            Failed("fattn.cu:95: fatal error", ("#1 launch_fattn", "#2 main")),
            Status.FAIL,
            "fattn.cu:95: fatal error\n  #1 launch_fattn\n  #2 main",
        ),
        (
            STOPPED,
            Status.FAIL,
            "out-of-bounds: read of 16 bytes, 32 past the end of K"
            "\n  in flash_attn_ext_f16, block (3, 0, 0), thread (5, 1, 0)"
            "\n  fattn-mma-f16.cuh:517 load_tile",
        ),
        (Finding("AddressSanitizer", "heap-buffer-overflow"), Status.FAIL, "heap-buffer-overflow"),
        (Finding("unknown-instruction", "of PTX"), Status.LOST, "unknown-instruction: of PTX"),
    ],
)
def test_each_ending_has_its_status_and_its_own_words(outcome, status, reason):
    verdict = verdict_without_output(outcome)
    assert (verdict.status, verdict.reason, verdict.metrics) == (status, reason, None)
