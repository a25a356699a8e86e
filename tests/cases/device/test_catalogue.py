import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import load_devices, parse_target, parse_targets
from fattn_probe.cases.device.catalogue import FIGURES, find_device
from fattn_probe.cli.device import catalogue_json, catalogue_table, device_json, device_table
from tests.made import shown

ARCHES = {
    "gtx1060": "61", "v100": "70", "rtx2060": "75", "t4": "75", "rtx3060": "86", "rtx3090ti": "86", "a100": "80",
    "rtx4070": "89", "rtx4090": "89", "l40s": "89", "h100": "90", "h200": "90", "gb10": "121", "rtx5090": "120",
    "b200": "100",
}  # fmt: skip
SHIPPED = list(ARCHES)
AMD = {name: device for name, device in load_devices().items() if device.gfx}


def user_file(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


def problems_of(tmp_path, text):
    path = user_file(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_devices(path)
    return str(caught.value).replace(str(path), "mine.yaml").splitlines()


def test_shipped_devices_their_compute_capabilities_and_measured_figures():
    devices = load_devices()
    assert {name: device.arch for name, device in devices.items() if not device.gfx} == ARCHES
    assert (devices["rtx4070"].multiProcessorCount, devices["rtx4070"].cuda_arch) == (46, 890)
    assert (devices["h200"].multiProcessorCount, devices["h200"].sharedMemPerBlockOptin) == (132, 232448)
    assert (devices["gb10"].integrated, devices["gb10"].cuda_arch) == (1, 1210)


@pytest.mark.parametrize("device", load_devices().values(), ids=lambda device: device.id)
def test_every_figure_names_the_document_that_gives_it(device):
    unsourced = set(FIGURES) - set(device.sources)
    assert unsourced == ({"major", "minor"} if device.integrated else {"major", "minor", "integrated"})


@pytest.mark.parametrize("identifier", SHIPPED)
def test_limits_fit_each_other(identifier):
    device = load_devices()[identifier]
    assert device.sharedMemPerBlock <= device.sharedMemPerBlockOptin
    assert device.sharedMemPerBlockOptin + device.reservedSharedMemPerBlock <= device.sharedMemPerMultiprocessor
    assert device.maxThreadsPerMultiProcessor % device.maxThreadsPerBlock in (0, 512)
    assert device.regsPerBlock <= device.regsPerMultiprocessor


def test_amd_gpus_and_their_wavefronts():
    assert {name: (device.gfx, device.warpSize) for name, device in AMD.items()} == {
        "mi50": ("gfx906", 64),
        "mi100": ("gfx908", 64),
        "mi210": ("gfx90a", 64),
        "mi300x": ("gfx942", 64),
        "rx6800xt": ("gfx1030", 32),
        "rx7900xtx": ("gfx1100", 32),
        "radeon8060s": ("gfx1151", 32),
        "rx9060xt": ("gfx1200", 32),
        "rx9070xt": ("gfx1201", 32),
    }


def test_spec_is_one_line_with_the_name_last():
    spec = load_devices()["rtx3090ti"].spec()
    figures, name = spec.split(" name=")
    assert name == "NVIDIA GeForce RTX 3090 Ti"
    assert figures.startswith("major=8 minor=6 multiProcessorCount=84 ")
    assert dict(re.findall(r"(\w+)=(\d+)", figures)).keys() == set(FIGURES)
    assert "\n" not in spec


@pytest.mark.parametrize(("identifier", "said"), [("mi300", "nearest: mi300x"), ("rtx4909", "nearest: rtx4090")])
def test_a_device_on_which_llama_cpp_does_not_run(identifier, said):
    with pytest.raises(InputError, match=said):
        find_device(load_devices(), identifier)


def test_user_device_like_another_or_of_another_compute_capability(tmp_path):
    path = user_file(tmp_path, "devices:\n  mine:\n    like: rtx4070\n    name: Mine\n    multiProcessorCount: 60\n")
    mine, base = load_devices(path)["mine"], load_devices()["rtx4070"]
    assert (mine.name, mine.multiProcessorCount, mine.cc) == ("Mine", 60, "8.9")
    assert mine.sharedMemPerBlockOptin == base.sharedMemPerBlockOptin
    assert "multiProcessorCount" not in mine.sources and mine.sources["l2CacheSize"] == base.sources["l2CacheSize"]
    path = user_file(tmp_path, 'devices:\n  odd: {like: rtx4070, cc: "9.0"}\n')
    odd = load_devices(path)["odd"]
    assert (odd.arch, odd.sharedMemPerBlockOptin, odd.multiProcessorCount) == ("90", 232448, 46)


def test_figures_of_the_gpu_that_one_is_like_are_assumed_and_a_user_s_may_be(tmp_path):
    text = 'devices:\n  mine: {like: rtx4070, multiProcessorCount: 60}\n  odd: {like: mine, cc: "9.0", clockRate: 1}\n'
    devices = load_devices(user_file(tmp_path, text))
    assert set(devices["mine"].assumed) == {"totalGlobalMem", "l2CacheSize", "clockRate", "integrated"}
    assert set(devices["odd"].assumed) == {"multiProcessorCount", "totalGlobalMem", "l2CacheSize", "integrated"}
    path = user_file(tmp_path, "devices: {mine: {like: h200, clockRate: 1, assumed: [clockRate, l2CacheSize]}}\n")
    names = ("multiProcessorCount", "totalGlobalMem", "l2CacheSize", "clockRate", "integrated")
    assert load_devices(path)["mine"].assumed == names


def test_memory_that_no_query_of_the_device_shows_is_assumed():
    for device in load_devices().values():
        nominal = device.sources["totalGlobalMem"].startswith(("NVIDIA, ", "AMD, product"))  # a page of the product
        assert device.assumed == (("totalGlobalMem",) if nominal else ()), device.id


def test_user_file_may_bring_its_own_compute_capability(tmp_path):
    text = """
limits:
  "8.7": {maxThreadsPerMultiProcessor: 1536, maxBlocksPerMultiProcessor: 16, sharedMemPerMultiprocessor: 167936,
          sharedMemPerBlockOptin: 166912, reservedSharedMemPerBlock: 1024, warpSize: 32, maxThreadsPerBlock: 1024,
          sharedMemPerBlock: 49152, regsPerBlock: 65536, regsPerMultiprocessor: 65536}
devices:
  orin: {name: Orin, cc: "8.7", multiProcessorCount: 16, totalGlobalMem: 34359738368, l2CacheSize: 4194304,
         clockRate: 1300000, integrated: true}
"""
    orin = load_devices(user_file(tmp_path, text))["orin"]
    assert (orin.cuda_arch, orin.integrated, orin.maxBlocksPerMultiProcessor) == (870, 1, 16)


def test_user_file_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("FATTN_PROBE_DEVICES", str(user_file(tmp_path, "devices: {mine: {like: t4}}\n")))
    assert load_devices()["mine"].multiProcessorCount == 40


def test_several_mistakes_are_reported_together_with_their_lines(tmp_path):
    lines = problems_of(
        tmp_path,
        """devices:
  mine:
    like: rtx4070
    multiprocessorCount: 60
    warpSize: 0
    maxThreadsPerBlock: true
  h200: {like: h100}
  Bad Id: {like: h100}
  typed: {like: rtx407}
  short: {name: A, cc: "9.0", clockrate: 1}
  second: {like: short}
""",
    )
    assert lines[0].startswith(
        "mine.yaml:4: devices.mine.multiprocessorCount: unknown key; nearest: multiProcessorCount"
    )
    assert lines[1] == "mine.yaml:5: devices.mine.warpSize: 0, expected an integer from 1 to 2147483647"
    assert lines[2].startswith("mine.yaml:6: devices.mine.maxThreadsPerBlock: True, expected an integer")
    assert lines[3] == "mine.yaml:7: devices.h200: this id is in the shipped catalogue; choose another"
    assert lines[5].startswith("mine.yaml:8: devices.Bad Id: expected lower-case letters")
    assert lines[4].startswith("mine.yaml:10: devices.short.clockrate: unknown key; nearest: clockRate")
    assert lines[6] == "mine.yaml:9: devices.typed.like: no device 'rtx407'; nearest: rtx4070"
    assert lines[7].startswith("mine.yaml:10: devices.short: missing multiProcessorCount, ")
    assert len(lines) == 8


MISTAKES = Path(__file__).with_name("mistakes.txt").read_text().strip().split("\n\n")[1:]


@pytest.mark.parametrize("text_and_message", MISTAKES)
def test_one_mistake(tmp_path, text_and_message):
    text, message = text_and_message.split("=> ")
    assert problems_of(tmp_path, text.strip())[0].startswith(message)


def test_missing_user_file(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.yaml: cannot read the devices"):
        load_devices(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("text", "engine", "backend", "shown"),
    [
        ("sim:h200", "sim", "CUDA0", "sim:h200"),
        ("gpu", "cuda", "CUDA0", "gpu:0"),
        ("gpu:1", "cuda", "CUDA0", "gpu:1"),
        ("sim:mi50", "sim", "ROCm0", "sim:mi50"),
        (" cpu ", "cpu", "CPU", "cpu"),
    ],
)
def test_targets(text, engine, backend, shown):
    target = parse_target(text, load_devices())
    assert (target.engine, target.backend, str(target)) == (engine, backend, shown)


def test_environment_of_a_target():
    devices = load_devices()
    assert parse_target("sim:t4", devices).env == {"FATTN_PROBE_DEVICE": devices["t4"].spec()}
    assert parse_target("gpu:1", devices).env == {"CUDA_VISIBLE_DEVICES": "1"}
    assert parse_target("cpu", devices).env == {}


INVALID = dict.fromkeys(("", "sim:", "sim", "gpu:-1", "gpu:x", "cpu:0", "cuda", "gpu:"), "allowed: sim:ID")
INVALID |= dict.fromkeys(("musa", "MUSA0", "sim:mtt-s80"), r"MUSA \(Moore Threads\) is not simulated")


@pytest.mark.parametrize("text", INVALID)
def test_invalid_targets_list_the_allowed_ones_and_moore_threads_are_refused(text):
    with pytest.raises(InputError, match=INVALID[text]):
        parse_target(text, load_devices())


def test_list_of_targets_names_every_wrong_word():
    assert [str(target) for target in parse_targets("sim:rtx4070,sim:h200", load_devices())] == [
        "sim:rtx4070",
        "sim:h200",
    ]
    with pytest.raises(InputError) as caught:
        parse_targets("sim:h20,gpu,x", load_devices())
    assert "nearest: h200" in str(caught.value) and "--on 'x'" in str(caught.value)


def test_the_list_in_json_and_in_a_terminal():
    items = json.loads(json.dumps(catalogue_json(load_devices())))
    assert [items[at]["id"] for at in (0, 14, 15, -1)] == ["gtx1060", "gb10", "mi50", "rx9070xt"]
    assert items[0]["multiProcessorCount"] == 10
    lines = shown(catalogue_table(load_devices()), width=100).splitlines()
    row = next(line for line in lines if line.strip().startswith("h200"))
    assert row.split() == ["h200", "NVIDIA", "H200", "9.0", "132", "228/227", "2048", "32", "139.8"]
    assert len(lines) == len(load_devices()) + 5  # a heading of two lines, its rule, and words above and below


def test_show_has_figures_their_sources_and_the_spec_and_marks_those_of_a_similar_gpu():
    data = json.loads(json.dumps(device_json(load_devices()["h200"])))
    assert (data["arch"], data["__CUDA_ARCH__"]) == ("sm_90", 900)
    assert data["properties"]["sharedMemPerBlockOptin"] == 232448
    assert data["spec"].endswith("name=NVIDIA H200")
    assert "arch_traits" in data["sources"]["sharedMemPerBlockOptin"]
    text = shown(device_table(load_devices()["t4"]), width=100)
    number = next(line for line in text.splitlines() if "multiProcessorCount" in line).split()[-1]
    assert f"{number} NVIDIA, Turing GPU Architecture" in text
    mine = replace(load_devices()["t4"], id="mine", assumed=("clockRate",))
    assert device_json(mine)["assumed"] == ["clockRate"]
    text = shown(device_table(mine), width=100)
    assert "1590000 (assumed)" in text and "40 (assumed)" not in text
    assert "(assumed): nominal memory, or the figure for the GPU that `like` names" in text
    assert "(assumed)" not in shown(device_table(load_devices()["t4"]), width=100)
