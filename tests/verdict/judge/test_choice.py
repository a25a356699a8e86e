"""Which kernels the default release launches, known without a run."""

import json
from pathlib import Path

import pytest

from fattn_probe.cases.scenario.cases import resolve
from fattn_probe.cases.scenario.schema import Scenario
from fattn_probe.llama.launch.families import BY_CASE
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.machine.run.kernels_by_op import op_digest
from fattn_probe.verdict.judge.choice import BETWEEN, choices_of, kernels, shipped
from maintain.tables import kernels_as_text
from tests.cli.test_cli import probe

OP = resolve(
    Scenario.model_validate({"version": 1, "about": "x", "hsk": 64, "n_head": 2, "n_q": 1, "n_kv": 64}), "x", "x"
).op
ROW = {"case": "x", "build": "11549", "6.1": "vec 64,GGML_TYPE_F16,GGML_TYPE_F16", "9.0": "mma 64,64,8,8"}
KNOWN = {op_digest(OP): ROW}


def launch(kernel, *values):
    args = tuple((f"a{at}", value) for at, value in enumerate(values))
    return LaunchRecord(0, kernel, args, (1, 1, 1), (32, 1, 1), 0)


MMA = launch("flash_attn_ext_f16", "64", "64", "8", "8", "false", "false", "false")
COMBINE = launch("flash_attn_combine_results", "64")


def test_a_table_is_read_and_written():
    text = kernels_as_text(KNOWN, ["6.1", "9.0"])
    assert choices_of(text) == KNOWN
    assert kernels_as_text(choices_of(text), ["6.1", "9.0"]) == text


def test_the_shipped_table_has_whole_kernel_cases():
    cells = {cell for row in shipped().values() for column, cell in row.items() if "." in column}
    for name in {name for cell in cells for name in cell.split(BETWEEN) if name}:
        family, _, values = name.partition(" ")
        assert len(values.split(",")) == len(BY_CASE[family].case_parameters), name


@pytest.mark.parametrize(
    ("cc", "build_number", "passes", "fails"),
    [("9.0", "11549", True, False), ("6.1", "11549", False, True), ("9.0", "11550", False, False)],
)
def test_the_kernels_of_the_release_are_asked_for(cc, build_number, passes, fails):
    check = kernels(OP, cc, build_number, [MMA, COMBINE], KNOWN)
    assert (check.passes, check.fails) == (passes, fails)


def test_what_is_launched_and_what_was_expected_are_named():
    reason = kernels(OP, "6.1", "11549", [MMA], KNOWN).reason
    assert reason == "it launches mma 64,64,8,8, where b11549 has vec 64,GGML_TYPE_F16,GGML_TYPE_F16"


def test_an_op_that_the_table_lacks_is_not_judged():
    check = kernels(OP, "9.0", "11549", [COMBINE], {})
    assert (check.made, check.fails) == (False, False)


@pytest.mark.build
@pytest.mark.network
@pytest.mark.parametrize(("patch", "code"), [([], 0), (["--patch", "faults/27109-silent-conversion"], 5)])
def test_a_fault_that_only_changes_the_kernel_fails_if_it_is_asked_for(patch, code):
    case = Path("patches/faults/27109-silent-conversion.yaml")
    done = probe("compare", str(case), "--on", "sim:h200", "--kernels", "--json", *patch, code=code)
    (row,) = json.loads(done.stdout)["rows"]
    (check,) = row["checks"]
    assert (row["status"], check["name"], check["fails"]) == ("fail" if patch else "pass", "kernels", bool(patch))
