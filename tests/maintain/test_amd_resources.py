"""Reading the resources of AMD kernels from what the script keeps of clang's assembly."""

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.base.process import run
from fattn_probe.cases.device.resources import AmdResources
from maintain.amd_resources import EXTRACT, read_assembly
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
FOUND = {"_Z4fullv": AmdResources(100, 32, 46, 2304, 112, 5), "_Z5emptyv": None}


def test_figures_and_kernels_without_code():
    assert dict(read_assembly(ASSEMBLY)) == FOUND


def test_the_extract_has_all_that_is_read(tmp_path):
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
