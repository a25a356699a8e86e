import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given

from fattn_probe.inspect.facts import Facts
from fattn_probe.inspect.view.svg import picture_of, svg_of
from fattn_probe.launch.tiles import Grid, tiles_of
from tests.inspect.made_facts import causal, decode, decompositions, fractional, gqa, in_turn, stream_k, with_block

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


@given(decompositions())
def test_any_division_is_drawn_without_a_fault(facts):
    text = svg_of(facts)
    ET.fromstring(text)
    assert 'class="bad"' not in text
    assert "nan" not in text.lower()


def test_every_part_has_a_tooltip():
    assert titles(gqa())[1:5] == [
        f"block {block}: KV step {block} of sequence 0, KV head 0, head group 0, query tile 0" for block in range(4)
    ]
    parts = sum(len(block.tiles) for block in gqa().blocks)
    assert len(titles(gqa())) == 1 + parts


def test_tiles_that_are_alike_are_folded():
    facts = stream_k(Grid(4, 8, 1, 32, 1), 256)
    text = svg_of(facts)
    assert len(titles(facts)) == 1 + 4
    assert "252 more tiles repeat the pattern, block numbers + 1 per tile" in text


def test_tiles_that_are_left_out_are_counted():
    text = svg_of(causal())
    assert re.search("⋮ [0-9]+ tiles not shown", text)


def test_the_labels_are_beside_the_map_of_a_page():
    labels, work = map(ET.fromstring, picture_of(fractional()).pinned)
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


def test_masked_steps_are_pale():
    hidden = next(title for title in titles(causal()) if title.endswith(", hidden by the mask"))
    assert hidden.startswith("block 0: KV steps 4 to 14 of sequence 0, KV head 0, head group 0, query tile 0")


def test_maps_of_one_page_share_no_ids():
    first, second = (ET.fromstring(svg_of(causal(), name)) for name in ("a", "b"))
    ids = [{element.attrib["id"] for element in root.iter() if "id" in element.attrib} for root in (first, second)]
    assert ids[0] == {"a-hatch"}
    assert not ids[0] & ids[1]
    assert "url(#a-hatch)" in {element.attrib.get("fill") for element in first.iter()}


def test_a_fault_is_drawn():
    facts = fractional()
    block = facts.blocks[46]
    early = replace(block, kbc_stop=block.kbc_stop - 4, tiles=tiles_of(block.kbc, block.kbc_stop - 4, facts.grid))
    assert [title for title in titles(with_block(facts, early)) if "no block" in title] == [
        "KV steps 7 to 10 of sequence 0, KV head 0, head group 0, query tile 34: done by no block"
    ]


@pytest.mark.parametrize(
    "facts",
    [
        stream_k(Grid(128, 256, 1, 8, 2), 4097),
        stream_k(Grid(64, 1000, 1, 1, 1), 9973),
        in_turn(Grid(512, 1, 4, 8, 4), 38, {(sequence, 0): 200 + 30 * sequence for sequence in range(4)}),
        in_turn(Grid(256, 4, 8, 8, 4), 60),
    ],
)
def test_thousands_of_blocks_make_a_small_file(facts):
    text = svg_of(facts)
    ET.fromstring(text)
    assert len(text) < 500_000


def test_nothing_to_draw():
    assert svg_of(Facts({})) == ""


def test_foreign_text_is_escaped():
    facts = replace(gqa(), about={"device": "<script>&"})
    assert titles(facts)[0].endswith(" on <script>&")
