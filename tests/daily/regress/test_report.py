import re
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from fattn_probe.cases.op import Op, Params, Sizes
from fattn_probe.daily.inspect.view.error_tiles import MAP_WIDTH, OutputTile
from fattn_probe.daily.regress import report as pages
from fattn_probe.daily.regress.exercised import families
from fattn_probe.daily.regress.history import open_history
from fattn_probe.daily.regress.night import night_of, shown
from fattn_probe.daily.regress.plots import HEIGHT, Square, picture_of, plot, strip, work_facts
from fattn_probe.daily.regress.records import Cell, Result, Settings, StoredCase, packed
from fattn_probe.daily.regress.report import report, unjudged, verdict_of
from fattn_probe.daily.regress.results import metrics_of
from fattn_probe.machine.run.outcome import Finding
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.measure.expected import Design
from fattn_probe.verdict.measure.metrics import measure
from fattn_probe.verdict.measure.verdict import Status, Verdict
from tests.daily.inspect.test_view import Reader
from tests.daily.regress.made import GPU, SIM, night

KERNEL = "flash_attn_ext_f16<64,64,8,8,false,false,false>"
LAUNCH = '{"order":0,"kernel":"%s","grid":[%d,1,1],"block":[32,4,1],"shared":0}'
HOSTILE = 'NMSE <b>1</b> "><script>alert(1)</script>'
KERNELS = ["mma 64,64,8,8", "mma 64,64,16,4", "tile 40,40", "vec 128,GGML_TYPE_F16,GGML_TYPE_Q4_0"]


def case(name="gqa", **rest):
    sizes = Sizes(**{"n_seq": 1, "n_head": 16, "n_head_kv": 2, "n_q": 75, "n_kv": 512, "hsk": 64, "hsv": 64} | rest)
    op = Op.contiguous(sizes, Params(0.125), ("f16", "f16"), mask=True)
    return StoredCase(name, "d", name.partition("-")[0], "causal", op)


def result(status="pass", output="00", name="gqa", reason="", grid=60, **rest):
    metrics = {"nmse": 1e-7, "error_by_bound": 0.2}
    return Result(name, "d", status, reason, metrics, output, LAUNCH % (KERNEL, grid), **rest)


def wrong(name="gqa"):
    values = np.zeros((16, 64))
    values[3, 5:9], values[7, 0] = 50.0, np.inf
    return result("fail", name=name, reason=HOSTILE, error_map=packed(values, 16, 75))


@pytest.fixture
def history(empty):
    """Three nights: the third gets gqa wrong, launches mha otherwise, and loses one case."""
    empty.know([case(), case("mha"), case("mqa"), case("lost")], SIM, KERNELS)
    usual = result(), result(name="mha", output="0"), Result("lost", "d", "lost", "time-out")
    night(empty, *usual, result(name="mqa"), planned=4, accepted="good")
    night(empty, *usual, result(name="mqa"), planned=4)
    night(empty, wrong(), result(name="mha", output="1", grid=30), usual[2], planned=4)
    return empty


def test_the_page_names_what_changed_with_maps_and_plots_is_complete_and_escapes(history):
    page = report(history)
    assert "1 regression, 2 without a verdict" in page
    for said in ("new failure", "the output is now wrong", "another launch", "the work is divided differently"):
        assert said in page
    assert "bits changed" in page
    assert page.index("new failure") < page.index("another launch")  # alarms first
    assert "accepted by me: good" in page
    drawn = page[page.index('<figure><svg class="error-map"') :]
    assert 'class="h3"' in drawn[: drawn.index("</svg>")]
    assert 'class="h5"' in drawn[: drawn.index("</svg>")]
    assert "16 heads x 75 queries" in page
    assert page.count('class="skm"') == 3 * 2  # labels and map of gqa now, mha now and before
    assert '<th scope="col">error / bound by run</th>' in page
    assert '<th scope="col"></th>' not in page
    assert "time by run" not in page
    reader = Reader(page)
    assert not reader.names & {"script", "link", "img", "iframe", "object"}
    assert "<b>1</b>" not in page
    assert not re.search(r'(src|href)="(?!#)', page)
    assert set(re.findall(r"https?://[^\"'< ]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert len(reader.ids) == len(set(reader.ids))
    assert {link.removeprefix("#") for link in reader.links} <= set(reader.ids)
    scrolling = [attributes for _, attributes in reader.found if "wide" in attributes.get("class", "").split()]
    assert all(one.get("tabindex") == "0" and one.get("aria-label") for one in scrolling), "by keyboard too"
    fills = [re.findall(rf"\.h{place}{{[^}}]*fill:#(\w{{6}})", page) for place in range(5)]
    assert all(len(found) == 1 for found in fills), "the same in light and dark"
    light = [sum(bytes.fromhex(found)) for (found,) in fills]
    assert light == sorted(light, reverse=True) and len(set(light)) == 5


def test_what_was_lost_and_what_was_not_run_is_listed(history):
    last = night_of(history, history.runs()[-1])
    assert list(unjudged(last)) == [("lost", "time-out"), ("mqa", "not run; was pass")]
    assert last.counts == {"fail": 1, "pass": 1, "lost": 1, "not run": 1}


def test_a_run_that_was_killed_is_not_called_good(empty):
    killed = night_of(empty, night(empty, result(), planned=100, ended=False))
    assert verdict_of(killed) == ("99 without a verdict; otherwise nothing wrong; no accepted run yet", "lost")
    said = "not finished: the run was killed, is still running, or its history was not merged"
    assert next(unjudged(killed)) == (f"run {killed.run.uid[:8]}", said)


@pytest.mark.parametrize(
    ("only", "ends", "title"),
    [
        ("", False, "sim:h200, nightly, not finished"),
        ("^mha$", True, "sim:h200, nightly, only ^mha$"),
        ("^mha$", False, "sim:h200, nightly, not finished, only ^mha$"),
    ],
)
def test_a_partial_run_does_not_hide_the_failures_of_the_run_before(history, only, ends, title):
    """The page said "nothing wrong; 701 without a verdict" of a run that was stopped, and nothing of 64 failures."""
    night(history, result(name="mha"), planned=4, settings=Settings(only=only), ended=ends)
    page = report(history)
    assert re.findall(r"<h2>([^<]+)</h2>", page)[:2] == ["sim:h200, nightly", title]
    assert "1 regression, 2 without a verdict" in page
    assert 'title="2 on sim:h200"' in page, "mha is not counted twice"


def test_a_whole_run_takes_the_place_of_partial_ones(history):
    night(history, result(name="mha"), planned=4, ended=False)
    whole = night(history, result(name="mha"), planned=1)
    assert [one.run.uid for one in shown(history)] == [whole.uid]


def test_a_history_without_runs_or_without_ops(tmp_path, history):
    """Early histories did not keep the ops."""
    assert "There are no runs" in report(history, "quick")
    with open_history(tmp_path / "other.db") as found:
        assert "There are no runs in this history." in report(found)
        night(found, result("fail"), ended=False)
        assert "1 wrong" in report(found)


def test_times_of_a_real_gpu_are_drawn_and_a_step_is_an_alarm(empty):
    for number, seconds in enumerate([2e-5] * 8 + [3e-5] * 4):
        night(empty, result(seconds=(seconds,)), identity=GPU, accepted="" if number else "good")
    page = report(empty)
    assert "20.0 us became 30.0 us, in the last 4 runs" in page
    assert "1 regression" in page
    assert 'aria-label="time by run, gqa"' in page


def test_a_scenario_of_very_many_cases_is_cut_by_head_size(empty):
    names = [f"big-{number}" for number in range(150)]
    empty.know([case(name, hsk=64 if number % 3 else 128) for number, name in enumerate(names)], SIM, [])
    run = night(empty, *(result(name=name) for name in [*names, "unknown"]))
    sizes = {part: len(cases) for part, cases in night_of(empty, run).scenarios.items()}
    assert sizes == {"big, hsk=64": 100, "big, hsk=128": 50, "unknown": 1}


def test_the_kernel_that_is_named_is_the_attention_kernel(empty):
    scan = LAUNCH.replace("%s", "flash_attn_mask_to_KV_max<4>").replace("%d", "1")
    night(empty, replace(wrong(), launches="\n".join((scan, LAUNCH % (KERNEL, 60)))))
    page = report(empty)
    assert "flash_attn_ext_f16&lt;64,64,8,8,false,false,false&gt;" in page.replace("<wbr>", "")
    assert "KV_max" not in page


def test_an_output_that_is_not_finite_has_no_error_by_its_bound():
    reference = np.ones((1, 2, 2, 4))
    design = Design(True, "prediction", "", error_by_bound=0.2)
    for value, kept in ((1.0, 0.2), (np.nan, None)):
        dst = reference.astype(np.float32)
        dst[0, 0, 0, 0] = value
        verdict = Verdict(Status.FAIL, "", measure(dst, reference), design)
        assert metrics_of(verdict)["error_by_bound"] == kept


def test_coverage_counts_instances_that_nothing_exercises(history, monkeypatch):
    runs = history.runs()[-1:]
    mma, tile, vec = families(history, runs)
    assert (mma.exercised, len(mma.cells)) == (1, 2)
    assert mma.cells["64, 64", "8 x 8"] == {"sim:h200": 2}
    assert (tile.exercised, vec.rows, vec.columns) == (0, ("128",), ("f16, q4_0",))
    page = report(history)
    assert "mma: 1 of 2 template instances were exercised" in page
    coverage = page[page.index('id="coverage"') :]
    assert coverage.index('class="yes"') < coverage.index('class="no"'), "exercised instances come first"
    assert "row that no case exercises" in coverage or "rows that no case exercises" in coverage
    monkeypatch.setattr(type(history), "kernels", lambda *_: [])  # one that the source does not list is shown too
    (mma,) = families(history, runs)
    assert mma.cells == {("64, 64", "8 x 8"): {"sim:h200": 2}}


def test_the_verdict_names_both_trees_with_their_patches_and_no_raw_time(empty):
    night(empty, result(), accepted="good")
    night(empty, result(), identity=replace(SIM, patches="fault-a fault-b"))
    page = report(empty)
    said = page[page.index('<div class="verdict pass">') :].partition("</div>")[0]
    assert "pypi:x==1 with fault-a, fault-b, compared with the run of 20" in said
    assert re.search(r"the run of \d{4}-\d\d-\d\d \d\d:\d\d \(pypi:x==1\), accepted by me: good", said)


def test_the_division_of_work_follows_the_launch():
    facts = work_facts(case(), result(grid=60), SIM)
    assert (len(facts.blocks), facts.grid.iter_k, facts.grid.iter_j) == (60, 8, 10)
    assert [facts.blocks[0].kbc, facts.blocks[-1].kbc_stop] == [0, 2 * 10 * 8]
    assert work_facts(case(), Result("gqa", "d", "pass"), SIM) is None


def test_a_strip_marks_nights_whose_bits_changed():
    drawn = strip([Square("pass", "a"), Square("fail", "<b>", changed=True)])
    assert drawn.count('class="bits"') == 1
    assert drawn.count('class="f"') == 1
    assert "<b>" not in drawn


def test_a_plot_needs_two_values_and_always_shows_the_bound():
    """Rows whose error was far below the bound had no line of it."""
    assert plot({"most": (1.0,)}, "x", least=1.0) == ""
    assert plot({"most": (None, None)}, "x", least=1.0) == ""
    drawn = plot({"most": (1.0, None, 2.0, 3.0)}, "x", least=1.0)
    assert re.search(r'd="M4 [\d.]+h\.1M[\d.]+ [\d.]+L', drawn)
    for values in ((-0.2, 0.3), (-3.0, -3.1), (5.0, 5.1)):
        (height,) = re.findall(r'class="limit" d="M0 ([\d.]+)H', plot({"most": values}, "x", least=1.0, limit=0.0))
        assert 0 < float(height) < HEIGHT
    assert 'class="limit"' not in plot({"most": (1.0, 2.0)}, "x", least=1.0)


def test_an_error_map_keeps_what_a_byte_can_tell():
    kept = packed(np.array([[0.0, 0.05, 1.0, 3.5], [12.0, 1e9, np.inf, np.nan]]), 2, 4)
    assert kept.values[0, 0] == kept.values[0, 1] == 0.0
    np.testing.assert_allclose(kept.values[0, 2:], [1.0, 3.5], rtol=0.06)
    assert kept.values[1, 0] == pytest.approx(12.0, rel=0.06)
    assert 1e4 < kept.values[1, 1] < np.inf
    assert np.isinf(kept.values[1, 2:]).all()
    assert re.findall(r'class="h(\d)"', picture_of(kept, "x").svg) == ["1", "2", "3", "4", "5"]


FRAMES = ("load at common.cuh:822", "k at mma.cuh:9")
CRASHED = "<dt>crashed in</dt><dd>k<wbr>&lt;1&gt;, block (1, 0, 0), thread (31, 2, 0)</dd>"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (
            ("k<1>", "common.cuh", 822, (1, 0, 0), (31, 2, 0), FRAMES),
            {CRASHED, "<dt>at</dt><dd>common.cuh:822</dd>", "stack of 2 frames"},
        ),
        ((), set()),
    ],
)
def test_a_crash_names_its_block_thread_and_line_if_it_has_them(history, place, said):
    finding = Finding("abort", "it stopped", *place)
    night(history, Result("gqa", "d", "fail", "it stopped", finding=finding), planned=1)
    page = report(history)
    assert "it stopped" in page and all(words in page for words in said)
    assert [words in page for words in ("<dt>crashed in", "stack of")] == [bool(place)] * 2


@pytest.mark.parametrize(("error", "place"), [(0.5, []), (1.5, ["h1"]), (5.0, ["h2"]), (30.0, ["h3"]), (1e5, ["h4"])])
def test_a_colour_means_the_same_on_every_error_map(error, place):
    """Rows that were all wrong by 100,000 had the palest blue, which "1 and more" had on the map above."""
    assert re.findall(r'class="(h\d)"', picture_of(packed(np.full((4, 8), error), 4, 8), "x").svg) == place


@pytest.mark.parametrize(("queries", "said"), [(1, "32 heads x 1 query"), (2, "32 heads x 2 queries")])
def test_the_map_of_few_queries_is_as_wide_as_any_and_its_size_is_said(empty, queries, said):
    kept = packed(np.full((32, queries), 9.0), 32, queries)
    assert f' width="{MAP_WIDTH:g}" ' in picture_of(kept, "x").svg
    night(empty, replace(wrong(), error_map=kept))
    assert f"<figcaption>{said}</figcaption>" in report(empty)


def test_runs_are_not_called_nights_and_nothing_wrong_is_not_red(empty):
    """Two runs four minutes apart were "2 nights"; a case without a verdict made "nothing wrong" bold and red."""
    for planned in (1, 3):
        night(empty, result(), planned=planned, ended=False)
    page = report(empty)
    assert "1 scenario through 2 runs" in page
    assert "by night" not in page and "nights" not in page
    assert '<td class="status-lost">2 without a verdict; otherwise nothing wrong; no accepted run yet</td>' in page
    assert '<div class="verdict lost">' in page
    assert 'class="verdict fail"' not in page


def test_an_error_map_outlines_the_output_tiles_and_those_that_blocks_share():
    kept = packed(np.full((4, 8), 9.0), 4, 8)
    queries, heads = (range(4), range(4, 8)), (range(2), range(2, 4))
    tiles = [OutputTile(some, head, head[-1] // 2 + 1) for head in heads for some in queries]
    drawn = picture_of(kept, "x", tiles)
    assert drawn.tiles
    assert drawn.seams
    assert re.search(r'class="tile" d="([^"]+)"', drawn.svg)[1].count("M") == 4
    assert re.search(r'class="cut" d="([^"]+)"', drawn.svg)[1].count("M") == 2
    alone = picture_of(kept, "x", tiles[:1])
    assert not alone.tiles
    assert 'class="tile"' not in alone.svg


def test_how_a_run_was_judged_is_on_the_page(history):
    night(history, result(), settings=Settings(Checks(model="never", sample=20), "^gqa$"))
    text = report(history)
    assert "<dt>judged with</dt>" in text
    assert "<dd>rounding model never, rows 20, 1 run</dd>" in text
    assert "<dt>filter</dt><dd>^gqa$</dd>" in text


def test_a_night_without_outputs_does_not_change_what_is_drawn(monkeypatch):
    """The bounds stay, and their limit; NMSE is drawn if the last outputs have no bound."""
    drawn = Mock()
    monkeypatch.setattr(pages, "plot", drawn)
    bounded, lost, modelled = (
        Cell(1, "a", "d", "pass", ratio, nmse, None) for ratio, nmse in ((0.1, 1e-7), (None, None), (None, 1e-6))
    )
    for runs, limit in (([bounded, lost], 0.0), ([bounded, modelled, lost], None), ([lost], None)):
        pages._errors([[cell] for cell in runs], "a")
        assert drawn.call_args.kwargs["limit"] == limit
