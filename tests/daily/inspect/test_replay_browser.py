"""The page of a replay in a headless browser: clicks, keys, links, play, a phone and dark mode."""

import json
from pathlib import Path

import numpy as np
import pytest

from fattn_probe.daily.inspect.replay.page import replay_page
from fattn_probe.daily.inspect.replay.replay import Marked, StepPlace, Traced
from tests.daily.inspect.test_replay import TAIL_CASE, TAIL_INPUTS, made, mma
from tests.daily.regress.test_report_browser import (  # the page is dark if the reader wants it, as that one is
    pytestmark,  # noqa: F401
    said,
    test_dark_where_the_reader_wants_it_dark,  # noqa: F401
)

ASK = Path(__file__).with_name("ask.js").read_text()
"""Asks a page, as SCRIPT says, and shows what it found."""


@pytest.fixture(scope="module")
def text():
    """The page of eight blocks on two tiles, whose block 5 deviates in KV step 1."""
    place = StepPlace("block=5", 1, 1)
    traced = (Traced(place, "warp 0 of block 5", (("KQ", 3.5, 1e-7, 0), ("P", 0.9, 0.5, 7))),)
    marked = Marked("first deviation: P", place)
    rows = mma(TAIL_CASE, TAIL_INPUTS, 8)
    return replay_page([made(rows, traced=traced, marked=marked, errors=np.zeros((14, 7)))], "made")


@pytest.fixture
def page(text, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(text, encoding="utf-8")
    return path


def asked(tmp_path, script):
    return json.loads(said(tmp_path, ASK.replace("SCRIPT", script)).replace("&gt;", ">").replace("&amp;", "&"))


def test_it_opens_at_the_first_deviation_and_buttons_and_keys_step(page, tmp_path):
    found = asked(
        tmp_path,
        """
        found.start = now(); found.bad = page.querySelector(".bad").textContent;
        click("next"); found.next = now(); click("back"); key("ArrowLeft"); found.left = now();
        key("ArrowDown"); found.down = now(); key("End"); found.end = now();
        key("ArrowRight"); found.stays = now() === found.end;
        found.hash = view.location.hash; open("#block=0,step=0"); click("play");
        setTimeout(() => { found.played = now().slice(0, 15); found.play = page.getElementById("play").textContent;
          document.getElementById("said").textContent = JSON.stringify(found); }, 2500);
        found.live = page.getElementById("now").getAttribute("aria-live");
        """,
    )
    tile = "tile 1 (K/V head 1, head 7-13, query 0-6)"
    assert found == {
        "start": f"block 5, step 1 of 0 to 2: KV step 1, KV rows 64 to 127 of {tile}",
        "bad": "7 beyond the bound",
        "next": f"block 5, step 2 of 0 to 2: store part: {tile}",
        "left": f"block 5, step 0 of 0 to 2: load Q: {tile}",
        "down": f"block 6, step 0 of 0 to 2: load Q: {tile}",
        "end": f"block 6, step 2 of 0 to 2: store part: {tile}",
        "stays": True,
        "hash": "#block=6,step=2,row=0",
        "played": "block 0, step 2",
        "play": "Play",
        "live": "polite",
    }


def test_the_mouse_says_what_is_under_it_and_a_click_goes_there(page, tmp_path):
    found = asked(
        tmp_path,
        """
        pointer("pointermove", "lanes", lanes.left + 1.5 * lanes.step, lanes.tops[2] + 2);
        found.over = page.getElementById("over").textContent;
        const warps = page.querySelector(".warps"), box = warps.getBoundingClientRect();
        const at = {clientX: box.left + box.width / 2, clientY: box.top + box.height * 0.4};
        warps.dispatchEvent(new view.PointerEvent("pointermove", at)); found.warp = warps.nextSibling.textContent;
        pointer("click", "tiles", map.left + 3.5 * map.step, map.tops[0] + 2); found.tile = now();
        found.cursors = [cursor("lanes")[1] === lanes.tops[3], cursor("tiles")[0] === map.left + 3 * map.step];
        pointer("click", "wrong", errors.left + 2, errors.top + 8.5 * errors.row); found.wrong = now();
        """,
    )
    assert found["over"] == "block 2, step 1: KV step 2, KV rows 128 to 191 of tile 0 (K/V head 0, head 0-6, query 0-6)"
    assert found["warp"] == "warp 1: query 3 and head 1 of the tile, KV row 96"
    assert found["tile"].startswith("block 3, step 1 of 0 to 2: KV step 3, KV rows 192 to 199")
    assert found["cursors"] == [True, True]
    assert found["wrong"].startswith("tile 1, step 4 of 0 to 4: divide")


def test_a_link_opens_a_step_and_a_row_is_followed_from_block_to_block(page, tmp_path):
    found = asked(
        tmp_path,
        """
        open("#block=0,step=1,row=0"); found.linked = now();
        found.numbers = all("[data-step] table").at(-1).textContent.includes("maximum m");
        found.charts = all(".chart:not(.warps)").map(one => one.getAttribute("aria-label").split(":")[0]);
        page.getElementById("follow").checked = true;
        key("ArrowRight"); key("ArrowRight"); found.followed = now();
        open("#tile=0,step=4"); found.divided = panel().includes("dst by the kernel");
        """,
    )
    assert found["linked"].startswith("block 0, step 1 of 0 to 2: KV step 0")
    assert found["numbers"]
    assert found["charts"] == ["P, the weights of the KV rows of this step", "VKQ after this step"]
    assert found["followed"].startswith("block 1, step 0")
    assert found["divided"]


def test_a_phone_shows_all_without_scrolling_the_page_and_keys_reach_it(page, tmp_path):
    found = asked(
        tmp_path,
        """
        found.width = page.documentElement.scrollWidth;
        const outside = one => right(one) > 391 && !one.closest(".pinned, .skip, code, .wide");
        found.wide = all("body *").filter(outside).map(one => one.outerHTML.slice(0, 60));
        const scrolls = all("button, select, .pinned, code").filter(one => one.scrollWidth > one.clientWidth);
        found.unreachable = scrolls.filter(one => one.tabIndex < 0 && !one.closest("[hidden]")).length;
        found.small = all("button").filter(one => one.getBoundingClientRect().height < 30).length;
        """,
    )
    assert found == {"width": 390, "wide": [], "unreachable": 0, "small": 0}


def test_two_runs_go_in_step_and_the_deviation_of_one_is_marked(tmp_path):
    rows = mma(TAIL_CASE, TAIL_INPUTS, 8)
    both = [
        made(rows),
        made(mma(TAIL_CASE, TAIL_INPUTS, 3), marked=Marked("first deviation: P", StepPlace("block=1", 0, 2))),
    ]
    (tmp_path / "page.html").write_text(replay_page(both, "two"), encoding="utf-8")
    found = asked(
        tmp_path,
        """
        found.start = now(); found.first = page.querySelectorAll("rect.first").length;
        const panels = name => all("[data-step]").map(one => one.querySelector(name).textContent.slice(0, 10));
        found.panels = panels("p"); key("ArrowUp"); key("End"); found.panels.push(...panels("h3"));
        for (let at = 0; at < 5; at++) key("ArrowDown");
        found.missing = page.querySelectorAll("[data-step]")[1].textContent;
        """,
    )
    assert found["start"].startswith("block 1, step 1")
    assert found["first"] >= 1
    assert found["panels"] == ["KV step 1,", "KV step 2,", "no step", "store part"]
    assert found["missing"] == "This run has no block 5."
