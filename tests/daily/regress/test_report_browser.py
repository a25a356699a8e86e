"""The page in a headless browser: its appearance on a phone and in dark mode."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from fattn_probe.base.tables import Table
from fattn_probe.daily.inspect.view.page import environment
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.report import report
from tests.daily.regress.made import SIM, night
from tests.daily.regress.test_report import HOSTILE, KERNELS, case, result, wrong

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars")
DARK = "--blink-settings=preferredColorScheme=0"
PHONE = """<!doctype html><body style="margin:0">
<iframe src="page.html" style="width:390px;height:1600px;border:0"></iframe>
<pre id="said">nothing</pre>
<script>
FUNCTIONS
document.querySelector("iframe").onload = event => { SCRIPT };
</script>
""".replace("FUNCTIONS", Path(__file__).with_name("report_page.js").read_text())
ONE_TABLE = """{% extends "frame.html.j2" %}{% from "parts.html.j2" import table %}
{% block body %}{{ table("x", words) }}{% endblock %}"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (apt-get install chromium)")


@pytest.fixture
def page(empty, tmp_path):
    """A page with all sections and long words."""
    long = "q8-" + "long" * 30
    empty.know([case(), case("mha"), case(long)], SIM, KERNELS)
    for number in range(40):
        mha = result(name="mha", output=f"{number // 7}", grid=60 if number < 38 else 30)
        results = wrong() if number == 39 else result(), mha, result(name=long), Result("lost", "d", "lost", HOSTILE)
        night(empty, *results, planned=6, accepted="" if number else "good")
    path = tmp_path / "page.html"
    path.write_text(report(empty), encoding="utf-8")
    return path


def chromium(tmp_path, *words):
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def pixels(tmp_path, page, *words):
    shot = tmp_path / "shot.png"
    chromium(tmp_path, "--window-size=1000,1400", *words, f"--screenshot={shot}", page.as_uri())
    return imread(shot)[..., :3]


def said(tmp_path, script):
    """The report that a script writes about the page in its frame, which is as wide as a phone."""
    (tmp_path / "frame.html").write_text(PHONE.replace("SCRIPT", script))
    local = ("--allow-file-access-from-files", "--virtual-time-budget=4000", "--window-size=390,1700")
    dom = chromium(tmp_path, *local, "--dump-dom", (tmp_path / "frame.html").as_uri())
    return dom.partition('<pre id="said">')[2].partition("</pre>")[0]


def test_on_a_phone_nothing_sticks_out_labels_stay_and_each_case_has_its_error_and_kernel(page, tmp_path):
    assert (
        said(tmp_path, "sayWhatSticksOut(event.target)")
        == '{"width":390,"wide":[],"unreachable":0,"maps":1,"alerts":0}'
    )
    assert said(tmp_path, "sayWhatMoves(event.target)") == '{"scrolled":200,"labels":0,"work":-200}'
    # They were to the right of it.
    found = json.loads(said(tmp_path, "sayWhatIsHidden(event.target)"))
    assert found.pop("cells") > 20
    assert found == {"hidden": [], "labels": ["cases", "error / bound", "NMSE"], "cue": "none"}


def test_a_table_has_a_narrow_bar_at_its_edge_only_where_there_is_more_to_the_right(tmp_path):
    """It was a gradient, which looked like a smear in dark mode."""
    blue = {}
    for columns in (2, 40):
        table = Table(tuple(map(str, range(columns))), (("0000",) * columns,) * 8)
        (tmp_path / "page.html").write_text(environment().from_string(ONE_TABLE).render(title="x", words=table))
        edge = pixels(tmp_path, tmp_path / "page.html", DARK)[:, 940:979]
        blue[columns] = int(((edge[..., 2] - edge[..., 0] > 0.1).mean(axis=0) > 0.1).sum())
    assert blue == {2: 0, 40: 3}


def test_dark_where_the_reader_wants_it_dark(page, tmp_path):
    light, dark = pixels(tmp_path, page), pixels(tmp_path, page, DARK)
    assert np.median(light) > 0.9
    assert np.median(dark) < 0.15
    for shot in (light, dark):
        inks = np.abs(shot.mean(axis=2) - np.median(shot)) > 0.5
        assert inks.mean() > 0.005  # there is text with enough contrast


def test_the_colours_of_verdicts_are_on_it(page, tmp_path):
    shot = pixels(tmp_path, page)
    assert ((shot[..., 0] > 0.6) & (shot[..., 1] < 0.3) & (shot[..., 2] < 0.3)).sum() > 200
