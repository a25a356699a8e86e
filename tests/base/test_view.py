"""Marks as SVG, in a terminal and by matplotlib, and that nothing else in the package draws SVG."""

import base64
import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from fattn_probe.base.view.characters import lines
from fattn_probe.base.view.marks import Axis, Box, Cells, ColourScale, Drawing, Look, Stroke, Words, outline, ramp
from fattn_probe.base.view.plot import plot
from fattn_probe.base.view.svg import pinned, svg

SVG = "{http://www.w3.org/2000/svg}"
RED, BLUE = Look("red", style="red", sign="r", colour="#ff0000"), Look("blue", style="blue", sign="b", colour="#0000ff")
OWN = Look("own", css="fill:#123456")


def drawn(*marks, width=12.0, height=3.0, **more):
    return Drawing("test", width, height, marks, **more)


def rows(*marks, **more):
    return [text.plain for text in lines(drawn(*marks, **more))]


def test_boxes_words_lines_and_points_in_a_terminal():
    assert rows(Box(0, 0, 5, 1, RED, "12", edge="│"), Box(5, 1, 3, 2, BLUE)) == ["│12rr", "     bbb", "     bbb"]
    assert rows(Box(0, 0, 2, 1, RED, "12", edge="│"), height=1) == ["│r"]  # no room for the label
    assert rows(Box(0, 0, 0.5, 1, RED), Box(0.5, 0, 0.5, 1, BLUE), height=1) == ["b"]  # half a character is none
    assert rows(Box(1, 0, 1, 1, RED, every=3, stop=8), height=1) == [" r  r  r"]
    assert rows(Box(0, 0, 4, 1, RED), Words(2, 0, "xyz"), Words(2, 5, "below"), width=4, height=1) == ["rrxy"]
    (line,) = lines(drawn(Box(0, 0, 4, 1, RED), Words(2, 0, "x"), width=4, height=1))
    assert [(line.plain[span.start : span.end], span.style) for span in line.spans] == [
        ("rr", "red"), ("x", "dim"), ("r", "red"),
    ]  # fmt: skip
    assert rows(Words(6, 0, "abc", end=True), height=1) == ["   abc"]
    right = ElementTree.fromstring(svg(drawn(Words(6, 0, "abc", OWN, end=True)))).find(f"{SVG}text")
    assert (right.get("x"), right.get("text-anchor")) == ("6", "end")
    assert rows(Stroke(((0, 2), (2, 0), (4, 0), (6, 2)), RED), Stroke(((8, 1),), BLUE)) == [
        "  ──╲",
        " ╱   ╲  b",
        "╱     ╲",
    ]


@pytest.mark.parametrize("mark", [Box(0, 0, 3, 1, Look("x", sign="")), Stroke(((0, 0), (3, 0)), Look("x", sign=""))])
def test_a_look_without_a_sign_is_not_drawn_in_a_terminal(mark):
    assert rows(mark, height=1) == [""]
    assert 'class="x"' in svg(drawn(mark))


def test_shapes_of_a_look_are_one_path_and_labels_are_over_the_boxes():
    text = svg(
        drawn(Box(0, 0, 1, 1, RED), Box(2, 0, 1, 1, RED), Box(4, 0, 1, 1, RED, title="<b>"), Box(0, 2, 1, 1, BLUE))
    )
    assert text.count("<path") == 3
    assert 'class="red" d="M0 0h1v1h-1zM2 0h1v1h-1z"' in text
    assert "<title>&lt;b&gt;</title>" in text
    assert svg(drawn(Box(0, 0, 1, 2, RED, every=4, stop=9))).count('stroke-dasharray="1 3" d="M0 1H9"') == 1
    assert 'd="M1 2H3V5H1z"' in svg(drawn(outline(1, 2, 2, 3, RED)))
    text = svg(drawn(Box(0, 0, 40, 20, RED, "7"), Box(50, 0, 8, 20, RED, "123"), Box(60, 0, 40, 5, RED, "9")))
    assert re.findall(r">(\d+)</text>", text) == ["7"]
    assert text.index("<path") < text.index("<text")


def test_a_drawing_has_its_own_styles_if_its_looks_do_and_hatches_have_ids_of_their_own():
    plain, own = svg(drawn(Box(0, 0, 1, 1, RED), about="a < b")), svg(drawn(Box(0, 0, 1, 1, OWN), about="a < b"))
    assert "<style" not in plain
    assert 'aria-label="a &lt; b"' in plain
    assert ".test .own{fill:#123456}" in own
    assert "prefers-color-scheme:dark" in own
    assert ElementTree.fromstring(own).find(f"{SVG}title").text == "a < b"
    hatched = drawn(Box(0, 0, 1, 1, Look("x", css="opacity:.3", hatched=True), title="t"))
    texts = [svg(hatched, ids=name) for name in "ab"]
    assert [re.findall(r'id="(.+?)"|url\(#(.+?)\)', text) for text in texts] == [
        [(f"{name}-hatch", ""), ("", f"{name}-hatch")] for name in "ab"
    ]


def test_what_is_left_of_a_place_is_pinned():
    left, rest = pinned(drawn(Words(2, 0, "a", OWN), Words(5, 0, "b", OWN)), 3)
    assert (">a<" in left, ">b<" in left, ">a<" in rest, ">b<" in rest) == (True, False, False, True)
    assert ('viewBox="0 0 3 3"' in left, 'viewBox="3 0 9 3"' in rest) == (True, True)


VALUES = np.array([[0.0, 1.0, 2.0, np.nan, np.inf]])


def test_pixels_run_from_light_to_dark_and_cells_are_an_image_or_a_path_for_each_look():
    image = ramp([0.5, 1.5], RED).pixels(VALUES)
    brightness = image.astype(int).sum(axis=2)[0]
    assert brightness[0] > brightness[1] > brightness[2]
    assert image[0, 3].tolist() == image[0, 4].tolist() == [255, 0, 0]
    cells = Cells(0, 0, 5, 1, VALUES, ramp([0.5, 1.5], RED))
    data = re.search(r"base64,([^\"]+)", svg(drawn(Cells(0, 0, 5, 1, VALUES, ramp([0.5, 1.5], Look(""))))))[1]
    image = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
    np.testing.assert_array_equal(image[:, :3], cells.scale.pixels(VALUES)[:, :3])
    named = Cells(0, 0, 5, 1, VALUES, ColourScale((0.5,), (BLUE, OWN), RED))
    assert re.findall(r'class="(\w+)" d="(.+?)"', svg(drawn(named))) == [
        ("blue", "M0 0h1v1h-1z"),
        ("own", "M1 0h2v1h-2z"),
        ("red", "M3 0h2v1h-2z"),
    ]
    assert rows(named, height=1) == ["b  rr"]


def test_lines_are_placed_by_the_axes():
    axes = Axis("x", 1, 100, log=True), Axis("y", 0, 2)
    (line,) = drawn(Stroke(((10, 0), (100, 2)), RED), axes=axes).placed(1, 1, 8, 4)
    assert line.points == ((5, 5), (9, 1))


def test_matplotlib_draws_cells_lines_and_dots(tmp_path):
    axes = Axis("across", 1, 100, log=True), Axis("up", 1, 10)
    curve = drawn(
        Stroke(((1, 1), (100, 9)), BLUE), Stroke(((10, 5),), Look("", sign="o", colour="#ff0000"), "a dot"), axes=axes
    )
    cells = drawn(Cells(0, 0, 5, 1, VALUES, ramp([0.5, 1.5], Look("", colour="#00ff00"))), about="values")
    paths = [tmp_path / "x.png", tmp_path / "x.svg"]
    plot([curve, cells], paths, (8.0, 4.0), "title", "unit")
    pixels = {tuple(pixel) for pixel in np.asarray(Image.open(paths[0]).convert("RGB")).reshape(-1, 3)}
    assert {(255, 0, 0), (0, 0, 255), (0, 255, 0)} <= pixels
    assert all(word in paths[1].read_text() for word in ("a dot", "across", "unit", "title"))
