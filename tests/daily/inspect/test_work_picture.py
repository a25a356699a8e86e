"""The map of the work, in a terminal and as SVG."""

import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fattn_probe.base.view.svg import pinned
from fattn_probe.daily.inspect.coverage import check
from fattn_probe.daily.inspect.facts import Choice, Facts
from fattn_probe.daily.inspect.view.stream_k_map import PALETTE, colour_of, rows_of, segments_of, select
from fattn_probe.daily.inspect.view.work_picture import TerminalMap, page_map, svg_of
from fattn_probe.llama.launch.tiles import BlockWork, Grid, TileWork, tiles_of
from tests.daily.inspect.made_facts import (
    causal,
    decode,
    decompositions,
    fractional,
    gqa,
    in_turn,
    stream_k,
    with_block,
)
from tests.made import shown


def stops_early() -> Facts:
    """A share that ends four KV steps before the next one begins."""
    facts = fractional()
    block = facts.blocks[46]
    early = replace(block, kbc_stop=block.kbc_stop - 4, tiles=tiles_of(block.kbc, block.kbc_stop - 4, facts.grid))
    return with_block(facts, early)


def drawn(facts: Facts, width: int = 80, most: int | None = 24) -> list[str]:
    return [line.rstrip() for line in shown(TerminalMap(facts, check(facts), most), width=width).splitlines()]


def test_gqa_without_colour():
    assert drawn(gqa()) == [
        " KV row  0           64          128         192",
        "KV step  0           1           2           3",
        "   z_KV",
        "      0 │0          ┃1          ┃2          ┃3          │",
        "      1 │4          ┃5          ┃6          ┃7          │",
        "│n  block n   ┃  seam: the fixup kernel adds the two parts",
        "8 blocks on 2 output tiles of 4 KV steps; 1 KV step a block. Each tile is",
        "divided among 4 blocks.",
    ]


def test_a_division_that_repeats_is_drawn_once_and_whole_on_request():
    lines = drawn(fractional())
    assert lines[3].startswith("    0   0 │0")
    assert lines[10].startswith("    0   7 │9")
    assert lines[11].strip() == "⋮ the same 23 more times: every 8 tiles, block numbers + 11"
    assert sum(line.endswith("│") for line in drawn(fractional(), most=None)) == 192
    grid = Grid(1, 1, 1, 3, 1)
    blocks = tuple(BlockWork(at, (0, 0, at), None, None, (TileWork(0, at, 0, 0, 0, 1),)) for at in range(3))
    choice = Choice("vec", "flash_attn_ext_vec", {"D": 128, "ncols": 1}, {"nthreads": 128})
    lines = drawn(Facts({}, choice=choice, grid=grid, blocks=blocks), 60, 2)
    assert any("the same once more: each tile, block numbers + 1" in line for line in lines)


def test_blocks_that_take_turns_are_labelled_with_a_digit():
    assert drawn(decode())[3] == "    0       0 │" + "0 1 2 3 4 5 6 7 " * 4 + "│"
    facts = in_turn(Grid(512, 1, 1, 2, 1), 38, {(0, 0): 256})
    assert "▒" * 32 + "╱" * 32 in drawn(facts, 80)[3]


def test_what_the_mask_hides():
    row = drawn(causal(), 100)[3]
    assert row.strip().startswith("0    0 │0 ")
    assert row.count("╱") > 40


def test_rows_left_out_and_blocks_without_work_are_counted():
    facts = stream_k(Grid(8, 97, 1, 1, 1), 50)
    lines = drawn(facts, most=10)
    left_out = [int(line.split()[1]) for line in lines if "not shown" in line]
    assert sum(left_out) + 10 == 97
    lines = drawn(stream_k(Grid(2, 1, 7, 2, 1), 92), 200)
    assert lines[-1] == (
        "92 blocks on 14 output tiles of 2 KV steps; 0 to 1 KV step a block. 64 blocks have nothing to do. "
        "Each tile is divided among 2 blocks."
    )


def test_a_fault_is_shown_though_rows_are_left_out_and_so_are_steps_done_twice():
    lines = drawn(stops_early(), 100)
    (fault,) = [line for line in lines if "!!!!" in line]
    assert fault.startswith("    0  34 │")
    assert any("!  done by no block" in line for line in lines)
    block = replace(gqa().blocks[2], kbc_stop=4, tiles=tiles_of(2, 4, gqa().grid))
    assert drawn(with_block(gqa(), block))[3] == "      0 │0          ┃1          ┃2          ############│"


def test_a_block_of_an_amd_gpu_is_no_cuda_block():
    amd = replace(stops_early(), launch={"cc": 0x1000906})
    assert any(" blocks on " in line for line in drawn(amd))
    assert not any("CUDA" in line for line in drawn(amd)) and "CUDA" not in svg_of(amd)
    assert any("blocks on" in line for line in drawn(stops_early()))


@given(decompositions(), st.integers(40, 120), st.integers(1, 30))
def test_any_division_fits_and_shows_no_fault(facts, width, most):
    lines = drawn(facts, width, most)
    assert max(map(len, lines)) <= width
    assert not any(line.endswith(("done by no block", "done more than once")) for line in lines)
    text = svg_of(facts)
    ET.fromstring(text)
    assert 'class="bad"' not in text
    assert "nan" not in text.lower()


def test_neighbouring_blocks_differ_in_lightness():
    lightness = [sum(bytes.fromhex(PALETTE[colour_of(block)][0][1:])) for block in range(100)]
    assert min(abs(a - b) for a, b in pairwise(lightness)) > 200


def test_segments_of_a_row_join_up_and_one_odd_tile_ends_the_repetition():
    facts = causal()
    for row in rows_of(facts):
        segments = segments_of(row, 16)
        assert [segment.start for segment in segments[1:]] == [segment.stop for segment in segments[:-1]]
        assert (segments[0].start, segments[-1].stop) == (0, 16)
    facts = fractional()
    odd = with_block(facts, replace(facts.blocks[100], tiles=()))
    assert select(rows_of(facts), facts.grid, 24).period == 8
    assert select(rows_of(odd), odd.grid, 24).period is None


SVG = "{http://www.w3.org/2000/svg}"


def titles(facts: Facts) -> list[str]:
    root = ET.fromstring(svg_of(facts))
    return [element.text or "" for element in root.iter(f"{SVG}title")]


@pytest.mark.parametrize("made", [gqa, fractional, decode, causal])
def test_is_well_formed_and_complete_in_itself(made):
    text = svg_of(made())
    root = ET.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "prefers-color-scheme:dark" in text


def test_every_part_has_a_tooltip_and_foreign_text_is_escaped():
    assert titles(gqa())[1:5] == [
        f"block {block}: KV step {block} of sequence 0, KV head 0, head group 0, query tile 0" for block in range(4)
    ]
    parts = sum(len(block.tiles) for block in gqa().blocks)
    assert len(titles(gqa())) == 1 + parts
    facts = replace(gqa(), about={"device": "<script>&"})
    assert titles(facts)[0].endswith(" on <script>&")


def test_tiles_that_are_alike_are_folded_and_those_left_out_counted():
    facts = stream_k(Grid(4, 8, 1, 32, 1), 256)
    text = svg_of(facts)
    assert len(titles(facts)) == 1 + 4
    assert "⋮ the same 252 more times: each tile, block numbers + 1" in text
    text = svg_of(causal())
    assert re.search("⋮ [0-9]+ tiles not shown", text)


def test_the_labels_are_beside_the_map_of_a_page():
    labels, work = map(ET.fromstring, pinned(page_map(fractional()).drawing(), page_map(fractional()).left))
    assert labels.attrib["height"] == work.attrib["height"]
    assert "KV step" in {text.text for text in labels.iter(f"{SVG}text")}
    assert "KV step" not in {text.text for text in work.iter(f"{SVG}text")}
    (x, _, width, _) = map(float, work.attrib["viewBox"].split())
    assert float(labels.attrib["width"]) == x
    assert x + width == 960


def test_blocks_that_take_turns_are_dashed_lines():
    dashed = [
        element
        for element in ET.fromstring(svg_of(decode())).iter(f"{SVG}path")
        if "stroke-dasharray" in element.attrib
    ]
    assert len(dashed) == 4 * 8  # four of 32 tiles that are alike
    on, off = map(float, dashed[0].attrib["stroke-dasharray"].split())
    assert off == pytest.approx(7 * on, rel=1e-3)


def test_masked_steps_and_faults_have_tooltips():
    hidden = next(title for title in titles(causal()) if title.endswith(", hidden by the mask"))
    assert hidden.startswith("block 0: KV steps 4 to 14 of sequence 0, KV head 0, head group 0, query tile 0")
    assert [title for title in titles(stops_early()) if "no block" in title] == [
        "KV steps 7 to 10 of sequence 0, KV head 0, head group 0, query tile 34: done by no block"
    ]


def test_maps_of_one_page_share_no_ids():
    first, second = (ET.fromstring(svg_of(causal(), name)) for name in ("a", "b"))
    ids = [{element.attrib["id"] for element in root.iter() if "id" in element.attrib} for root in (first, second)]
    assert ids[0] == {"a-hatch"}
    assert not ids[0] & ids[1]
    assert "url(#a-hatch)" in {element.attrib.get("fill") for element in first.iter()}


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (stream_k, (Grid(128, 256, 1, 8, 2), 4097)),
        (stream_k, (Grid(64, 1000, 1, 1, 1), 9973)),
        (in_turn, (Grid(512, 1, 4, 8, 4), 38, {(sequence, 0): 200 + 30 * sequence for sequence in range(4)})),
        (in_turn, (Grid(256, 4, 8, 8, 4), 60)),
    ],
)
def test_thousands_of_blocks_make_a_small_file(made, words):
    text = svg_of(made(*words))
    ET.fromstring(text)
    assert len(text) < 500_000


def test_nothing_to_draw():
    assert svg_of(Facts({})) == ""
