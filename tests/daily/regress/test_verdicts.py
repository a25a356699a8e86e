"""Verdicts of earlier runs: when they are taken over, and when not."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from benchmarks.edit_to_verdict import copy_of
from fattn_probe.daily.regress import results
from fattn_probe.daily.regress.history import open_history
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.results import LastAnswers, result_of
from fattn_probe.daily.regress.verdicts import MOST, Verdicts
from fattn_probe.llama.launch.architecture import AMD
from fattn_probe.llama.launch.constants import default_constants
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from fattn_probe.llama.source.features import CUDA
from fattn_probe.machine.run.capture import FiledInputs
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.verdict.judge.cases import JudgedCase, judged
from fattn_probe.verdict.judge.checks import Checks
from tests.as_user import fattn_probe
from tests.daily.regress.test_schedule import case
from tests.made import H200, target

ONE = case("one", 1)
LAUNCH = (
    '{"order": 0, "kernel": "flash_attn_ext_vec<64,1,GGML_TYPE_F16,GGML_TYPE_F16,false>", "grid": [1, 1, 1], '
    '"block": [32, 4, 1], "shared": 0, "regs": 90, "max_blocks_per_sm": 5, "origin": "measured"}'
)
PASS = Result("one", ONE.digest, "pass", "fine", {"nmse": 1.25e-7}, "a" * 64, LAUNCH)
GPU = target("gpu:0")


def code(digest, kernels=("vec 64",)):
    return SimpleNamespace(digest=lambda launches: digest, kernels=lambda launches: set(kernels))


def test_the_verdict_of_the_same_code_is_taken_over_and_says_so(cache):
    kept = Verdicts("these")
    kept.keep(ONE, code("a"), PASS)
    assert kept.taken(ONE, code("a"), ["vec 64"]) == replace(PASS, reused=True)
    assert kept.taken(ONE, code("b"), ["vec 64"]) is None, "other code"
    assert kept.taken(ONE, code("a"), ["vec 64", "tile 64"]) is None, "the dry run launches more"
    assert Verdicts("others").taken(ONE, code("a"), ["vec 64"]) is None
    assert kept.taken(case("one", 2), code("a"), ["vec 64"]) is None, "another case of the name"
    assert kept.taken(case("two", 1), code("a"), ["vec 64"]) is None


def test_the_verdict_of_the_same_output_needs_the_same_launches(cache):
    edited = Verdicts("these", None)
    Verdicts("these", 11549).keep(ONE, code("a"), PASS)
    theirs = LAUNCH.replace('"measured"', '"measured b11549"')
    found = [
        edited.of_output(*words)
        for words in (
            (ONE, "a" * 64, theirs),
            (ONE, "b" * 64, theirs),
            (ONE, "a" * 64, ""),
            (case("one", 2), "a" * 64, theirs),
        )
    ]
    assert found[1:] == [None] * 3 and (found[0].output, found[0].reused) == ("a" * 64, False)
    assert Verdicts("others").of_output(ONE, "a" * 64, theirs) is None


def test_the_inputs_of_a_case_are_made_once_for_all_gpus(monkeypatch):
    """Those of a large case are in a file, which is removed."""
    made, kept = Mock(side_effect=lambda one: nullcontext({"Q": one.name})), LastAnswers()
    monkeypatch.setattr(results, "inputs_of", made)
    one, two = case("one", 2), case("two", 2)
    asked = [one, case("one", 2), two, one]
    found = []
    for each in asked:
        with kept.of(each) as answers:
            found.append(answers)
    assert [answers.inputs["Q"] for answers in found] == ["one", "one", "two", "one"]
    assert found[0] is found[1] is not found[3] and made.call_count == 3
    made.side_effect = lambda one: nullcontext(FiledInputs(Path("case.gguf"), {}))
    for _ in range(2):
        with kept.of(two) as answers:
            assert answers.case == two
    assert made.call_count == 5


@pytest.mark.build
@pytest.mark.network
def test_a_run_with_the_same_bits_is_not_judged_again(session, monkeypatch):
    """Neither is a check of several runs left out, nor an output that differs in one bit."""
    kept = Verdicts.under(session, H200, Checks())
    first = result_of(session, ONE, H200)
    kept.keep(ONE, code("a"), first)
    monkeypatch.setattr(results, "judged", asked := Mock(wraps=judged))
    assert result_of(session, ONE, H200, verdicts=kept) == first and not asked.called
    assert result_of(session, ONE, H200, Checks(repeat=2), verdicts=kept).status == "pass" and asked.call_count == 1
    result_of(session, ONE, H200, Checks(batch_invariance=1), verdicts=kept)
    assert asked.call_count == 2
    monkeypatch.setattr(JudgedCase, "digest_of", lambda self, capture: "b" * 64)
    result_of(session, ONE, H200, verdicts=kept)
    assert asked.call_count == 3


@pytest.mark.parametrize(
    "result",
    [
        replace(PASS, status="fail"),
        replace(PASS, status="unjudged"),
        Result.lost(ONE, "timed out"),
        replace(PASS, seconds=(1.0,)),
        replace(PASS, reused=True),
    ],
    ids=["fail", "unjudged", "lost", "timed", "taken over"],
)
def test_no_verdict_but_a_pass_of_a_run_is_stored(cache, result):
    Verdicts("these").keep(ONE, code("a"), result)
    assert not list(cache.rglob("*.document"))


def test_code_that_is_not_known_stores_nothing_and_takes_nothing_over(cache):
    kept = Verdicts("these")
    kept.keep(ONE, code(None), PASS)
    assert not list(cache.rglob("*.document"))
    kept.keep(ONE, code("a"), PASS)
    assert kept.taken(ONE, code(None), ["vec 64"]) is None


def test_the_last_verdicts_of_a_case_are_kept(cache):
    kept = Verdicts("these")
    for number in range(MOST + 1):
        kept.keep(ONE, code(str(number)), PASS)
    found = [kept.taken(ONE, code(str(number)), ["vec 64"]) for number in range(MOST + 1)]
    assert [one is not None for one in found] == [False] + [True] * MOST


def test_a_releases_figures_are_its_own_and_those_of_an_edited_source_are_from_the_release(cache):
    release, edited = Verdicts("these", 11549), Verdicts("these")
    release.keep(ONE, code("a"), PASS)
    assert release.taken(ONE, code("a"), ["vec 64"]) == replace(PASS, reused=True)
    (launch,) = edited.taken(ONE, code("a"), ["vec 64"]).kernels
    assert str(launch.origin) == "measured b11549"


@pytest.mark.network
def test_every_condition_of_a_run_and_of_the_judge_counts(cache, tree, monkeypatch):
    session, checks = Session(RunOptions(tree)), Checks(roundings=True)
    options = session.options

    def under(options=options, target=H200, checks=checks):
        return Verdicts.under(Session(options), target, checks).conditions

    found = [under(), under(replace(options, quants=("q8_0-f16",))), under(checks=replace(checks, sample="all"))]
    found += [under(target=target("sim:a100")), under(replace(options, flavour="check"))]
    found += [under(replace(options, simulation=replace(options.simulation, schedule=1)))]
    for name, value in (
        ("fattn_probe.machine.run.session.package_stamp", lambda: "another judge"),
        ("fattn_probe.daily.regress.verdicts.cpu_flags", lambda text: {"avx"}),
        ("fattn_probe.daily.regress.verdicts.versions", lambda: {"numpy": "1"}),
        ("fattn_probe.daily.regress.verdicts.vec_adds_in_f16", lambda tree, arch: True),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, value)
            found.append(under())
    monkeypatch.setenv("FATTN_PROBE_X", "1")
    found.append(under())
    assert len(set(found)) == len(found)


@pytest.mark.network
def test_the_number_of_host_threads_does_not_count(cache, tree):
    options = RunOptions(tree)
    threads = [replace(options, simulation=replace(options.simulation, threads=number)) for number in (1, 2)]
    one, two = (Verdicts.under(Session(each), H200, Checks()) for each in threads)
    assert one == two and one.constants is not None and one.arch == 90


@pytest.mark.parametrize(
    ("kernel", "arch", "configuration", "sizes"),
    [
        ("flash_attn_ext_f16<64,64,8,8,false,false,false>", 90, "ampere", (64, 64, 64)),
        ("flash_attn_ext_f16<64,64,8,8,false,false,false>", AMD + 0x942, "cdna", (64, 64, 64)),
        ("flash_attn_tile<64,64,4,2,false>", AMD + 0x942, "amd", (64, 8)),
        ("flash_attn_ext_vec<64,1,GGML_TYPE_F16,GGML_TYPE_F16,false>", 90, "", ()),
    ],
)
def test_of_the_tables_of_a_source_only_the_row_of_the_kernel_counts(cache, kernel, arch, configuration, sizes):
    """A changed row that the judge reads counts even if the code stays the same: the host alone may have it."""
    known = default_constants()
    result = replace(PASS, launches=LAUNCH.replace(PASS.kernels[0].spelling, kernel))
    verdicts = Verdicts("these", None, known, arch)
    verdicts.keep(ONE, code("a"), result)

    def holds(**changes):
        other = Verdicts("these", None, replace(known, **changes), arch)
        taken, same = other.taken(ONE, code("a"), ["vec 64"]), other.of_output(ONE, result.output, result.launches)
        assert (taken is None) == (same is None)
        return taken is not None

    both: dict[str, Any] = {"mma": known.mma, "tile": known.tile}
    for family, tables in both.items():
        for name, rows in tables.items():
            for key in rows:
                own = (name, key) == (configuration, sizes)
                changed = {**tables, name: {**rows, key: (rows[key][0], 2 * rows[key][1])}}
                assert holds(**{family: changed}) is not own
                changed = {**tables, name: {**rows, key: (2 * rows[key][0], rows[key][1])}}
                assert holds(**{family: changed}) is not own
    assert holds() and not holds(max_offset=0.0)
    assert Verdicts("these", None, None, arch).taken(ONE, code("a"), ["vec 64"]) is None
    assert holds(narrow=frozenset({(64, 64)})) is (configuration != "ampere")
    assert holds(cdna_in_f32=False) is (configuration != "cdna")


@pytest.mark.network
def test_some_entries_take_nothing_over(tree):
    options, under = RunOptions(tree), Verdicts.under
    assert under(Session(options), GPU, Checks()) is None
    assert under(Session(options), H200, Checks(order=2)) is None, "other cases count"
    assert under(Session(replace(options, flavour="debug")), H200, Checks()) is None
    assert under(Session(RunOptions(None)), H200, Checks()) is None


SUITE = """version: 1
about: a case of a vec and of an mma kernel
scenarios: [few.yaml, many.yaml]
on: ["sim:h200"]
"""
SIZES = "version: 1\nabout: x\nhsk: 64\nn_head: 4\nn_kv: 256\n"


def with_wrong_sum(text):
    """The text of fattn-vec.cuh with one wrong line."""
    right = "KQ_sum[j]*KQ_max_scale + KQ_reg[j];"
    return text.replace(right, right.replace("KQ_reg", "1.01f*KQ_reg"))


@pytest.mark.build
@pytest.mark.network
def test_after_an_edit_exactly_the_cases_that_execute_other_code_are_judged_again(tmp_path):
    (tmp_path / "few.yaml").write_text(SIZES + "n_q: 1\n")
    (tmp_path / "many.yaml").write_text(SIZES + "n_q: 16\nn_head_kv: 1\n")
    suite, whole = tmp_path / "s.yaml", resolve(DEFAULT_SOURCE)
    suite.write_text(SUITE)

    def regress(name, file="", change=str, *words, code=0):
        tree, history = copy_of(whole, tmp_path / name), tmp_path / f"{name}.db"
        with (tree / CUDA / "fattn.cu").open("a") as own:  # a build to which other tests add no kernels
            own.write("// of test_verdicts\n")
        if file:
            text = (tree / CUDA / file).read_text()
            (tree / CUDA / file).write_text(change(text))
            assert change(text) != text
        fattn_probe("regress", suite, "--source", tree, "--history", history, *words, code=code)
        with open_history(history, reading=True) as opened:
            (run,) = opened.runs()
            return {name: (one.status, one.reused) for name, one in opened.results(run).items()}

    vec, host = "fattn-vec.cuh", "fattn.cu"
    new, old = ("pass", False), ("pass", True)
    regress("first")  # the verdicts may be there from an earlier call of this test
    assert regress("again") == {"few": old, "many": old}
    assert regress("fresh", "", str, "--fresh") == {"few": new, "many": new}
    assert regress("comment", vec, lambda text: text.replace(";\n", "; // x\n")) == {"few": old, "many": old}
    assert regress("wrong", vec, with_wrong_sum, code=5) == {"few": ("fail", False), "many": old}
    line = "switch (ggml_cuda_get_best_fattn_kernel("
    more = regress(
        "host", host, lambda text: text.replace(line, f'if (getenv("{tmp_path}")) {{ return; }}\n    {line}')
    )
    assert more == {"few": new, "many": new}
