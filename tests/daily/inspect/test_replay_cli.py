"""`view`, `compare --html` and `study --html` as a user runs them."""

import json
import re

import pytest

from tests.as_user import completed as probe


def data_of(path):
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(), re.S)[1])


def test_study_writes_its_algorithm_as_a_page(tmp_path):
    done = probe("study", "gqa", "--algorithm", "fa3", "--html", tmp_path / "a.html")
    assert (done.returncode, done.stderr.strip()) == (0, f"wrote {tmp_path / 'a.html'}")
    ((run,), found) = data_of(tmp_path / "a.html"), {}
    found = {lane["link"]: [run["kinds"][step[0]]["name"] for step in lane["runs"]] for lane in run["lanes"]}
    assert found["lane=softmax-WG1"].count("P") == 4
    assert found["lane=TMA-producer"][:3] == ["Q", "K", "V"]


@pytest.mark.parametrize("words", [("view", "gqa", "-o"), ("triage", "none.gguf", "--out")])
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
