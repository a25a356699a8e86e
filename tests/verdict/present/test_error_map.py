"""Error maps in the terminal and as files."""

import sys

import numpy as np
import pytest
from PIL import Image

from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.cli import main
from fattn_probe.verdict.judge.judgement import Judgement
from fattn_probe.verdict.measure.metrics import Deviation
from fattn_probe.verdict.measure.verdict import Status, Verdict
from fattn_probe.verdict.present.error_map import ErrorMap, error_maps, legend, plot_row, shrunk
from tests.made import shown

SHAPE = (2, 300, 8, 64)


@pytest.fixture
def output():
    base, dst = np.zeros(SHAPE), np.zeros(SHAPE, np.float32)
    dst[1, 299, 3, 7], dst[0, 0, 2, 0] = 2.0, np.nan
    return dst, Deviation(np.zeros(SHAPE, bool), base, np.full(SHAPE[:3], 0.5))


def test_an_error_is_where_it_belongs(output):
    dst, deviation = output
    heads, columns = error_maps(dst, deviation)
    assert np.argwhere(heads.values > 0).tolist() == [[2, 0], [3, 299]]
    assert (heads.values[3, 299], heads.values[2, 0]) == (4.0, np.inf)
    assert np.argwhere(columns.values > 0).tolist() == [[0, 0], [299, 7]]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_terminals_map_keeps_every_error_and_fits(output, width):
    dst, deviation = output
    lines = shown(error_maps(dst, deviation)[0], width).splitlines()
    assert max(len(line) for line in lines) <= width
    line = {int(part[0].split()[1]): part[1] for part in (line.split("│") for line in lines if "│" in line)}
    assert line[2][0] == "X"
    assert line[3][-1] == "░"
    assert "".join(line[head] for head in (0, 1, 4, 5, 6, 7)).strip() == ""
    assert lines[-1].split() == ["query", "0", "299"]


@pytest.mark.parametrize(
    ("queries", "ends"), [(1, ["query", "0"]), (2, ["query", "0", "1"]), (12, ["query", "0", "11"])]
)
def test_the_columns_of_a_narrow_map(queries, ends):
    """The map of one query said "query 00", of two "query 01"."""
    values = np.zeros((8, queries))
    assert shown(ErrorMap("head x query", "query", "head", values), 100).splitlines()[-1].split() == ends


def test_shrinking_keeps_the_largest():
    values = np.random.default_rng(0).random((100, 77))
    small = shrunk(values, 16, 20)
    assert small.shape == (16, 20)
    assert small.max() == values.max()
    assert small[0, 0] == values[:6, :3].max()
    np.testing.assert_array_equal(shrunk(values, 200, 200), values)


def test_the_legend_names_each_character():
    assert shown(legend(), 100).count("[") == 6


def test_pictures_are_small_and_show_errors_and_there_is_none_without_an_output(output, tmp_path):
    dst, deviation = output
    dst[:, :, 3] = np.nan
    row = Judgement("case/1", "sim:h200", Tolerance(), Verdict(Status.FAIL, "x", deviation=deviation), dst=dst)
    png, svg = plot_row(row, tmp_path / "plots")
    assert png.name == "case-1@sim-h200.png"
    assert png.stat().st_size < 100_000
    assert svg.stat().st_size < 300_000
    pixels = np.asarray(Image.open(png).convert("RGB")).reshape(-1, 3)
    assert (pixels == (0xD5, 0x5E, 0x00)).all(axis=1).mean() > 0.02
    assert (pixels == 255).all(axis=1).mean() > 0.2
    assert "not finite" in svg.read_text()
    row = Judgement("case", "cpu", Tolerance(), Verdict(Status.LOST, "gone"))
    assert list(plot_row(row, tmp_path)) == []


def test_without_matplotlib_the_package_to_install_is_named(monkeypatch, capsys):
    """Before any case runs."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(sys, "argv", ["fattn-probe", "compare", "gqa", "--plot", "pictures"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 3
    assert capsys.readouterr().err == "--plot needs matplotlib: pip install 'fattn-probe[plot]'\n"
