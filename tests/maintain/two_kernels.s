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
