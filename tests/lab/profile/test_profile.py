"""Counts by the simulator and by Nsight Compute, rooflines and occupancy by hand, and how they are shown."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fattn_probe.base.console import text_of
from fattn_probe.base.errors import ComparisonError, InputError, LostError, MachineError
from fattn_probe.cases.device import Target, load_devices
from fattn_probe.cases.device.origin import MEASURED, UNKNOWN, Method, Origin, legend
from fattn_probe.cases.op import Op, Params, Sizes
from fattn_probe.lab.profile import counts
from fattn_probe.lab.profile.command import check_targets, formula_traffic, known, reason
from fattn_probe.lab.profile.counts import Counts, Profile, Traffic, counts_of, measure, parse, ratio, values_of
from fattn_probe.lab.profile.roofline import Point, Roof, occupancy, peaks, roof_of
from fattn_probe.lab.profile.show import RooflinePicture, document, render
from fattn_probe.llama.launch.record import LaunchRecord, parse_launches
from fattn_probe.machine.run.outcome import Finding, Lost, Unsupported
from tests.made import executable, shown

KERNEL = "flash_attn_ext_f16<64,64,8,8,false,false,false>"
NAMES = {"flash_attn_ext_f16": ("DKQ", "DV", "ncols1", "ncols2", "use_logit_softcap", "V_is_K_view", "use_sparse")}
(LAUNCH,) = parse_launches(
    json.dumps(
        {"order": 0, "kernel": KERNEL, "grid": [8, 1, 1], "block": [32, 4, 1], "shared": 17536, "regs": 255,
         "static_shared": 0, "max_blocks_per_sm": 2}
    ),
    names=NAMES,
)  # fmt: skip
NOTHING = {"instructions": 0, "wavefronts": 0, "conflicts": 0}
LINE: dict[str, Any] = {
    "order": 0,
    "tensor_flops": 8192,
    "instructions": {"tensor": 2, "movmatrix": 0, "shuffle": 10, "vote": 1, "barrier": 4},
    "shared": {
        "load": {"instructions": 5, "wavefronts": 9, "conflicts": 4},
        "store": {"instructions": 6, "wavefronts": 6, "conflicts": 0},
        "atomic": NOTHING,
        "copy": {"instructions": 2, "wavefronts": 8, "conflicts": 1},
        "ldmatrix": {"instructions": 7, "wavefronts": 28, "conflicts": 0},
    },
    "global": [
        {"tensor": "K", "allocation": 1, "access": "copy", "instructions": 2, "sectors": 32, "bytes": 1024},
        {"tensor": "Q", "allocation": 2, "access": "load", "instructions": 3, "sectors": 12, "bytes": 384},
        {"tensor": "dst", "allocation": 3, "access": "store", "instructions": 1, "sectors": 4, "bytes": 128},
        {"tensor": "", "allocation": 4, "access": "load", "instructions": 1, "sectors": 1, "bytes": 4},
        {"tensor": "", "allocation": 5, "access": "atomic", "instructions": 1, "sectors": 2, "bytes": 8},
    ],
}
DEVICES = load_devices()
SIZES = Sizes(n_seq=1, n_head=14, n_head_kv=2, n_q=20, n_kv=256, hsk=64, hsv=64)


def counted(**changes):
    return counts_of({**LINE, **changes}, LAUNCH)


def test_a_line_of_the_simulator_has_wavefronts_conflicts_copies_and_bytes_by_tensor():
    assert counted().values["wavefronts"] == 9 + 6 + 28
    assert counted().values["conflicts"] == 4
    values = counted().values
    assert (values["load_sectors"], values["load_requests"], values["global_loads"]) == (45, 6, 4)
    assert (values["store_sectors"], values["store_requests"]) == (4, 1)
    assert counted().sectors_of_a_load == 7.5
    assert counted().traffic == (
        Traffic("K", 1024, 0),
        Traffic("Q", 384, 0),
        Traffic("dst", 0, 128),
        Traffic("temporary", 96, 64),
    )
    unnamed = [{**one, "tensor": ""} for one in LINE["global"]]
    assert [one.tensor for one in counted(**{"global": unnamed}).traffic] == [f"allocation {n}" for n in range(1, 6)]


def test_a_later_line_of_a_launch_replaces_the_earlier_one(tmp_path):
    lines = [LINE, {**LINE, "tensor_flops": 1}, {**LINE, "order": 9}]
    (tmp_path / "counts").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (found,) = counts.read_counts(tmp_path / "counts", [LAUNCH])
    assert found.values["tensor_flops"] == 1
    assert counts.read_counts(tmp_path / "missing", [LAUNCH]) == ()


def test_the_formula_reads_k_and_v_once_for_each_tile_of_queries_and_heads():
    op = Op.contiguous(SIZES, Params(0.125), ("f16", "q8_0"), mask=True)
    found = {one.tensor: one.read + one.written for one in formula_traffic(op, [LAUNCH])}
    tiles = 3 * 2  # of 8 of the 20 queries, and of all 7 heads of one of the 2 K/V heads
    assert found == {
        "Q": 14 * 20 * 64 * 4,
        "K": tiles * 256 * 64 * 2,
        "V": tiles * 256 * 64 // 32 * 34,
        "mask": 2 * 20 * 256 * 2,
        "dst": 14 * 20 * 64 * 4,
    }


def test_a_launch_of_another_kernel_has_no_formula_and_ncus_counts_get_the_recorded_launch():
    op = Op.contiguous(SIZES, Params(0.125), ("f16", "f16"))
    other = LaunchRecord(0, "flash_attn_combine_results", (("D", "64"),), (1, 1, 1), (64, 1, 1), 0)
    assert formula_traffic(op, [other]) == ()
    assert "mask" not in {one.tensor for one in formula_traffic(op, [other, LAUNCH])}
    seen = LaunchRecord(3, LAUNCH.kernel, LAUNCH.template_args, LAUNCH.grid, LAUNCH.block, 0)
    other = LaunchRecord(4, "other", (), (1, 1, 1), (1, 1, 1), 0)
    first, second = known([Counts(seen, {}), Counts(other, {})], [LAUNCH])
    assert first.launch.regs == 255
    assert second.launch is other


def both():
    op = Op.contiguous(SIZES, Params(0.125), ("f16", "f16"), mask=True)
    gpu = Counts(LAUNCH, {"tensor": 2, "ldmatrix": 8, "wavefronts": 100, "nanoseconds": 5000})
    formula = formula_traffic(op, [LAUNCH])
    profiles = (Profile("gpu:0", (gpu,), flops=10**6), Profile("sim:h200", (counted(),), flops=10**6, formula=formula))
    return [("case", profiles)], {"gpu:0": None, "sim:h200": DEVICES["h200"]}


@pytest.mark.parametrize(
    ("origin", "regs", "said"),
    [
        (MEASURED, 255, "sim:h200 2 blocks on an SM, 8 of 64 warps"),
        (Origin(Method.ASSUMED), 255, "sim:h200 2 blocks (assumed) on an SM, 8 of 64 warps"),
        (Origin(Method.ESTIMATED, 7551), 255, "sim:h200 2 blocks (estimated b7551) on an SM, 8 of 64 warps"),
        (UNKNOWN, None, "sim:h200 at most 12 blocks on an SM, 48 of 64 warps (75 %), limited by shared memory"),
    ],
)
def test_an_occupancy_that_is_not_known_is_marked(origin, regs, said):
    launch = replace(LAUNCH, origin=origin, regs=regs)
    profile = Profile("sim:h200", (replace(counted(), launch=launch),), flops=10**6, division=origin)
    done, devices = [("case", (profile,))], {"sim:h200": DEVICES["h200"]}
    text = " ".join(shown(render(done, devices)).split())
    assert said in text
    assert all((line in text) is (regs is not None) for line in legend([origin]))
    rests = f"the grid, and with it the counts, bytes and roofline, depends on an unknown occupancy ({origin.mark})"
    assert (rests in text) is (not origin.known)
    (found,) = document(done, devices)["profiles"]
    assert found["division_origin"] == found["launches"][0]["origin"] == str(origin)
    assert found["launches"][0]["occupancy"]["origin"] == str(origin)


def test_a_gpu_of_unknown_peaks_is_named_as_such():
    done, devices = both()
    text = shown(render(done, {**devices, "sim:h200": DEVICES["gb10"]}))
    assert "no roofline: the peak rates of this GPU are not known" in text
    assert "no roofline" not in shown(render(*both()))


def test_two_targets_have_columns_and_their_ratio_and_a_narrow_terminal_cuts_nothing_off():
    lines = {
        line.split("  ")[0].strip(): line.split()[-3:]
        for line in shown(render(*both()), width=100).splitlines()
        if line.strip()
    }
    assert lines["tensor instructions"] == ["2", "2", "1.000"]
    assert lines["ldmatrix"] == ["8", "7", "0.875"]
    assert lines["shared wavefronts"] == ["100", "43", "0.430"]
    assert "limited by registers" in shown(render(*both()), width=100)
    assert all(len(line) <= 40 for line in shown(render(*both()), width=40).splitlines())
    assert "0.875" in shown(render(*both()), width=40)


def test_the_document_has_occupancy_and_roofline():
    gpu, sim = (profile["launches"][0] for profile in document(*both())["profiles"])
    assert gpu["occupancy"] is None and gpu["roofline"] is None
    assert sim["occupancy"]["blocks"] == sim["max_blocks_per_sm"] == 2
    assert sim["roofline"]["bytes"] == 32 * (45 + 4)
    assert sim["roofline"]["bound"] == "arithmetic"
    json.dumps(document(*both()))


def test_an_op_that_is_not_supported_has_a_reason_and_a_fault_is_an_error():
    assert reason(Unsupported("no kernel"), "case on gpu:0") == "unsupported: no kernel"
    with pytest.raises(ComparisonError, match="case on gpu:0: fault: misaligned"):
        reason(Finding("misaligned", "an access"), "case on gpu:0")
    with pytest.raises(LostError, match="case on gpu:0: lost: gone"):
        reason(Lost("gone"), "case on gpu:0")


def test_only_gpus_are_profiled(monkeypatch):
    with pytest.raises(InputError, match="CPU backend has no kernels"):
        check_targets([Target("cpu")])
    with pytest.raises(InputError, match=r"profile --on sim:mi50: .* only by NVIDIA's rules"):
        check_targets([Target("sim", DEVICES[name]) for name in ("h200", "mi50")])
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(counts, "cuda_roots", lambda: iter(()))
    with pytest.raises(MachineError, match=r"ncu .* is not installed"):
        check_targets([Target("cuda")])
    check_targets([Target("sim", DEVICES["h200"])])


# What ncu 2025.3 said of the scenario gqa on an H100.
TEXT = (Path(__file__).parents[2] / "transcripts/ncu-2025-gqa.txt").read_text()


def test_a_launch_has_its_counts_and_its_geometry():
    attention, fixup = parse(TEXT, names=NAMES)
    assert (attention.launch.order, fixup.launch.order) == (0, 1)
    assert attention.launch.kernel == "flash_attn_ext_f16"
    assert dict(attention.launch.template_args)["ncols1"] == "8"
    assert (attention.launch.grid, attention.launch.block) == ((8, 1, 1), (32, 4, 1))
    expected = {"tensor": 2048, "ldmatrix": 1152, "copies": 272, "nanoseconds": 19200}
    expected |= {"shared_loads": 994, "shared_stores": 1024, "conflicts": 0, "repeats": 0}
    expected |= {"wavefronts": 994 + 4608 + 1024, "load_wavefronts": 994, "store_wavefronts": 1024}
    expected |= {"ldmatrix_wavefronts": 4608, "other_wavefronts": 1240}
    expected |= {"global_loads": 392, "load_sectors": 7520, "load_requests": 664, "dram_read_bytes": 240640}
    expected |= {"global_stores": 514, "store_sectors": 3984, "store_requests": 514, "dram_write_bytes": 0}
    assert attention.values == expected
    assert (fixup.values["global_loads"], fixup.values["wavefronts"]) == (1568, 0)


def test_a_wavefront_that_is_repeated_is_no_conflict_of_the_addresses():
    # Of the decode kernel on an H100: the pipe repeated 178 wavefronts of loads and 3,578 of stores.
    metrics = dict(zip(counts.DATA_PIPE, (60594, 60666), strict=True)) | dict(
        zip(counts.CONFLICTS, (227, 28156), strict=True)
    )
    by_address = dict(
        zip([m for m, key in counts.KEYS.items() if key in counts.BY_ADDRESS], (60416, 0, 57088), strict=True)
    )
    found = values_of(metrics | by_address)
    assert (found["wavefronts"], found["repeats"], found["conflicts"]) == (117504, 3756, 24627)
    assert "conflicts" not in values_of(by_address)


def test_dram_bytes_stand_for_the_bytes_moved_and_a_metric_without_a_value_is_missing():
    attention, fixup = parse(TEXT)
    assert attention.bytes_moved == attention.dram_bytes == 240640
    assert attention.sector_bytes == 32 * (7520 + 3984) and fixup.bytes_moved == 111104
    assert "copies" not in parse(TEXT.replace('"272"', '"n/a"'))[0].values
    assert [counts.number(text) for text in ("n/a", "nan", "", "1,234,567", "1.5")] == [None, None, None, 1234567, 2]


@pytest.mark.parametrize("text", ["", "==PROF== Connected\n==WARNING== No kernels were profiled.\n"])
def test_output_without_a_kernel_is_an_error(text):
    with pytest.raises(InputError, match="ncu profiled no kernel"):
        parse(text)


def test_each_metric_is_asked_for_once():
    metrics = counts.options()[-1]
    for metric in counts.ASKED:
        assert metrics.count(metric.replace(".", r"\.")) == 1
    assert len({row["key"] for row in counts.ROWS}) == len(counts.ROWS)


def stand_in(folder, monkeypatch, script):
    """An `ncu` on PATH that is a shell script."""
    executable(folder / "ncu", f"#!/bin/sh\n{script}\n")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_run_hands_over_the_csv(tmp_path, monkeypatch):
    (tmp_path / "csv").write_text(TEXT)
    stand_in(tmp_path, monkeypatch, f'[ "$#" = 9 ] && [ "$9" = op ] && cat {tmp_path / "csv"}')
    assert parse(measure(["runner", "op"], {}, 10))[0].values["tensor"] == 2048


def test_where_ncu_may_not_count_one_sentence_says_so_and_otherwise_what_ncu_said(tmp_path, monkeypatch):
    said = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
    stand_in(tmp_path, monkeypatch, f'echo "{said}"; exit 1')
    with pytest.raises(MachineError, match="ncu is not allowed to read the GPU's counters") as error:
        measure(["runner"], {}, 10)
    assert "\n" not in str(error.value)
    stand_in(tmp_path, monkeypatch, "echo no such device >&2; exit 9")
    with pytest.raises(MachineError, match="no such device"):
        measure(["runner"], {}, 10)


def test_global_loads_include_generic_ones():
    """ncu's count of global loads lacks the 8,192 of 256-alibi whose pointer may be to local memory."""
    loads = {
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 28672,
        "smsp__inst_executed_op_global_ld_pred_on_any.sum": 20480,
        "smsp__inst_executed_op_ldgsts_pred_on_any.sum": 0,
    }
    assert values_of(loads)["global_loads"] == 28672


ROOF = Roof(flops=1000.0, bandwidth=10.0)
# TFLOP/s of tensor cores (f16, not sparse) in NVIDIA's data sheets, whose boost clocks may differ from the catalogue's.
DATA_SHEETS = {"v100": 125, "a100": 312, "t4": 65, "rtx4090": 165, "l40s": 362, "h100": 989, "rtx5090": 210}


def launch(name="kernel", **fields):
    return LaunchRecord(0, name, (), (8, 1, 1), (32, 4, 1), **{"shared": 0, **fields})


def test_the_ridge_divides_memory_bound_from_arithmetic_bound_and_a_point_needs_the_longer_of_both_times():
    assert ROOF.ridge == 100
    assert (ROOF.bound(99), ROOF.bound(100)) == ("memory", "arithmetic")
    assert (ROOF.attainable(50), ROOF.attainable(200)) == (500, 1000)
    assert Point("k", flops=2000, bytes=10).least_seconds(ROOF) == 2.0
    assert Point("k", flops=2000, bytes=100).least_seconds(ROOF) == 10.0
    assert Point("k", 2000, 100).achieved is None
    assert Point("k", 2000, 100, seconds=4).achieved == 500


@pytest.mark.parametrize(("name", "teraflops"), DATA_SHEETS.items())
def test_peaks_are_those_of_the_data_sheets(name, teraflops):
    roof = roof_of(DEVICES[name], tensor=True)
    assert roof is not None
    assert roof.flops / 1e12 == pytest.approx(teraflops, rel=0.09)


def test_peaks_are_of_the_catalogues_devices_and_without_tensor_cores_the_roof_is_float32s():
    assert set(peaks()) <= set(DEVICES)
    gtx1060 = DEVICES["gtx1060"]
    assert roof_of(gtx1060, tensor=True) == roof_of(gtx1060, tensor=False)
    assert roof_of(gtx1060, tensor=False).flops == pytest.approx(4.4e12, rel=0.02)


def test_a_picture_has_the_roof_and_the_kernel():
    picture = text_of(RooflinePicture(ROOF, Point("k", 2000, 100, seconds=40)), 52).splitlines()
    assert sum(line.count("o") for line in picture[:-1]) == 1
    assert sum(line.count("x") for line in picture[:-1]) == 1
    rows = {mark: next(number for number, line in enumerate(picture) if mark in line) for mark in "ox"}
    assert rows["o"] < rows["x"]
    assert {len(line) <= 52 for line in picture} == {True}


REGISTERS = {  # of a thread: blocks of 128 threads on an SM with 64 K registers, by NVIDIA's calculator
    32: 16,
    64: 8,
    128: 4,
    168: 3,
    255: 2,
}


@pytest.mark.parametrize(("registers", "blocks"), REGISTERS.items())
def test_registers_limit_blocks(registers, blocks):
    found = occupancy(launch(regs=registers), DEVICES["h200"])
    assert found.blocks == found.limits["registers"] == blocks
    assert "registers" in found.limited_by
    assert found.share == blocks * 4 / 64


def test_shared_memory_warps_or_blocks_limit_the_occupancy():
    found = occupancy(launch(regs=32, shared=100 << 10), DEVICES["h200"])
    assert (found.blocks, found.limited_by) == (2, ("shared memory",))
    found = occupancy(launch(), DEVICES["t4"])
    assert (found.blocks, found.limited_by) == (8, ("warps",))
    assert occupancy(LaunchRecord(0, "k", (), (1, 1, 1), (32, 1, 1), 0), DEVICES["t4"]).limited_by == ("blocks",)


def test_launches_are_matched_by_kernel_and_place_and_unknown_ratios_are_unknown():
    assert (ratio(1, 2), ratio(0, 0), ratio(1, 0), ratio(None, 1), ratio(1, None)) == (0.5, 1.0, None, None, None)
    assert (ratio(None, None), counts.quotient(0, 0)) == (None, None)
    for requests, sectors in ((2, 4), (0, None)):
        found = Counts(launch(), {"load_sectors": 8 if requests else 0, "load_requests": requests})
        assert found.sectors_of_a_load == sectors
    a, b, c = (Counts(launch(name), {}) for name in ("a", "b", "a"))
    only_b = Counts(launch("b"), {})
    assert counts.matched([Profile("x", (a, b, c)), Profile("y", (only_b,))]) == [(a, None), (b, only_b), (c, None)]
