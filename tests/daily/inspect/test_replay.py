"""The data of a replay: the steps of blocks, a row's numbers next to exact ones, and the pages of commands."""

import base64
import json
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fattn_probe.base.view.marks import Box, Cells
from fattn_probe.cli import app
from fattn_probe.daily.inspect.replay.page import Lanes, document_of, replay_page, tile_map, with_mask
from fattn_probe.daily.inspect.replay.replay import (
    KINDS,
    Marked,
    Replay,
    StepPlace,
    kinds_of,
    lanes_of,
    masks_of,
    names_of_tiles,
)
from fattn_probe.daily.inspect.replay.row_numbers import combined, numbers_of, visible_shares
from fattn_probe.daily.inspect.view.error_tiles import divided
from fattn_probe.llama.launch.architecture import CDNA2, RDNA3, RDNA4
from fattn_probe.llama.launch.families import FAMILIES, MMA_F16
from fattn_probe.llama.launch.geometry import geometry
from fattn_probe.llama.source.features import CUDA
from fattn_probe.llama.source.patches import named
from fattn_probe.verdict.truth.reference.adapter import reference_of
from tests.as_user import completed as probe
from tests.daily.inspect.test_trace_lanes import MMA_CASE, MMA_INPUTS, rows_of, tile, vec
from tests.daily.inspect.traced import small_case
from tests.made import CAUSAL, shape

# a length that is no multiple of a step, two tiles of heads, sinks
TAIL_CASE, TAIL_INPUTS = small_case(shape(64, 14, 2, 7, 200, "sinks: true", CAUSAL))


def mma(case=MMA_CASE, inputs=MMA_INPUTS, blocks=3, arch=90):
    values = (64, 64, 8, 8, "false", "false", "false")
    return rows_of(case, inputs, "flash_attn_ext_f16", values, (blocks, 1, 1), 4, arch)


def made(rows, **more):
    """A replay without a run."""
    found = geometry(rows.case.op, rows.kernel)
    facts = divided(found, {})
    return Replay(
        title="made on sim:h200",
        about={"kernel": rows.kernel.spelling},
        kinds=KINDS,
        lanes=lanes_of(facts, rows.case, found),
        facts=facts,
        step_rows=found.rows,
        n_kv=found.n_kv,
        tiles=names_of_tiles(rows.case, found),
        masks=masks_of(rows.case, dict(rows.inputs), found),
        rows=(numbers_of(rows, found, (0, 2, 1)),),
        geometry=found,
        sizes=rows.case.op.sizes,
        **more,
    )


def joined(parts):
    """The parts' softmax, combined in float64."""
    m = max(part.m for part in parts)
    total, VKQ = (sum(getattr(part, name) * np.exp(part.m - m) for part in parts) for name in ("l", "VKQ"))
    return VKQ / total


@pytest.mark.parametrize(
    "rows",
    [
        *(mma(), mma(TAIL_CASE, TAIL_INPUTS, 3), tile(), tile(ncols1=2), tile(ncols2=2, arch=90), vec()),
        *(mma(arch=RDNA3), mma(arch=RDNA4), mma(arch=CDNA2), vec(RDNA3)),
    ],
)
def test_the_numbers_of_a_row_are_the_kernels_and_the_exact_ones(rows):
    """The KV rows of P, the warps' sums and the parts are in the right places: they are close to exact arithmetic."""
    row = (0, 2, 1)
    found = numbers_of(rows, geometry(rows.case.op, rows.kernel), row)
    for part in found.parts:
        assert len(part.kernel) == len(part.kb0) + 1
        for kernel, exact in zip(part.kernel, part.exact, strict=True):
            np.testing.assert_allclose(kernel.P, exact.P, atol=2e-4)
            np.testing.assert_allclose(kernel.VKQ, exact.VKQ, atol=5e-3)
            assert kernel.m == pytest.approx(exact.m, abs=1e-3) or exact.m == -np.inf
            assert kernel.l == pytest.approx(exact.l, rel=1e-3)
    exact = reference_of(rows.case.op, dict(rows.inputs))[row]
    np.testing.assert_allclose(found.exact, exact, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(joined([part.exact[-1] for part in found.parts]), exact, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(joined([part.kernel[-1] for part in found.parts]), found.output, atol=1e-4)
    assert 0 < np.abs(found.output - found.exact).max() < 5e-3


def steps(replay, lane):
    """A lane's steps in words."""
    found = []
    for one in replay.lanes[lane].stretches:
        found += [f"{replay.kinds[one.kind].name} {one.first + at * one.every}" for at in range(one.count)]
    return found


def test_a_stream_k_block_stores_its_parts_and_the_fixup_adds_them_last_one_first():
    """256 KV rows are four steps; three blocks do one, one and two of them."""
    replay = made(mma())
    assert [lane.link for lane in replay.lanes] == ["block=0", "block=1", "block=2", "tile=0"]
    assert steps(replay, 0) == ["load Q 0", "KV step 0", "store part 0"]
    assert steps(replay, 2) == ["load Q 2", "KV step 2", "KV step 3", "store undivided 2"]
    assert steps(replay, 3) == ["take 2", "add part 1", "add part 0", "divide 2"]
    assert replay.lanes[3].start == replay.lanes[2].stop == 4


def test_blocks_that_take_turns_store_parts_and_are_combined_in_their_order():
    replay = made(vec())
    assert steps(replay, 2) == ["load Q 2", "KV step 1", "KV step 3", "store part 2"]
    assert [steps(replay, at) for at, lane in enumerate(replay.lanes) if lane.link == "tile=0"] == [
        ["take 0", "add part 2", "divide 0"]
    ]


def test_traffic_is_that_of_the_rows_that_exist():
    """7 queries, 7 heads; the last step has 8 of 64 rows."""
    q, *full, tail, store = made(mma(TAIL_CASE, TAIL_INPUTS, 2)).lanes[0].stretches
    assert q.traffic == (("Q", 7 * 7 * 64 * 4, 0),)
    assert [(one.first, one.count) for one in full] == [(0, 3)]
    assert full[0].traffic == (("K", 64 * 128, 0), ("V", 64 * 128, 0), ("mask", 64 * 7 * 2, 0))
    assert (tail.first, tail.traffic[0]) == (3, ("K", 8 * 128, 0))
    assert store.traffic == (("dst", 0, 7 * 7 * 64 * 4),)


def test_a_mask_of_which_anything_is_visible_is_not_shown_as_hidden():
    mask = np.full((4, 12), -np.inf, np.float32)
    mask[:2, :4], mask[3, 4] = 0, 0
    assert visible_shares(mask, 12, 4, 2, 3) == ["900", "010"]
    mask[2:, 8:] = 0
    mask[2, 8] = -np.inf
    assert visible_shares(mask, 12, 4, 2, 3) == ["900", "017"]


def test_the_page_has_the_numbers_as_they_are_and_cannot_be_broken_by_a_name():
    replay = made(mma(), marked=Marked("first deviation: </script><b>", StepPlace("block=2", 0, 3)), verdict="<i>")
    text = replay_page([replay], "<title>")
    assert "</script><b>" not in text
    assert "&lt;i&gt;" in text
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", text)  # nothing comes from elsewhere
    (data,) = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    assert data["marked"]["words"] == "first deviation: </script><b>"
    row, (kept,) = replay.rows[0], data["rows"]
    part, kernel, exact = kept["parts"][2], row.parts[2].kernel[1], row.parts[2].exact[1]
    assert (part["block"], part["kb0"]) == (2, [2, 3])
    P, error = (np.frombuffer(base64.b64decode(text), "<f4") for text in part["P"])
    np.testing.assert_array_equal(P[64:], kernel.P.astype(np.float32))
    np.testing.assert_array_equal(error[64:], (kernel.P - exact.P).astype(np.float32))
    assert part["m"][1] == [kernel.m, exact.m]
    assert data == json.loads(json.dumps(document_of(replay))) | {"layouts": data["layouts"]}


def test_a_maximum_that_saw_nothing_is_minus_infinity():
    found, scale = combined(np.full(2, -1.7e38, np.float32), np.zeros(2, np.float32), np.zeros((2, 4), np.float32))
    assert (found.m, found.l, scale.tolist()) == (-np.inf, 0.0, [1.0, 1.0])


def test_every_lane_has_its_steps_at_their_places_and_the_mask_lies_beneath_its_tiles():
    replay = made(mma(TAIL_CASE, TAIL_INPUTS, 8), tile_errors={0: 0.5, 1: 200.0})
    lanes = Lanes.of(replay)
    boxes = [mark for mark in lanes.drawing.marks if isinstance(mark, Box)]
    assert [box.label for box in boxes if box.y == lanes.tops[3]] == ["Q", "3", "dst+"]
    assert {round((box.x - lanes.left) / lanes.step) for box in boxes if box.y == lanes.tops[-1]} == {3, 4, 5, 6, 7}
    drawn = with_mask(tile_map(replay), replay)
    strips = ["".join(f"{digit:.0f}" for digit in mark.values[0]) for mark in drawn.marks if isinstance(mark, Cells)]
    assert strips == list(replay.masks)
    errors = [mark.look.name for mark in drawn.marks if isinstance(mark, Box) and mark.look.name[0] == "h"]
    assert errors == ["h0", "h4"]


@pytest.mark.network
@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_each_step_names_its_lines_of_llama_cpp(family, tree):
    for kind in kinds_of(family, tree):
        assert kind.lines or kind.name == "store undivided"
        for line in kind.lines:
            assert line.place, (kind.name, line.what)
            file, _, number = line.place.partition(":")
            assert line.text == (tree.root / CUDA / file).read_text().splitlines()[int(number) - 1].strip()


@pytest.mark.network
def test_the_lines_of_a_patched_source_have_the_patch(tree):
    kinds = zip(kinds_of(MMA_F16, tree), kinds_of(MMA_F16, tree, named("faults/21159-fixup-first-block")), strict=True)
    pairs = [pair for before, after in kinds for pair in zip(before.lines, after.lines, strict=True)]
    ((before, after),) = [(one.text, two.text) for one, two in pairs if one != two]
    assert before == "for (int bidx = b_last - 1; bidx >= b_first; --bidx) {"
    assert after == before.replace(">=", ">")


def data_of(path):
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(), re.S)[1])


def test_study_writes_its_algorithm_as_a_page(tmp_path):
    done = probe("study", "gqa", "--algorithm", "fa3", "--html", tmp_path / "a.html")
    assert (done.returncode, done.stderr.strip()) == (0, f"wrote {tmp_path / 'a.html'}")
    ((run,), found) = data_of(tmp_path / "a.html"), {}
    found = {lane["link"]: [run["kinds"][step[0]]["name"] for step in lane["runs"]] for lane in run["lanes"]}
    assert found["lane=softmax-WG1"].count("P") == 4
    assert found["lane=TMA-producer"][:3] == ["Q", "K", "V"]


@pytest.mark.parametrize("words", [("view", "gqa", "-o"), ("triage", "x.gguf", "--out"), ("reproduce", "gqa", "--out")])
def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path, words):
    (tmp_path / "file").touch()
    done = probe(*words, tmp_path / "file/out", "--source", "nowhere")
    assert (done.returncode, "file/out: cannot be written: Not a directory" in done.stderr) == (3, True), done.stderr


@pytest.mark.build
@pytest.mark.gdb
@pytest.mark.network
@pytest.mark.night  # CI finds a planted fault by `inspect --trace` (step 10 of test_tour.py) and draws recorded runs
def test_view_shows_a_patch_beside_its_base_and_marks_the_first_deviation(tmp_path):
    """The planted line leaves out the first block of a tile; it is among the lines of the step."""
    words = ("--on", "sim:h200", "--patch", "faults/21159-fixup-first-block")
    done = probe("view", "gqa", *words, "-o", tmp_path / "a.html")
    assert done.returncode == 5, done.stderr
    base, patched = data_of(tmp_path / "a.html")
    assert (base["marked"], patched["marked"]["place"]["lane"]) == (None, "tile=0")
    assert patched["marked"]["words"].startswith("first deviation: dst: output")
    assert base["rows"][0]["row"] == patched["rows"][0]["row"]
    lines = [text for kind in patched["kinds"] for _, _, text in kind["lines"]]
    assert "for (int bidx = b_last - 1; bidx > b_first; --bidx) {" in lines
    done = probe("compare", "gqa", *words, "--html", tmp_path / "b.html")
    assert done.returncode == 5, done.stderr
    (run,) = data_of(tmp_path / "b.html")
    assert run["marked"]["words"].startswith("worst element: sequence 0, query 3, head 0")
    assert (run["traced"], len(run["layouts"]["lanes"]["tops"])) == ([], 10)
    assert (tmp_path / "a.html").stat().st_size < 2_000_000


def test_a_base_that_refuses_the_op_leaves_a_page_of_one_run(monkeypatch, tmp_path):
    """As of an edit that adds a head size."""

    class Fake:
        def __init__(self, session, *_):
            self.known = session.patches or None

        def examine(self, *_):
            return SimpleNamespace(label="gqa", facts=self.known, output=self.known, trace=None)

    fakes: dict[str, Any] = {
        "Inspector": lambda session, _: session,
        "Examiner": Fake,
        "replay_of": lambda *_, **__: "one",
    }
    fakes |= {"replay_page": lambda replays, _: " and ".join(replays), "inspecting.raise_if_wrong": lambda _: None}
    fakes |= {"setup.prepared_session": lambda options, *_: options}
    for name, fake in fakes.items():
        monkeypatch.setattr(f"fattn_probe.cli.view.{name}", fake)
    words = ["view", "gqa", "--patch", "fault-stream-k-seam", "-o", str(tmp_path / "page.html")]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, (tmp_path / "page.html").read_text()) == (0, "one")
    assert "the base launches no attention kernel for this op: the page shows one run" in done.stderr
