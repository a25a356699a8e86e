import json
from dataclasses import replace

from fattn_probe.cases.device import load_devices
from fattn_probe.cli.device import catalogue_json, catalogue_table, device_json, device_table
from tests.made import shown


def test_list_data_is_json_and_ordered_by_compute_capability():
    items = json.loads(json.dumps(catalogue_json(load_devices())))
    assert [items[at]["id"] for at in (0, 14, 15, -1)] == ["gtx1060", "gb10", "mi50", "rx9070xt"]
    assert items[0]["multiProcessorCount"] == 10


def test_list_fits_a_terminal_of_100_columns():
    lines = shown(catalogue_table(load_devices()), width=100).splitlines()
    row = next(line for line in lines if line.strip().startswith("h200"))
    assert row.split() == ["h200", "NVIDIA", "H200", "9.0", "132", "228/227", "2048", "32", "139.8"]
    assert len(lines) == len(load_devices()) + 5  # a heading of two lines, its rule, and words above and below


def test_show_data_has_figures_sources_and_spec():
    data = json.loads(json.dumps(device_json(load_devices()["h200"])))
    assert (data["arch"], data["__CUDA_ARCH__"]) == ("sm_90", 900)
    assert data["properties"]["sharedMemPerBlockOptin"] == 232448
    assert data["spec"].endswith("name=NVIDIA H200")
    assert "arch_traits" in data["sources"]["sharedMemPerBlockOptin"]


def test_show_points_at_its_documents():
    text = shown(device_table(load_devices()["t4"]), width=100)
    row = next(line for line in text.splitlines() if "multiProcessorCount" in line)
    number = row.split()[-1]
    assert f"{number} NVIDIA, Turing GPU Architecture" in text


def test_figures_of_a_similar_gpu_are_marked():
    mine = replace(load_devices()["t4"], id="mine", assumed=("clockRate",))
    assert device_json(mine)["assumed"] == ["clockRate"]
    text = shown(device_table(mine), width=100)
    assert "1590000 (assumed)" in text and "40 (assumed)" not in text
    assert "(assumed): nominal memory, or the figure of the GPU that this one is `like`" in text
    assert "(assumed)" not in shown(device_table(load_devices()["t4"]), width=100)
