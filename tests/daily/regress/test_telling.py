"""The cases that tell most about a changed source."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fattn_probe.cases.shipped import find
from fattn_probe.daily.regress.entries import Given, entries_on_targets
from fattn_probe.daily.regress.suite import load_suite
from fattn_probe.daily.regress.telling import (
    FEW_SMS,
    MOST_RUN,
    SUITES,
    Killer,
    architectures,
    changed_functions,
    families_of,
    kernels_of,
    killers,
    suite_cases,
    telling,
)
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.llama.source.features import CUDA
from fattn_probe.llama.source.patches import Patch
from fattn_probe.llama.source.patches import find as find_patch
from fattn_probe.machine.run.base import Base, base_of
from fattn_probe.machine.run.session import RunOptions
from fattn_probe.verdict.judge.origin import Code
from maintain.mutants_table import killers_as_text
from tests.made import ROOT

pytestmark = pytest.mark.network


def launched(names):
    """The targets and kernels of cases, given by entry and name."""
    every = [{name: kernels_of(*some)[1:] for name, some in suite_cases(suite).items()} for suite in SUITES]
    return {name: next(cases[name] for cases in every if name in cases) for name in names}


def entries_of(suite):
    path = find("suite", suite)
    pairs = entries_on_targets(load_suite(path), path.parent, Given())
    return [pair for pair in pairs if pair[1].engine == "sim"], path.parent


def of(tree, patch):
    options = RunOptions(tree, patches=(patch,))
    return telling(options, base_of(options))


def edited(tree, file, words, by=None):
    """A patch that adds a comment to the first line with these words, or replaces the words."""
    lines = (tree.root / CUDA / file).read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if words in line)
    after = lines[at].replace(words, by) if by else f"{lines[at]} //"
    hunk = f"@@ -{at},3 +{at},3 @@\n {lines[at - 1]}\n-{lines[at]}\n+{after}\n {lines[at + 1]}\n"
    return Patch("own", None, "", (), f"--- a/{CUDA}/{file}\n+++ b/{CUDA}/{file}\n{hunk}")


def test_the_table_follows_from_the_verdicts(tree):
    """If this fails: scripts/detection killers."""
    text = killers_as_text(ROOT / "docs/measurements/mutants.jsonl.gz", tree)
    assert (ROOT / "fattn_probe/daily/regress/killers.csv").read_text() == text
    assert len(killers()) == text.count("\n") - 1 > 500


def test_a_change_is_named_by_function_and_line(tree):
    patch = find_patch("fault-tail-queries", tree)
    (one,) = changed_functions(Code(tree.root), Code(tree.root, (patch,)))
    assert (one.file, one.function) == ("fattn-mma-f16.cuh", "flash_attn_ext_f16_process_tile")
    lines = Code(tree.root, (patch,)).text(one.file).splitlines()
    assert f"{one.function}(" in lines[one.start - 1]
    before = Code(tree.root).text(one.file).splitlines()
    assert all(lines[line - 1] not in before or lines[line - 1] != before[line - 1] for line in one.lines)
    assert str(one) == f"flash_attn_ext_f16_process_tile (fattn-mma-f16.cuh:{one.lines[0]})"


def test_cases_that_noticed_faults_there_are_named_and_some_of_them_chosen(tree):
    told = of(tree, find_patch("faults/21159-fixup-first-block", tree))
    assert told.kernels == ("mma", "tile", "vec"), "fattn-common.cuh concerns all"
    here = [one for one in killers() if one.function == "flash_attn_stream_k_fixup_uniform"]
    assert set(told.noticed) == {(one.on, one.case) for one in here}
    assert sum(told.noticed.values()) == sum(one.faults for one in here)
    chosen = told.chosen()
    assert 2 <= len(chosen) <= 2 * (MOST_RUN + 1)
    assert len({case.scenario for _, _, case in chosen}) == len(chosen), "each of another scenario"
    entry, target, case = chosen[0]
    assert next(iter(told.noticed)) == (f"{entry.name} on {target}".removeprefix(" on "), case.name)
    (_, said) = (line.plain for line in told.lines([SimpleNamespace(case=case.name, on=str(target), launches=())]))
    assert re.match(r"\d+ shipped cases detected \d+ faults planted in .* and so reach them \(1 ran\): ", said)
    chosen = of(tree, edited(tree, "fattn-mma-f16.cuh", "= i < i_sup ? mask_h")).chosen()[:MOST_RUN]
    assert "queries-n_q=1-n_head=1" in [case.name for _, _, case in chosen]  # most faults were in sparse masks
    chosen = of(tree, edited(tree, "fattn-vec.cuh", "if (mask && (ncols == 1 ||")).chosen()
    assert "vec-n_head=12-n_head_kv=12-max_bias=8-n_q=2-type_K=q4_0" in [case.name for _, _, case in chosen[MOST_RUN:]]


def test_a_fault_near_the_change_counts_more(tree, monkeypatch):
    patch = find_patch("fault-tail-queries", tree)
    (one,) = changed_functions(Code(tree.root), Code(tree.root, (patch,)))
    here = one.lines[0] - one.start
    rows = [Killer(one.file, one.function, here + away, "sim:h200", f"away {away}", 1) for away in (300, 2, -40)]
    rows.append(Killer(one.file, "another", here, "sim:h200", "of the file", 9))
    rows.append(Killer("fattn-vec.cuh", "another", here, "sim:h200", "of another", 99))
    monkeypatch.setattr("fattn_probe.daily.regress.telling.killers", lambda: rows)
    told = of(tree, patch)
    assert [case for _, case in told.noticed] == ["away 2", "away -40", "away 300"]
    assert [case for _, case in told.others] == ["of the file", "of another"]


def test_a_changed_row_of_a_configuration_is_tried_by_the_kernels_that_have_it(tree):
    """Volta has its own rows only for some sizes, and uses those of Ampere otherwise."""
    told = of(tree, edited(tree, "fattn-mma-f16.cuh", "(128, 128, 16, 128, 2,", "(128, 128, 16, 64, 2,"))
    kernels = launched(told.configured)
    assert {kernel for _, kernel in kernels.values()} == {"mma 128,128,16,1"}
    assert {on for on, _ in kernels.values()} >= {"sim:h200", "sim:h200-5", "sim:v100"}
    entry, on, case = told.chosen()[0]
    assert told.configured[0] == (f"{entry.name} on {on}".removeprefix(" on "), case.name)
    said = [line.plain for line in told.lines([])]
    assert said[1].startswith(
        f"{len(kernels)} shipped cases may launch a kernel with a changed configuration (0 ran): "
    )
    assert told.document()["configured"][0] == dict(zip(("on", "case"), told.configured[0], strict=True))
    told = of(tree, edited(tree, "fattn-mma-f16.cuh", "(112, 112, 64, ", "(104, 104, 64, "))
    (line,) = [line.plain for line in told.lines([]) if "name a scenario" in line.plain]
    assert "the changed configuration mma 104,104,64 (ampere): name" in line
    assert of(tree, edited(tree, "fattn-mma-f16.cuh", ", 2, true);", ", 2, false);")).configured, "Q_in_reg counts too"
    told = of(tree, edited(tree, "fattn-tile.cuh", "( 40,  40,  2,  64,", "( 40,  40,  2, 128,"))
    found = set(launched(told.configured).values())
    assert found == {("sim:gtx1060", "tile 40,40"), ("sim:gtx1060-2", "tile 40,40")}, "GPUs without fast f16 arithmetic"


def test_rows_that_quick_lacks_are_sought_in_all_suites_and_tile_kernels_by_their_columns(tree):
    """A row of RDNA whose shared memory is too large passed compare, quick and the hook."""
    row = "(128, 128, 32, 128, 2, {},  64,  64,  64, 1"
    told = of(tree, edited(tree, "fattn-mma-f16.cuh", row.format(" 64"), row.format("256")))
    assert told.rows == {("mma", "rdna", (128, 128, 32))} and not told.untried
    kernels = launched(told.configured)
    assert {kernel.partition(" ")[0] for _, kernel in kernels.values()} == {"mma"}
    assert {on for on, _ in kernels.values()} >= {"sim:rx7900xtx", "sim:rx9070xt"}
    (said,) = told.left_out(*entries_of("quick"))
    assert said == "no case is known to launch a kernel with the changed configuration mma 128,128,32 (rdna)"
    assert not [*told.left_out(*entries_of("nightly-amd"))]

    def said_of(on, *values):
        launches = [
            LaunchRecord(0, "flash_attn_ext_f16", tuple(("", value) for value in values), (1, 1, 1), (1, 1, 1), 0)
        ]
        rows = [SimpleNamespace(case="x", on=on, launches=launches)]
        return [line.plain for line in told.lines(rows) if "no case that ran" in line.plain]

    assert said_of("sim:rx7900xtx", "128", "128", "8", "4") == []
    assert (
        len(said_of("sim:h200", "128", "128", "8", "4")) == len(said_of("sim:rx7900xtx", "128", "128", "4", "4")) == 1
    )
    told = of(tree, edited(tree, "fattn-tile.cuh", "(128, 128,  8, 256, 2,", "(128, 128,  8, 128, 2,"))
    assert all(case.op.sizes.n_q > 1 for _, _, case in told.chosen()[:2]), "decode has four columns"


@pytest.mark.parametrize(
    ("file", "words"), [("fattn-mma-f16.cuh", "kb0_start = 0;"), ("fattn-vec.cuh", "KQ_max_scale = expf(")]
)
def test_one_of_the_cases_runs_on_few_sms(tree, file, words):
    """A block that began each tile at the wrong step passed: all chosen cases had a block for every step."""
    chosen = of(tree, edited(tree, file, words)).chosen()
    assert any(target.device.multiProcessorCount <= FEW_SMS for _, target, _ in chosen)
    assert any(target.device.multiProcessorCount > FEW_SMS for _, target, _ in chosen[: MOST_RUN + 1])


def test_affected_kernels_that_no_case_launched_are_named(tree):
    """A change of all three kernels was tried with vec and tile only."""
    kinds = {"mma": "flash_attn_ext_f16", "tile": "flash_attn_tile", "vec": "flash_attn_ext_vec"}

    def said_of(file, *names):
        told = of(tree, edited(tree, file, "__launch_bounds__"))
        rows = [
            SimpleNamespace(
                case=name,
                on="sim:h200",
                launches=[LaunchRecord(0, kinds[name], (("", "64"),) * 4, (1, 1, 1), (1, 1, 1), 0)],
            )
            for name in names
        ]
        return [line.plain for line in told.lines(rows) if "launched" in line.plain]

    affected = "the change affects {} kernels too: no case that ran launched one"
    assert said_of("fattn-common.cuh", "vec") == [affected.format("mma and tile")]
    assert said_of("fattn-common.cuh", "vec", "tile") == [affected.format("mma")]
    assert said_of("fattn-common.cuh", *kinds) == said_of("fattn-vec.cuh", "vec") == said_of("fattn-vec.cuh") == []
    outside = "2 of 3 cases launched no kernel in the changed files: mma on sim:h200, tile on sim:h200"
    assert said_of("fattn-vec.cuh", *kinds) == [outside]


def test_a_line_that_few_architectures_compile_is_tried_on_their_gpus(tree):
    """A shuffle of CDNA's row sum passed compare on NVIDIA GPUs, which were said to reach it."""
    told = of(tree, edited(tree, "fattn-mma-f16.cuh", "int offset_first = 32;", "int offset_first = 16;"))
    ((place, archs),) = told.only.items()
    assert archs == {"gfx908", "gfx90a", "gfx942"} and place.startswith("fattn-mma-f16.cuh:")
    assert not told.noticed and all("sim:mi" in on for on, _ in told.compiling)
    assert str(told.chosen()[0][1]).startswith("sim:mi")
    assert told.document()["only"] == {place: ["gfx908", "gfx90a", "gfx942"]}
    (said,) = told.left_out(*entries_of("nightly"))
    assert said == f"no case runs on a GPU for which {place} is compiled (gfx908, gfx90a, gfx942)"
    for on, number in (("sim:h200", 1), ("sim:mi300x", 0), ("gpu", 0)):
        rows = [SimpleNamespace(case="gqa", on=on, launches=())]
        assert sum("no case ran on such a GPU" in line.plain for line in told.lines(rows)) == number
    common = Code(tree.root)
    text = common.text("fattn-mma-f16.cuh").splitlines()
    inside = 1 + next(at for at, line in enumerate(text, 1) if line.startswith("#if") and "VOLTA_MMA_AVAIL" in line)
    assert architectures(common, "fattn-mma-f16.cuh", [inside, 1])[inside] >= {"70", "75", "90"}


def test_what_is_not_known_is_said(tree):
    assert not of(tree, edited(tree, "fattn-tile.cuh", "( 40,  40,  2,  64,")).configured, "only a comment changed"
    told = of(tree, edited(tree, "mma.cuh", "return "))
    assert not told.noticed and told.document()["changed"][0]["file"] == "mma.cuh"
    said = [line.plain for line in told.lines([])]
    assert said[1] == "no shipped case is known to reach these lines; the lines affect mma kernels"
    assert told.chosen(), "the most telling of all"


FAMILIES_OF = {
    "fattn-vec.cuh": "vec",
    "template-instances/fattn-mma-f16-instance-ncols1_1-ncols2_16.cu": "mma",
    "mma.cuh": "mma",
    "fattn-common.cuh": "",
    "fattn.cu": "",
}


def test_no_change_of_attention_tells_nothing_and_a_file_is_of_a_family_or_of_all(tree):
    options = RunOptions(tree)
    assert telling(options, Base(options, "itself")) is None
    assert telling(options, Base(replace(options, tree=None), "gone", "no network")) is None
    for name, own in FAMILIES_OF.items():
        assert families_of(tree.root / CUDA, name) == ([own] if own else ["mma", "tile", "vec"])
