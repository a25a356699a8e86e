"""Nsight Compute's CSV as counts; and what is said where it cannot count."""

import os
from pathlib import Path

import pytest

from fattn_probe.base.errors import InputError, MachineError
from fattn_probe.lab.profile.counts import (
    ASKED,
    BY_ADDRESS,
    CONFLICTS,
    DATA_PIPE,
    KEYS,
    ROWS,
    measure,
    number,
    options,
    parse,
    values_of,
)
from tests.made import executable

# What ncu 2025.3 said of the scenario gqa on an H100.
TEXT = (Path(__file__).parents[2] / "transcripts/ncu-2025-gqa.txt").read_text()
NAMES = {"flash_attn_ext_f16": ("DKQ", "DV", "ncols1", "ncols2", "use_logit_softcap", "V_is_K_view", "use_sparse")}


def test_a_launch_has_its_counts_and_its_geometry():
    attention, fixup = parse(TEXT, names=NAMES)
    assert (attention.launch.order, fixup.launch.order) == (0, 1)
    assert attention.launch.kernel == "flash_attn_ext_f16"
    assert dict(attention.launch.template_args)["ncols1"] == "8"
    assert (attention.launch.grid, attention.launch.block) == ((8, 1, 1), (32, 4, 1))
    assert attention.values == {
        "tensor": 2048,
        "ldmatrix": 1152,
        "shared_loads": 994,
        "shared_stores": 1024,
        "copies": 272,
        "global_loads": 392,
        "global_stores": 514,
        "wavefronts": 994 + 4608 + 1024,
        "load_wavefronts": 994,
        "ldmatrix_wavefronts": 4608,
        "store_wavefronts": 1024,
        "conflicts": 0,
        "repeats": 0,
        "other_wavefronts": 1240,
        "load_sectors": 7520,
        "load_requests": 664,
        "store_sectors": 3984,
        "store_requests": 514,
        "dram_read_bytes": 240640,
        "dram_write_bytes": 0,
        "nanoseconds": 19200,
    }
    assert (fixup.values["global_loads"], fixup.values["wavefronts"]) == (1568, 0)


def test_a_wavefront_that_is_repeated_is_no_conflict_of_the_addresses():
    # Of the decode kernel on an H100: the pipe repeated 178 wavefronts of loads and 3,578 of stores.
    metrics = dict(zip(DATA_PIPE, (60594, 60666), strict=True)) | dict(zip(CONFLICTS, (227, 28156), strict=True))
    by_address = dict(zip([m for m, key in KEYS.items() if key in BY_ADDRESS], (60416, 0, 57088), strict=True))
    found = values_of(metrics | by_address)
    assert (found["wavefronts"], found["repeats"], found["conflicts"]) == (117504, 3756, 24627)
    assert "conflicts" not in values_of(by_address)


def test_dram_bytes_stand_for_the_bytes_moved():
    attention, fixup = parse(TEXT)
    assert attention.bytes_moved == attention.dram_bytes == 240640
    assert attention.sector_bytes == 32 * (7520 + 3984) and fixup.bytes_moved == 111104


def test_a_metric_without_a_value_is_missing():
    assert "copies" not in parse(TEXT.replace('"272"', '"n/a"'))[0].values
    assert [number(text) for text in ("n/a", "nan", "", "1,234,567", "1.5")] == [None, None, None, 1234567, 2]


@pytest.mark.parametrize("text", ["", "==PROF== Connected\n==WARNING== No kernels were profiled.\n"])
def test_output_without_a_kernel_is_an_error(text):
    with pytest.raises(InputError, match="ncu profiled no kernel"):
        parse(text)


def test_each_metric_is_asked_for_once():
    metrics = options()[-1]
    for metric in ASKED:
        assert metrics.count(metric.replace(".", r"\.")) == 1
    assert len({row["key"] for row in ROWS}) == len(ROWS)


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
    with pytest.raises(MachineError, match="ncu may not read the GPU's counters") as error:
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
