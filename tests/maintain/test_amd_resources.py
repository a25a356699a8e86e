"""Reading the resources of AMD kernels from what the script keeps of clang's assembly."""

import csv

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.base.process import run
from fattn_probe.cases.device import Resources, figures_of
from maintain.amd_resources import EXTRACT, TABLE, merge_amd, read_assembly
from maintain.rocm import isa_version

ASSEMBLY = """\
	.p2align	8                               ; -- Begin function _Z4fullv
_Z4fullv:
	s_endpgm
; Occupancy: 5
; WaveLimiterHint : 1
	.p2align	8                               ; -- Begin function _Z5emptyv
	s_getpc_b64 s[2:3]
	s_add_u32 s2, s2, _ZL14no_device_codePKciS0_iS0_@rel32@lo+4
; Occupancy: 8
	.p2align	2                               ; -- Begin function _ZL14no_device_codePKciS0_iS0_
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     32
    .args:
      - .offset:         0
        .size:           8
    .group_segment_fixed_size: 2304
    .kernarg_segment_size: 440
    .name:           _Z4fullv
    .private_segment_fixed_size: 112
    .sgpr_count:     46
    .symbol:         _Z4fullv.kd
    .vgpr_count:     100
    .vgpr_spill_count: 0
  - .args:           []
    .group_segment_fixed_size: 0
    .name:           _Z5emptyv
    .private_segment_fixed_size: 192
    .sgpr_count:     36
    .vgpr_count:     54
...
	.end_amdgpu_metadata
"""
FOUND = {"_Z4fullv": "100/32/46/2304/112/5", "_Z5emptyv": "-"}


def test_figures_and_the_extract_has_all_that_is_read(tmp_path):
    assert dict(read_assembly(ASSEMBLY)) == FOUND
    (tmp_path / "whole.s").write_text(ASSEMBLY)
    extract = run(["sed", "-n", EXTRACT, tmp_path / "whole.s"]).stdout
    assert len(extract.splitlines()) < len(ASSEMBLY.splitlines())
    assert dict(read_assembly(extract)) == FOUND


def test_an_empty_file_is_an_error():
    with pytest.raises(InputError, match="no kernel"):
        list(read_assembly("clang: error\n"))


@pytest.mark.parametrize(
    ("gfx", "number"), [("gfx906", 9006), ("gfx90a", 9010), ("gfx1151", 11501), ("gfx1201", 12001)]
)
def test_the_device_library_s_number(gfx, number):
    assert isa_version(gfx) == number


def test_a_column_of_amd_s_table_is_added_and_replaced(tmp_path):
    table, full = tmp_path / "amd.csv", "100/0/46/2304/0/12"
    table.write_text(merge_amd(11549, "gfx1100", {"a<1,2>": full, "b": "-"}, table))
    table.write_text(merge_amd(11549, "gfx90a", {"b": full}, table))
    assert table.read_text().splitlines() == [
        "kernel,11549/gfx1100,11549/gfx90a",
        '"a<1,2>",100/0/46/2304/0/12,',
        "b,-,100/0/46/2304/0/12",
    ]
    table.write_text(merge_amd(11549, "gfx1100", {"b": full}, table))
    assert table.read_text().splitlines()[1:] == ['"a<1,2>",,', f"b,{full},{full}"]


def test_vector_registers_limit_the_waves_of_amds_attention_kernels_and_scalar_registers_do_not():
    """A SIMD of GCN and CDNA has 800 scalar registers, and gives a wave 16 at a time; RDNA has enough for all waves."""
    rows = list(csv.DictReader(TABLE.read_text().splitlines()))
    for gfx, registers, unit in (("gfx906", 256, 4), ("gfx908", 256, 4), ("gfx90a", 512, 8), ("gfx942", 512, 8)):
        cells = {row["kernel"]: row[f"11549/{gfx}"] for row in rows if "mask_to" not in row["kernel"]}
        kernels = {name: list(map(int, cell.split("/"))) for name, cell in cells.items() if cell.strip("-")}
        used = figures_of(gfx, "11549")
        assert len(kernels) > 1_000
        for name, (vgprs, _, sgprs, shared, local, _) in kernels.items():
            assert 800 // (-(-sgprs // 16) * 16) >= min(8, registers // (-(-vgprs // unit) * unit))
            assert used[name].resources == Resources(vgprs, shared, local)
