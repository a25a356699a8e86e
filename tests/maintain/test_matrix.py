"""The matrix of GPUs and releases: its order, its cells, and its page."""

from dataclasses import replace

from fattn_probe.cases.device import load_devices
from fattn_probe.cases.op import Op, Params, Sizes
from fattn_probe.daily.regress.history import open_history
from fattn_probe.daily.regress.records import Identity, Result, Settings, StoredCase
from fattn_probe.machine.run.outcome import Finding
from maintain import matrix
from maintain.matrix import RELEASES, SUITE, Alarm, MatrixCell, SharedBuild, page
from tests.made import ROOT

OLD, *_, NEW = RELEASES
V100 = Identity("here", "sim:v100", "7.0", "", "sim", "release", NEW, "11549", "", "0.1.0")
CELLS = [
    MatrixCell(NEW, "11549", "sim:v100", "7.0", "2026-11-22", 320, known={"volta-columns": 46}, alarms=()),
    MatrixCell(NEW, "11549", "sim:gb10", "12.1", "2026-11-22", 367),
    MatrixCell(OLD, "?", "sim:v100", "7.0", "2026-11-21", 300, 66, alarms=(Alarm("gqa", "fail", "a | b"),)),
]


def test_the_newest_release_comes_first_and_parts_that_have_results_are_left_out():
    devices = load_devices().values()
    found = matrix.shared_builds(devices, RELEASES)
    everything = [(part.source, device) for part in found for device in part.devices]
    assert len(everything) == len(set(everything)) == len(RELEASES) * len(devices)
    archs = {device.arch for device in devices}
    assert [part.source for part in found[: len(archs)]] == [NEW] * len(archs)
    one_each = found[len(archs) : len(archs) * len(RELEASES)]
    assert {len(part.devices) for part in one_each} == {1}
    assert OLD not in {part.source for part in found[: len(archs) * (len(RELEASES) - 1)]}
    both = SharedBuild(NEW, ("sim:v100", "sim:gb10")), SharedBuild(OLD, ("sim:gb10",))
    assert matrix.without(both, CELLS) == [SharedBuild(OLD, ("sim:gb10",))]
    assert matrix.without(both, CELLS[1:]) == [SharedBuild(NEW, ("sim:v100",)), SharedBuild(OLD, ("sim:gb10",))]


def record(history, identity, results, *, end=True, only=""):
    run = history.begin(identity, SUITE, planned=len(results), settings=Settings(only=only))
    for result in results:
        history.add(run, result)
    if end:
        history.end(run)


def test_a_cell_has_the_last_finished_run(tmp_path):
    failed = Result("a", "d", "fail", "trap", known="volta-columns")
    results = [failed, Result("b", "d", "pass"), Result("c", "d", "lost", "gone"), Result("e", "d", "unsupported")]
    with open_history(tmp_path / "h.db") as history:
        record(history, V100, [Result("b", "d", "fail")])
        record(history, V100, results)
        record(history, V100, results[:1], end=False)
        record(history, V100, results[:1], only="^a$")
        record(history, replace(V100, patches="fault"), results[:1])
        found = {cell.source: cell for cell in matrix.cells_of(history)}
        assert [cell.cases for cell in matrix.cells_of(history, "^a$")] == [1]
    assert found.keys() == {NEW, f"{NEW} with fault"}
    cell = found[NEW]
    assert (cell.passed, cell.unsupported, cell.known, cell.cases) == (1, 1, {"volta-columns": 1}, 4)
    assert cell.alarms == (Alarm("c", "lost", "gone"),)


def test_a_defect_that_became_known_after_the_run_is_recognised(tmp_path):
    op = Op.contiguous(Sizes(1, 4, 2, 9, 128, 128, 128), Params(1.0), ("f16", "f16"))
    kernel = "flash_attn_ext_f16<128,128,16,1,false,false,false>"
    frame = f"{kernel} at ggml/src/ggml-cuda/common.cuh:424"
    trap = Finding("trap", "trap: __trap() in overlay/ggml-cuda/common.cuh:424", kernel, frames=(frame,))
    results = [Result(name, "d", "fail", "trap", finding=trap) for name in ("a", "b")]
    with open_history(tmp_path / "h.db") as history:
        history.know([StoredCase("a", "d", "s", "none", op)], V100, [])
        record(history, V100, results)
        (cell,) = matrix.cells_of(history)
    assert cell.known == {"volta-columns": 1}
    assert [alarm.case for alarm in cell.alarms] == ["b"]


def test_each_release_is_in_one_part():
    parts = [matrix.part_of(number, 14) for number in range(14)]
    assert sorted(source for part in parts for source in part) == sorted(matrix.LISTED)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert matrix.part_of(14, 14) == parts[0]


def test_a_release_beside_the_matrix_has_a_row_and_no_column():
    said = page([*CELLS, MatrixCell("pypi:llama-cpp-python==0.3.30", "?", "sim:h200", "9.0", "2026-11-25", 360, 7)])
    assert "| GPU | cc | 0.2.8 | 2026.10.11549 |" in said
    assert "| llama-cpp-python 0.3.30 | e3a74b299085 | 2026-06-16 | 360, 7 unsupported | 2026-11-25 |" in said
    assert "| xllamacpp 0.2.14 | b8352 | 2026-03-20 | not run | - |" in said


def test_the_page_with_and_without_defects_and_alarms():
    said = page(CELLS)
    assert "3 runs,\n1,100 results" in said
    assert "Run on 2026-11-21 to 2026-11-22." in said
    assert "| GPU | cc | 0.2.8 | 2026.10.11549 |" in said
    assert "| v100 | 7.0 | 300, 66 unsupported, **1 not explained** | 320, 46 known |" in said
    assert "| gb10 | 12.1 | not run | 367 |" in said
    assert "| [volta-columns](../findings.md#volta-columns) | on Volta" in said
    assert "| 2026.10.11549 | v100 | 46 |" in said
    assert "| 0.2.8 | v100 | gqa | fail | a \\| b |" in said
    assert said.index("| v100 |") < said.index("| gb10 |")
    said = page(CELLS[1:2])
    assert said.endswith("## Known defects of llama.cpp\n\nNone occurred.\n\n## Not explained\n\nNone.\n")


def test_cells_survive_json_and_the_newer_one_wins():
    older = replace(CELLS[0], started="2026-11-01", passed=1)
    assert (
        matrix.from_json(matrix.to_json([older, *CELLS]))
        == matrix.from_json(matrix.to_json([*CELLS, older]))
        == matrix.ordered(CELLS)
    )


def test_the_committed_page_is_that_of_the_committed_results():
    cells = matrix.from_json((ROOT / "tests/data/matrix.json").read_text())
    assert (ROOT / "docs/measurements/matrix.md").read_text() == page(cells)
    assert not any(cell.alarms for cell in cells)
