"""The simulator's lines as counts, the formula beside them, and how both are shown."""

import json
from dataclasses import replace
from typing import Any

import pytest

from fattn_probe.base.errors import ComparisonError, InputError, LostError, MachineError
from fattn_probe.cases.device import Target, load_devices
from fattn_probe.cases.device.origin import MEASURED, UNKNOWN, Method, Origin, legend
from fattn_probe.cases.op import Op, Params, Sizes
from fattn_probe.lab.profile import counts
from fattn_probe.lab.profile.command import check_targets, formula_traffic, known, reason
from fattn_probe.lab.profile.counts import Counts, Profile, Traffic, counts_of, read_counts
from fattn_probe.lab.profile.show import document, render
from fattn_probe.llama.launch.record import LaunchRecord, parse_launch
from fattn_probe.machine.run.outcome import Finding, Lost, Unsupported
from tests.made import shown

KERNEL = "flash_attn_ext_f16<64,64,8,8,false,false,false>"
NAMES = {"flash_attn_ext_f16": ("DKQ", "DV", "ncols1", "ncols2", "use_logit_softcap", "V_is_K_view", "use_sparse")}
LAUNCH = parse_launch(
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
    (found,) = read_counts(tmp_path / "counts", [LAUNCH])
    assert found.values["tensor_flops"] == 1
    assert read_counts(tmp_path / "missing", [LAUNCH]) == ()


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


def test_a_launch_of_another_kernel_has_no_formula():
    op = Op.contiguous(SIZES, Params(0.125), ("f16", "f16"))
    other = LaunchRecord(0, "flash_attn_combine_results", (("D", "64"),), (1, 1, 1), (64, 1, 1), 0)
    assert formula_traffic(op, [other]) == ()
    assert "mask" not in {one.tensor for one in formula_traffic(op, [other, LAUNCH])}


def test_what_ncu_counts_gets_the_recorded_launch_of_the_same_kernel():
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
    devices = {"gpu:0": None, "sim:h200": load_devices()["h200"]}
    return [("case", profiles)], devices


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
    done, devices = [("case", (profile,))], {"sim:h200": load_devices()["h200"]}
    text = " ".join(shown(render(done, devices)).split())
    assert said in text
    assert all((line in text) is (regs is not None) for line in legend([origin]))
    rests = f"the grid, and with it counts, bytes and roofline, rest on an occupancy that is not known ({origin.mark})"
    assert (rests in text) is (not origin.known)
    (found,) = document(done, devices)["profiles"]
    assert found["division_origin"] == found["launches"][0]["origin"] == str(origin)
    assert found["launches"][0]["occupancy"]["origin"] == str(origin)


def test_a_gpu_of_unknown_peaks_is_named_as_such():
    done, devices = both()
    text = shown(render(done, {**devices, "sim:h200": load_devices()["gb10"]}))
    assert "no roofline: the peak rates of this GPU are not known" in text
    assert "no roofline" not in shown(render(*both()))


def test_two_targets_have_columns_and_their_ratio():
    lines = {
        line.split("  ")[0].strip(): line.split()[-3:]
        for line in shown(render(*both()), width=100).splitlines()
        if line.strip()
    }
    assert lines["tensor instructions"] == ["2", "2", "1.000"]
    assert lines["ldmatrix"] == ["8", "7", "0.875"]
    assert lines["shared wavefronts"] == ["100", "43", "0.430"]
    assert "limited by registers" in shown(render(*both()), width=100)


def test_a_narrow_terminal_cuts_nothing_off():
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
    with pytest.raises(InputError, match=r"profile --on sim:mi50: .* by NVIDIA's rules only"):
        check_targets([Target("sim", load_devices()[name]) for name in ("h200", "mi50")])
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(counts, "cuda_roots", lambda: iter(()))
    with pytest.raises(MachineError, match=r"ncu .* is not installed"):
        check_targets([Target("cuda")])
    check_targets([Target("sim", load_devices()["h200"])])
